"""The first trust bundle of a database: which public keys its guard accepts from then on (R31)."""

from dataclasses import dataclass
from typing import Any

import psycopg
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from psycopg.rows import tuple_row

from pgfence.model.bundle import TrustBundle, TrustKey, sign_bundle
from pgfence.model.signature import raw_public_key

Connection = psycopg.Connection[Any]

_DAY_US = 24 * 60 * 60 * 1_000_000


@dataclass(frozen=True)
class TrustKeys:
    """The private keys behind a first bundle, one for each purpose.

    root signs bundles and nothing else, grant signs grants (the registry process needs it), status
    signs status proofs.
    """

    root: Ed25519PrivateKey
    grant: Ed25519PrivateKey
    status: Ed25519PrivateKey


def installed_version(conn: Connection) -> int | None:
    """Version of the bundle in force; None if there is none."""
    with psycopg.RawCursor(conn, row_factory=tuple_row) as cursor:
        row = cursor.execute("select version from pgfence.trust_bundle()").fetchone()
    return row[0] if row else None


def install_first_bundle(
    conn: Connection, audience: str, keys: TrustKeys, valid_days: int
) -> TrustBundle:
    """Make, sign and install version 1, on a connection of a member of pgfence_owner.

    audience: the name under which grants are issued for this database, an ID. The bundle and its
    keys are valid from now on the database's clock for `valid_days` days.

    Raises `InvalidArgumentError`, and `TrustRefusedError` if a bundle is installed already.
    """
    with psycopg.RawCursor(conn, row_factory=tuple_row) as cursor:
        row = cursor.execute(
            "select (extract(epoch from pg_catalog.clock_timestamp()) * 1000000)::bigint"
        ).fetchone()
        assert row is not None  # noqa: S101 - a select without from has one row
        bundle = _bundle(audience, keys, issued_at=row[0], expires_at=row[0] + valid_days * _DAY_US)
        cursor.execute(
            "select pgfence.install_trust_bundle($1, $2)",
            (bundle.document, [sign_bundle(bundle.document, keys.root)]),
        )
    return bundle


def _bundle(audience: str, keys: TrustKeys, *, issued_at: int, expires_at: int) -> TrustBundle:
    trusted = [
        TrustKey(
            purpose=purpose,
            public_key=raw_public_key(key),
            not_before=issued_at,
            expires_at=expires_at,
        )
        for purpose, key in (("root", keys.root), ("grant", keys.grant), ("status", keys.status))
    ]
    return TrustBundle(
        version=1,
        audience=audience,
        keys=tuple(sorted(trusted, key=lambda key: key.kid)),
        lowest_epoch=1,
        root_threshold=1,
        issued_at=issued_at,
        expires_at=expires_at,
    )
