"""ZooKeeper 3.5 or later, by kazoo.

Each request has an ephemeral node in a session of its own. The node with the lowest `czxid` holds,
and that is its token: the ensemble counts transactions up, and a new leader begins above them all.
The suffix of a sequential node is neither: it overflows, and begins anew with its parent.
"""

import threading
import uuid
from collections.abc import Callable
from contextlib import suppress
from typing import Any, NamedTuple

from kazoo.client import KazooClient, KazooState
from kazoo.exceptions import (
    ConnectionClosedError,
    ConnectionLoss,
    KazooException,
    NoNodeError,
    SessionExpiredError,
)
from kazoo.handlers.threading import KazooTimeoutError, SequentialThreadingHandler
from kazoo.retry import KazooRetry

from pgfence.clock import monotonic
from pgfence.coordinators.protocol import Capabilities, Claim, Holder, Patience, hosts
from pgfence.coordinators.session import Session
from pgfence.errors import (
    AcquireTimeoutError,
    ClaimLostError,
    InvalidArgumentError,
    LockServiceError,
)

CAPABILITIES = Capabilities("zookeeper", rising_tokens=True, linearizable=True)

#: What a URL is like.
_FORM = "zookeeper://HOST:2181,HOST:2181"
#: Seconds that connecting takes at most, and one answer.
_CONNECT, _ANSWER = 5.0, 2.0
#: The longest session that a client can ask for, in seconds; ensembles end them much sooner.
_LONGEST_SESSION = 86400.0
#: Seconds until a waiter looks again, also where nothing has told it to.
_LOOK = 5.0
#: Seconds between two attempts of a waiter that ZooKeeper does not answer.
_PAUSE = 0.1


class _Node(NamedTuple):
    """A node in the directory of a resource."""

    created: int
    name: str


def inspector(url: str) -> "ZooKeeperInspector":
    """The registry's side."""
    return ZooKeeperInspector(url)


def claimant(url: str) -> "ZooKeeperClaimant":
    """The worker's side."""
    _hosts(url)
    return ZooKeeperClaimant(url)


class _Handler(SequentialThreadingHandler):  # type: ignore[misc]  # kazoo has no types
    """Leaves a server that does not answer while the session still lasts long enough for another.

    ZooKeeper 3.8 keeps a connection open, and never answers on it, when it came while it started.
    """

    def __init__(self, longest: Callable[[], float]) -> None:
        super().__init__()
        self._longest = longest

    def create_connection(self, *arguments: Any, timeout: float, **more: Any) -> Any:
        return super().create_connection(*arguments, timeout=min(timeout, self._longest()), **more)


class Connection:
    """A connection to the ensemble, with a session of its own.

    url: `zookeeper://HOST:PORT,HOST:PORT`. ttl: seconds that the session shall last in silence.
    """

    def __init__(self, url: str, ttl: float) -> None:
        #: What the ensemble made of `ttl`: it has limits of its own.
        self.ttl = ttl
        self._client = KazooClient(
            hosts=_hosts(url),
            timeout=min(ttl, _LONGEST_SESSION),
            handler=_Handler(self._longest),
            connection_retry=KazooRetry(max_tries=-1, delay=0.05, max_delay=1.0),
        )
        self._watch_handshakes()
        self.listen = self._client.add_listener

    def _longest(self) -> float:
        """Seconds that one server gets before the next one is tried."""
        return min(_CONNECT, self.ttl / 4)

    def _watch_handshakes(self) -> None:
        # kazoo would give one server that accepts and stays silent as long as the session lasts.
        # It keeps the length of the session to itself: two thirds of it is how long it reads.
        handler = self._client._connection
        invoke, connect = handler._invoke, handler._connect

        def ask(timeout: float, *arguments: Any, **more: Any) -> Any:
            return invoke(min(timeout, self._longest()), *arguments, **more)

        def negotiate(*arguments: Any) -> tuple[float, float]:
            read_timeout, connect_timeout = connect(*arguments)
            self.ttl = read_timeout * 1.5 / 1000
            return read_timeout, connect_timeout

        handler._invoke, handler._connect = ask, negotiate

    def open(self) -> None:
        """Raises `LockServiceError` when the ensemble does not answer."""
        if not self._client.start_async().wait(_CONNECT):
            self.close()
            raise LockServiceError(f"zookeeper does not answer within {_CONNECT:.0f} s")

    def close(self) -> None:
        """End the session; an ensemble that does not answer is waited for as for any answer."""

        def close() -> None:
            with suppress(Exception):
                self._client.stop()
            with suppress(Exception):
                self._client.close()

        # kazoo says that it is connected until two thirds of the session have passed in silence,
        # and waits for as long.
        closing = threading.Thread(target=close, name="pgfence zookeeper", daemon=True)
        closing.start()
        if self._client.connected:
            closing.join(_ANSWER)

    def ask(self, question: str, *arguments: Any, within: float = _ANSWER, **more: Any) -> Any:
        """One question of kazoo's, by its name. Raises `LockServiceError`, and what kazoo raises
        of nodes and of a session that is over.
        """
        return _answer(getattr(self._client, f"{question}_async")(*arguments, **more), within)

    def nodes(self, directory: str) -> list[_Node]:
        """The nodes of a directory, the holder's first."""
        try:
            # A follower may be behind: it answers when it has all that the leader had.
            self.ask("sync", directory)
            names = self.ask("get_children", directory)
        except NoNodeError:
            return []
        asked = [(name, self._client.exists_async(f"{directory}/{name}")) for name in names]
        found = [(name, _answer(stat, _ANSWER)) for name, stat in asked]
        return sorted(_Node(stat.czxid, name) for name, stat in found if stat is not None)


class ZooKeeperInspector:
    """The registry's side."""

    capabilities = CAPABILITIES

    def __init__(self, url: str) -> None:
        self._url = url
        self._connection: Connection | None = None
        _hosts(url)

    def holder(self, directory: str) -> Holder | None:
        """The node that was created first."""
        try:
            if self._connection is None:
                connection = Connection(self._url, 10.0)
                connection.open()
                self._connection = connection
            return self._first(self._connection, directory)
        except (LockServiceError, SessionExpiredError) as error:
            # An ensemble that was put back to an earlier state takes no session that has seen more.
            self.close()
            raise LockServiceError(f"zookeeper is asked anew after: {error!r}") from error

    def _first(self, connection: Connection, directory: str) -> Holder | None:
        for node in connection.nodes(directory):
            with suppress(NoNodeError):
                value, _ = connection.ask("get", f"{directory}/{node.name}")
                # A node that a stranger made may have no data.
                return Holder((value or b"").decode(errors="replace"), node.created)
        return None

    def close(self) -> None:
        """Close its connections."""
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()


class ZooKeeperClaimant:
    """The worker's side."""

    capabilities = CAPABILITIES
    waits = True

    def __init__(self, url: str) -> None:
        self._url = url

    def claim(self, directory: str, value: str, ttl: float, patience: Patience) -> Claim:
        """A session, a node in it, and the wait for the node before it."""
        claim = ZooKeeperClaim(Connection(self._url, ttl))
        try:
            claim.wait(directory, value, patience)
        except BaseException:
            claim.release()
            raise
        return claim


class ZooKeeperClaim(Session):
    """A session and the node in it."""

    def __init__(self, connection: Connection) -> None:
        self.token = 0
        self._zookeeper = connection
        self._path: str | None = None
        asked_at = monotonic()
        connection.open()
        super().__init__(connection.ttl)
        connection.listen(self._hear)
        self.begin(asked_at)

    def _hear(self, state: str) -> bool:
        """What kazoo says of the connection; True when nothing more is to be heard."""
        if state == KazooState.SUSPENDED:
            self.doubt()
        elif state == KazooState.LOST:
            self.end()
        return bool(state == KazooState.LOST)

    def wait(self, directory: str, value: str, patience: Patience) -> None:
        """Make the node, and return when it is the first one."""
        prefix = f"{uuid.uuid4().hex}-"

        def wake(*_: object) -> None:
            patience.wake()

        while True:
            self.check(directory)
            problem = "another session holds it"
            try:
                self._path = self._path or self._make(directory, prefix, value)
                if self._is_first(directory, wake):
                    return
                patience.sleep(min(_LOOK, self.ttl / 3))
            except LockServiceError as error:
                problem = str(error)
                patience.complain(directory, problem)
                patience.sleep(_PAUSE)
            except SessionExpiredError:
                self.end()
            except NoNodeError:
                problem = "somebody deletes its nodes"
                patience.complain(directory, problem)
                patience.sleep(_PAUSE)
            if not patience.left():
                raise AcquireTimeoutError(f"{directory} did not become ours in time: {problem}")

    def _make(self, directory: str, prefix: str, value: str) -> str:
        """The path of our node; one whose answer was lost is found by its prefix."""
        for node in self._zookeeper.nodes(directory):
            if node.name.startswith(prefix):
                return f"{directory}/{node.name}"
        self._zookeeper.ask("ensure_path", directory)
        path = self._zookeeper.ask(
            "create", f"{directory}/{prefix}", value.encode(), ephemeral=True, sequence=True
        )
        return str(path)

    def _is_first(self, directory: str, wake: Callable[..., object]) -> bool:
        """Whether ours is the first node; else `wake` is called when the one before it goes.

        The same look shows that ours is still there. wake: the same at every look, as kazoo keeps
        each one that it is given until the node changes.
        """
        before = None
        for node in self._zookeeper.nodes(directory):
            path = f"{directory}/{node.name}"
            if path != self._path:
                before = path
            elif before is None:
                self.token = node.created
                return True
            else:
                if self._zookeeper.ask("exists", before, watch=wake) is None:
                    wake()
                return False
        self.end()
        raise ClaimLostError(f"the session at zookeeper ended while it waited for {directory}")

    def release(self) -> None:
        """End the session, and the node with it."""
        self.stop()
        self.end()
        self._zookeeper.close()

    def _prolong(self) -> float | None:
        # sync goes through the leader, who is the one that ends sessions.
        within = min(_ANSWER, self.ttl / 4)
        try:
            self._zookeeper.ask("sync", "/", within=within)
            path = self._path
            if path and self._zookeeper.ask("exists", path, within=within) is None:
                return None
        except (NoNodeError, SessionExpiredError):
            return None
        return self._zookeeper.ttl


def _answer(asked: Any, within: float) -> Any:
    """What a question of kazoo's is answered with; raises what `Connection.ask` does."""
    try:
        return asked.get(timeout=within)
    except (NoNodeError, SessionExpiredError):
        raise
    except (KazooException, KazooTimeoutError) as error:
        silent = isinstance(error, KazooTimeoutError | ConnectionLoss | ConnectionClosedError)
        said = "does not answer" if silent else "refuses"
        reason = str(error) or type(error).__name__
        raise LockServiceError(f"zookeeper {said}: {reason}") from error


def _hosts(url: str) -> str:
    found = hosts(url, _FORM, 2181)
    if "@" in url or "?" in url:
        raise InvalidArgumentError(f"a URL of ZooKeeper has hosts and nothing else: {_FORM}")
    return ",".join(found)
