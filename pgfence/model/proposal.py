"""A proposed trust bundle on its way from root key to root key, until enough of them have signed.

The file holds both documents, the one in force and the one to come, so that whoever signs it can
see what would change on a machine that is not online. Signing adds a line; copies that were signed
apart are put together.
"""

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Any, Self

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from pgfence.errors import InvalidArgumentError, TrustRefusedError
from pgfence.model.bundle import (
    TrustBundle,
    TrustKey,
    content_problem,
    refused,
    roots_at,
    sign_bundle,
    signer,
)
from pgfence.model.canonical import MAX_INTEGER
from pgfence.model.signature import key_id, raw_public_key

SCHEMA = "trustProposal.v1"

#: `expires_at` of a key that has no end of its own: then the bundle's counts.
NO_END = MAX_INTEGER

_HINT = "`pgfence trust show` lists the keys."
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class Quorum:
    """How many of one bundle's root keys must sign, and which have."""

    #: Version of the bundle that asks.
    bundle: int
    threshold: int
    #: Kids of its valid root keys.
    signed: tuple[str, ...]
    not_signed: tuple[str, ...]

    @property
    def missing(self) -> int:
        """How many signatures are still needed."""
        return max(0, self.threshold - len(self.signed))


@dataclass(frozen=True, slots=True)
class Change:
    """One difference between two bundles, in words; None: not there."""

    what: str
    before: str | None
    after: str | None


@dataclass(frozen=True, slots=True)
class Proposal:
    """A bundle that is to follow `before` (None: to be the first), and the signatures so far."""

    before: TrustBundle | None
    bundle: TrustBundle
    signatures: tuple[str, ...] = ()

    def encode(self) -> str:
        """The text of the file."""
        fields = {
            "schema": SCHEMA,
            "before": self.before.document if self.before else None,
            "document": self.bundle.document,
            "signatures": self.signatures,
        }
        return json.dumps(fields, indent=2) + "\n"

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read a file. Raises `InvalidArgumentError`, and `TrustRefusedError` (DOCUMENT)."""
        try:
            fields = json.loads(text)
            before, document, signatures = (
                fields[name] for name in ("before", "document", "signatures")
            )
            good = (
                fields.keys() == {"schema", "before", "document", "signatures"}
                and fields["schema"] == SCHEMA
                and isinstance(before, str | None)
                and isinstance(document, str)
                and isinstance(signatures, list)
                and all(isinstance(signature, str) for signature in signatures)
            )
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
            good = False
        if not good:
            raise InvalidArgumentError(f"this is no {SCHEMA}", rule="R31")
        return cls(
            None if before is None else TrustBundle.parse(before),
            TrustBundle.parse(document),
            tuple(signatures),
        )

    def check(self, now_us: int) -> None:
        """Return if nothing but signatures is missing.

        now_us: microseconds since the epoch. Raises `TrustRefusedError` with the rule that is
        broken, also by a signature that is there.
        """
        problem = content_problem(self.before, self.bundle, now_us)
        if problem is None and len(self._signers(now_us)) < len(self.signatures):
            problem = "SIGNATURE"
        if problem:
            raise refused(problem)

    def sign(self, root: Ed25519PrivateKey, now_us: int) -> Self:
        """The proposal with one signature more; the same if this key has signed already.

        Raises what `check` raises, and `TrustRefusedError` (SIGNATURE) for a key that is no valid
        root key of either bundle.
        """
        self.check(now_us)
        kid = key_id(raw_public_key(root))
        if kid not in self._roots(now_us):
            versions = [str(b.version) for b in (self.before, self.bundle) if b]
            raise TrustRefusedError(
                f"key {kid} is no valid root key of trust bundle {' or '.join(versions)}",
                {"problem": "SIGNATURE", "kid": kid},
                hint="Sign with a root key's own file; `pgfence trust show FILE` lists their kids.",
                rule="R31",
            )
        if kid in self._signers(now_us):
            return self
        signature = sign_bundle(self.bundle.document, root)
        return replace(self, signatures=tuple(sorted((*self.signatures, signature))))

    def merge(self, other: Self) -> Self:
        """The signatures of two copies together. Raises `InvalidArgumentError` if they differ."""
        if (self.before, self.bundle) != (other.before, other.bundle):
            raise InvalidArgumentError(
                f"these are different proposals: {self.bundle.digest} and {other.bundle.digest}",
                rule="R31",
            )
        return replace(self, signatures=tuple(sorted({*self.signatures, *other.signatures})))

    def quorums(self, now_us: int) -> list[Quorum]:
        """What each of the two bundles asks for."""
        signers = self._signers(now_us)
        quorums = []
        for bundle in (self.before, self.bundle):
            if bundle is None:
                continue
            roots = sorted(roots_at(bundle, self.bundle, now_us))
            quorums.append(
                Quorum(
                    bundle=bundle.version,
                    threshold=bundle.root_threshold,
                    signed=tuple(kid for kid in roots if kid in signers),
                    not_signed=tuple(kid for kid in roots if kid not in signers),
                )
            )
        return quorums

    def changes(self) -> list[Change]:
        """What would be another way from the installation on."""
        before, after = _facts(self.before), _facts(self.bundle)
        names = [*after, *(name for name in before if name not in after)]
        changes = [Change(name, before.get(name), after.get(name)) for name in names]
        return [change for change in changes if change.before != change.after]

    def _roots(self, now_us: int) -> dict[str, bytes]:
        old = roots_at(self.before, self.bundle, now_us) if self.before else {}
        return old | roots_at(self.bundle, self.bundle, now_us)

    def _signers(self, now_us: int) -> set[str]:
        roots = self._roots(now_us)
        signers = (signer(text, self.bundle.document, roots) for text in self.signatures)
        return {kid for kid in signers if kid is not None}


def first_proposal(
    audience: str, keys: Iterable[TrustKey], threshold: int, *, now_us: int, expires_at: int
) -> Proposal:
    """The first bundle of a database, unsigned. Raises `InvalidArgumentError`."""
    trusted = _in_order(keys, threshold)
    bundle = TrustBundle(
        version=1,
        audience=audience,
        keys=trusted,
        lowest_epoch=1,
        root_threshold=threshold,
        issued_at=now_us,
        expires_at=expires_at,
    )
    return Proposal(None, bundle)


def next_proposal(
    before: TrustBundle,
    *,
    now_us: int,
    expires_at: int,
    add: Sequence[TrustKey] = (),
    remove: Sequence[str] = (),
    ends: dict[str, int] | None = None,
    threshold: int | None = None,
    lowest_epoch: int | None = None,
) -> Proposal:
    """The bundle that follows `before`, unsigned.

    remove: kids. ends: when a key that stays is to end, by kid. What is not given stays as it is.
    Raises `InvalidArgumentError` for a kid that is not there, a key that is, and what
    `TrustBundle` does not accept.
    """
    keys = {key.kid: key for key in before.keys}
    for kid in (*remove, *(ends or {})):
        if kid not in keys:
            raise InvalidArgumentError(
                f"trust bundle {before.version} has no key {kid}", hint=_HINT
            )
    for key in add:
        if key.kid in keys:
            raise InvalidArgumentError(
                f"trust bundle {before.version} has key {key.kid}: a key is added once", hint=_HINT
            )
    kept = [
        replace(key, expires_at=(ends or {}).get(kid, key.expires_at))
        for kid, key in keys.items()
        if kid not in remove
    ]
    threshold = before.root_threshold if threshold is None else threshold
    bundle = TrustBundle(
        version=before.version + 1,
        audience=before.audience,
        keys=_in_order((*kept, *add), threshold),
        lowest_epoch=before.lowest_epoch if lowest_epoch is None else lowest_epoch,
        root_threshold=threshold,
        issued_at=now_us,
        expires_at=expires_at,
        previous=before.digest,
    )
    return Proposal(before, bundle)


def time_of(microseconds: int) -> datetime:
    """A time of a bundle, in UTC."""
    return _EPOCH + timedelta(microseconds=microseconds)


def _in_order(keys: Iterable[TrustKey], threshold: int) -> tuple[TrustKey, ...]:
    """The keys by kid, if they are distinct and enough of them are root keys."""
    trusted = tuple(sorted(keys, key=lambda key: key.kid))
    if len({key.kid for key in trusted}) < len(trusted):
        raise InvalidArgumentError(
            "a key is given twice", hint="A key has one purpose: make another one.", rule="R31"
        )
    roots = sum(key.purpose == "root" for key in trusted)
    if threshold > roots:
        raise InvalidArgumentError(
            f"{threshold} signatures of {roots} root keys: nobody could replace that bundle",
            hint="Lower the threshold, or have more root keys.",
            rule="R31",
        )
    return trusted


def _facts(bundle: TrustBundle | None) -> dict[str, str]:
    """What a bundle says, in words, in the order in which people ask."""
    if bundle is None:
        return {}
    facts: dict[str, Any] = {
        "audience": bundle.audience,
        "signatures of root keys": f"{bundle.root_threshold} of {len(bundle.roots)}",
        "lowest good epoch": bundle.lowest_epoch,
        "expires": _minute(bundle.expires_at),
    }
    for key in sorted(bundle.keys, key=lambda key: (key.purpose, key.kid)):
        end = "" if key.expires_at == NO_END else f" until {_minute(key.expires_at)}"
        facts[f"{key.purpose} key {key.kid}"] = f"from {_minute(key.not_before)}{end}"
    return {name: str(fact) for name, fact in facts.items()}


def _minute(microseconds: int) -> str:
    return f"{time_of(microseconds):%Y-%m-%d %H:%M} UTC"
