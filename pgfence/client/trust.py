"""The client's own look at a grant before it uses it (R54)."""

import threading
from collections.abc import Callable
from hashlib import sha256

from pgfence import tokens
from pgfence.client import protocol
from pgfence.errors import TokenRefusedError
from pgfence.model.bundle import TrustBundle
from pgfence.model.grant import Grant
from pgfence.model.status import StatusProof

#: Grants remembered at most; a worker has a few at a time.
_REMEMBERED = 256


class Verifier:
    """Verifies each grant once against the trust bundle; the expiry of its key every time (R4).

    `now_us` is the database's clock, so that a worker whose own clock is wrong is not refused.
    Threads may share it.
    """

    def __init__(self, bundle: TrustBundle, now_us: Callable[[], int]) -> None:
        self._now_us = now_us
        self._lock = threading.Lock()
        self._trust = _Trust(bundle)

    def verify(self, token: str) -> Grant:
        """The grant in a token. Raises `TokenRefusedError`."""
        return self._trust.verify(token, self._now_us())

    def verify_proof(self, token: str, grant: Grant) -> StatusProof:
        """The status proof in a token, if it shows this grant (R54). Raises `TokenRefusedError`."""
        bundle = self._trust.bundle
        verified = tokens.verify(token, StatusProof.SCHEMA, bundle, self._now_us())
        proof = StatusProof.parse(verified.message)
        if proof.audience != bundle.audience:
            raise TokenRefusedError("WRONG_AUDIENCE", proof.audience)
        if proof.grant_digest != grant.digest:
            raise TokenRefusedError("STALE_STATUS", "OTHER_GRANT")
        return proof

    def follow(self) -> protocol.Steps[None]:
        """Trust the bundle that is in force now, if it follows from ours (R33).

        What was verified by the old one is verified again. Raises `BundleSplitError`, and what the
        database raises.
        """
        bundle = yield from protocol.follow(self._trust.bundle)
        with self._lock:
            # Whoever asked later may have got further.
            if bundle.version > self._trust.bundle.version:
                self._trust = _Trust(bundle)

    def lacks_key(self, token: str) -> bool:
        """Whether a token is refused only for its key, which a later bundle may have."""
        try:
            self.verify(token)
        except TokenRefusedError as refused:
            return refused.verdict == "UNKNOWN_KEY"
        return False


class _Trust:
    """A bundle, and the grants that were verified by it."""

    def __init__(self, bundle: TrustBundle) -> None:
        self.bundle = bundle
        self._known: dict[bytes, tuple[Grant, int]] = {}

    def verify(self, token: str, now_us: int) -> Grant:
        key = sha256(token.encode(errors="surrogatepass")).digest()
        if key in self._known:
            grant, good_until = self._known[key]
            if now_us < good_until:
                return grant
        verified = tokens.verify(token, Grant.SCHEMA, self.bundle, now_us)
        grant = Grant.parse(verified.message)
        if grant.audience != self.bundle.audience:
            raise TokenRefusedError("WRONG_AUDIENCE", grant.audience)
        if len(self._known) >= _REMEMBERED:
            self._known.clear()
        self._known[key] = (grant, verified.key_expires_at)
        return grant
