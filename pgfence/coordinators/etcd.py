"""etcd 3.4 or later, by its JSON gateway.

Each request has a key under a lease of its own. The key with the lowest `create_revision` in the
directory holds, and that revision is its token: the cluster counts them up, one for each write.
"""

import base64
import json
import logging
import ssl
from collections.abc import Mapping
from math import ceil
from typing import Any, NamedTuple
from urllib.parse import parse_qsl, unquote, urlsplit

import httpx

from pgfence.clock import monotonic
from pgfence.coordinators.protocol import (
    Capabilities,
    Claim,
    Holder,
    Patience,
    Standing,
    hosts,
)
from pgfence.coordinators.session import Session
from pgfence.errors import (
    AcquireTimeoutError,
    ClaimLostError,
    InvalidArgumentError,
    LockServiceError,
)

CAPABILITIES = Capabilities("etcd", rising_tokens=True, linearizable=True)

_log = logging.getLogger("pgfence.coordinators")

#: Seconds that a member gets to answer a worker.
_ANSWER = 2.0
#: Seconds until a waiter looks again, also where nothing has told it to.
_LOOK = 2.0
#: Seconds between two attempts of a waiter that etcd does not answer.
_PAUSE = 0.1
#: What a URL is like.
_FORM = "etcd://HOST:2379,HOST:2379"
#: What may follow it, with TLS.
_TLS_OPTIONS = ("ca", "cert", "key")
#: gRPC's codes for a lease that does not exist, and for a token that is no good.
_NOT_FOUND, _UNAUTHENTICATED = 5, 16
#: How it says that under the code of any argument.
_WITHOUT_LOGIN = ("user name is empty", "authentication failed", "revision of auth store is old")


class _NoLeaseError(LockServiceError):
    """etcd has no such lease: it is over. Every other refusal is a reason to ask again."""


class _NotLoggedInError(LockServiceError):
    """etcd wants a login, or another one: tokens end, and with every change of users."""


class _Key(NamedTuple):
    """A key as a range answered it."""

    name: str
    value: str
    created: int


class Gateway:
    """The members of an etcd cluster, asked one after the other until one answers.

    url: `etcd://HOST:PORT,HOST:PORT`, or `etcds://…` for TLS, with `?ca=FILE` for an authority of
    one's own and `cert=FILE&key=FILE` for a client's certificate; `USER:PASSWORD@` before the hosts
    where users log in. Every call may be sent twice.
    within: seconds that a member gets to answer before the next one is asked.
    """

    def __init__(self, url: str, within: float = _ANSWER) -> None:
        self._within = within
        named = hosts(url, _FORM, 2379)
        parts = urlsplit(url)
        scheme = "https" if parts.scheme == "etcds" else "http"
        self._members = [f"{scheme}://{host}" for host in named]
        # A proxy for the web, which the environment may name, is not between us.
        self._client = httpx.Client(verify=_tls(scheme, parts.query), trust_env=False)
        self.members = len(self._members)
        self._preferred = 0
        user, _, password = parts.netloc.rpartition("@")[0].partition(":")
        self._login = {"name": unquote(user), "password": unquote(password)} if user else None
        #: What the login gave; not a word of it while nobody asks for one.
        self._headers: dict[str, str] = {}

    def close(self) -> None:
        """Close the idle connections."""
        self._client.close()

    def call(
        self, path: str, body: Mapping[str, Any], within: float | None = None
    ) -> dict[str, Any]:
        """One question. Raises `LockServiceError` when no member answers, or its likes above."""
        failed = LockServiceError("etcd was not asked")
        for _ in self._members:
            member = self._members[self._preferred]
            try:
                return self._ask(member, path, body, within or self._within)
            except _NoLeaseError:
                raise
            except httpx.HTTPError as error:
                reason = str(error) or type(error).__name__
                failed = LockServiceError(f"etcd does not answer: {member}: {reason}")
            except LockServiceError as error:
                failed = type(error)(f"etcd refuses: {member}: {error}")
            self._preferred = (self._preferred + 1) % len(self._members)
        raise failed

    def _ask(
        self, member: str, path: str, body: Mapping[str, Any], within: float
    ) -> dict[str, Any]:
        """One question to one member; after a login where it asks for one."""
        try:
            return self._post(member, path, body, within)
        except _NotLoggedInError:
            if self._login is None:
                raise
        answer = self._post(member, "auth/authenticate", self._login, within)
        self._headers = {"Authorization": answer["token"]}
        return self._post(member, path, body, within)

    def _post(
        self, member: str, path: str, body: Mapping[str, Any], within: float
    ) -> dict[str, Any]:
        url = f"{member}/v3/{path}"
        return _read(self._client.post(url, json=body, headers=self._headers, timeout=within).text)

    def keys(
        self, directory: str, order: str, limit: int, up_to: int = 0
    ) -> tuple[list[_Key], int]:
        """Keys of a directory by their creation, and the revision of this read.

        The read is linearizable: it goes through the leader and a quorum. up_to: no key that was
        created later.
        """
        answer = self.call(
            "kv/range",
            {
                "key": _encode(f"{directory}/"),
                "range_end": _encode(f"{directory}0"),  # "0" follows "/"
                "sort_order": order,
                "sort_target": "CREATE",
                "limit": limit,
                "max_create_revision": up_to,
            },
        )
        return [_key(kv) for kv in answer.get("kvs", [])], int(answer["header"]["revision"])

    def wait_for_deletion(self, key: str, revision: int, within: float) -> None:
        """Return when the key is deleted, at a revision or later, or after so many seconds."""
        member = self._members[self._preferred]
        watch = {
            "create_request": {
                "key": _encode(key), "start_revision": revision, "filters": ["NOPUT"],
            }
        }  # fmt: skip
        timeout = httpx.Timeout(_ANSWER, read=max(0.05, within))
        try:
            with self._client.stream(
                "POST", f"{member}/v3/watch", json=watch, headers=self._headers, timeout=timeout
            ) as lines:
                for line in lines.iter_lines():
                    said = _read(line).get("result", {})
                    if said.get("events") or said.get("canceled"):
                        return
        except httpx.ReadTimeout:
            return
        except httpx.HTTPError as error:
            raise LockServiceError(f"etcd does not answer: {member}: {error}") from error


def inspector(url: str) -> "EtcdInspector":
    """The registry's side."""
    return EtcdInspector(Gateway(url, within=1.0))


def claimant(url: str) -> "EtcdClaimant":
    """The worker's side."""
    return EtcdClaimant(url)


class EtcdInspector:
    """The registry's side."""

    capabilities = CAPABILITIES

    def __init__(self, etcd: Gateway) -> None:
        self._etcd = etcd

    def holder(self, directory: str) -> Holder | None:
        """The key that was created first."""
        keys, _ = self._etcd.keys(directory, "ASCEND", 1)
        return Holder(keys[0].value, keys[0].created) if keys else None

    def close(self) -> None:
        """Close its connections."""
        self._etcd.close()


class EtcdClaimant:
    """The worker's side."""

    capabilities = CAPABILITIES
    waits = True

    def __init__(self, url: str) -> None:
        Gateway(url).close()
        self._url = url

    def claim(self, directory: str, value: str, ttl: float, patience: Patience) -> Claim:
        """A lease, a key under it, and the wait for the key before it."""
        claim = EtcdClaim(Gateway(self._url), ttl)
        try:
            claim.wait(directory, value, patience)
        except BaseException:
            claim.release()
            raise
        return claim


class EtcdClaim(Session):
    """A lease and the key under it."""

    def __init__(self, etcd: Gateway, ttl: float) -> None:
        self._etcd = etcd
        self.token = 0
        #: Our key, once it was put, and its create_revision.
        self._put_key: tuple[str, int] | None = None
        asked_at = monotonic()
        try:
            # Granted twice when the first answer was lost: the other lease has no key, and ends.
            granted = etcd.call("lease/grant", {"TTL": ceil(ttl)})
        except BaseException:
            etcd.close()
            raise
        self._lease = int(granted["ID"])
        super().__init__(float(granted["TTL"]))
        self.begin(asked_at)

    def wait(self, directory: str, value: str, patience: Patience) -> None:
        """Put the key, and return when it is the first one."""
        key = f"{directory}/{self._lease:016x}"
        while True:
            self.check(directory)
            problem = "another session holds it"
            try:
                if self._put_key is None:
                    self._put_key = key, self._put(key, value)
                _, mine = self._put_key
                before, revision = self._before(key, directory, mine)
                if before is None:
                    self.token = mine
                    return
                if wait := min(_LOOK, self.ttl / 3, patience.left()):
                    self._etcd.wait_for_deletion(before, revision + 1, wait)
            except _NoLeaseError:
                self.end()
                continue
            except _NotLoggedInError:
                raise  # waiting does not help
            except LockServiceError as error:
                problem = str(error)
                patience.complain(directory, problem)
                patience.sleep(_PAUSE)
            if not patience.left():
                raise AcquireTimeoutError(f"{directory} did not become ours in time: {problem}")

    def _put(self, key: str, value: str) -> int:
        """The key's create_revision; putting it again changes nothing."""
        put = {"key": _encode(key), "value": _encode(value), "lease": self._lease}
        get = {"request_range": {"key": _encode(key)}}
        answer = self._etcd.call(
            "kv/txn",
            {
                "compare": [{"key": _encode(key), "target": "CREATE", "create_revision": 0}],
                "success": [{"request_put": put}, get],
                "failure": [get],
            },
        )
        (kv,) = answer["responses"][-1]["response_range"]["kvs"]
        return _key(kv).created

    def _before(self, key: str, directory: str, mine: int) -> tuple[str | None, int]:
        """The key before ours, and the revision of the read; None when ours is the first one.

        The same read shows that ours is still there.
        """
        keys, revision = self._etcd.keys(directory, "DESCEND", 2, up_to=mine)
        if not keys or (keys[0].name, keys[0].created) != (key, mine):
            self.end()
            raise ClaimLostError(f"the session at etcd ended while it waited for {directory}")
        return (keys[1].name if len(keys) > 1 else None), revision

    def release(self) -> None:
        """Revoke the lease, and the key with it."""
        self.stop()
        if self.standing() is not Standing.LOST:
            self.end()
            try:
                self._etcd.call("lease/revoke", {"ID": self._lease})
            except LockServiceError as error:
                _log.info("the lease at etcd ends by itself: %s", error)
        self._etcd.close()

    def _prolong(self) -> float | None:
        # Each of the two questions is asked of all members within a quarter of the lease, so that
        # both are answered, or in doubt, before it is over.
        within = min(_ANSWER, self.ttl / 4 / self._etcd.members)
        try:
            answer = self._etcd.call("lease/keepalive", {"ID": self._lease}, within)
        except _NoLeaseError:
            return None
        if self._put_key is not None and not self._stands(*self._put_key, within):
            return None
        # A lease that is over is answered without a TTL.
        return float(answer["result"].get("TTL", 0)) or None

    def _stands(self, key: str, created: int, within: float) -> bool:
        """Whether our key is there: an operator may delete it, and leave the lease."""
        found = self._etcd.call("kv/range", {"key": _encode(key)}, within).get("kvs", [])
        return [_key(kv).created for kv in found] == [created]


def _read(text: str) -> dict[str, Any]:
    """An answer of the gateway. 64-bit integers are strings in it, zero and false are left out.

    Raises `_NoLeaseError`, and `LockServiceError` for an answer that says to ask another member.
    """
    try:
        answer = json.loads(text)
    except ValueError:
        answer = None
    if not isinstance(answer, dict):
        raise LockServiceError(f"no answer of etcd's: {text[:100]!r}")
    # An error is a status, in a stream below `error`; its code has two names. Before 3.6 the
    # message stood in `error` as well.
    status = answer["error"] if isinstance(answer.get("error"), dict) else answer
    code = status.get("grpc_code", status.get("code"))
    if code is None:
        if "header" in answer or "result" in answer:
            return answer
        raise LockServiceError(f"no answer of etcd's: {text[:100]!r}")
    message = str(status.get("message"))
    if int(code) == _NOT_FOUND:
        raise _NoLeaseError(message)
    if int(code) == _UNAUTHENTICATED or any(words in message for words in _WITHOUT_LOGIN):
        raise _NotLoggedInError(message)
    raise LockServiceError(message)


def _key(kv: Mapping[str, str]) -> _Key:
    return _Key(_decode(kv["key"]), _decode(kv.get("value", "")), int(kv["create_revision"]))


def _encode(text: str) -> str:
    return base64.b64encode(text.encode()).decode()


def _decode(text: str) -> str:
    return base64.b64decode(text).decode(errors="replace")


def _tls(scheme: str, query: str) -> ssl.SSLContext | bool:
    options = dict(parse_qsl(query, keep_blank_values=True))
    allowed = _TLS_OPTIONS if scheme == "https" else ()
    if unknown := [name for name in options if name not in allowed]:
        raise InvalidArgumentError(
            f"a URL of etcd has no option {unknown[0]!r}: etcds:// takes ca, cert and key"
        )
    if scheme != "https":
        return False
    try:
        context = ssl.create_default_context(cafile=options.get("ca"))
        if "cert" in options:
            context.load_cert_chain(options["cert"], options.get("key"))
    except OSError as error:
        named = ", ".join(f"{name}={path}" for name, path in options.items())
        raise InvalidArgumentError(f"no TLS with {named}: {error.strerror or error}") from error
    return context
