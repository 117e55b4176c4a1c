"""Section 3 of the contract in plain Python: no SQL, no I/O, no clock.

Time is what the test says it is: a lease is over when it was made to be. A transaction is a copy of
the state that is kept or thrown away.
"""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True)
class ModelGrant:
    """What a grant says, as far as the rules look; `lease` stands for all the rest."""

    resource: str
    owner: str
    lease: str
    root: str
    fence: int
    operation: str
    generation: int
    epoch: int
    genuine: bool = True


@dataclass
class ModelFence:
    """What the database keeps of one resource."""

    highest: int = 0
    highest_grant: ModelGrant | None = None
    last: int = 0
    issued: int = 0
    current: str | None = None
    current_epoch: int = 0
    paused: bool = False
    roots: set[str] = field(default_factory=set)
    receipts: dict[tuple[int, int], str] = field(default_factory=dict)


@dataclass
class Model:
    """The guarded database and its registry."""

    fences: dict[str, ModelFence] = field(default_factory=dict)
    leases: dict[str, str] = field(default_factory=dict)  # HELD, EXPIRED, RELEASED, SUPERSEDED
    issued: set[ModelGrant] = field(default_factory=set)
    generation: int = 1
    operations: frozenset[str] | None = None
    lowest_epoch: int = 1
    largest_step: int = 2**40

    def fence(self, resource: str) -> ModelFence:
        return self.fences.setdefault(resource, ModelFence())

    # The registry (R35 to R37)

    def may_grant(self, resource: str) -> bool:
        """Whether a new request is granted: nobody holds the resource now by a good epoch."""
        fence = self.fence(resource)
        if fence.current is None or self.leases[fence.current] != "HELD":
            return True
        return fence.current_epoch < self.lowest_epoch

    def granted(self, grant: ModelGrant) -> None:
        fence = self.fence(grant.resource)
        assert grant.fence > max(fence.issued, fence.highest)
        if fence.current is not None:
            self.leases[fence.current] = "SUPERSEDED"
        fence.issued, fence.current = grant.fence, grant.lease
        fence.current_epoch = grant.epoch
        self.leases[grant.lease] = "HELD"
        self.issued.add(grant)

    def expire(self, lease: str) -> None:
        if self.leases[lease] == "HELD":
            self.leases[lease] = "EXPIRED"

    def renew(self, grant: ModelGrant) -> str:
        """What the registry answers: a lease of a revoked epoch is over (R7)."""
        state = self.leases[grant.lease]
        return "EXPIRED" if state == "HELD" and grant.epoch < self.lowest_epoch else state

    def release(self, grant: ModelGrant) -> None:
        if self.leases[grant.lease] == "HELD":
            self.leases[grant.lease] = "RELEASED"
            self.fence(grant.resource).current = None

    def not_held(self, grant: ModelGrant) -> tuple[str, str] | None:
        """The refusal of a grant that is not shown to be held (R13)."""
        state = self.leases[grant.lease] if grant in self.issued else "UNKNOWN_GRANT"
        return None if state == "HELD" else ("NOT_HELD", state)

    # fenced_apply (R5 to R16) and, with segment None, advance (R21)

    def apply(
        self, grant: ModelGrant, caller: str, segment: int | None, payload: str = ""
    ) -> tuple[str, str | None]:
        """The verdict and its reason; changes the state when it accepts."""
        if not grant.genuine:
            return "BAD_SIGNATURE", "SIGNATURE"
        if caller != grant.owner:
            return "NOT_OWNER", None
        if grant.epoch < self.lowest_epoch:
            return "REVOKED_EPOCH", None
        if grant.generation != self.generation:
            return "STALE_POLICY", None
        if self.operations is not None and grant.operation not in self.operations:
            return "WRONG_OPERATION", None
        fence = self.fence(grant.resource)
        if fence.paused:
            return "PAUSED", None
        if grant.fence < fence.highest:
            return "STALE_OWNER", None
        rises = grant.fence > fence.highest
        if not rises:
            assert fence.highest_grant is not None
            if grant.root != fence.highest_grant.root:
                return "ROOT_MISMATCH", None
            if grant != fence.highest_grant:
                return "EQUIVOCATION", None
        elif grant.root in fence.roots:
            return "ROOT_MISMATCH", None
        if not rises and segment is not None and segment <= fence.last:
            same = fence.receipts[grant.fence, segment] == payload
            return ("REPLAYED" if same else "PAYLOAD_CONFLICT"), None
        not_held = self.not_held(grant)
        if not_held is not None:
            return not_held
        if grant.fence - fence.highest > self.largest_step:
            return "FENCE_STEP", None
        if segment is not None and segment != (1 if rises else fence.last + 1):
            return "SEGMENT_GAP", None
        if rises:
            fence.highest, fence.highest_grant, fence.last = grant.fence, grant, 0
            fence.roots.add(grant.root)
        if segment is None:
            return "ADVANCED", None
        fence.last = segment
        fence.receipts[grant.fence, segment] = payload
        return "ACCEPTED", None


@dataclass
class ElsewhereModel(Model):
    """With the registry elsewhere: what counts is the proof, which a release does not end."""

    ended: set[str] = field(default_factory=set)

    def expire(self, lease: str) -> None:
        super().expire(lease)
        self.ended.add(lease)

    def not_held(self, grant: ModelGrant) -> tuple[str, str] | None:
        if grant not in self.issued:
            return "STALE_STATUS", "OTHER_GRANT"
        return ("STALE_STATUS", "ENDED") if grant.lease in self.ended else None
