"""Tokens: PASETO v4.public around a canonical message (R2), and the files that hold private keys.

`verify` and the database's `_verify_token` give the same answer for the same bytes.
"""

import os
import re
import stat
from base64 import urlsafe_b64decode, urlsafe_b64encode
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path

from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    load_pem_private_key,
)

from pgfence.errors import KeyFileError, TokenRefusedError
from pgfence.model.bundle import TrustBundle
from pgfence.model.grant import Grant
from pgfence.model.signature import key_id, pae, raw_public_key
from pgfence.model.signature import verify as verify_signature
from pgfence.model.status import StatusProof

MAX_TOKEN = 8192

_HEADER = "v4.public."
_PURPOSES = {Grant.SCHEMA: "grant", StatusProof.SCHEMA: "status"}
_BASE64URL = re.compile(r"[A-Za-z0-9_-]*")
_FOOTER = re.compile(rb'\{"kid":"([0-9a-f]{16})"\}')


@dataclass(frozen=True, slots=True)
class VerifiedToken:
    """A token whose envelope, key and signature are good. What it says is for `Grant.parse`."""

    #: The signed bytes; ASCII.
    message: bytes
    #: SHA-256 of the message, in hex: what names a grant (R4).
    digest: str
    kid: str
    #: When the key or the whole bundle ends, microseconds since the epoch.
    key_expires_at: int


def sign(message: bytes, schema: str, key: Ed25519PrivateKey) -> str:
    """The token that carries `message`. `schema` is its implicit assertion (R2)."""
    footer = f'{{"kid":"{key_id(raw_public_key(key))}"}}'.encode()
    signature = key.sign(_signed(message, footer, schema))
    return f"{_HEADER}{_base64url(message + signature)}.{_base64url(footer)}"


def verify(token: str, schema: str, bundle: TrustBundle, now_us: int) -> VerifiedToken:
    """Check a token in the order of R5 up to the signature.

    now_us: microseconds since the epoch. Raises `TokenRefusedError` with MALFORMED, UNKNOWN_KEY or
    BAD_SIGNATURE and a reason.
    """
    if len(token) > MAX_TOKEN or not token.startswith(_HEADER):
        raise TokenRefusedError("MALFORMED", "ENVELOPE")
    body_text, _, footer_text = token.removeprefix(_HEADER).partition(".")
    body, footer = _from_base64url(body_text), _from_base64url(footer_text)
    if body is None or footer is None or len(body) < 64 or not (match := _FOOTER.fullmatch(footer)):
        raise TokenRefusedError("MALFORMED", "ENVELOPE")
    kid = match[1].decode()

    key = bundle.key(kid)
    if now_us >= bundle.expires_at:
        raise TokenRefusedError("UNKNOWN_KEY", "BUNDLE_EXPIRED")
    if key is None:
        raise TokenRefusedError("UNKNOWN_KEY", "KID")
    if key.purpose != _PURPOSES.get(schema):
        raise TokenRefusedError("UNKNOWN_KEY", "PURPOSE")
    if now_us < key.not_before:
        raise TokenRefusedError("UNKNOWN_KEY", "NOT_YET_VALID")
    if now_us >= key.expires_at:
        raise TokenRefusedError("UNKNOWN_KEY", "EXPIRED")

    message, signature = body[:-64], body[-64:]
    if not verify_signature(key.public_key, _signed(message, footer, schema), signature):
        raise TokenRefusedError("BAD_SIGNATURE", "SIGNATURE")
    if not message.isascii() or b"\0" in message or b"\\" in message:
        raise TokenRefusedError("MALFORMED", "MESSAGE")
    return VerifiedToken(
        message=message,
        digest=sha256(message).hexdigest(),
        kid=kid,
        key_expires_at=min(key.expires_at, bundle.expires_at),
    )


def write_key(path: Path, key: Ed25519PrivateKey) -> None:
    """Write a private key (PEM, PKCS #8) to a new file that only its owner may read.

    Raises `KeyFileError` if there is a file already, or none can be made there.
    """
    pem = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError as error:
        raise KeyFileError(f"{path} exists; a key is never overwritten") from error
    except OSError as error:
        raise KeyFileError(f"{path} cannot be made: {error.strerror}") from error
    with os.fdopen(descriptor, "wb") as file:
        file.write(pem)
        file.flush()
        os.fsync(descriptor)


def load_key(path: Path) -> Ed25519PrivateKey:
    """Read a private key that `write_key` wrote.

    Raises `KeyFileError` if it cannot be read, if others than its owner may use it, or if it holds
    no Ed25519 key.
    """
    try:
        with path.open("rb") as file:
            mode = stat.S_IMODE(os.fstat(file.fileno()).st_mode)
            pem = file.read()
    except OSError as error:
        raise KeyFileError(f"{path} cannot be read: {error.strerror}") from error
    if mode & 0o077:
        raise KeyFileError(f"{path} has mode {mode:04o}: others may use it; run chmod 600")
    try:
        key = load_pem_private_key(pem, password=None)
    except (ValueError, TypeError, UnsupportedAlgorithm) as error:
        raise KeyFileError(f"{path} holds no private key in PEM") from error
    if not isinstance(key, Ed25519PrivateKey):
        raise KeyFileError(f"{path} holds a private key, but not an Ed25519 one")
    return key


def _signed(message: bytes, footer: bytes, schema: str) -> bytes:
    return pae([_HEADER.encode(), message, footer, schema.encode()])


def _base64url(data: bytes) -> str:
    return urlsafe_b64encode(data).decode().rstrip("=")


def _from_base64url(text: str) -> bytes | None:
    """The bytes of canonical base64url without padding; None for any other text."""
    if not _BASE64URL.fullmatch(text) or len(text) % 4 == 1:
        return None
    data = urlsafe_b64decode(text + "=" * (-len(text) % 4))
    return data if _base64url(data) == text else None
