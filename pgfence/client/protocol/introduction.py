"""What a client learns about a database before it does anything, and its trust bundle (R33)."""

from collections.abc import Sequence
from datetime import datetime
from typing import NamedTuple

from pgfence import errors
from pgfence.client.protocol.steps import (
    LONGEST_CALL,
    Batch,
    Call,
    Clock,
    Failed,
    Row,
    Steps,
    reopening,
    rows_of,
)
from pgfence.model.bundle import TrustBundle, follow_chain
from pgfence.model.clocks import Reading

#: The schema that this version was built for: the head of the migrations.
SCHEMA_VERSION = "0001_baseline"

#: Schema or function does not exist; permission denied.
_NOT_INSTALLED, _NOT_ALLOWED = frozenset({"3F000", "42883"}), "42501"
_TRUST_BUNDLE = "select document, digest, pg_catalog.clock_timestamp() from pgfence.trust_bundle()"
_TRUST_CHAIN = "select version, document, signatures from pgfence.trust_chain($1)"


class Arrangement(NamedTuple):
    """How a database and its registry stand to each other."""

    audience: str | None
    registry_is_local: bool
    clock_tolerance_ms: int


def arrangement() -> Steps[Arrangement]:
    """Where the registry of a database is."""
    (row,) = yield from rows_of(Call("select * from pgfence.arrangement()"))
    return Arrangement(*row)


def read_clock(clock: Clock) -> Steps[Reading]:
    """The server's clock."""
    asked_at = clock()
    ((server_time,),) = yield from rows_of(Call("select pg_catalog.clock_timestamp()"))
    return Reading(asked_at, server_time.timestamp(), clock())


class Introduction(NamedTuple):
    """What a client learns about a database before it does anything."""

    #: The trust bundle in force.
    bundle: TrustBundle
    #: The server's clock, and when it was asked on ours.
    server_time: datetime
    asked_at: float


def introduce(clock: Clock, bundle_digest: str | None = None) -> Steps[Introduction]:
    """Check that the schema fits this version of pgfence, and fetch the trust bundle.

    bundle_digest: SHA-256 in hex of a bundle that the client trusts; the one in force must be that
    one, or follow from it (R33). None: what is in force is trusted.

    Raises `SchemaVersionError`, `NoWorkloadError` for a role that may not use pgfence,
    `TrustRefusedError` if no bundle is installed or it cannot be read, and `BundleSplitError`.
    """
    try:
        (versions,) = yield Batch((Call("select pgfence.schema_version()"),))
    except Failed as failed:
        if failed.sqlstate in _NOT_INSTALLED:
            raise errors.SchemaVersionError(
                "pgfence is not installed in this database: run `pgfence migrate`"
            ) from failed.__cause__
        if failed.sqlstate == _NOT_ALLOWED:
            raise errors.NoWorkloadError(
                f"this login role may not use pgfence ({failed.message}): grant pgfence_app to a "
                "worker's role, pgfence_registry to that of a registry process",
                hint="Grant it that group; a worker's role also needs `pgfence workload add NAME "
                "--role ROLE`.",
            ) from failed.__cause__
        failed.rethrow()
    found = versions[0][0]
    if found != SCHEMA_VERSION:
        raise errors.SchemaVersionError(
            f"the database's pgfence schema is {found}, this client was built for "
            f"{SCHEMA_VERSION}: run `pgfence migrate`, or install the client that fits"
        )
    asked_at = clock()
    rows = yield from rows_of(Call(_TRUST_BUNDLE))
    if not rows:
        raise errors.TrustRefusedError(
            "no trust bundle is installed: nothing can be granted", hint="Run: pgfence trust init"
        )
    document, digest, server_time = rows[0]
    bundle = TrustBundle.parse(document)
    if bundle.digest != digest:
        raise errors.BundleSplitError(
            f"the database calls its trust bundle {digest}, it is {bundle.digest}"
        )
    if bundle_digest not in (None, digest):
        try:
            bundle = yield from _follow_from(str(bundle_digest), digest)
        except Failed as failed:
            failed.rethrow()
    return Introduction(bundle, server_time, asked_at)


def _follow_from(digest: str, in_force: str) -> Steps[TrustBundle]:
    """The bundle in force, reached from an earlier one that is known by its digest."""
    for _, document, _ in (yield from _chain(1)):
        bundle = TrustBundle.parse(document)
        if bundle.digest == digest:
            return (yield from _follow(bundle))
    raise errors.BundleSplitError(
        f"the database's trust bundle is {in_force}, this client trusts {digest}, from which it "
        "does not follow: nothing was written"
    )


def follow(trusted: TrustBundle) -> Steps[TrustBundle]:
    """The bundle in force, reached link by link from one that the client trusts (R33).

    On a new connection if the old one is lost. Raises `BundleSplitError` when the database has
    another bundle of that version, only older ones, or a later one that does not follow.
    """
    return (yield from reopening(lambda: _follow(trusted)))


def _follow(trusted: TrustBundle) -> Steps[TrustBundle]:
    chain = yield from _chain(trusted.version)
    if not chain:
        raise errors.BundleSplitError(
            f"this client trusts trust bundle {trusted.version}, which the database does not have: "
            "was it put back to an earlier state? Nothing was written"
        )
    (version, document, _), *links = chain
    if (version, document) != (trusted.version, trusted.document):
        raise errors.BundleSplitError(
            f"the database has another trust bundle {trusted.version} than this client, which "
            f"trusts {trusted.digest}: nothing was written"
        )
    try:
        return follow_chain(trusted, [(document, signatures) for _, document, signatures in links])
    except errors.TrustRefusedError as refused:
        raise errors.BundleSplitError(
            f"the database's trust bundle {chain[-1][0]} does not follow from bundle "
            f"{trusted.version}, which this client trusts ({refused}): nothing was written"
        ) from refused


def _chain(version: int) -> Steps[Sequence[Row]]:
    """The bundles of the database from a version on: version, document, signatures."""
    (rows,) = yield Batch((Call(_TRUST_CHAIN, (version,)),), within=LONGEST_CALL)
    chain: Sequence[Row] = rows
    return chain
