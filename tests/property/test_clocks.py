"""Two servers, two clocks, owners that are paused anywhere: what the proofs of a registry elsewhere
are worth (docs/adr/0014). No SQL: the protocol on a page, in any order of its steps.

Real time is what `tick` says; each server's clock is real time and an offset. All in milliseconds.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from hypothesis import given, settings
from hypothesis import strategies as st

TTL, LONGEST_PROOF, TOLERANCE = 1000, 600, 100
OWNERS = ("a", "b")
#: The more often named, the more often drawn.
ACTIONS = [
    *["prove", "apply", "look", "tick"] * 2,
    *["request", "renew", "release", "advance", "land"],
]


@dataclass
class Lease:
    fence: int
    ends_at: int
    released: bool = False


@dataclass
class Worker:
    """What an owner has in its hands; nothing of it changes while it is paused."""

    lease: Lease | None = None
    proof: tuple[int, int, int] | None = None  # fence, issued at, valid until


@dataclass
class World:
    """registry, resource: how far their clocks are ahead. tolerance: what is taken off a proof."""

    registry: int
    resource: int
    tolerance: int = TOLERANCE
    successors_advance: bool = True
    now: int = 1_000_000
    issued: int = 0
    current: Lease | None = None
    highest: int = 0
    #: The open transaction that has the fence row: whose, fence, end, and whether past its look.
    row: tuple[str, int, int, bool] | None = None
    workers: dict[str, Worker] = field(default_factory=lambda: {o: Worker() for o in OWNERS})
    leases: dict[int, Lease] = field(default_factory=dict)
    #: The highest fence whose owner has read what it goes on from.
    read: int = 0
    stale_writes: int = 0
    late_admissions: int = 0

    def take(self, action: str, owner: str, by: int) -> None:
        if action == "tick":
            self.now += by
        else:
            getattr(self, action)(self.workers[owner], owner)

    # At the registry

    def _held(self, lease: Lease | None) -> bool:
        clock = self.now + self.registry
        return lease is not None and not lease.released and clock < lease.ends_at

    def request(self, worker: Worker, owner: str) -> None:
        if self._held(self.current):
            return
        self.issued += 1
        lease = Lease(self.issued, self.now + self.registry + TTL)
        self.current = worker.lease = self.leases[self.issued] = lease
        if not self.successors_advance:
            self.read = lease.fence

    def renew(self, worker: Worker, owner: str) -> None:
        if worker.lease is not None and self._held(worker.lease):
            worker.lease.ends_at = self.now + self.registry + TTL

    def prove(self, worker: Worker, owner: str) -> None:
        if worker.lease is not None and self._held(worker.lease):
            clock = self.now + self.registry
            until = min(worker.lease.ends_at, clock + LONGEST_PROOF)
            worker.proof = (worker.lease.fence, clock, until)

    def release(self, worker: Worker, owner: str) -> None:
        if worker.lease is not None and self._held(worker.lease):
            worker.lease.released = True

    # At the resource

    def _shown(self, worker: Worker) -> tuple[int, int] | None:
        """Fence and end of a proof that is good now and not stale, if the row can be had."""
        if worker.proof is None or self.row is not None:
            return None
        fence, issued_at, until = worker.proof
        clock = self.now + self.resource
        if not issued_at - self.tolerance <= clock < until - self.tolerance:
            return None
        return (fence, until - self.tolerance) if fence >= self.highest else None

    def advance(self, worker: Worker, owner: str) -> None:
        shown = self._shown(worker)
        if shown is not None:
            self._check_time(shown[0])
            self.highest = self.read = shown[0]

    def apply(self, worker: Worker, owner: str) -> None:
        shown = self._shown(worker)
        if shown is not None:
            self._check_time(shown[0])
            self.row = (owner, *shown, False)

    def _check_time(self, fence: int) -> None:
        """What is admitted on the strength of a proof belongs to a lease that has not ended."""
        lease = self.leases[fence]
        if not lease.released and self.now + self.registry >= lease.ends_at:
            self.late_admissions += 1

    def look(self, worker: Worker, owner: str) -> None:
        """The look at COMMIT: too late, and all is undone."""
        if self.row is None or self.row[0] != owner or self.row[3]:
            return
        _, fence, until, _ = self.row
        if self.now + self.resource >= until:
            self.row = None
        else:
            self._check_time(fence)
            self.row = (owner, fence, until, True)

    def land(self, worker: Worker, owner: str) -> None:
        """COMMIT takes effect, however long after its look."""
        if self.row is None or self.row[0] != owner or not self.row[3]:
            return
        fence, self.row = self.row[1], None
        self.highest = fence
        if fence < self.read:
            self.stale_writes += 1


steps = st.lists(
    st.tuples(st.sampled_from(ACTIONS), st.sampled_from(OWNERS), st.integers(1, 700)),
    max_size=60,
)
within = st.integers(-TOLERANCE // 2, TOLERANCE // 2)
anyhow = st.integers(-5 * TTL, 5 * TTL)


def live(world: World, history: list[tuple[str, str, int]]) -> World:
    for step in history:
        world.take(*step)
    return world


@settings(max_examples=500)
@given(within, within, steps)
def test_r13_within_the_tolerance_nothing_is_admitted_after_the_end_of_its_lease(
    registry: int, resource: int, history: list[tuple[str, str, int]]
) -> None:
    world = live(World(registry, resource), history)
    assert (world.late_admissions, world.stale_writes) == (0, 0)


@settings(max_examples=500)
@given(anyhow, anyhow, steps)
def test_r51_whatever_the_clocks_say_nothing_changes_that_a_successor_has_read(
    registry: int, resource: int, history: list[tuple[str, str, int]]
) -> None:
    assert live(World(registry, resource), history).stale_writes == 0


#: An owner looks at COMMIT in time, and is paused; its successor reads; the COMMIT lands.
PAUSED = [
    ("request", "a", 0), ("prove", "a", 0), ("apply", "a", 0), ("look", "a", 0),
    ("tick", "", TTL), ("request", "b", 0), ("prove", "b", 0), ("advance", "b", 0),
    ("land", "a", 0),
]  # fmt: skip
#: A proof is used when the lease ended 10 ms ago on the registry's clock.
LATE = [
    ("request", "a", 0), ("tick", "", 450), ("prove", "a", 0), ("tick", "", 560), ("apply", "a", 0)
]  # fmt: skip


def test_control_a_successor_that_reads_without_advancing_sees_it_change() -> None:
    assert live(World(0, 0), PAUSED).stale_writes == 0
    assert live(World(0, 0, successors_advance=False), PAUSED).stale_writes == 1


def test_control_without_the_tolerance_or_beyond_it_a_late_owner_is_let_in() -> None:
    assert live(World(50, -50), LATE).late_admissions == 0
    assert live(World(50, -50, tolerance=0), LATE).late_admissions == 1
    assert live(World(100, -100), LATE).late_admissions == 1
