"""Redis: a lock with a value and a TTL, which chooses a candidate and no more (R40).

It has no token that rises: a replica that is promoted, a restore or an eviction forgets keys and
counters alike. So two workers may hold its lock at once; the registry, which looks at the same
Redis, grants to one at a time and mints from its own sequence.
"""

import logging
import random
import secrets
from typing import Any

import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from pgfence.clock import monotonic
from pgfence.coordinators.protocol import Capabilities, Claim, Holder, Patience, Standing
from pgfence.coordinators.session import Session
from pgfence.errors import AcquireTimeoutError, InvalidArgumentError, LockServiceError

CAPABILITIES = Capabilities("redis", rising_tokens=False, linearizable=False)

_log = logging.getLogger("pgfence.coordinators")

#: Seconds that Redis gets to answer.
_ANSWER = 1.0
#: Seconds between two looks of a waiter: Redis wakes nobody.
_LOOK = 0.1
#: Sets the key if it is free, and prolongs it if it is ours: whoever asks twice, asks once.
_TAKE = """
    if redis.call('set', KEYS[1], ARGV[1], 'NX', 'PX', ARGV[2]) then return 1 end
    if redis.call('get', KEYS[1]) ~= ARGV[1] then return 0 end
    return redis.call('pexpire', KEYS[1], ARGV[2])
"""
_PROLONG = """
    if redis.call('get', KEYS[1]) ~= ARGV[1] then return 0 end
    return redis.call('pexpire', KEYS[1], ARGV[2])
"""
_DELETE = """
    if redis.call('get', KEYS[1]) ~= ARGV[1] then return 0 end
    return redis.call('del', KEYS[1])
"""


def inspector(url: str) -> "RedisInspector":
    """The registry's side."""
    return RedisInspector(_connect(url))


def claimant(url: str) -> "RedisClaimant":
    """The worker's side."""
    _connect(url).close()
    return RedisClaimant(url)


class RedisInspector:
    """The registry's side."""

    capabilities = CAPABILITIES

    def __init__(self, client: "redis.Redis") -> None:
        self._redis = client

    def holder(self, directory: str) -> Holder | None:
        """Whose value the key has; without a token."""
        try:
            value = self._redis.get(directory)
        except redis.RedisError as error:
            raise _failed(error) from error
        return None if value is None else Holder(str(value).rpartition(" ")[0], 0)

    def close(self) -> None:
        """Close its connections."""
        self._redis.close()


class RedisClaimant:
    """The worker's side."""

    capabilities = CAPABILITIES
    waits = True

    def __init__(self, url: str) -> None:
        self._url = url

    def claim(self, directory: str, value: str, ttl: float, patience: Patience) -> Claim:
        """Ask for the key until it is free."""
        claim = RedisClaim(_connect(self._url), directory, value, ttl)
        try:
            claim.wait(patience)
        except BaseException:
            claim.release()
            raise
        return claim


class RedisClaim(Session):
    """A key with a value that nobody else has. Who waits has no key, and so no session."""

    token = 0

    def __init__(self, client: "redis.Redis", directory: str, value: str, ttl: float) -> None:
        super().__init__(ttl)
        self._redis = client
        self._key = directory
        self._value = f"{value} {secrets.token_hex(8)}"

    def wait(self, patience: Patience) -> None:
        """Return when the key is ours."""
        while True:
            asked_at = monotonic()
            problem = "another session holds it"
            try:
                if self._run(_TAKE):
                    return self.begin(asked_at)
            except LockServiceError as error:
                problem = str(error)
                patience.complain(self._key, problem)
            patience.sleep(_LOOK * random.uniform(0.5, 1.0))  # noqa: S311
            if not patience.left():
                raise AcquireTimeoutError(f"{self._key} did not become ours in time: {problem}")

    def release(self) -> None:
        """Delete the key if it is ours, which it also may be when the answer to it was lost."""
        self.stop()
        if self.standing() is not Standing.LOST:
            self.end()
            try:
                self._run(_DELETE)
            except LockServiceError as error:
                _log.info("the key at redis ends by itself: %s", error)
        self._redis.close()

    def _prolong(self) -> float | None:
        return self.ttl if self._run(_PROLONG) else None

    def _run(self, script: str) -> bool:
        try:
            ttl_ms = round(self.ttl * 1000)
            return bool(self._redis.eval(script, 1, self._key, self._value, ttl_ms))
        except redis.RedisError as error:
            raise _failed(error) from error


def _failed(error: redis.RedisError) -> LockServiceError:
    refused = isinstance(error, redis.ResponseError | redis.AuthenticationError)
    return LockServiceError(f"redis {'refuses' if refused else 'does not answer'}: {error}")


def _connect(url: str) -> "redis.Redis":
    options: dict[str, Any] = {
        "decode_responses": True,
        # What a stranger has written may be anything.
        "encoding_errors": "replace",
        "socket_timeout": _ANSWER,
        "socket_connect_timeout": _ANSWER,
        # When to ask again is decided here.
        "retry": Retry(NoBackoff(), 0),
    }
    try:
        client = redis.Redis.from_url(url, **options)
        # It takes any option, and complains when it connects.
        pool = client.connection_pool
        pool.connection_class(**pool.connection_kwargs)
    except (ValueError, TypeError) as error:
        # Without the URL, which may have a password in it.
        raise InvalidArgumentError(
            f"the coordinator's URL is none of Redis, redis://:PASSWORD@HOST:6379/0: {error}"
        ) from error
    return client
