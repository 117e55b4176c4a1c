"""Tokens that are almost right, and which of them are right all the same.

What is right is said here once more, by one regular expression for each schema, written from the
contract (R1, R3) and not from the code under test.
"""

from __future__ import annotations

import json
import random
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from typing import Any, NamedTuple, TypeVar

import hypothesis
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy

from pgfence.model.signature import key_id, pae, raw_public_key
from tests.support import Keys
from tests.token_cases import GOLDEN, GRANT, STATUS, UNKNOWN_KEY, L, base64url

AUDIENCE = "billing"
#: What is drawn comes from it. (Hypothesis also mixes in constants of the code that is loaded, so
#: another choice of tests may draw a few other values.)
SEED = 20260719

_T = TypeVar("_T")

# The sorts of value: how one looks in the message.
_ID = r'"((?:(?!["\\])[!-~]){1,255})"'
_INTEGER = r"(0|[1-9][0-9]{0,15})"
_FENCE = r"([1-9][0-9]{0,15})"
_ROOT = r'"(sha256:[0-9a-f]{64})"'
_ROOT_OR_NONE = r'"((?:sha256:[0-9a-f]{64})?)"'
_DIGEST = r'"([0-9a-f]{64})"'
_HELD = r'"(HELD)"'

#: The members of each kind of message, in the order in which they stand.
FIELDS: dict[str, dict[str, str]] = {
    GRANT: {
        "audience": _ID,
        "backend": _ID,
        "backendRevision": _INTEGER,
        "continuesRoot": _ROOT_OR_NONE,
        "fenceToken": _FENCE,
        "issuedAt": _INTEGER,
        "issuer": _ID,
        "issuerEpoch": _INTEGER,
        "lease": _ID,
        "operationClass": _ID,
        "operationRoot": _ROOT,
        "owner": _ID,
        "policyGeneration": _INTEGER,
        "requestId": _ID,
        "resource": _ID,
        "schema": r'"(lockGrant\.v1)"',
        "state": _HELD,
        "statusUntil": _INTEGER,
        "ttlMs": _INTEGER,
    },
    STATUS: {
        "audience": _ID,
        "grantDigest": _DIGEST,
        "issuedAt": _INTEGER,
        "issuerEpoch": _INTEGER,
        "revision": _INTEGER,
        "schema": r'"(lockStatus\.v1)"',
        "state": _HELD,
        "validUntil": _INTEGER,
    },
}
_MESSAGES = {
    schema: re.compile(
        r"\{" + ",".join(f'"{field}":{sort}' for field, sort in fields.items()) + r"\}"
    )
    for schema, fields in FIELDS.items()
}
_NUMBERS = {_INTEGER, _FENCE}
_CLAIMS: dict[str, dict[str, Any]] = {
    GRANT: GOLDEN["grant"]["claims"],
    STATUS: GOLDEN["status"]["claims"],
}


def is_right(schema: str, message: bytes) -> bool:
    """Whether a message that is signed by the right key is a genuine one for our audience."""
    match = _MESSAGES[schema].fullmatch(message.decode("latin-1"))
    return (
        match is not None
        and match[1] == AUDIENCE
        and all(
            int(value) < 2**53
            for value, sort in zip(match.groups(), FIELDS[schema].values(), strict=True)
            if sort in _NUMBERS
        )
    )


class Signer:
    """Makes tokens with the keys that the bundle trusts."""

    def __init__(self, keys: Keys) -> None:
        self.keys = {GRANT: keys.grant, STATUS: keys.status, "root": keys.root}

    def footer(self, key: Ed25519PrivateKey) -> bytes:
        return f'{{"kid":"{key_id(raw_public_key(key))}"}}'.encode()

    def sign(
        self,
        schema: str,
        message: bytes,
        *,
        key: Ed25519PrivateKey | None = None,
        footer: bytes | None = None,
        join: Callable[[list[bytes]], bytes] = pae,
        assertion: bytes | None = None,
    ) -> Parts:
        """The parts of a token. What is not given is as it should be."""
        key = key or self.keys[schema]
        footer = self.footer(key) if footer is None else footer
        assertion = schema.encode() if assertion is None else assertion
        signature = key.sign(join([b"v4.public.", message, footer, assertion]))
        return Parts("v4.public", message + signature, footer)


class Parts(NamedTuple):
    """What a token is put together from."""

    header: str
    body: bytes
    footer: bytes

    @property
    def token(self) -> str:
        return f"{self.header}.{base64url(self.body)}.{base64url(self.footer)}"


@dataclass(frozen=True)
class Mutated:
    """A token, and how it came about."""

    kind: str
    token: str
    schema: str
    #: By chance it is genuine all the same.
    right: bool = False
    #: What was changed, for people.
    change: str = ""


def bit_flips(kind: str, token: str, schema: str) -> Iterator[Mutated]:
    """Every bit of every character.

    A character of which the highest bit is set becomes one outside ASCII. A flip to NUL, which no
    text in PostgreSQL can hold, does not occur: no character of a token is one bit from it.
    """
    for i, character in enumerate(token):
        for bit in range(8):
            flipped = token[:i] + chr(ord(character) ^ 1 << bit) + token[i + 1 :]
            yield Mutated(kind, flipped, schema, change=f"bit {bit} of character {i}")


class Chance(random.Random):
    """Chooses places and ways; odd values are Hypothesis's."""

    def flip(self) -> bool:
        return self.random() < 0.5

    def draw(self, strategy: SearchStrategy[_T]) -> _T:
        """One of a few hundred values that Hypothesis drew: one by one takes milliseconds each."""
        values: list[_T] = _drawn(strategy)
        return self.choice(values)

    def cut(self, text: str) -> tuple[str, str]:
        """The text in two pieces."""
        at = self.randint(0, len(text))
        return text[:at], text[at:]

    def text(self, characters: str, least: int, most: int) -> str:
        return "".join(self.choices(characters, k=self.randint(least, most)))


@cache
def _drawn(strategy: SearchStrategy[_T]) -> list[_T]:
    found: list[_T] = []

    @hypothesis.seed(SEED)
    @hypothesis.settings(
        max_examples=20,
        deadline=None,
        database=None,
        phases=[hypothesis.Phase.generate],
        suppress_health_check=list(hypothesis.HealthCheck),
    )
    @hypothesis.given(st.lists(strategy, min_size=25, max_size=25))
    def draw(values: list[_T]) -> None:
        found.extend(values)

    draw()
    return found


def take(count: int, made: Callable[[Chance], Mutated]) -> list[Mutated]:
    """So many different mutated tokens, and what is genuine all the same besides."""
    chance = Chance(SEED)
    found: dict[tuple[str, str], Mutated] = {}
    while count:
        mutated = made(chance)
        token = mutated.token, mutated.schema
        count -= not mutated.right and token not in found
        found[token] = mutated
    return list(found.values())


# Values that are right.
_HEX = "0123456789abcdef"
_ids = st.text(
    st.characters(codec="ascii", min_codepoint=33, exclude_characters='"\\\x7f'),
    min_size=1,
    max_size=20,
)
_integers = st.one_of(
    st.sampled_from([0, 1, 9, 10, 2**31 - 1, 2**31, 2**32, 2**53 - 1]), st.integers(0, 2**53 - 1)
)
_hex = st.text(_HEX, min_size=64, max_size=64)
_roots = _hex.map("sha256:".__add__)
_good: dict[str, SearchStrategy[Any]] = {
    _ID: st.one_of(_ids, _ids.map(lambda text: (text * 255)[:255])),
    _INTEGER: _integers,
    _FENCE: _integers.filter(bool),
    _ROOT: _roots,
    _ROOT_OR_NONE: st.one_of(st.just(""), _roots),
    _DIGEST: _hex,
}
# Any JSON at all.
_json_values = st.recursive(
    st.one_of(st.none(), st.booleans(), _integers, st.floats(), st.text(max_size=5)),
    lambda inner: st.one_of(
        st.lists(inner, max_size=2), st.dictionaries(st.text(max_size=3), inner, max_size=2)
    ),
    max_leaves=3,
)
_texts = st.text(max_size=10)
_few_bytes = st.binary(min_size=1, max_size=8)


def claims(chance: Chance, schema: str) -> dict[str, Any]:
    """Valid claims for our audience, in the order of the message."""
    made = {name: _CLAIMS[schema][name] for name in FIELDS[schema]}
    for name, sort in FIELDS[schema].items():
        if name != "audience" and sort in _good and chance.randrange(8) == 0:
            made[name] = chance.draw(_good[sort])
    return made


def compact(value: Any, *, ascii_only: bool = True) -> str:
    """JSON without white space, members in the order given."""
    return json.dumps(value, separators=(",", ":"), ensure_ascii=ascii_only)


def _schema(chance: Chance) -> str:
    return chance.choice([GRANT, GRANT, STATUS])


# Envelopes -----------------------------------------------------------------------------------

_ALPHABET = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_"
_FOREIGN = (
    "=+/~!@#$%^&*(),:;<>{}[]|\\\"'` \t\n\r\v\f\x1c\x7f\x85\xa0\xad"  # ASCII and Latin-1
    "é٣Ａ１\u2028\u3000\ufeff\U0001f512"
)


def envelope(signer: Signer, chance: Chance) -> Mutated:
    """A genuine message in a token that is not quite one, or under a signature that is not good."""
    schema = _schema(chance)
    parts = signer.sign(schema, compact(claims(chance, schema)).encode())
    kind, mutate = chance.choice(list(_ENVELOPES.items()))
    token, change = mutate(chance, signer, schema, parts)
    return Mutated(f"envelope: {kind}", token, schema, token == parts.token, change)


def _padding(chance: Chance, signer: Signer, schema: str, parts: Parts) -> tuple[str, str]:
    body, footer = base64url(parts.body), base64url(parts.footer)
    padding = "=" * chance.randint(1, 4)
    if chance.flip():
        return f"{parts.header}.{body}{padding}.{footer}", "padding of the body"
    return f"{parts.header}.{body}.{footer}{padding}", "padding of the footer"


def _characters(chance: Chance, signer: Signer, schema: str, parts: Parts) -> tuple[str, str]:
    token = parts.token
    before, after = chance.cut(token)
    match chance.randrange(3):
        case 0:
            return before + chance.text(_FOREIGN, 1, 3) + after, "foreign characters put in"
        case 1:
            return before + chance.choice(_FOREIGN) + after[1:], "a foreign character instead"
        case _:
            plain = token.replace("-", "+").replace("_", "/")
            return plain if plain != token else before + "/" + after[1:], "plain base64"


def _loose_bits(chance: Chance, signer: Signer, schema: str, parts: Parts) -> tuple[str, str]:
    """The last character of a part says bits that belong to no byte."""
    body, footer = base64url(parts.body), base64url(parts.footer)
    loose = {2: 4, 3: 2}

    def loosened(text: str) -> str:
        bits = chance.randint(1, 2 ** loose[len(text) % 4] - 1)
        return text[:-1] + _ALPHABET[_ALPHABET.index(text[-1]) | bits]

    if len(body) % 4 in loose and chance.flip():
        return f"{parts.header}.{loosened(body)}.{footer}", "loose bits in the body"
    return f"{parts.header}.{body}.{loosened(footer)}", "loose bits in the footer"


def _truncated(chance: Chance, signer: Signer, schema: str, parts: Parts) -> tuple[str, str]:
    footer = base64url(parts.footer)
    match chance.randrange(3):
        case 0:
            return chance.choice(chance.cut(parts.token)), "half a token"
        case 1:
            half = chance.choice(chance.cut(base64url(parts.body)))
            return f"{parts.header}.{half}.{footer}", "half a body"
        case _:
            length = chance.randrange(len(parts.body))
            return parts._replace(body=parts.body[:length]).token, "bytes missing"


def _extended(chance: Chance, signer: Signer, schema: str, parts: Parts) -> tuple[str, str]:
    body, footer = base64url(parts.body), base64url(parts.footer)
    more = chance.text(_ALPHABET, 1, 8)
    match chance.randrange(6):
        case 0:
            return f"{parts.header}.{body}{more}.{footer}", "body longer"
        case 1:
            return f"{parts.header}.{more}{body}.{footer}", "body longer in front"
        case 2:
            return f"{parts.token}{more}", "footer longer"
        case 3:
            return parts.token * 2, "token twice"
        case 4:
            size = 8192 - len(parts.token) + chance.randint(-8, 8)
            return f"{parts.header}.{'A' * size}{body}.{footer}", "about 8192 characters"
        case _:
            longer = parts.body[:-64] + chance.draw(_few_bytes) + parts.body[-64:]
            return parts._replace(body=longer).token, "bytes before the signature"


def _dots(chance: Chance, signer: Signer, schema: str, parts: Parts) -> tuple[str, str]:
    pieces = parts.token.split(".")
    at = chance.randrange(4)
    match chance.randrange(5):
        case 0:
            return ".".join(pieces[:at] + pieces[at + 1 :]), "a part missing"
        case 1:
            pieces.insert(at, chance.choice(["", *pieces]))
            return ".".join(pieces), "a part too many"
        case 2:
            return ".".join(chance.cut(parts.token)), "a dot too many"
        case 3:
            separator = chance.choice(["", "..", ",", "·", ". ", "\uff0e"])
            return parts.token.replace(".", separator), "other separators"
        case _:
            return ".".join(chance.sample(pieces, 4)), "parts in another order"


def _header(chance: Chance, signer: Signer, schema: str, parts: Parts) -> tuple[str, str]:
    versions = ["v4", "V4", "v04", "v1", "v2", "v3", "v5", "v40", "4", "", "k4"]
    purposes = ["public", "Public", "PUBLIC", "local", "secret", "publi", "public.public", ""]
    header = chance.choice(
        [
            f"{chance.choice(versions)}.{chance.choice(purposes)}",
            chance.text(_FOREIGN, 1, 2) + parts.header,
            parts.header + chance.text(_FOREIGN, 1, 2),
            chance.choice(["v4", "public", "", "v4public", "v4..public", "public.v4"]),
        ]
    )
    if chance.flip():
        return parts._replace(header=header).token, f"header {header!r}"

    def for_this_header(pieces: list[bytes]) -> bytes:
        return pae([f"{header}.".encode(), *pieces[1:]])

    signed = signer.sign(schema, parts.body[:-64], join=for_this_header)
    return signed._replace(header=header).token, f"header {header!r}, signed"


def _footer(chance: Chance, signer: Signer, schema: str, parts: Parts) -> tuple[str, str]:
    kid = parts.footer[8:24].decode()
    others = [key for name, key in signer.keys.items() if name != schema]
    footer = chance.choice(
        [
            *(signer.footer(key).decode() for key in (*others, UNKNOWN_KEY)),
            f'{{"kid": "{kid}"}}', f' {{"kid":"{kid}"}}', f'{{"kid":"{kid}"}}\n',
            f'{{"kid":"{kid.upper()}"}}', f'{{"kid":"{kid[:-1]}"}}', f'{{"kid":"{kid}0"}}',
            f'{{"kid":"{kid[:-1]}g"}}', f'{{"kid":"{kid[:-1]}""}}', '{"kid":""}',
            f'{{"KID":"{kid}"}}', f'{{"key":"{kid}"}}', f'{{"kid":"{kid}","wpk":""}}',
            f'{{"kid":"{kid}","kid":"{kid}"}}', f'{{"wpk":"","kid":"{kid}"}}',
            f'{{"kid":["{kid}"]}}', '{"kid":1234567890123456}', '{"kid":null}', "{}", "",
            kid, f'"{kid}"', f'["{kid}"]', f"{{'kid':'{kid}'}}", f'{{"k\\u0069d":"{kid}"}}',
            f'{{"kid":"{kid}"', f'"kid":"{kid}"}}', f'{{"kid":"{kid}"}}}}',
            f'{{"kid":"{kid[:-1]}\0"}}', f'\ufeff{{"kid":"{kid}"}}', f'{{"kid":"{kid[:-1]}é"}}',
            f'{{"kid":"{chance.text(_HEX, 16, 16)}"}}',
        ]
    ).encode()  # fmt: skip
    if chance.randrange(4) == 0:
        at = chance.randrange(len(footer) + 1)
        footer = footer[:at] + chance.draw(_few_bytes) + footer[at + 1 :]
    if chance.flip():
        return parts._replace(footer=footer).token, f"footer {footer!r}"
    signed = signer.sign(schema, parts.body[:-64], footer=footer)
    return signed.token, f"footer {footer!r}, signed"


def _signature(chance: Chance, signer: Signer, schema: str, parts: Parts) -> tuple[str, str]:
    message, signature = parts.body[:-64], parts.body[-64:]
    others = [key for name, key in signer.keys.items() if name != schema]
    r, s = signature[:32], signature[32:]

    def under(changed: bytes) -> str:
        return parts._replace(body=message + changed).token

    match chance.randrange(10):
        case 0:
            return under(chance.randbytes(64)), "other bytes"
        case 1:
            number = int.from_bytes(s, "little") + L * chance.randint(1, 14)
            return under(r + number.to_bytes(32, "little")), "S plus the group's order"
        case 2:
            number = L - int.from_bytes(s, "little")
            return under(r + number.to_bytes(32, "little")), "S negated"
        case 3:
            return under(r[:-1] + bytes([r[-1] ^ 128]) + s), "R with the other sign"
        case 4:
            number = chance.choice([0, 1, 2**255 - 20, 2**255 - 19, 2**255 - 18, 2**255])
            small = number.to_bytes(32, "little")
            return under(chance.choice([small + s, r + small])), "R or S of little order"
        case 5:
            key = chance.choice([*others, UNKNOWN_KEY])
            footer = chance.choice([parts.footer, signer.footer(key)])
            return signer.sign(schema, message, key=key, footer=footer).token, "another key"
        case 6:
            other = chance.choice(["", "lockGrant.v2", "trustBundle.v1", chance.draw(_texts)])
            signed = signer.sign(schema, message, assertion=other.encode(errors="replace"))
            return signed.token, f"assertion {other!r}"
        case 7:
            at = chance.randrange(len(message))
            byte = bytes([message[at] ^ chance.randint(1, 255)])
            body = message[:at] + byte + message[at + 1 :] + signature
            return parts._replace(body=body).token, "a byte of the message"
        case 8:
            ways: list[Callable[[list[bytes]], bytes]] = [
                b"".join,
                lambda pieces: pieces[1],
                lambda pieces: pae(pieces[:3]),
                lambda pieces: pae(pieces[1:]),
                lambda pieces: pae([pieces[0], pieces[1], b"", pieces[3]]),
            ]
            signed = signer.sign(schema, message, join=chance.choice(ways))
            return signed.token, "pieces missing from what is signed"
        case _:
            other = STATUS if schema == GRANT else GRANT
            theirs = compact(claims(chance, other)).encode()
            return signer.sign(other, theirs).token, "a token of the other kind"


_ENVELOPES: dict[str, Callable[[Chance, Signer, str, Parts], tuple[str, str]]] = {
    "padding": _padding,
    "characters": _characters,
    "loose bits": _loose_bits,
    "truncation": _truncated,
    "extension": _extended,
    "dots": _dots,
    "header": _header,
    "footer": _footer,
    "signature": _signature,
}


# JSON ----------------------------------------------------------------------------------------

Members = list[tuple[str, str]]


def text(signer: Signer, chance: Chance) -> Mutated:
    """A message in other JSON than the canonical one, or in none, signed anew."""
    schema = _schema(chance)
    members = [(compact(name), compact(value)) for name, value in claims(chance, schema).items()]
    kind, mutate = chance.choice(list(_TEXTS.items()))
    message = mutate(chance, schema, members)
    return _signed_anew(signer, f"JSON: {kind}", schema, message)


def _signed_anew(signer: Signer, kind: str, schema: str, message: bytes) -> Mutated:
    token = signer.sign(schema, message).token
    right = is_right(schema, message) and len(token) <= 8192
    return Mutated(kind, token, schema, right, repr(message))


def _json(members: Iterable[tuple[str, str]]) -> bytes:
    written = "{" + ",".join(f"{name}:{value}" for name, value in members) + "}"
    return written.encode(errors="surrogatepass")


def _with_value(members: Members, at: int, value: str) -> bytes:
    return _json([*members[:at], (members[at][0], value), *members[at + 1 :]])


def _white_space(chance: Chance, schema: str, members: Members) -> bytes:
    spaces = [" ", "\t", "\n", "\r", "\r\n", "\v", "\f", "\0", "\x1c", "\x85", "\xa0", "\u2028",
              "\u3000", "\ufeff", "/**/", "//\n", "#\n"]  # fmt: skip
    pieces = ["{"]
    for name, value in members:
        pieces += [name, ":", value, ","]
    pieces[-1] = "}"
    for _ in range(chance.randint(1, 2)):
        pieces.insert(chance.randint(0, len(pieces)), chance.choice(spaces))
    return "".join(pieces).encode()


def _other_members(chance: Chance, schema: str, members: Members) -> bytes:
    at, other = chance.randrange(len(members)), chance.randrange(len(members))
    name, value = members[at]
    any_value = compact(chance.draw(_json_values))
    match chance.randrange(7):
        case 0:  # two changed places
            members[at], members[other] = members[other], members[at]
        case 1:
            chance.shuffle(members)
        case 2:  # doubled
            members.insert(other, (name, chance.choice([value, any_value])))
        case 3:  # missing
            del members[at : at + chance.randint(1, 3)]
        case 4:  # one too many, in its place or not
            unknown = chance.choice(["", "__proto__", "alg", "exp", "iss", "kid", name[1:-1] + "s"])
            unknown = chance.choice([unknown, chance.draw(_texts)])
            members.insert(other, (compact(unknown), any_value))
            if chance.flip():
                members.sort()
        case 5:  # the name in other words
            plain = name[1:-1]
            snake = re.sub(r"[A-Z]", lambda capital: "_" + capital[0].lower(), plain)
            letter = f"\\u{ord(plain[0]):04x}"
            others = [plain.upper(), plain.lower(), plain.capitalize(), snake, plain + " ",
                      " " + plain, letter + plain[1:], plain + "\\u0000", plain + '"']  # fmt: skip
            unquoted = [plain, f"'{plain}'", f'"{plain}', f'{plain}"']
            renamed = chance.choice([*(f'"{other}"' for other in others), *unquoted])
            members[at] = (renamed, value)
        case _:  # the name of another
            members[at] = (members[other][0], value)
    return _json(members)


_odd_numbers = st.one_of(
    st.sampled_from([2**53, 2**53 + 1, 2**63 - 1, 2**63, 2**64 - 1, 2**64, 10**16, 10**17]).map(
        str
    ),
    st.integers(2**53).map(str),
    st.integers(max_value=-1).map(str),
    st.floats().map(repr),
    st.decimals(allow_nan=False).map(str),
    st.text("0123456789", min_size=16, max_size=20),
    st.integers(4200, 4400).map(lambda digits: "9" * digits),
    st.text("0123456789+-._eExX ", min_size=1, max_size=6),
)


def _numbers(chance: Chance, schema: str, members: Members) -> bytes:
    at, n = _any_of(chance, schema, members, numbers=True)
    written = [
        f"{n}.0", f"{n}.", f"{n}.00", f"{n}.5", f"{n}e0", f"{n}E0", f"{n}e+0", f"{n}e-0",
        f"{n}e3", f"-{n}", f"+{n}", f"0{n}", f"00{n}", f"{n[0]}_{n[1:]}0", f"1_{n}", f"{n}\u200b",
        f"0x{n}", f"0b{n}", f"0o{n}", f"{n}n", f"{n}L", f"{n}f", f" {n}", f"{n} ", f"{n}\0",
        f"{n},", f",{n}", f":{n}", f"{n}:", f"{n}}}", f"({n})", f"--{n}", f"{n}-", "",
        "-0", "-0.0", "0.0", "0e0", "00", "01", ".5", "5.", "1e3", "1E400", "1e-400", "1_000",
        "1,000", "NaN", "-NaN", "nan", "Infinity", "-Infinity", "inf", "٣", "１", "²", "Ⅳ", "½",
    ]  # fmt: skip
    written = chance.choice([written, [chance.draw(_odd_numbers)]])
    return _with_value(members, at, chance.choice(written))


def _any_of(chance: Chance, schema: str, members: Members, *, numbers: bool) -> tuple[int, str]:
    """Place and value of a number, or of a string."""
    sorts = FIELDS[schema].values()
    at = chance.choice([i for i, sort in enumerate(sorts) if (sort in _NUMBERS) is numbers])
    return at, members[at][1]


#: Bytes that are no UTF-8: cut off, too long, a surrogate, beyond Unicode, alone.
_NO_UTF_8 = [b"\xc3", b"\xc0\x80", b"\xc1\xa2", b"\xe0\x80\xaf", b"\xed\xa0\x80", b"\xff",
             b"\xf4\x90\x80\x80", b"\xf8", b"\xfe\xff", b"\x80", b"\xbf"]  # fmt: skip


def _strings(chance: Chance, schema: str, members: Members) -> bytes:
    at, value = _any_of(chance, schema, members, numbers=False)
    inner = value[1:-1]
    before, after = chance.cut(inner)
    code = ord(after[:1] or "x")
    put_in = [
        "\\/", "\\n", "\\t", "\\b", "\\u0000", "\\ud800", "\\udc00", "\\ud83d\\udd12", "\\ufeff",
        "\\udd12\\ud83d", "\\u00e9", "\\uD8", "\\u", "\\", '\\"', '"', '""', "\\\\", "\0", "\n",
        "\r", "\t", "\x1f", " ", "\x7f", "\x80", "é", "e\u0301", "ß", "İ", "\u202e", "\ufffd",
        "\U0001f512", "\ud800", "\udcff", "','", '","', '":"', chance.draw(_texts),
    ]  # fmt: skip
    instead = [
        f"\\u{code:04x}", f"\\u{code:04X}", f"\\x{code:02x}", f"\\{code:03o}", f"\\U{code:08x}",
        f"\\{after[:1]}", f"&#{code};", f"%{code:02x}",
    ]  # fmt: skip
    whole = [
        inner, f'{inner}"', f'"{inner}', f"'{inner}'", f"`{inner}`", f"“{inner}”", f'"{value}"',
        f"{value}{value}", f"u{value}", f"b{value}", f'{value}+""', compact(value),
        compact(chance.draw(_texts)),
    ]  # fmt: skip
    match chance.randrange(4):
        case 0:
            return _with_value(members, at, f'"{before}{chance.choice(put_in)}{after}"')
        case 1:
            return _with_value(members, at, f'"{before}{chance.choice(instead)}{after[1:]}"')
        case 2:
            return _with_value(members, at, chance.choice(whole))
        case _:
            beginning, end = _with_value(members, at, f'"{before}\ue000{after}"').split(
                b"\xee\x80\x80"
            )
            return beginning + chance.choice(_NO_UTF_8) + end


def _types(chance: Chance, schema: str, members: Members) -> bytes:
    at = chance.randrange(len(members))
    value = members[at][1]
    literals = ["null", "Null", "NULL", "None", "true", "True", "TRUE", "false", "False", "nil",
                "undefined", "tru", "HELD", "held"]  # fmt: skip
    depth = chance.choice([1, 2, 50, 1000, 1500])
    nested = [
        f"[{value}]", f"[{value},{value}]", "[]", "{}", f'{{"a":{value}}}', f"{{{value}}}",
        "[" * depth + value + "]" * depth, "[" * depth, "]" * depth,
        '{"a":' * (depth // 5) + value + "}" * (depth // 5),
    ]  # fmt: skip
    quoted = value[1:-1] if value.startswith('"') else f'"{value}"'
    other = [chance.choice(literals), chance.choice(nested), quoted]
    return _with_value(members, at, chance.choice([*other, compact(chance.draw(_json_values))]))


def _frame(chance: Chance, schema: str, members: Members) -> bytes:
    raw = _json(members)
    plain = raw.decode()
    inner = plain[1:-1]
    some = chance.choice(
        [b"\xef\xbb\xbf", b"\xff\xfe", b"\0", b"\n", b" ", b"}", b"{", b",", b"{}", b"null", b";",
         b"/**/", b"\x1e", b'"', raw, chance.draw(_few_bytes)]
    )  # fmt: skip
    framed = [
        f"{{{inner},}}", f"{{,{inner}}}", f"[{plain}]", f"{{{plain}}}", f"[{inner}]", f"({inner})",
        inner, compact(plain), plain.replace('"', "'"), plain.replace(":", "="),
        plain.replace(",", ";"), plain.replace(",", ",,", 1), plain.replace(":", "::", 1),
        plain.upper(), plain.lower(), "[" * chance.randint(1, 3000),
        '{"a":' * chance.randint(1, 600),
    ]  # fmt: skip
    encoded = chance.choice([chance.choice(chance.cut(plain)), *chance.sample(framed, 3)]).encode()
    other = plain.encode(chance.choice(["utf-16", "utf-16-le", "utf-32-be"]))
    return chance.choice(
        [raw + some, some + raw, encoded, encoded, encoded, other, chance.draw(_few_bytes)]
    )


def _edits(chance: Chance, schema: str, members: Members) -> bytes:
    """Any few changes at all."""
    raw = _json(members)
    for _ in range(chance.randint(1, 3)):
        i, j = sorted(chance.randrange(len(raw) + 1) for _ in range(2))
        byte = bytes([chance.choice([*b'",:{}0123456789-.eE \n\\[]/au', chance.randrange(256)])])
        raw = chance.choice(
            [raw[:i] + byte + raw[i:], raw[:i] + byte + raw[i + 1 :], raw[:i] + raw[i + 1 :],
             raw[:i] + raw[i:j] + raw[i:], raw[:i] + raw[j:]]
        )  # fmt: skip
    return raw[:4000]


_TEXTS: dict[str, Callable[[Chance, str, Members], bytes]] = {
    "white space": _white_space,
    "members": _other_members,
    "numbers": _numbers,
    "strings": _strings,
    "types": _types,
    "frame": _frame,
    "edits": _edits,
}


# Fields --------------------------------------------------------------------------------------

_bad_numbers = st.one_of(
    st.sampled_from([-1, 2**53, 2**63 - 1, 2**63, -(2**63), 2**64, 1.0, 0.5, 1e300, True, False]),
    st.integers(max_value=-1),
    st.integers(2**53),
    st.floats(),
)
_bad_ids = st.one_of(
    st.sampled_from(["", " ", "a b", " a", "a ", 'a"', "a\\", "a\n", "\0", "\x7f", "é", "\ud800"]),
    st.integers(256, 600).map(lambda length: "x" * length),
    st.text(min_size=1, max_size=10),
    st.builds("{}{}{}".format, _ids, st.sampled_from(' "\\\n\t\x7f\x80é\u2028'), _ids),
)
_almost_hex = st.one_of(
    st.text(_HEX, min_size=60, max_size=68),
    _hex.map(str.upper),
    st.builds(
        "{}{}".format, st.text(_HEX, min_size=63, max_size=63), st.sampled_from("gGABCDEF -_\n０")
    ),
)
_bad_roots = st.one_of(
    st.sampled_from(["", "none", "sha256", "sha256:", "0" * 64, "sha256:sha256:" + "0" * 57]),
    st.builds(
        "{}{}".format,
        st.sampled_from(["sha256:", "SHA256:", "sha512:", "sha256", "sha256: ", "sha-256:", ""]),
        st.one_of(_almost_hex, _hex),
    ),
)
_bad: dict[str, SearchStrategy[Any]] = {
    _ID: _bad_ids,
    _INTEGER: _bad_numbers,
    _FENCE: st.one_of(st.just(0), _bad_numbers),
    _ROOT: _bad_roots,
    _ROOT_OR_NONE: _bad_roots,
    _DIGEST: st.one_of(st.sampled_from(["", "0" * 63, "0" * 65]), _almost_hex, _roots),
}
_bad_constants = st.one_of(
    st.sampled_from(
        [GRANT, STATUS, "lockGrant.v2", "lockgrant.v1", "lockGrant", "trustBundle.v1", "HELD",
         "held", "EXPIRED", "RELEASED", "SUPERSEDED", "HELD ", "", "WAIT"]
    ),
    st.text(max_size=12),
)  # fmt: skip


def one_field(signer: Signer, chance: Chance, schema: str) -> Mutated:
    """One field of the message says what it must not say; all else is as it should be."""
    made = claims(chance, schema)
    name = chance.choice(list(made))
    sort = FIELDS[schema][name]
    match chance.randrange(10):
        case 0:  # a value of another field
            made[name] = made[chance.choice(list(made))]
        case 1:  # of its sort, but another audience, or times in the wrong order
            made[name] = chance.draw(_good.get(sort, _bad_constants))
        case 2:
            made[name] = chance.draw(_json_values)
        case _:
            made[name] = chance.draw(_bad.get(sort, _bad_constants))
    message = compact(made, ascii_only=chance.flip()).encode(errors="surrogatepass")
    return _signed_anew(signer, f"fields of {schema}", schema, message)
