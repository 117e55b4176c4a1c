"""Canonical JSON and the grammar of the values in it (R1, R3).

Keys in byte order, no white space, ASCII, no escapes. What is parsed is encoded again and must be
the same text, so one value has one text and nothing else gets through: no duplicate or unknown
key, no other order, no other way to write a number.
"""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, ClassVar, Self

from pgfence.errors import InvalidArgumentError, TokenRefusedError

#: The largest integer in a token: what every JSON library reads exactly.
MAX_INTEGER = 2**53 - 1

_IDENTIFIER = re.compile(r"[!#-\[\]-~]{1,255}")
_DIGEST = re.compile(r"[0-9a-f]{64}")
_OPERATION_ROOT = re.compile(r"sha256:[0-9a-f]{64}")


def is_identifier(value: object) -> bool:
    """A canonical ID: 1-255 printable ASCII characters without space, double quote, backslash."""
    return type(value) is str and _IDENTIFIER.fullmatch(value) is not None


def is_digest(value: object) -> bool:
    """64 lower-case hexadecimal digits."""
    return type(value) is str and _DIGEST.fullmatch(value) is not None


def is_operation_root(value: object) -> bool:
    """'sha256:' and 64 lower-case hexadecimal digits."""
    return type(value) is str and _OPERATION_ROOT.fullmatch(value) is not None


def is_integer(value: object, least: int = 0) -> bool:
    """An int, no bool, from `least` to 2^53-1."""
    return type(value) is int and least <= value <= MAX_INTEGER


def encode(value: Mapping[str, Any]) -> str:
    """The canonical JSON text. The values are the caller's to check."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"))


def decode(text: str) -> dict[str, Any]:
    """The object that a canonical JSON text says; ValueError for any other text."""
    try:
        value = json.loads(text)
        if type(value) is dict and encode(value) == text:
            return value
    except RecursionError:
        pass
    raise ValueError("not a canonical JSON object")


def require(valid: bool, what: str) -> None:
    """Raise `InvalidArgumentError` naming `what` unless it is valid."""
    if not valid:
        raise InvalidArgumentError(f"{what} is not valid", rule="R1")


@dataclass(frozen=True, slots=True)
class Claims:
    """What a token says. A subclass is a frozen dataclass whose fields are the claims.

    A subclass checks its fields when it is made, so whatever exists can be encoded. Its claims are
    its fields in camelCase, its schema, and the state HELD: no other state is ever signed.
    """

    SCHEMA: ClassVar[str]

    def encode(self) -> bytes:
        """The message of the token."""
        claims = {_camel_case(f.name): getattr(self, f.name) for f in fields(self)}
        return encode(claims | {"schema": self.SCHEMA, "state": "HELD"}).encode("ascii")

    @classmethod
    def parse(cls, message: bytes) -> Self:
        """Read a message whose signature is good. Raises `TokenRefusedError` (MALFORMED)."""
        try:
            claims = decode(message.decode("ascii"))
            constants = (claims.pop("schema", None), claims.pop("state", None))
            names = {_camel_case(f.name): f.name for f in fields(cls)}
            if constants == (cls.SCHEMA, "HELD") and claims.keys() == names.keys():
                return cls(**{names[claim]: value for claim, value in claims.items()})
        except (ValueError, InvalidArgumentError):
            pass
        raise TokenRefusedError("MALFORMED", "MESSAGE")


def _camel_case(name: str) -> str:
    first, *rest = name.split("_")
    return first + "".join(word.capitalize() for word in rest)
