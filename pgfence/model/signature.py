"""Ed25519 as pgfence demands it, and what is signed. The database decides the same way.

Signatures are checked strictly (RFC 8032 without its freedoms): S below the group order, R and the
public key in their only encoding, no public key of small order.
"""

from collections.abc import Sequence
from functools import lru_cache
from hashlib import sha256

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

_P = 2**255 - 19
_D = -121665 * pow(121666, -1, _P) % _P
_Y_OF_ORDER_8 = 2707385501144840649318225287225658788936804267575313519463743609750303402022
_Y_OF_SMALL_ORDER = {0, 1, _P - 1, _Y_OF_ORDER_8, _P - _Y_OF_ORDER_8}


def pae(pieces: Sequence[bytes]) -> bytes:
    """PASETO's pre-authentication encoding: no two rows of pieces give the same bytes."""
    encoded = [len(pieces).to_bytes(8, "little")]
    for piece in pieces:
        encoded += (len(piece).to_bytes(8, "little"), piece)
    return b"".join(encoded)


def raw_public_key(key: Ed25519PrivateKey) -> bytes:
    """The 32 bytes of the public key that belongs to `key`."""
    return key.public_key().public_bytes_raw()


def key_id(public_key: bytes) -> str:
    """The kid: the first 16 hexadecimal digits of SHA-256 of the raw public key (R2)."""
    return sha256(public_key).hexdigest()[:16]


@lru_cache(maxsize=64)
def is_usable_public_key(public_key: bytes) -> bool:
    """Whether it is the canonical encoding of a point of the curve whose order is large."""
    if len(public_key) != 32:
        return False
    y = int.from_bytes(public_key, "little") & (2**255 - 1)
    if y >= _P or y in _Y_OF_SMALL_ORDER:
        return False
    # x^2 = (y^2 - 1) / (d y^2 + 1) has a root if the product of both sides of the bar is a square
    return pow((y * y - 1) * (_D * y * y + 1), (_P - 1) // 2, _P) == 1


def verify(public_key: bytes, message: bytes, signature: bytes) -> bool:
    """Whether `signature` is the key's signature of `message`, strictly."""
    if not is_usable_public_key(public_key):
        return False
    try:
        Ed25519PublicKey.from_public_bytes(public_key).verify(signature, message)
    except InvalidSignature:
        return False
    return True
