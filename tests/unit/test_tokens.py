"""Tokens, grants and status proofs in Python (R1-R5). In SQL: tests/sql/test_tokens_sql.py."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path

import pyseto
import pytest
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
)

from pgfence import tokens
from pgfence.errors import InvalidArgumentError, KeyFileError, TokenRefusedError
from pgfence.model import signature
from pgfence.model.canonical import Claims
from pgfence.model.grant import Grant, operation_root
from pgfence.model.status import StatusProof
from tests import token_cases as cases

KINDS = [("grant", Grant, cases.GRANT_KEY), ("status", StatusProof, cases.STATUS_KEY)]


@pytest.mark.parametrize(("name", "kind", "key"), KINDS)
def test_r2_golden_token_is_made_byte_for_byte(
    name: str, kind: type[Claims], key: Ed25519PrivateKey
) -> None:
    golden = cases.GOLDEN[name]
    claims = kind.parse(golden["message"].encode())
    assert claims.encode().decode() == golden["message"]
    assert tokens.sign(claims.encode(), kind.SCHEMA, key) == golden["token"]
    assert signature.key_id(signature.raw_public_key(key)) == golden["kid"]


@pytest.mark.parametrize(("name", "kind", "key"), KINDS)
def test_r2_golden_token_verifies_and_says_its_claims(
    name: str, kind: type[Claims], key: Ed25519PrivateKey
) -> None:
    golden = cases.GOLDEN[name]
    verified = tokens.verify(golden["token"], kind.SCHEMA, cases.BUNDLE, cases.NOW)
    assert verified.message.decode() == golden["message"]
    assert verified.digest == golden["message_sha256"]
    assert verified.kid == golden["kid"]
    assert verified.key_expires_at == cases.BUNDLE.expires_at  # before the key's own end
    claims = dataclasses.asdict(kind.parse(verified.message))
    expected = {k: v for k, v in golden["claims"].items() if k not in ("schema", "state")}
    assert {k.replace("_", "").lower(): v for k, v in claims.items()} == {
        k.lower(): v for k, v in expected.items()
    }


@pytest.mark.parametrize(("name", "kind", "key"), KINDS)
def test_r2_another_paseto_library_verifies_the_golden_token(
    name: str, kind: type[Claims], key: Ed25519PrivateKey
) -> None:
    pem = key.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
    decoded = pyseto.decode(
        pyseto.Key.new(version=4, purpose="public", key=pem),
        cases.GOLDEN[name]["token"],
        implicit_assertion=kind.SCHEMA.encode(),
    )
    assert decoded.payload == cases.GOLDEN[name]["message"].encode()


@pytest.mark.parametrize(
    "case", cases.envelope_cases() + cases.message_cases(), ids=lambda case: case.name
)
def test_r5_token_gets_the_verdict_of_the_table(case: cases.Case) -> None:
    assert cases.python_verdict(case.token, case.schema, case.now) == case.verdict


def test_r5_flipped_bit_of_the_message_is_a_bad_signature() -> None:
    for i in range(len(cases.BODY)):
        changed = cases.BODY[:i] + bytes([cases.BODY[i] ^ 1]) + cases.BODY[i + 1 :]
        token = cases.assemble(changed, cases.FOOTER)
        assert cases.python_verdict(token, cases.GRANT, cases.NOW) == cases.BAD_SIGNATURE


@pytest.mark.parametrize("character", ["\0", "\ud800", "\U0001f512"])
def test_r3_token_with_a_character_that_no_text_holds_is_malformed(character: str) -> None:
    token = cases.TOKEN[:100] + character + cases.TOKEN[101:]
    assert cases.python_verdict(token, cases.GRANT, cases.NOW) == cases.ENVELOPE


def test_r2_paseto_v4_public_vectors(record_property: Callable[[str, object], None]) -> None:
    for test in cases.PASETO_GOOD:
        payload = test["payload"].encode()
        pieces = ["v4.public.", test["payload"], test["footer"], test["implicit-assertion"]]
        signed = signature.pae([piece.encode() for piece in pieces])
        body = cases.from_base64url(test["token"].split(".")[2])
        key = cases.private_key(test["secret-key-seed"])
        assert body == payload + key.sign(signed), test["name"]
        assert signature.verify(bytes.fromhex(test["public-key"]), signed, body[-64:])
    for test in cases.PASETO_BAD:
        verdict = cases.python_verdict(test["token"], cases.GRANT, cases.NOW)
        assert verdict == cases.ENVELOPE, test["name"]
    count = len(cases.PASETO_GOOD + cases.PASETO_BAD)
    record_property("counts", cases.vector_counts("PASETO v4.public, Python", count, 0))


def test_r2_wycheproof_signatures(record_property: Callable[[str, object], None]) -> None:
    wrong, count = [], 0
    for group in cases.WYCHEPROOF["testGroups"]:
        public_key = bytes.fromhex(group["publicKey"]["pk"])
        for test in group["tests"]:
            message, signed = bytes.fromhex(test["msg"]), bytes.fromhex(test["sig"])
            count += 1
            if signature.verify(public_key, message, signed) != (test["result"] == "valid"):
                wrong.append(test["tcId"])
    record_property("counts", cases.vector_counts("Wycheproof Ed25519, Python", count, len(wrong)))
    assert (wrong, count) == ([], cases.WYCHEPROOF["numberOfTests"])


def test_r2_public_keys_of_small_order_are_not_usable() -> None:
    p = 2**255 - 19
    d = -121665 * pow(121666, -1, p) % p

    def double(point: tuple[int, int]) -> tuple[int, int]:
        (x, y) = point
        xy = d * x * x * y * y % p
        return 2 * x * y * pow(1 + xy, -1, p) % p, (y * y + x * x) * pow(1 - xy, -1, p) % p

    y_of_order_8 = signature._Y_OF_ORDER_8
    u, v = y_of_order_8**2 - 1, d * y_of_order_8**2 + 1
    x2 = u * pow(v, -1, p) % p
    x = pow(x2, (p + 3) // 8, p)
    if x * x % p != x2:
        x = x * pow(2, (p - 1) // 4, p) % p
    assert x * x % p == x2
    point, small = (x, y_of_order_8), set()
    for _ in range(3):
        small |= {point[1], -point[1] % p}
        point = double(point)
    assert point == (0, 1)
    assert small | {1} == signature._Y_OF_SMALL_ORDER
    for y in small | {1}:
        for sign in (0, 2**255):
            assert not signature.is_usable_public_key((y | sign).to_bytes(32, "little"))


def test_r1_grant_outside_the_grammar_cannot_be_made() -> None:
    good = Grant.parse(cases.GOLDEN["grant"]["message"].encode())
    for change in (
        {"resource": "a b"},
        {"owner": ""},
        {"lease": "x" * 256},
        {"issuer": 'a"b'},
        {"backend": "a\\b"},
        {"request_id": "ä"},
        {"operation_class": None},
        {"operation_root": "sha256:"},
        {"continues_root": "none"},
        {"fence_token": 0},
        {"fence_token": True},
        {"issued_at": 1.0},
        {"ttl_ms": -1},
        {"status_until": 2**53},
    ):
        with pytest.raises(InvalidArgumentError, match=next(iter(change))):
            dataclasses.replace(good, **change)


def test_r4_grant_is_named_by_the_digest_of_its_message() -> None:
    golden = cases.GOLDEN["grant"]
    assert Grant.parse(golden["message"].encode()).digest == golden["message_sha256"]


def test_r1_operation_root_depends_on_every_part_and_on_where_each_ends() -> None:
    parts = ("a/b", "c", "d", "e")
    root = operation_root(*parts)
    pieces = b"\4" + bytes(7)
    for part in parts:
        pieces += len(part).to_bytes(8, "little") + part.encode()
    assert root == "sha256:" + sha256(pieces).hexdigest()
    others = [("a/bc", "", "d", "e"), ("a/b", "cd", "e", ""), ("a/b", "c", "de", "")]
    assert all(operation_root(*other) != root for other in others if all(other[:3]))
    with pytest.raises(InvalidArgumentError):
        operation_root("a b", "c", "d", "e")
    with pytest.raises(InvalidArgumentError):
        operation_root("a", "", "d", "e")


def test_tokens_refusal_names_verdict_and_reason() -> None:
    with pytest.raises(TokenRefusedError) as caught:
        tokens.verify(cases.STATUS_TOKEN, cases.GRANT, cases.BUNDLE, cases.NOW)
    assert (caught.value.verdict, caught.value.reason) == ("UNKNOWN_KEY", "PURPOSE")


def test_key_file_is_read_back_and_only_its_owner_may_read_it(tmp_path: Path) -> None:
    path = tmp_path / "grant.key"
    tokens.write_key(path, cases.GRANT_KEY)
    assert path.stat().st_mode & 0o777 == 0o600
    loaded = tokens.load_key(path)
    assert loaded.private_bytes_raw() == cases.GRANT_KEY.private_bytes_raw()


def test_key_file_is_never_overwritten(tmp_path: Path) -> None:
    path = tmp_path / "grant.key"
    tokens.write_key(path, cases.GRANT_KEY)
    before = path.read_bytes()
    with pytest.raises(KeyFileError, match="never overwritten"):
        tokens.write_key(path, cases.STATUS_KEY)
    assert path.read_bytes() == before


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o620, 0o602, 0o610])
def test_key_file_that_others_may_use_is_refused(tmp_path: Path, mode: int) -> None:
    path = tmp_path / "grant.key"
    tokens.write_key(path, cases.GRANT_KEY)
    path.chmod(mode)
    with pytest.raises(KeyFileError, match="chmod 600"):
        tokens.load_key(path)


def test_key_file_without_an_ed25519_key_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "some.key"
    path.touch(mode=0o600)
    with pytest.raises(KeyFileError, match="no private key"):
        tokens.load_key(path)
    other = ec.generate_private_key(ec.SECP256R1())
    path.write_bytes(other.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
    with pytest.raises(KeyFileError, match="not an Ed25519"):
        tokens.load_key(path)


def test_key_file_that_is_not_there_is_a_key_file_error(tmp_path: Path) -> None:
    with pytest.raises(KeyFileError, match="cannot be read"):
        tokens.load_key(tmp_path / "none.key")
    with pytest.raises(KeyFileError, match="cannot be made"):
        tokens.write_key(tmp_path / "none" / "grant.key", cases.GRANT_KEY)
