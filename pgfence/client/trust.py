"""The client's own look at a grant before it uses it (R54)."""

from collections.abc import Callable
from hashlib import sha256

from pgfence import tokens
from pgfence.errors import TokenRefusedError
from pgfence.model.bundle import TrustBundle
from pgfence.model.grant import Grant

#: Grants remembered at most; a worker has a few at a time.
_REMEMBERED = 256


class Verifier:
    """Verifies each grant once against one trust bundle; the expiry of its key every time (R4).

    `now_us` is the database's clock, so that a worker whose own clock is wrong is not refused.
    """

    def __init__(self, bundle: TrustBundle, now_us: Callable[[], int]) -> None:
        self._bundle = bundle
        self._now_us = now_us
        self._known: dict[bytes, tuple[Grant, int]] = {}

    def verify(self, token: str) -> Grant:
        """The grant in a token. Raises `TokenRefusedError`."""
        key = sha256(token.encode(errors="surrogatepass")).digest()
        if key in self._known:
            grant, good_until = self._known[key]
            if self._now_us() < good_until:
                return grant
        verified = tokens.verify(token, Grant.SCHEMA, self._bundle, self._now_us())
        grant = Grant.parse(verified.message)
        if grant.audience != self._bundle.audience:
            raise TokenRefusedError("WRONG_AUDIENCE", grant.audience)
        if len(self._known) >= _REMEMBERED:
            self._known.clear()
        self._known[key] = (grant, verified.key_expires_at)
        return grant
