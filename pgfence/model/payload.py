"""The payload of a segment: the same value gives the same bytes every time (R12).

Two payloads are the same if their texts are. Values become canonical JSON: keys sorted, no white
space, ASCII only. 1 and 1.0 are different texts. A str is passed on unchanged.
"""

import json
from hashlib import sha256

from pgfence.errors import PayloadError

_json = json.JSONEncoder(sort_keys=True, separators=(",", ":"), allow_nan=False).encode


def payload_text(value: object) -> str:
    """The text that `fenced_apply` gets for `value`.

    Takes what JSON can say exactly: None, bool, int, finite float, str, list or tuple, and dict
    with str keys. Raises `PayloadError` for anything else, naming where it stands, and for what
    Python does not write: an int with too many digits, or what is nested too deep.
    """
    if isinstance(value, str):
        text = str.__str__(value)
        if "\0" in text:
            raise PayloadError(
                "the payload contains a NUL character, which PostgreSQL cannot store"
            )
    else:
        try:
            _check(value, "payload")
            text = _json(value)
        except PayloadError:
            raise
        except RecursionError as error:
            raise PayloadError("the payload is nested too deep, or contains itself") from error
        except ValueError as error:
            raise PayloadError(f"the payload has a number that is too long: {error}") from error
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise PayloadError("the payload contains half of a surrogate pair") from error
    return text


def payload_digest(text: str) -> str:
    """SHA-256 of the payload's UTF-8 bytes, in hex, as in the receipt."""
    return sha256(text.encode()).hexdigest()


def _check(value: object, where: str) -> None:
    if value is None or isinstance(value, str | int):
        return
    if isinstance(value, float):
        if value - value != 0:
            raise PayloadError(f"{where} is {value!r}, which JSON cannot say")
    elif isinstance(value, list | tuple):
        for index, item in enumerate(value):
            _check(item, f"{where}[{index}]")
    elif isinstance(value, dict):
        for key, item in value.items():
            if not isinstance(key, str):
                raise PayloadError(f"{where} has the key {key!r}; keys must be str")
            _check(item, f"{where}[{key!r}]")
    else:
        raise PayloadError(f"{where} is a {type(value).__name__}, which JSON does not have")
