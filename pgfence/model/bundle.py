"""The trust bundle: the public keys that the guard accepts (trustBundle.v1, R31).

The document is canonical JSON like a token's message. Signatures are texts 'kid:signature' in
hexadecimal, by root keys, over the document together with its schema. The database decides the
same way (pgfence.install_trust_bundle).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import sha256
from typing import Any, Self

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from pgfence.errors import InvalidArgumentError, TrustRefusedError
from pgfence.model.canonical import decode, encode, is_digest, is_identifier, is_integer, require
from pgfence.model.signature import is_usable_public_key, key_id, pae, raw_public_key, verify

SCHEMA = "trustBundle.v1"
PURPOSES = frozenset({"grant", "root", "status"})
MAX_DOCUMENT = 65536

_PROBLEMS = {
    "DOCUMENT": "the document is not a canonical, valid trustBundle.v1",
    "NOT_FIRST": "the first bundle has version 1 and names no bundle before it",
    "EXPIRED": "it has expired",
    "SIGNATURE": "a signature is not that of one of its valid root keys, or a key signed twice",
    "QUORUM": "fewer root keys signed than its threshold asks for",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class TrustKey:
    """A public key and what it may sign: grants, status proofs, or (root) bundles.

    Valid from `not_before` until just before `expires_at`, microseconds since the epoch.
    Raises `InvalidArgumentError` for a key that is not usable.
    """

    purpose: str
    public_key: bytes
    not_before: int
    expires_at: int

    def __post_init__(self) -> None:
        require(self.purpose in PURPOSES, "purpose")
        require(is_usable_public_key(self.public_key), "public_key")
        require(is_integer(self.not_before), "not_before")
        require(is_integer(self.expires_at) and self.expires_at > self.not_before, "expires_at")

    @property
    def kid(self) -> str:
        """What names the key in a token's footer (R2)."""
        return key_id(self.public_key)

    def _encode(self) -> dict[str, Any]:
        return {
            "expiresAt": self.expires_at,
            "kid": self.kid,
            "notBefore": self.not_before,
            "publicKey": self.public_key.hex(),
            "purpose": self.purpose,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class TrustBundle:
    """A trust bundle that is good in itself; who signed it is another question.

    Keys stand in order of their kid, none twice, so that none has two purposes; there are enough
    root keys to sign the next bundle. Raises `InvalidArgumentError` otherwise.
    Times are microseconds since the epoch.
    """

    version: int
    #: Name of the guarded database.
    audience: str
    keys: tuple[TrustKey, ...]
    #: Grants of a lower issuer epoch are refused.
    lowest_epoch: int
    #: How many root keys must sign the next bundle.
    root_threshold: int
    issued_at: int
    expires_at: int
    #: `digest` of the bundle before, or "" in the first.
    previous: str = ""

    def __post_init__(self) -> None:
        require(is_integer(self.version, least=1), "version")
        require(is_identifier(self.audience), "audience")
        kids = [key.kid for key in self.keys]
        require(kids == sorted(set(kids)), "order of keys")
        require(is_integer(self.lowest_epoch), "lowest_epoch")
        roots = sum(key.purpose == "root" for key in self.keys)
        require(
            is_integer(self.root_threshold, least=1) and self.root_threshold <= roots,
            "root_threshold",
        )
        require(is_integer(self.issued_at), "issued_at")
        require(is_integer(self.expires_at) and self.expires_at > self.issued_at, "expires_at")
        require(self.previous == "" or is_digest(self.previous), "previous")

    @property
    def document(self) -> str:
        """The canonical JSON text."""
        return encode(
            {
                "audience": self.audience,
                "expiresAt": self.expires_at,
                "issuedAt": self.issued_at,
                "keys": [key._encode() for key in self.keys],
                "lowestEpoch": self.lowest_epoch,
                "previous": self.previous,
                "rootThreshold": self.root_threshold,
                "schema": SCHEMA,
                "version": self.version,
            }
        )

    @property
    def digest(self) -> str:
        """SHA-256 of the document, in hex."""
        return sha256(self.document.encode()).hexdigest()

    def key(self, kid: str) -> TrustKey | None:
        """The key of that kid, whatever its purpose and window."""
        return next((key for key in self.keys if key.kid == kid), None)

    @classmethod
    def parse(cls, document: str) -> Self:
        """Read a document strictly. Raises `TrustRefusedError` (problem DOCUMENT)."""
        try:
            if len(document) <= MAX_DOCUMENT:
                bundle = cls._of(decode(document))
                if bundle.document == document:
                    return bundle
        except (ValueError, TypeError, KeyError, InvalidArgumentError):
            pass
        raise _refused("DOCUMENT")

    @classmethod
    def _of(cls, claims: dict[str, Any]) -> Self:
        return cls(
            version=claims["version"],
            audience=claims["audience"],
            keys=tuple(
                TrustKey(
                    purpose=key["purpose"],
                    public_key=bytes.fromhex(key["publicKey"]),
                    not_before=key["notBefore"],
                    expires_at=key["expiresAt"],
                )
                for key in claims["keys"]
            ),
            lowest_epoch=claims["lowestEpoch"],
            root_threshold=claims["rootThreshold"],
            issued_at=claims["issuedAt"],
            expires_at=claims["expiresAt"],
            previous=claims["previous"],
        )


def sign_bundle(document: str, root: Ed25519PrivateKey) -> str:
    """The signature of a root key on a document: 'kid:signature' in hexadecimal."""
    return f"{key_id(raw_public_key(root))}:{root.sign(_signed(document)).hex()}"


def verify_first_bundle(document: str, signatures: Sequence[str], now_us: int) -> TrustBundle:
    """The bundle, if it may be the first one of a database: signed by its own root threshold.

    Every signature must be good. now_us: microseconds since the epoch.
    Raises `TrustRefusedError`; `detail["problem"]` is one word, as in the database.
    """
    bundle = TrustBundle.parse(document)
    if bundle.version != 1 or bundle.previous != "":
        raise _refused("NOT_FIRST")
    if now_us >= bundle.expires_at:
        raise _refused("EXPIRED")
    signers: set[str] = set()
    for text in signatures:
        kid, signature = text[:16], text[17:]
        key = bundle.key(kid)
        if (
            key is None
            or key.purpose != "root"
            or not key.not_before <= now_us < key.expires_at
            or kid in signers
            or text != f"{kid}:{signature}"
            or not (is_digest(signature[:64]) and is_digest(signature[64:]))
            or not verify(key.public_key, _signed(document), bytes.fromhex(signature))
        ):
            raise _refused("SIGNATURE")
        signers.add(kid)
    if len(signers) < bundle.root_threshold:
        raise _refused("QUORUM")
    return bundle


def _signed(document: str) -> bytes:
    return pae([SCHEMA.encode(), document.encode()])


def _refused(problem: str) -> TrustRefusedError:
    return TrustRefusedError(
        f"the trust bundle is refused: {_PROBLEMS[problem]}", {"problem": problem}, rule="R31"
    )
