"""The client's own look at a grant (R54, R4)."""

from __future__ import annotations

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from pgfence import tokens
from pgfence.client.trust import Verifier
from pgfence.errors import TokenRefusedError
from pgfence.model.grant import Grant
from tests.token_cases import BUNDLE, GOLDEN, GRANT_KEY, NOW, SHORT_END, SHORT_KEY, UNKNOWN_KEY

CLAIMS = Grant.parse(GOLDEN["grant"]["message"].encode())


class Clock:
    """The database's clock, as the verifier asks it."""

    def __init__(self) -> None:
        self.now = NOW

    def __call__(self) -> int:
        return self.now


def signed(key: Ed25519PrivateKey) -> str:
    return tokens.sign(CLAIMS.encode(), Grant.SCHEMA, key)


def test_r54_a_genuine_grant_is_read() -> None:
    assert Verifier(BUNDLE, Clock()).verify(signed(GRANT_KEY)) == CLAIMS


def test_r4_a_grant_is_verified_once(monkeypatch: pytest.MonkeyPatch) -> None:
    verifier = Verifier(BUNDLE, Clock())
    grant = verifier.verify(signed(GRANT_KEY))
    monkeypatch.delattr(tokens, "verify")
    assert verifier.verify(signed(GRANT_KEY)) is grant


def test_r4_the_expiry_of_the_key_is_looked_at_every_time_by_the_database_s_clock() -> None:
    clock = Clock()
    verifier = Verifier(BUNDLE, clock)
    token = signed(SHORT_KEY)
    verifier.verify(token)
    clock.now = SHORT_END
    with pytest.raises(TokenRefusedError) as caught:
        verifier.verify(token)
    assert (caught.value.verdict, caught.value.reason) == ("UNKNOWN_KEY", "EXPIRED")


def test_r54_a_key_that_is_not_in_the_bundle_is_refused() -> None:
    with pytest.raises(TokenRefusedError, match="UNKNOWN_KEY"):
        Verifier(BUNDLE, Clock()).verify(signed(UNKNOWN_KEY))


def test_r5_a_grant_for_another_database_is_refused() -> None:
    other = tokens.sign(
        CLAIMS.encode().replace(b'"billing"', b'"payroll"'), Grant.SCHEMA, GRANT_KEY
    )
    with pytest.raises(TokenRefusedError, match="WRONG_AUDIENCE"):
        Verifier(BUNDLE, Clock()).verify(other)


@pytest.mark.parametrize("token", ["", "v4.public.x", "\ud800", "é"], ids=ascii)
def test_r3_what_is_no_token_is_malformed(token: str) -> None:
    with pytest.raises(TokenRefusedError, match="MALFORMED"):
        Verifier(BUNDLE, Clock()).verify(token)


def test_many_grants_do_not_fill_the_memory() -> None:
    verifier = Verifier(BUNDLE, Clock())
    for number in range(300):
        message = CLAIMS.encode().replace(b'"lease-91"', b'"lease-%d"' % number)
        verifier.verify(tokens.sign(message, Grant.SCHEMA, GRANT_KEY))
    assert len(verifier._trust._known) <= 256
