"""Compare a database with its registry, where that is in another one (R13): what `doctor` adds.

Reads only; needs pgfence_auditor in both.
"""

from pgfence.audit.doctor import Finding, Severity
from pgfence.client.protocol import Arrangement, arrangement, read_clock
from pgfence.clock import monotonic
from pgfence.drivers.psycopg import run_on
from pgfence.errors import InvalidArgumentError
from pgfence.model.clocks import Difference
from pgfence.queries import Connection, rows

_PREFIXES = "select prefix from pgfence.policies"
#: At the registry: the prefixes from which on a policy or a placement holds for resources placed in
#: the database.
_PREFIXES_THERE = """
    select q.prefix
      from (select p.prefix from pgfence.policies as p
             union select l.prefix from pgfence_registry.placements as l) as q
     where $1 = (select l.audience from pgfence_registry.placements as l
                  where l.prefix <= q.prefix and pg_catalog.starts_with(q.prefix, l.prefix)
                  order by l.prefix desc limit 1)
"""
_POLICY = """
    select p.prefix, p.generation from pgfence.policies as p
     where p.prefix <= $1 and pg_catalog.starts_with($1, p.prefix) order by p.prefix desc limit 1
"""
_PLACED = "select exists (select from pgfence_registry.placements where audience = $1)"
#: The keys with which a registry process may sign, by the bundle in force.
_KEYS = """
    select k.purpose, k.kid from pgfence.trust_keys as k
     where k.purpose <> 'root' and k.expires_at > pg_catalog.clock_timestamp()
       and k.bundle_version = (select max(b.version) from pgfence.trust_bundles as b)
     order by k.purpose, k.kid
"""


def compare(database: Connection, registry: Connection) -> list[Finding]:
    """What keeps grants and proofs of the registry from counting in the database.

    Raises `InvalidArgumentError` if the database's registry is not elsewhere.
    """
    arranged = run_on(database, arrangement())
    if arranged.registry_is_local:
        raise InvalidArgumentError(
            "the registry of this database is in it: there is nothing to compare"
        )
    return [
        *_clocks(database, registry, arranged),
        *_placement(registry, arranged),
        *_keys(database, registry),
        *_policies(database, registry, arranged),
    ]


def measure(database: Connection, registry: Connection) -> Difference:
    """By how much the registry's clock is ahead; the closest of some readings."""
    readings = [
        Difference.of(
            run_on(registry, read_clock(monotonic)), run_on(database, read_clock(monotonic))
        )
        for _ in range(5)
    ]
    return min(readings, key=lambda difference: difference.most - difference.least)


def _clocks(database: Connection, registry: Connection, arranged: Arrangement) -> list[Finding]:
    difference = measure(database, registry)
    if not difference.exceeds(arranged.clock_tolerance_ms / 1000):
        return []
    return [
        _finding(
            "CLOCKS_APART",
            arranged.audience or "",
            f"the registry's clock is ahead by {difference}, {arranged.clock_tolerance_ms} ms are "
            "tolerated: proofs are refused, or count for longer than the lease",
            "Set the clocks by NTP on both servers, or let the database tolerate more: "
            "pgfence registry elsewhere --tolerance-ms MS",
        )
    ]


def _placement(registry: Connection, arranged: Arrangement) -> list[Finding]:
    ((placed,),) = rows(registry, _PLACED, arranged.audience)
    if placed:
        return []
    return [
        _finding(
            "NOT_PLACED",
            arranged.audience or "",
            f"the registry places no resources in {arranged.audience}: its grants are for others",
            f"There: pgfence registry place PREFIX {arranged.audience}",
        )
    ]


def _keys(database: Connection, registry: Connection) -> list[Finding]:
    trusted = set(rows(database, _KEYS))
    return [
        _finding(
            "KEY_NOT_TRUSTED",
            kid,
            f"the registry may sign with {purpose} key {kid}, which this database does not trust",
            f"pgfence trust propose --add {purpose}:KEY, sign and install here",
        )
        for purpose, kid in rows(registry, _KEYS)
        if (purpose, kid) not in trusted
    ]


def _policies(database: Connection, registry: Connection, arranged: Arrangement) -> list[Finding]:
    """Where the generations in force differ, once for the longer one of the two prefixes."""
    prefixes = {*rows(database, _PREFIXES), *rows(registry, _PREFIXES_THERE, arranged.audience)}
    differing: dict[str, tuple[int, int]] = {}
    for (prefix,) in prefixes:
        ((of, here),) = rows(database, _POLICY, prefix)
        ((of_there, there),) = rows(registry, _POLICY, prefix)
        if here != there:
            differing[max(of, of_there, key=len)] = here, there
    return [
        _finding(
            "POLICY_DIFFERS",
            prefix or "everything",
            f"the policy has generation {here} here and {there} at the registry: "
            "its grants are refused",
            "pgfence policy set with the same --generation, above both, in both",
        )
        for prefix, (here, there) in sorted(differing.items())
    ]


def _finding(code: str, what: str, reason: str, step: str) -> Finding:
    return Finding(code, Severity.WARNING, what, reason, (), None, step)
