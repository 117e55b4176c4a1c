"""Tokens and bundles with the verdict that Python and SQL must both give.

One table for both: tests/unit/test_tokens.py runs it through `pgfence.tokens`, and
tests/sql/test_tokens_sql.py through the functions in the database.
"""

from __future__ import annotations

import json
from base64 import urlsafe_b64decode, urlsafe_b64encode
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from pgfence import tokens
from pgfence.errors import TokenRefusedError
from pgfence.model.bundle import TrustBundle, TrustKey, sign_bundle
from pgfence.model.canonical import encode
from pgfence.model.grant import Grant
from pgfence.model.signature import key_id, raw_public_key
from pgfence.model.status import StatusProof

VECTORS = Path(__file__).parent / "vectors"
GOLDEN: dict[str, Any] = json.loads((VECTORS / "pgfence_golden.json").read_text())
PASETO: dict[str, Any] = json.loads((VECTORS / "paseto_v4.json").read_text())
#: Those of v4.public that verify, and those that must fail (there is one of v4.public among them).
PASETO_GOOD = [test for test in PASETO["tests"] if test["name"].startswith("4-S-")]
PASETO_BAD = [test for test in PASETO["tests"] if test["expect-fail"]]
WYCHEPROOF: dict[str, Any] = json.loads((VECTORS / "wycheproof_ed25519.json").read_text())

GRANT, STATUS = Grant.SCHEMA, StatusProof.SCHEMA
SECOND = 1_000_000
#: Within the windows of the golden tokens' keys, and of everything in `BUNDLE`.
NOW = 1784419202 * SECOND
END = NOW + 100 * 365 * 86400 * SECOND


def private_key(seed: int | str) -> Ed25519PrivateKey:
    """A key of a fixed seed: one byte repeated, or 64 hexadecimal digits."""
    raw = bytes.fromhex(seed) if isinstance(seed, str) else bytes([seed]) * 32
    return Ed25519PrivateKey.from_private_bytes(raw)


GRANT_KEY = private_key(GOLDEN["grant"]["secret_seed_hex"])
STATUS_KEY = private_key(GOLDEN["status"]["secret_seed_hex"])
ROOT_KEYS = [private_key(seed) for seed in (1, 2, 3)]
SHORT_KEY = private_key(4)  # a grant key, valid for one second around NOW
UNKNOWN_KEY = private_key(6)
SHORT_START, SHORT_END = NOW - SECOND, NOW + SECOND


def trust_key(
    key: Ed25519PrivateKey, purpose: str, not_before: int = 0, expires_at: int = END
) -> TrustKey:
    return TrustKey(
        purpose=purpose,
        public_key=raw_public_key(key),
        not_before=not_before,
        expires_at=expires_at,
    )


BUNDLE = TrustBundle(
    version=1,
    audience="billing",
    keys=tuple(
        sorted(
            (
                trust_key(GRANT_KEY, "grant"),
                trust_key(STATUS_KEY, "status"),
                *(trust_key(key, "root") for key in ROOT_KEYS),
                trust_key(SHORT_KEY, "grant", SHORT_START, SHORT_END),
            ),
            key=lambda key: key.kid,
        )
    ),
    lowest_epoch=1,
    root_threshold=2,
    issued_at=NOW - SECOND,
    expires_at=END - SECOND,
)
SIGNATURES = [sign_bundle(BUNDLE.document, key) for key in ROOT_KEYS[:2]]


def vector_counts(of: str, tried: int, wrong: int) -> dict[str, str | int]:
    """A row of the table of vectors that the summary of a run shows."""
    return {"table": "vectors", "of": of, "cases": tried, "as expected": tried - wrong}


Verdict = tuple[str | None, str | None]
GOOD: Verdict = (None, None)
ENVELOPE: Verdict = ("MALFORMED", "ENVELOPE")
MESSAGE: Verdict = ("MALFORMED", "MESSAGE")
BAD_SIGNATURE: Verdict = ("BAD_SIGNATURE", "SIGNATURE")


def python_verdict(token: str, schema: str, now: int, bundle: TrustBundle = BUNDLE) -> Verdict:
    """What the client says of a token: envelope, key, signature, message (R5 but the audience)."""
    try:
        verified = tokens.verify(token, schema, bundle, now)
        (Grant if schema == GRANT else StatusProof).parse(verified.message)
    except TokenRefusedError as error:
        return error.verdict, error.reason
    return GOOD


@dataclass(frozen=True)
class Case:
    name: str
    token: str
    verdict: Verdict
    schema: str = GRANT
    now: int = NOW


def base64url(data: bytes) -> str:
    return urlsafe_b64encode(data).decode().rstrip("=")


def from_base64url(text: str) -> bytes:
    return urlsafe_b64decode(text + "=" * (-len(text) % 4))


def assemble(body: bytes, footer: bytes) -> str:
    return f"v4.public.{base64url(body)}.{base64url(footer)}"


TOKEN: str = GOLDEN["grant"]["token"]
STATUS_TOKEN: str = GOLDEN["status"]["token"]
_BODY_TEXT, _FOOTER_TEXT = TOKEN.split(".")[2:]
BODY, FOOTER = from_base64url(_BODY_TEXT), from_base64url(_FOOTER_TEXT)
#: The group's order.
L = 2**252 + 27742317777372353535851937790883648493


def _with_unused_bits(text: str) -> str:
    """The same bytes in another base64url text: a bit that says nothing is set."""
    alphabet = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_"
    assert len(text) % 4 in (2, 3)
    return text[:-1] + alphabet[alphabet.index(text[-1]) + 1]


def _long_token(length: int) -> str:
    """A token of that many characters, good but for its signature."""
    body = length - len("v4.public.") - len(f".{_FOOTER_TEXT}")
    return f"v4.public.{'A' * body}.{_FOOTER_TEXT}"


def _with_s_plus_order() -> str:
    s = int.from_bytes(BODY[-32:], "little") + L
    return assemble(BODY[:-32] + s.to_bytes(32, "little"), FOOTER)


def envelope_cases() -> list[Case]:
    unknown_kid = f'{{"kid":"{key_id(raw_public_key(UNKNOWN_KEY))}"}}'.encode()
    kid = FOOTER[8:24].decode()

    def footer(text: str) -> str:
        return assemble(BODY, text.encode())

    return [
        Case("the golden grant", TOKEN, GOOD),
        Case("the golden status proof", STATUS_TOKEN, GOOD, STATUS),
        Case("empty", "", ENVELOPE),
        Case("header only", "v4.public.", ENVELOPE),
        Case("header without dot", "v4.public", ENVELOPE),
        Case("empty parts", "v4.public..", ENVELOPE),
        Case("no footer", TOKEN.rpartition(".")[0], ENVELOPE),
        Case("empty footer", TOKEN.rpartition(".")[0] + ".", ENVELOPE),
        Case("a part too many", TOKEN + ".", ENVELOPE),
        Case("a fifth part", f"{TOKEN}.{_FOOTER_TEXT}", ENVELOPE),
        Case("upper-case header", TOKEN.replace("v4", "V4"), ENVELOPE),
        Case("another purpose", TOKEN.replace("public", "local"), ENVELOPE),
        Case("another version", TOKEN.replace("v4", "v3"), ENVELOPE),
        Case("leading space", " " + TOKEN, ENVELOPE),
        Case("trailing space", TOKEN + " ", ENVELOPE),
        Case("trailing newline", TOKEN + "\n", ENVELOPE),
        Case("trailing carriage return", TOKEN + "\r\n", ENVELOPE),
        Case("newline in the body", TOKEN[:100] + "\n" + TOKEN[100:], ENVELOPE),
        Case(
            "newline before the footer",
            TOKEN.replace("." + _FOOTER_TEXT, "\n." + _FOOTER_TEXT),
            ENVELOPE,
        ),
        Case("padding", TOKEN + "=", ENVELOPE),
        Case(
            "padding in the body", TOKEN.replace("." + _FOOTER_TEXT, "=." + _FOOTER_TEXT), ENVELOPE
        ),
        Case("plain base64", TOKEN.replace("_", "/").replace("-", "+"), ENVELOPE),
        Case("non-ASCII letter", TOKEN[:100] + "é" + TOKEN[101:], ENVELOPE),
        Case("non-ASCII digit", TOKEN[:100] + "\uff11" + TOKEN[101:], ENVELOPE),
        Case("byte order mark", "\ufeff" + TOKEN, ENVELOPE),
        Case(
            "unused bits in the footer",
            f"v4.public.{_BODY_TEXT}." + _with_unused_bits(_FOOTER_TEXT),
            ENVELOPE,
        ),
        Case(
            "unused bits in the body",
            f"v4.public.{_with_unused_bits(base64url(BODY + b'x'))}.{_FOOTER_TEXT}",
            ENVELOPE,
        ),
        Case(
            "a length that base64 cannot have",
            f"v4.public.{_BODY_TEXT[:401]}." + _FOOTER_TEXT,
            ENVELOPE,
        ),
        Case("shorter than a signature", assemble(BODY[:63], FOOTER), ENVELOPE),
        Case("8192 characters", _long_token(8192), BAD_SIGNATURE),
        Case("8193 characters", _long_token(8193), ENVELOPE),
        Case("8195 characters", _long_token(8195), ENVELOPE),
        Case("kid in upper case", footer(f'{{"kid":"{kid.upper()}"}}'), ENVELOPE),
        Case("kid too short", footer(f'{{"kid":"{kid[:-1]}"}}'), ENVELOPE),
        Case("kid too long", footer(f'{{"kid":"{kid}0"}}'), ENVELOPE),
        Case("kid not hexadecimal", footer(f'{{"kid":"{kid[:-1]}g"}}'), ENVELOPE),
        Case("kid with a quote", footer(f'{{"kid":"{kid[:-1]}""}}'), ENVELOPE),
        Case("space in the footer", footer(f'{{"kid": "{kid}"}}'), ENVELOPE),
        Case("newline after the footer", footer(f'{{"kid":"{kid}"}}\n'), ENVELOPE),
        Case("another footer key", footer(f'{{"key":"{kid}"}}'), ENVELOPE),
        Case("a footer key too many", footer(f'{{"kid":"{kid}","wpk":1}}'), ENVELOPE),
        Case("kid as a number", footer('{"kid":1234567890123456}'), ENVELOPE),
        Case("NUL in the footer", footer(f'{{"kid":"{kid[:-1]}\0"}}'), ENVELOPE),
        Case("non-ASCII footer", assemble(BODY, FOOTER[:8] + b"\xff" * 16 + FOOTER[24:]), ENVELOPE),
        Case("unknown kid", assemble(BODY, unknown_kid), ("UNKNOWN_KEY", "KID")),
        Case(
            "key of another purpose: root",
            tokens.sign(BODY[:-64], GRANT, ROOT_KEYS[0]),
            ("UNKNOWN_KEY", "PURPOSE"),
        ),
        Case("status proof as grant", STATUS_TOKEN, ("UNKNOWN_KEY", "PURPOSE"), GRANT),
        Case("grant as status proof", TOKEN, ("UNKNOWN_KEY", "PURPOSE"), STATUS),
        Case(
            "signed as a status proof with the grant's key",
            tokens.sign(BODY[:-64], STATUS, GRANT_KEY),
            BAD_SIGNATURE,
        ),
        Case(
            "signed by an unknown key, the kid of a known one",
            assemble(_golden_body_signed_by(UNKNOWN_KEY), FOOTER),
            BAD_SIGNATURE,
        ),
        Case("signature of zeros", assemble(BODY[:-64] + bytes(64), FOOTER), BAD_SIGNATURE),
        Case("S plus the group's order", _with_s_plus_order(), BAD_SIGNATURE),
        Case(
            "R with the other sign",
            assemble(BODY[:-33] + bytes([BODY[-33] ^ 128]) + BODY[-32:], FOOTER),
            BAD_SIGNATURE,
        ),
        Case(
            "message of another token, signature kept",
            assemble(from_base64url(STATUS_TOKEN.split(".")[2])[:-64] + BODY[-64:], FOOTER),
            BAD_SIGNATURE,
        ),
        Case(
            "fence raised, signature kept",
            assemble(BODY.replace(b":8842,", b":9007199254740991,"), FOOTER),
            BAD_SIGNATURE,
        ),
        Case("key just valid", _short(), GOOD, now=SHORT_START),
        Case("key not yet valid", _short(), ("UNKNOWN_KEY", "NOT_YET_VALID"), now=SHORT_START - 1),
        Case("key still valid", _short(), GOOD, now=SHORT_END - 1),
        Case("key expired", _short(), ("UNKNOWN_KEY", "EXPIRED"), now=SHORT_END),
        Case("bundle still valid", TOKEN, GOOD, now=BUNDLE.expires_at - 1),
        Case("bundle expired", TOKEN, ("UNKNOWN_KEY", "BUNDLE_EXPIRED"), now=BUNDLE.expires_at),
        Case(
            "expired key before bad signature",
            _short()[:100] + "A" + _short()[101:],
            ("UNKNOWN_KEY", "EXPIRED"),
            now=SHORT_END,
        ),
    ]


def _golden_body_signed_by(key: Ed25519PrivateKey) -> bytes:
    """The golden message with a signature of `key`."""
    return from_base64url(tokens.sign(BODY[:-64], GRANT, key).split(".")[2])


def _short() -> str:
    return tokens.sign(BODY[:-64], GRANT, SHORT_KEY)


def _edit(message: str, old: str, new: str) -> bytes:
    assert message.count(old) == 1, old
    return message.replace(old, new).encode()


def message_cases() -> list[Case]:
    """Signed by the right key; only what the message says is right or wrong."""
    grant: str = GOLDEN["grant"]["message"]
    status: str = GOLDEN["status"]["message"]
    identifier = "".join(chr(c) for c in range(33, 127) if chr(c) not in '"\\')
    golden_root = GOLDEN["grant"]["claims"]["operationRoot"]
    root = "sha256:" + "0123456789abcdef" * 4

    good = {
        "every character of an ID": _edit(grant, "registry-1", identifier),
        "one character": _edit(grant, "registry-1", "!"),
        "255 characters": _edit(grant, "registry-1", "r" * 255),
        "braces, commas and colons in an ID": _edit(grant, "registry-1", "},:{[]"),
        "largest integer": _edit(grant, ":8842,", ":9007199254740991,"),
        "zero": _edit(grant, ":1920184,", ":0,"),
        "fence 1": _edit(grant, ":8842,", ":1,"),
        "time 0": _edit(grant, ":1784419205000000,", ":0,"),
        "continuesRoot given": _edit(grant, '"continuesRoot":""', f'"continuesRoot":"{root}"'),
    }
    bad = {
        "empty": b"",
        "null": b"null",
        "number": b"1",
        "list": b"[]",
        "empty object": b"{}",
        "not JSON": b"not JSON",
        "deep nesting": b"[" * 5000,
        "NaN": _edit(grant, ":8842,", ":NaN,"),
        "Infinity": _edit(grant, ":8842,", ":Infinity,"),
        "leading zero": _edit(grant, ":8842,", ":017,"),
        "plus sign": _edit(grant, ":8842,", ":+1,"),
        "minus sign": _edit(grant, ":8842,", ":-1,"),
        "exponent": _edit(grant, ":8842,", ":1e3,"),
        "fraction": _edit(grant, ":8842,", ":1.0,"),
        "minus zero": _edit(grant, ":1920184,", ":-0,"),
        "two zeros": _edit(grant, ":1920184,", ":00,"),
        "2^53": _edit(grant, ":8842,", ":9007199254740992,"),
        "16 digits above 2^53": _edit(grant, ":8842,", ":9999999999999999,"),
        "17 digits": _edit(grant, ":8842,", ":10000000000000000,"),
        "2^63": _edit(grant, ":8842,", ":9223372036854775808,"),
        "5000 digits": _edit(grant, ":8842,", f":{'9' * 5000},"),
        "underscore in a number": _edit(grant, ":8842,", ":8_842,"),
        "hexadecimal number": _edit(grant, ":8842,", ":0x2,"),
        "space in a number": _edit(grant, ":8842,", ": 8842,"),
        "space after a number": _edit(grant, ":8842,", ":8842 ,"),
        "number without digits": _edit(grant, ":8842,", ":,"),
        "number as text": _edit(grant, ":8842,", ':"8842",'),
        "number null": _edit(grant, ":8842,", ":null,"),
        "number true": _edit(grant, ":8842,", ":true,"),
        "comma doubled": _edit(grant, ":8842,", ":8842,,"),
        "colon doubled": _edit(grant, ":8842,", "::8842,"),
        "non-ASCII digit": _edit(grant, ":8842,", ":٣,"),
        "fence 0": _edit(grant, ":8842,", ":0,"),
        "text as number": _edit(grant, '"registry-1"', "1"),
        "text null": _edit(grant, '"registry-1"', "null"),
        "empty ID": _edit(grant, '"registry-1"', '""'),
        "256 characters": _edit(grant, "registry-1", "r" * 256),
        "space in an ID": _edit(grant, "registry-1", "registry 1"),
        "backslash in an ID": _edit(grant, "registry-1", "registry\\\\1"),
        "escaped quote in an ID": _edit(grant, "registry-1", 'registry\\"1'),
        "escape for a plain letter": _edit(grant, "registry-1", "\\u0072egistry-1"),
        "escaped slash": _edit(grant, "invoice-batch/", "invoice-batch\\/"),
        "NUL in an ID": _edit(grant, "registry-1", "registry\x001"),
        "escaped NUL in an ID": _edit(grant, "registry-1", "registry\\u00001"),
        "newline in an ID": _edit(grant, "registry-1", "registry-1\n"),
        "tab in an ID": _edit(grant, "registry-1", "registry\t1"),
        "DEL in an ID": _edit(grant, "registry-1", "registry\x7f1"),
        "non-ASCII in an ID": _edit(grant, "registry-1", "régistry-1"),
        "bytes that are not UTF-8": grant.encode().replace(b"registry-1", b"registry\xff"),
        "half a surrogate": _edit(grant, "registry-1", "\\ud800"),
        "list for an ID": _edit(grant, '"registry-1"', '["registry-1"]'),
        "object for an ID": _edit(grant, '"registry-1"', "{}"),
        "key twice": _edit(grant, '"fenceToken":8842,', '"fenceToken":8842,"fenceToken":8842,'),
        "key twice, other value": _edit(
            grant, '"fenceToken":8842,', '"fenceToken":1,"fenceToken":8842,'
        ),
        "a key too many": _edit(grant, '"ttlMs":10000}', '"ttlMs":10000,"zone":"a"}'),
        "a key too many in front": _edit(grant, '{"audience"', '{"aaa":1,"audience"'),
        "a key too few": _edit(grant, ',"ttlMs":10000}', "}"),
        "another key": _edit(grant, '"ttlMs"', '"ttlms"'),
        "escape in a key": _edit(grant, '"ttlMs"', '"ttl\\u004ds"'),
        "other order": _edit(grant, '{"audience":"billing",', '{"backend":"postgres",').replace(
            b'"backend":"postgres","backendRevision"', b'"audience":"billing","backendRevision"'
        ),
        "leading space": b" " + grant.encode(),
        "trailing newline": grant.encode() + b"\n",
        "trailing byte": grant.encode() + b"}",
        "trailing NUL": grant.encode() + b"\0",
        "trailing object": grant.encode() + b"{}",
        "byte order mark": b"\xef\xbb\xbf" + grant.encode(),
        "space between keys": _edit(grant, ',"ttlMs"', ', "ttlMs"'),
        "comma before the end": _edit(grant, ":10000}", ":10000,}"),
        "no end": grant.encode()[:-1],
        "comment": grant.encode() + b"/**/",
        "single quotes": grant.replace('"', "'").encode(),
        "UTF-16": grant.encode("utf-16-le"),
        "other schema": _edit(grant, '"lockGrant.v1"', '"lockGrant.v2"'),
        "schema of status proofs": _edit(grant, '"lockGrant.v1"', '"lockStatus.v1"'),
        "other state": _edit(grant, '"HELD"', '"RELEASED"'),
        "empty operationRoot": grant.replace(golden_root, "").encode(),
        "operationRoot in upper case": _edit(grant, golden_root, "sha256:" + "A" * 64),
        "operationRoot too short": _edit(grant, golden_root, root[:-1]),
        "operationRoot too long": _edit(grant, golden_root, root + "0"),
        "operationRoot of another hash": _edit(grant, golden_root, root.replace("256", "512")),
        "continuesRoot without prefix": _edit(
            grant, '"continuesRoot":""', f'"continuesRoot":"{root[7:]}"'
        ),
        "a status proof's message": status.encode(),
    }
    status_good = {"status proof": status.encode(), "revision 0": _edit(status, ":1920190,", ":0,")}
    status_bad = {
        "a grant's message": grant.encode(),
        "other state": _edit(status, '"HELD"', '"RELEASED"'),
        "other schema": _edit(status, '"lockStatus.v1"', '"lockGrant.v1"'),
        "digest in upper case": _edit(status, GOLDEN["grant"]["message_sha256"], "F" * 64),
        "digest too short": _edit(status, GOLDEN["grant"]["message_sha256"], "f" * 63),
        "digest with prefix": _edit(status, GOLDEN["grant"]["message_sha256"], root),
        "2^53": _edit(status, ":1920190,", ":9007199254740992,"),
        "empty audience": _edit(status, '"billing"', '""'),
        "a key too many": _edit(status, '{"audience"', '{"aaa":1,"audience"'),
        "trailing newline": status.encode() + b"\n",
        "empty": b"",
    }
    return [
        *(
            Case(f"grant: {name}", tokens.sign(message, GRANT, GRANT_KEY), verdict)
            for messages, verdict in ((good, GOOD), (bad, MESSAGE))
            for name, message in messages.items()
        ),
        *(
            Case(f"status: {name}", tokens.sign(message, STATUS, STATUS_KEY), verdict, STATUS)
            for messages, verdict in ((status_good, GOOD), (status_bad, MESSAGE))
            for name, message in messages.items()
        ),
    ]


@dataclass(frozen=True)
class BundleCase:
    name: str
    document: str
    signatures: list[str]
    #: None: good.
    problem: str | None


def bundle_cases() -> list[BundleCase]:
    """First bundles. Each bad one is signed properly, so that it is bad for one reason."""
    claims: dict[str, Any] = json.loads(BUNDLE.document)
    keys: list[dict[str, Any]] = claims["keys"]
    document = BUNDLE.document
    first, second, third = (sign_bundle(document, key) for key in ROOT_KEYS)
    root_at = next(i for i, key in enumerate(keys) if key["purpose"] == "root")
    small_order = "01" + "00" * 31
    order_8 = "26e8958fc2b227b045c3f489f2ef98f0d5dfac05d3c63339b13802886d53fc05"
    off_curve = "02" + "00" * 31
    not_canonical = "ee" + "ff" * 30 + "7f"  # y = p + 1

    def signed(name: str, text: str, problem: str | None = "DOCUMENT") -> BundleCase:
        return BundleCase(name, text, [sign_bundle(text, key) for key in ROOT_KEYS[:2]], problem)

    def changed(name: str, problem: str | None = "DOCUMENT", **changes: Any) -> BundleCase:
        return signed(name, encode(claims | changes), problem)

    def key_changed(
        name: str, problem: str | None = "DOCUMENT", at: int = 0, **changes: Any
    ) -> BundleCase:
        edited = [key | changes if i == at else key for i, key in enumerate(keys)]
        return changed(name, problem, keys=edited)

    def key_added(name: str, public_key: str) -> BundleCase:
        added = keys[0] | {"publicKey": public_key, "kid": key_id(bytes.fromhex(public_key))}
        return changed(name, keys=sorted([*keys, added], key=lambda key: str(key["kid"])))

    many = [trust_key(private_key(f"{n:064x}"), "grant")._encode() for n in range(5000, 5002)]
    window = {"notBefore": 0, "expiresAt": SECOND}
    expired_root = [
        key | window if key["kid"] == key_id(raw_public_key(ROOT_KEYS[0])) else key for key in keys
    ]
    return [
        signed("good", document, None),
        BundleCase("all three roots", document, [third, first, second], None),
        changed("no key but roots", None, keys=[key for key in keys if key["purpose"] == "root"]),
        changed("two keys more", None, keys=sorted(keys + many, key=lambda key: str(key["kid"]))),
        signed("empty document", ""),
        signed("not JSON", "not JSON"),
        signed("list", "[]"),
        signed("space", document.replace(",", ", ", 1)),
        signed("trailing newline", document + "\n"),
        signed("key twice", document.replace('"version":1', '"version":1,"version":1')),
        signed("non-ASCII", document.replace("billing", "billing-é")),
        signed("too long", document.replace('"billing"', '"' + "b" * 65536 + '"')),
        changed("a claim too many", extra=1),
        signed("a claim too few", document.replace('"previous":"",', "")),
        changed("other schema", schema="trustBundle.v2"),
        changed("audience with a space", audience="bill ing"),
        changed("audience a number", audience=1),
        changed("version 0", version=0),
        changed("version as text", version="1"),
        changed("lowestEpoch negative", lowestEpoch=-1),
        changed("lowestEpoch too large", lowestEpoch=2**53),
        changed("rootThreshold 0", rootThreshold=0),
        changed("rootThreshold above the root keys", rootThreshold=4),
        changed("rootThreshold true", rootThreshold=True),
        changed("expires when issued", expiresAt=claims["issuedAt"]),
        changed("previous not a digest", previous="first"),
        changed("no keys", keys=[]),
        changed("keys an object", keys={}),
        changed("keys null", keys=None),
        changed("a key null", keys=[*keys, None]),
        changed("keys in another order", keys=keys[::-1]),
        changed("a key twice", keys=[keys[0], *keys]),
        changed(
            "a key with two purposes",
            keys=[keys[0] | {"purpose": "status"}, keys[0] | {"purpose": "grant"}, *keys[1:]],
        ),
        key_changed("unknown purpose", purpose="any"),
        key_changed("purpose a list", purpose=["grant"]),
        key_changed("kid of another key", kid="0" * 16),
        key_changed("public key in upper case", publicKey=keys[0]["publicKey"].upper()),
        key_changed("public key too short", publicKey=keys[0]["publicKey"][:-2]),
        key_changed("public key a number", publicKey=1),
        key_changed("window empty", notBefore=5, expiresAt=5),
        key_changed("notBefore a fraction", notBefore=0.5),
        key_changed("a field too many", note="x"),
        key_added("public key of small order", small_order),
        key_added("public key of order 8", order_8),
        key_added("public key that is no point", off_curve),
        key_added("public key not canonical", not_canonical),
        changed("version 2", "NOT_FIRST", version=2),
        changed("previous given", "NOT_FIRST", previous="0" * 64),
        changed("version 2 naming a bundle", "NOT_FIRST", version=2, previous="0" * 64),
        changed("expired", "EXPIRED", issuedAt=0, expiresAt=SECOND),
        BundleCase("no signature", document, [], "QUORUM"),
        BundleCase("one signature of two", document, [first], "QUORUM"),
        BundleCase("one key twice", document, [first, first], "SIGNATURE"),
        BundleCase(
            "a bad one beside two good ones",
            document,
            [first, second, third[:-1] + ("0" if third[-1] != "0" else "1")],
            "SIGNATURE",
        ),
        BundleCase(
            "signatures of another document",
            document,
            [sign_bundle(document + " ", key) for key in ROOT_KEYS],
            "SIGNATURE",
        ),
        BundleCase(
            "signed by a grant key",
            document,
            [first, sign_bundle(document, GRANT_KEY)],
            "SIGNATURE",
        ),
        BundleCase(
            "signed by an unknown key",
            document,
            [first, sign_bundle(document, UNKNOWN_KEY)],
            "SIGNATURE",
        ),
        BundleCase(
            "signed without the schema",
            document,
            [first, f"{second[:17]}{ROOT_KEYS[1].sign(document.encode()).hex()}"],
            "SIGNATURE",
        ),
        BundleCase(
            "signature in upper case",
            document,
            [first, second[:17] + second[17:].upper()],
            "SIGNATURE",
        ),
        BundleCase("signature too short", document, [first, second[:-2]], "SIGNATURE"),
        BundleCase("signature too long", document, [first, second + "00"], "SIGNATURE"),
        BundleCase("signature with a newline", document, [first, second + "\n"], "SIGNATURE"),
        BundleCase(
            "signature with colons", document, [first, second[:20] + ":" + second[21:]], "SIGNATURE"
        ),
        BundleCase(
            "signature without colon", document, [first, second.replace(":", "0")], "SIGNATURE"
        ),
        BundleCase("empty signature", document, [first, ""], "SIGNATURE"),
        changed("signed by an expired root key", "SIGNATURE", keys=expired_root),
        key_changed(
            "signed by a root key that is not valid yet",
            "SIGNATURE",
            at=keys.index(
                next(k for k in keys if k["kid"] == key_id(raw_public_key(ROOT_KEYS[1])))
            ),
            notBefore=END - 1,
        ),
        key_changed(
            "unsigned root key expired",
            None,
            at=keys.index(
                next(k for k in keys if k["kid"] == key_id(raw_public_key(ROOT_KEYS[2])))
            ),
            expiresAt=SECOND,
        ),
        key_changed(
            "root made a status key",
            at=root_at,
            purpose="status",
            problem="SIGNATURE"
            if keys[root_at]["kid"] != key_id(raw_public_key(ROOT_KEYS[2]))
            else None,
        ),
    ]
