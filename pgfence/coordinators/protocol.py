"""What pgfence asks of a lock service: who may hold a resource, and a token that rises.

The two sides meet at the lock service and nowhere else. A worker has a `Claim`: a key in a session
of its own, which ends with the worker. The registry has an `Inspector`: it reads who holds, and
takes no worker's word for it. The key's value is the request: `REQUEST-ID OPERATION-ROOT`.
"""

import logging
import threading
from collections.abc import Callable
from enum import StrEnum
from typing import NamedTuple, Protocol
from urllib.parse import quote, urlsplit

from pgfence.errors import InvalidArgumentError

_log = logging.getLogger("pgfence.coordinators")


class Capabilities(NamedTuple):
    """What a coordinator gives.

    rising_tokens: each holder's token is higher than those of all before. linearizable: a read that
    begins after a write has ended sees it, whatever fails. Without both it chooses a candidate, no
    more (R40).
    """

    name: str
    rising_tokens: bool
    linearizable: bool


class Holder(NamedTuple):
    """Who holds a resource: the value of its key, and the key's token (0: it has none)."""

    claim: str
    token: int


class Standing(StrEnum):
    """How a worker's session at the lock service stands, as far as the worker can tell."""

    #: Confirmed, and its end is not reached.
    HELD = "HELD"
    #: The lock service has not answered: it may stand or not.
    UNKNOWN = "UNKNOWN"
    #: Over, by the lock service's word or by the worker's own clock. Final.
    LOST = "LOST"


class Claim(Protocol):
    """A worker's key that holds a resource, and the session that keeps it."""

    #: The key's token; 0 where it has none.
    token: int

    def standing(self) -> Standing:
        """How the session stands now, by the worker's own clock (R43)."""

    def listen(self, changed: Callable[[], object]) -> None:
        """Call `changed` from another thread whenever the standing has become another one."""

    def release(self) -> None:
        """Delete the key and end the session, or let it end by itself; never raises. Again:
        nothing.
        """


class Patience:
    """How long somebody waits for a lock service: until a time, or until told to give up.

    until: on the clock of `pgfence.clock.monotonic`.
    """

    def __init__(self, until: float, clock: Callable[[], float]) -> None:
        self._until = until
        self._clock = clock
        self._woken = threading.Event()
        self._said = ""
        #: Whether nobody waits any more.
        self.given_up = False

    def complain(self, about: str, problem: str) -> None:
        """Say why it takes so long, once, to whoever may be waiting for ever."""
        if problem != self._said:
            self._said = problem
            _log.warning("waiting for %s: %s", about, problem)

    def give_up(self) -> None:
        """Wait no longer."""
        self.given_up = True
        self._woken.set()

    def wake(self) -> None:
        """End a `sleep`, or the next one."""
        self._woken.set()

    def left(self) -> float:
        """Seconds that are left; 0 when it is over."""
        return 0.0 if self.given_up else max(0.0, self._until - self._clock())

    def sleep(self, seconds: float) -> None:
        """Wait so long, or as long as there is patience, or until woken."""
        self._woken.wait(min(seconds, self.left()))
        self._woken.clear()


class Claimant(Protocol):
    """The worker's side of a coordinator. Threads may share it.

    waits: whether its claims ask another service, so that claiming and releasing may take a while.
    """

    capabilities: Capabilities
    waits: bool

    def claim(self, directory: str, value: str, ttl: float, patience: "Patience") -> Claim:
        """Put a key into a directory and wait until it is the first one.

        ttl: seconds that the session lasts when its worker is silent.

        Raises `AcquireTimeoutError`; `ClaimLostError` when the session ended while it waited, so
        that nobody is told of a lock that is another's; `LockServiceError`.
        """


class Inspector(Protocol):
    """The registry's side of a coordinator."""

    capabilities: Capabilities

    def holder(self, directory: str) -> Holder | None:
        """Who holds a directory now, by a read that is linearizable where the service has one.

        Raises `LockServiceError`.
        """

    def close(self) -> None:
        """Close its connections."""


def directory(audience: str, resource: str) -> str:
    """Where the keys of a resource are: `/pgfence/AUDIENCE/RESOURCE`, each one step of a path.

    So that databases may share a lock service, and no resource lies within another one.
    """
    return "/pgfence/" + "/".join(_step(name) for name in (audience, resource))


def claim_of(request_id: str, operation_root: str) -> str:
    """What the key of a request holds: `claim` of `pgfence_registry.requests_to_inspect()`."""
    return f"{request_id} {operation_root}"


def hosts(url: str, form: str, port: int) -> list[str]:
    """The hosts that a URL names, `HOST:PORT` each. form: what such a URL is like. port: where it
    names none.

    Raises `InvalidArgumentError`, which does not repeat the URL: there may be a password in it.
    """
    try:
        parts = urlsplit(url)
        named = [host for host in parts.netloc.rpartition("@")[2].split(",") if host]
        read = [(host, urlsplit(f"//{host}")) for host in named]
        found = [host if at.port else f"{host}:{port}" for host, at in read]
        wrong = not found or not all(at.hostname for _, at in read)
    except ValueError:  # no port, or no address
        wrong = True
    if wrong or parts.path.strip("/") or parts.fragment:
        raise InvalidArgumentError(f"the coordinator's URL is not of the form {form}")
    return found


def _step(name: str) -> str:
    # ZooKeeper takes neither "." nor ".." for a step.
    return quote(name, safe="").replace(".", "%2E")
