"""Mutated tokens at the client's verifier and at the database's front door.

Both must say the same of every one of them, and neither may take one for genuine (R3, R5). What is
drawn comes from a fixed seed; the summary at the end of the run shows the counts.
"""

from __future__ import annotations

import base64
import itertools
import json
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import pyseto
import pytest
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

from pgfence import tokens
from pgfence.client.trust import Verifier
from pgfence.errors import TokenRefusedError
from pgfence.model import canonical
from pgfence.model.status import StatusProof
from tests.property import mutations
from tests.property.mutations import SEED, Chance, Mutated, Signer
from tests.support import Database, Keys, make_bundle
from tests.token_cases import GRANT, NOW, STATUS, vector_counts
from tests.workers import Worker, fence_row, grant_of, status_proof

#: So many are drawn: 20,000, and every bit of a grant and of a status proof besides.
DRAWN: dict[str, tuple[int, Callable[[Signer, Chance], Mutated]]] = {
    "envelope": (5_000, mutations.envelope),
    "JSON": (7_000, mutations.text),
    "fields of a grant": (5_000, partial(mutations.one_field, schema=GRANT)),
    "fields of a status proof": (3_000, partial(mutations.one_field, schema=STATUS)),
}

#: A verdict on the token itself (R5), and a reason where one is given. None: it is genuine.
Verdict = tuple[str | None, str | None]
_REFUSALS = ("MALFORMED", "UNKNOWN_KEY", "BAD_SIGNATURE", "WRONG_AUDIENCE")


class Sides:
    """The two that judge: Python as a client does, and PostgreSQL when it is asked to write."""

    def __init__(self, database: Database, keys: Keys) -> None:
        self.bundle = make_bundle(keys)
        self.worker = Worker.login(database, keys, "worker_a")
        held = self.worker.acquire("mutated/1", ttl_ms=3_600_000)
        #: A grant that is held: whatever is taken for it is written.
        self.grant: str = held.token
        self.worker.advance(self.grant)
        self.status = status_proof(
            grant_of(self.grant).digest, keys, grant_of(self.grant).issued_at, valid_ms=3_600_000
        )
        self.verifier = Verifier(self.bundle, lambda: NOW)

    def python(self, token: str, schema: str) -> Verdict:
        try:
            if schema == GRANT:
                self.verifier.verify(token)
            else:
                proof = StatusProof.parse(tokens.verify(token, STATUS, self.bundle, NOW).message)
                if proof.audience != self.bundle.audience:
                    raise TokenRefusedError("WRONG_AUDIENCE", proof.audience)
        except TokenRefusedError as error:
            return error.verdict, None if error.verdict == "WRONG_AUDIENCE" else error.reason
        return None, None

    def sql(self, given: Sequence[Mutated]) -> list[Verdict]:
        """A status proof comes with the genuine grant, and PostgreSQL names no reason for it."""
        rows = self.worker.conn.execute(
            """
            select v.verdict, case when g.schema = 'lockGrant.v1' then v.reason end
            from unnest(%(tokens)s::text[], %(schemas)s::text[]) with ordinality
                as g (token, schema, n)
            cross join lateral pgfence.fenced_apply(
                case when g.schema = 'lockGrant.v1' then g.token else %(grant)s end, 1, '',
                case when g.schema <> 'lockGrant.v1' then g.token end) as v
            order by g.n
            """,
            {
                "tokens": [mutated.token for mutated in given],
                "schemas": [mutated.schema for mutated in given],
                "grant": self.grant,
            },
        ).fetchall()
        return [
            (verdict, reason) if verdict in _REFUSALS else (None, None) for verdict, reason in rows
        ]


@dataclass
class Tally:
    """What became of the tokens of each kind."""

    counts: dict[str, Counter[str]] = field(default_factory=lambda: defaultdict(Counter))
    complaints: list[str] = field(default_factory=list)

    def total(self, column: str) -> int:
        return sum(counter[column] for counter in self.counts.values())

    def rows(self) -> list[dict[str, str | int]]:
        columns = ("tried", *_REFUSALS, "accepted", "disagreements", "still genuine")
        return [
            {"table": f"mutated tokens (seed {SEED})", "kind": kind}
            | {column: counter[column] for column in columns}
            for kind, counter in self.counts.items()
        ]


def judge(sides: Sides, given: Iterable[Mutated]) -> Tally:
    """Show every token to both sides, and compare what they say."""
    tally = Tally()
    rest = iter(given)
    while batch := list(itertools.islice(rest, 100)):
        for mutated, by_sql in zip(batch, sides.sql(batch), strict=True):
            by_python = sides.python(mutated.token, mutated.schema)
            counter = tally.counts[mutated.kind]
            same = by_python[0] == by_sql[0] and (
                None in (by_python[1], by_sql[1]) or by_python[1] == by_sql[1]
            )
            accepted = [by_python[0] is None, by_sql[0] is None]
            counter["disagreements"] += not same
            if mutated.right:
                counter["still genuine"] += 1
            else:
                counter["tried"] += 1
                counter["accepted"] += any(accepted)
                counter[by_sql[0] or "-"] += 1
            if not same or any(said != mutated.right for said in accepted):
                tally.complaints.append(
                    f"{mutated.kind}, {mutated.change}: Python says {by_python}, SQL says {by_sql},"
                    f" it is {'genuine' if mutated.right else 'not genuine'}: {mutated.token!r}"
                )
    return tally


def drawn(kind: str, keys: Keys, count: int | None = None) -> list[Mutated]:
    """Mutated tokens of a kind, from the fixed seed."""
    usual, mutate = DRAWN[kind]
    return mutations.take(count or usual, partial(mutate, Signer(keys)))


@pytest.fixture
def sides(database: Database, keys: Keys) -> Sides:
    """With a control: unchanged, grant and status proof are good for a write."""
    sides = Sides(database, keys)
    assert sides.python(sides.grant, GRANT) == sides.python(sides.status, STATUS) == (None, None)
    with sides.worker.conn.transaction(force_rollback=True):
        assert sides.worker.apply(sides.grant, 1, "", sides.status).verdict == "ACCEPTED"
    return sides


def _check(tally: Tally, sides: Sides, record: Callable[[str, object], None]) -> None:
    for row in tally.rows():
        record("counts", row)
    assert not tally.complaints, "\n".join(tally.complaints[:10])
    assert (tally.total("accepted"), tally.total("disagreements")) == (0, 0)
    row = fence_row(sides.worker.database, "mutated/1")
    assert (row.highest_fence, row.last_segment, row.receipt_count) == (row.issued_fence, 0, 0)


@pytest.mark.timeout(1200)
def test_r5_every_flipped_bit_is_refused_by_both_sides_alike(
    sides: Sides, record_property: Callable[[str, object], None]
) -> None:
    given = [
        *mutations.bit_flips("bit flips: grant", sides.grant, GRANT),
        *mutations.bit_flips("bit flips: status proof", sides.status, STATUS),
    ]
    _check(judge(sides, given), sides, record_property)


@pytest.mark.timeout(1200)
@pytest.mark.parametrize("kind", DRAWN)
def test_r3_mutated_tokens_are_refused_by_both_sides_alike(
    sides: Sides, keys: Keys, kind: str, record_property: Callable[[str, object], None]
) -> None:
    tally = judge(sides, drawn(kind, keys))
    _check(tally, sides, record_property)
    assert tally.total("tried") == DRAWN[kind][0]


def test_r5_at_least_20000_tokens_are_drawn() -> None:
    assert sum(count for count, _ in DRAWN.values()) >= 20_000


def _loads(text: str) -> dict[str, Any]:
    try:
        value = json.loads(text)
    except RecursionError as error:
        raise ValueError from error
    if not isinstance(value, dict):
        raise ValueError
    return value


def _decode(text: str) -> bytes | None:
    try:
        return base64.urlsafe_b64decode(text + "==")
    except ValueError:
        return None


@pytest.mark.parametrize(
    ("kind", "place", "name", "lenient"),
    [("JSON", canonical, "decode", _loads), ("envelope", tokens, "_from_base64url", _decode)],
    ids=["JSON", "base64url"],
)
def test_r3_a_lenient_verifier_is_noticed(
    sides: Sides,
    keys: Keys,
    monkeypatch: pytest.MonkeyPatch,
    kind: str,
    place: Any,
    name: str,
    lenient: Callable[[str], object],
) -> None:
    given = drawn(kind, keys, 500)
    assert not judge(sides, given).complaints
    monkeypatch.setattr(place, name, lenient)
    tally = judge(sides, given)
    assert min(tally.total("accepted"), tally.total("disagreements")) > 20
    assert "SQL says ('MALFORMED'" in tally.complaints[0]


def test_r2_another_paseto_library_makes_and_reads_the_same_tokens(
    sides: Sides, keys: Keys, record_property: Callable[[str, object], None]
) -> None:
    signer = Signer(keys)
    for schema in (GRANT, STATUS):
        key = signer.keys[schema]
        pem = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
        theirs = pyseto.Key.new(version=4, purpose="public", key=pem)
        chance, implicit = Chance(SEED), schema.encode()
        found = []
        for _ in range(200):
            message = mutations.compact(mutations.claims(chance, schema)).encode()
            token = tokens.sign(message, schema, key)
            made = pyseto.encode(theirs, message, signer.footer(key), implicit_assertion=implicit)
            assert made.decode() == token
            assert pyseto.decode(theirs, token, implicit_assertion=implicit).payload == message
            found.append(Mutated("", token, schema, right=True))
        by_python = [sides.python(made.token, schema) for made in found]
        for side, said in (("Python", by_python), ("SQL", sides.sql(found))):
            assert said == [(None, None)] * len(found)
            record_property("counts", vector_counts(f"pyseto, {schema}, {side}", len(found), 0))
