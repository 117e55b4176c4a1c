"""The trust bundle of a database: what is in force, and putting the next one in force (R31)."""

from collections.abc import Sequence
from dataclasses import dataclass

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from pgfence.model.bundle import TrustBundle, TrustKey
from pgfence.model.proposal import NO_END, Proposal, first_proposal
from pgfence.model.signature import raw_public_key
from pgfence.queries import Connection, rows

DAY_US = 24 * 60 * 60 * 1_000_000


@dataclass(frozen=True)
class TrustKeys:
    """The private keys behind a first bundle of one person, one for each purpose.

    root signs bundles and nothing else, grant signs grants (the registry process needs it), status
    signs status proofs.
    """

    root: Ed25519PrivateKey
    grant: Ed25519PrivateKey
    status: Ed25519PrivateKey


def in_force(conn: Connection) -> TrustBundle | None:
    """The trust bundle in force; None if there is none."""
    found = rows(conn, "select document from pgfence.trust_bundle()")
    return TrustBundle.parse(found[0][0]) if found else None


def now_us(conn: Connection) -> int:
    """The database's clock, microseconds since the epoch."""
    ((now,),) = rows(
        conn, "select (extract(epoch from pg_catalog.clock_timestamp()) * 1000000.0)::bigint"
    )
    return int(now)


def issuer_epoch(conn: Connection) -> int:
    """The epoch of new grants: every grant that exists has it, or a lower one."""
    ((epoch,),) = rows(conn, "select issuer_epoch from pgfence.configuration")
    return int(epoch)


def trusted_key(purpose: str, public_key: bytes, not_before: int) -> TrustKey:
    """A key for a bundle, without an end of its own. Raises `InvalidArgumentError`."""
    return TrustKey(
        purpose=purpose, public_key=public_key, not_before=not_before, expires_at=NO_END
    )


def install_bundle(conn: Connection, proposal: Proposal) -> None:
    """Put a proposal in force, on a connection of a member of pgfence_owner.

    Raises `TrustRefusedError`, as an error of psycopg; then nothing was changed.
    """
    rows(
        conn,
        "select pgfence.install_trust_bundle($1, $2)",
        proposal.bundle.document,
        list(proposal.signatures),
    )


def install_first_bundle(
    conn: Connection, audience: str, keys: TrustKeys, valid_days: int
) -> TrustBundle:
    """Make, sign and install version 1, on a connection of a member of pgfence_owner.

    audience: the name under which grants are issued for this database, an ID. The bundle is valid
    from now on the database's clock for `valid_days` days.

    Raises `InvalidArgumentError`, and as an error of psycopg `TrustRefusedError` if a bundle is
    installed already.
    """
    now = now_us(conn)
    private: Sequence[tuple[str, Ed25519PrivateKey]] = (
        ("root", keys.root), ("grant", keys.grant), ("status", keys.status)
    )  # fmt: skip
    proposal = first_proposal(
        audience,
        [trusted_key(purpose, raw_public_key(key), now) for purpose, key in private],
        threshold=1,
        now_us=now,
        expires_at=now + valid_days * DAY_US,
    )
    install_bundle(conn, proposal.sign(keys.root, now))
    return proposal.bundle
