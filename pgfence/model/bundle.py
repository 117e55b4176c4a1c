"""The trust bundle: the public keys that the guard accepts (trustBundle.v1), and its rotation.

The document is canonical JSON like a token's message. Signatures are texts 'kid:signature' in
hexadecimal, by root keys, over the document together with its schema. The database decides the
same way (pgfence.install_trust_bundle).

What may follow which bundle (R31), in the order in which it is asked; the word is the `problem` of
the `TrustRefusedError`:

    DOCUMENT    it is canonical and good in itself, see `TrustBundle`
    NOT_FIRST   the first one has version 1 and names none before it; any other
    INSTALLED     is not the one in force already,
    VERSION       has the next version,
    PREVIOUS      names the digest of the one before,
    AUDIENCE      is for the same database,
    EPOCH         does not lower the lowest good epoch,
    PURPOSE       leaves each key that stays its purpose
    EXPIRED     it has not expired
    SIGNATURE   each signature is good and of a root key, of the new bundle or the one before, whose
                window holds, and no key signed twice
    OLD_QUORUM  as many root keys of the one before signed as that one asks for,
    QUORUM      and as many of the new one's as the new one asks for

An expired bundle refuses every grant, but it can be followed: otherwise nobody could mend it.
"""

from collections.abc import Iterable, Sequence
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
#: How long before its end a bundle should be followed by another: people have to meet for that.
RENEWAL_US = 30 * 24 * 60 * 60 * 1_000_000

_PROBLEMS = {
    "DOCUMENT": "the document is not a canonical, valid trustBundle.v1",
    "NOT_FIRST": "the first bundle has version 1 and names no bundle before it",
    "INSTALLED": "it is in force already",
    "VERSION": "its version is not the one after that of the bundle in force",
    "PREVIOUS": "it does not name the digest of the bundle in force",
    "AUDIENCE": "it is for another database",
    "EPOCH": "it lowers the lowest good epoch",
    "PURPOSE": "a key has another purpose than in the bundle in force",
    "EXPIRED": "it has expired",
    "SIGNATURE": "a signature is not that of a valid root key, or a key signed twice",
    "OLD_QUORUM": "fewer root keys of the bundle in force signed than its threshold asks for",
    "QUORUM": "fewer of its own root keys signed than its threshold asks for",
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
    #: How many of its root keys must sign it, and the next bundle.
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
        require(
            is_integer(self.root_threshold, least=1) and self.root_threshold <= len(self.roots),
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

    @property
    def roots(self) -> tuple[TrustKey, ...]:
        """The root keys, whatever their windows."""
        return tuple(key for key in self.keys if key.purpose == "root")

    def ends_soon(self, now_us: int) -> bool:
        """Whether it is time to propose the next one, or past it."""
        return now_us >= self.expires_at - RENEWAL_US

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
        raise refused("DOCUMENT")

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


def verify_next_bundle(
    before: TrustBundle | None, document: str, signatures: Sequence[str], now_us: int
) -> TrustBundle:
    """The bundle, if it may replace `before`; None: if it may be the first one of a database.

    now_us: microseconds since the epoch. Raises `TrustRefusedError`; `detail["problem"]` is one
    word of the list above, as in the database.
    """
    bundle = TrustBundle.parse(document)
    problem = content_problem(before, bundle, now_us) or _signature_problem(
        before, bundle, signatures, now_us
    )
    if problem:
        raise refused(problem)
    return bundle


def follow_chain(trusted: TrustBundle, chain: Iterable[tuple[str, Sequence[str]]]) -> TrustBundle:
    """The last bundle of a chain of (document, signatures), each following the one before (R33).

    A bundle in the chain may have expired since, and root keys too: each is judged as of the time
    when it was issued. Raises `TrustRefusedError`.
    """
    for document, signatures in chain:
        issued_at = TrustBundle.parse(document).issued_at
        trusted = verify_next_bundle(trusted, document, signatures, issued_at)
    return trusted


def content_problem(before: TrustBundle | None, bundle: TrustBundle, now_us: int) -> str | None:
    """What is wrong with what a new bundle says, whoever signed it; None: nothing."""
    if before is None:
        if bundle.version != 1 or bundle.previous != "":
            return "NOT_FIRST"
    elif bundle == before:
        return "INSTALLED"
    elif bundle.version != before.version + 1:
        return "VERSION"
    elif bundle.previous != before.digest:
        return "PREVIOUS"
    elif bundle.audience != before.audience:
        return "AUDIENCE"
    elif bundle.lowest_epoch < before.lowest_epoch:
        return "EPOCH"
    elif any(
        (old := before.key(key.kid)) is not None
        and (old.purpose, old.public_key) != (key.purpose, key.public_key)
        for key in bundle.keys
    ):
        return "PURPOSE"
    return "EXPIRED" if now_us >= bundle.expires_at else None


def roots_at(roots_of: TrustBundle, signed: TrustBundle, now_us: int) -> dict[str, bytes]:
    """The root keys of a bundle that may sign another one, by kid.

    Their window holds now and did when the other one was issued: so a client that follows later,
    and knows only when it was issued, comes to the same answer as the database.
    """
    first, last = sorted((signed.issued_at, now_us))
    return {
        key.kid: key.public_key
        for key in roots_of.roots
        if key.not_before <= first and last < key.expires_at
    }


def _signature_problem(
    before: TrustBundle | None, bundle: TrustBundle, signatures: Sequence[str], now_us: int
) -> str | None:
    old_roots = roots_at(before, bundle, now_us) if before else {}
    new_roots = roots_at(bundle, bundle, now_us)
    signers: set[str] = set()
    for text in signatures:
        kid = signer(text, bundle.document, old_roots | new_roots)
        if kid is None or kid in signers:
            return "SIGNATURE"
        signers.add(kid)
    if before is not None and len(signers & old_roots.keys()) < before.root_threshold:
        return "OLD_QUORUM"
    return "QUORUM" if len(signers & new_roots.keys()) < bundle.root_threshold else None


def signer(text: str, document: str, roots: dict[str, bytes]) -> str | None:
    """The kid of the root key whose good signature of the document `text` is; else None."""
    kid, signature = text[:16], text[17:]
    good = (
        kid in roots
        and text == f"{kid}:{signature}"
        and is_digest(signature[:64])
        and is_digest(signature[64:])
        and verify(roots[kid], _signed(document), bytes.fromhex(signature))
    )
    return kid if good else None


def _signed(document: str) -> bytes:
    return pae([SCHEMA.encode(), document.encode()])


def refused(problem: str) -> TrustRefusedError:
    """The error for a problem of the list above."""
    return TrustRefusedError(
        f"the trust bundle is refused: {_PROBLEMS[problem]}", {"problem": problem}, rule="R31"
    )
