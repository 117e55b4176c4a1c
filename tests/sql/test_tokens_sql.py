"""Tokens, Ed25519 and the first trust bundle inside PostgreSQL (R1-R5, R31, R32).

The table of cases is that of tests/unit/test_tokens.py: both languages must give the same answer.
"""

from __future__ import annotations

import json
import os
import random
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import psycopg
import pytest
from psycopg import sql

from pgfence.errors import TrustRefusedError
from pgfence.model import signature
from pgfence.model.bundle import TrustBundle, sign_bundle
from pgfence.model.grant import operation_root
from tests import support
from tests import token_cases as cases

Connection = psycopg.Connection[Any]


@pytest.fixture(scope="module")
def trusting(cluster: support.TestServer) -> Iterator[support.Database]:
    """A database of this file's own, with the bundle of the golden tokens' keys."""
    database = support.create_database(cluster, f"pgfence_tokens_{os.getpid()}")
    support.install_from_manifest(database)
    install_bundle(database.connect(), cases.BUNDLE)
    yield database
    database.drop()


@pytest.fixture
def conn(trusting: support.Database) -> Iterator[Connection]:
    """Acting as pgfence_owner in a transaction that is rolled back."""
    with psycopg.connect(trusting.dsn()) as connection:
        connection.execute("set role pgfence_owner")
        yield connection
        connection.rollback()


def install_bundle(connection: Connection, bundle: TrustBundle) -> None:
    """Install `bundle`, signed by the root keys of `cases`; acts as pgfence_owner from then on."""
    kids = [key.kid for key in bundle.keys if key.purpose == "root"]
    signatures = [
        sign_bundle(bundle.document, key)
        for key in cases.ROOT_KEYS
        if signature.key_id(signature.raw_public_key(key)) in kids
    ]
    connection.execute("set role pgfence_owner")
    row = connection.execute(
        "select pgfence.install_trust_bundle(%s, %s)", [bundle.document, signatures]
    ).fetchone()
    assert row == (1,)


def sql_verdicts(
    connection: Connection, schema: str, tokens: Sequence[str], nows: Sequence[int]
) -> list[cases.Verdict]:
    """What the database says of each token; see `cases.python_verdict`."""
    parse = {cases.GRANT: "_parse_grant", cases.STATUS: "_parse_status"}[schema]
    rows = connection.execute(
        sql.SQL(
            """
            select c.verdict, c.reason, m.schema is not null
            from unnest(%s::text[], %s::bigint[]) with ordinality as g (token, now, n)
            cross join lateral pgfence._verify_token(
                g.token, %s, pgfence._from_microseconds(g.now)) as c
            cross join lateral pgfence.{}(c.message) as m
            order by g.n
            """
        ).format(sql.Identifier(parse)),
        [list(tokens), list(nows), schema],
    ).fetchall()
    return [
        cases.MESSAGE if verdict is None and not valid else (verdict, reason)
        for verdict, reason, valid in rows
    ]


def sql_verdict(connection: Connection, token: str, now: int = cases.NOW) -> cases.Verdict:
    """What the database says of one grant."""
    return sql_verdicts(connection, cases.GRANT, [token], [now])[0]


@pytest.mark.parametrize(
    ("name", "parse"), [("grant", "_parse_grant"), ("status", "_parse_status")]
)
def test_r2_golden_token_verifies_and_is_encoded_byte_for_byte(
    conn: Connection, name: str, parse: str
) -> None:
    golden = cases.GOLDEN[name]
    row = conn.execute(
        sql.SQL(
            """
            select c.verdict, c.reason, c.message, encode(c.message_digest, 'hex'), c.kid,
                   pgfence._to_microseconds(c.key_expires_at), c.bundle_version,
                   pgfence.{}(pgfence.{}(c.message)), to_jsonb(pgfence.{}(c.message))
            from pgfence._verify_token(%s, %s, pgfence._from_microseconds(%s)) as c
            """
        ).format(
            sql.Identifier(parse.replace("parse", "encode")),
            sql.Identifier(parse),
            sql.Identifier(parse),
        ),
        [golden["token"], golden["implicit_assertion"], cases.NOW],
    ).fetchone()
    assert row is not None
    assert row[:8] == (
        None,
        None,
        golden["message"],
        golden["message_sha256"],
        golden["kid"],
        cases.BUNDLE.expires_at,
        1,
        golden["message"],
    )
    assert {k.replace("_", ""): v for k, v in row[8].items()} == {
        k.lower(): v for k, v in golden["claims"].items()
    }


@pytest.mark.parametrize("schema", [cases.GRANT, cases.STATUS])
def test_r5_token_gets_the_verdict_of_the_table(conn: Connection, schema: str) -> None:
    table = [
        case for case in cases.envelope_cases() + cases.message_cases() if case.schema == schema
    ]
    verdicts = sql_verdicts(
        conn, schema, [case.token for case in table], [case.now for case in table]
    )
    assert {case.name: verdict for case, verdict in zip(table, verdicts, strict=True)} == {
        case.name: case.verdict for case in table
    }
    assert cases.GOOD in verdicts


def test_r5_null_is_never_good(conn: Connection) -> None:
    for token, schema, now in (
        (None, cases.GRANT, cases.NOW),
        (cases.TOKEN, None, cases.NOW),
        (cases.TOKEN, cases.GRANT, None),
    ):
        row = conn.execute(
            "select (pgfence._verify_token(%s, %s, pgfence._from_microseconds(%s))).verdict",
            [token, schema, now],
        ).fetchone()
        assert row in {("MALFORMED",), ("UNKNOWN_KEY",)}


def test_r5_without_a_bundle_every_key_is_unknown(conn: Connection) -> None:
    conn.execute("delete from pgfence.trust_keys")
    conn.execute("delete from pgfence.trust_bundles")
    assert sql_verdict(conn, cases.TOKEN) == ("UNKNOWN_KEY", "BUNDLE_MISSING")
    assert sql_verdict(conn, "v4.public..") == cases.ENVELOPE


def test_r5_only_the_newest_bundle_counts(conn: Connection) -> None:
    conn.execute(
        "insert into pgfence.trust_bundles (version, document, digest, signatures, audience,"
        " lowest_epoch, root_threshold, issued_at, expires_at)"
        " select 2, document, digest, signatures, audience, lowest_epoch, root_threshold,"
        " issued_at, expires_at from pgfence.trust_bundles"
    )
    assert sql_verdict(conn, cases.TOKEN) == ("UNKNOWN_KEY", "KID")


def _mutations(document: str, count: int) -> list[str]:
    """Documents that are almost right, always the same ones."""
    chance = random.Random(20260719)
    pieces = ['"', ",", ":", "{", "}", "0", "9", "-", " ", "\n", "\\", "é", "a", '":"', "[", "]"]
    mutated = []
    for _ in range(count):
        text = document
        for _ in range(chance.randint(1, 2)):
            i, j = sorted(chance.choices(range(len(text) + 1), k=2))
            text = chance.choice(
                [
                    text[:i] + chance.choice(pieces) + text[i:],
                    text[:i] + text[i + 1 :],
                    text[:i] + chance.choice(pieces) + text[i + 1 :],
                    text[:i] + text[i:j] + text[i:],
                    text[:i] + text[j:],
                ]
            )
        mutated.append(text)
    return mutated


def test_r3_mutated_bundles_are_read_the_same_in_both_languages(conn: Connection) -> None:
    documents = [cases.BUNDLE.document, *_mutations(cases.BUNDLE.document, 3000)]
    rows = conn.execute(
        "select b.schema is not null from unnest(%s::text[]) with ordinality as g (document, n)"
        " cross join lateral pgfence._parse_bundle(g.document) as b order by g.n",
        [documents],
    ).fetchall()

    def python_reads(document: str) -> bool:
        try:
            TrustBundle.parse(document)
        except TrustRefusedError:
            return False
        return True

    expected = [python_reads(document) for document in documents]
    assert [valid for (valid,) in rows] == expected
    assert 10 < sum(expected) < len(documents) / 2  # some changes leave a valid text


def test_r2_wycheproof_signatures(
    conn: Connection, record_property: Callable[[str, object], None]
) -> None:
    wrong, count = [], 0
    for group in cases.WYCHEPROOF["testGroups"]:
        public_key = bytes.fromhex(group["publicKey"]["pk"])
        row = conn.execute("select pgfence._ed25519_install_key(%s)", [public_key]).fetchone()
        assert row == (signature.is_usable_public_key(public_key),)
        for test in group["tests"]:
            row = conn.execute(
                "select pgfence._ed25519_verify(%s, %s, %s)",
                [public_key, bytes.fromhex(test["msg"]), bytes.fromhex(test["sig"])],
            ).fetchone()
            count += 1
            if row != (test["result"] == "valid",):
                wrong.append(test["tcId"])
    record_property("counts", cases.vector_counts("Wycheproof Ed25519, SQL", count, len(wrong)))
    assert (wrong, count) == ([], cases.WYCHEPROOF["numberOfTests"])


def test_r2_paseto_v4_public_vectors(
    conn: Connection, record_property: Callable[[str, object], None]
) -> None:
    for test in cases.PASETO_GOOD:
        public_key = bytes.fromhex(test["public-key"])
        conn.execute("select pgfence._ed25519_install_key(%s)", [public_key])
        row = conn.execute(
            """
            select substr(b.body, 1, length(b.body) - 64) = %(payload)s
                   and pgfence._ed25519_verify(
                       %(key)s,
                       pgfence._pae(array['v4.public.', %(payload)s, %(footer)s, %(implicit)s]),
                       substr(b.body, length(b.body) - 63))
            from pgfence._base64url_decode(split_part(%(token)s, '.', 3)) as b (body)
            """,
            {
                "key": public_key,
                "token": test["token"],
                "payload": test["payload"].encode(),
                "footer": test["footer"].encode(),
                "implicit": test["implicit-assertion"].encode(),
            },
        ).fetchone()
        assert row == (True,), test["name"]
    must_fail = [test["token"] for test in cases.PASETO_BAD]
    verdicts = sql_verdicts(conn, cases.GRANT, must_fail, [cases.NOW] * len(must_fail))
    assert verdicts == [cases.ENVELOPE] * len(must_fail)
    count = len(cases.PASETO_GOOD + cases.PASETO_BAD)
    record_property("counts", cases.vector_counts("PASETO v4.public, SQL", count, 0))


def test_r2_signatures_of_many_messages_verify_and_changed_ones_do_not(conn: Connection) -> None:
    chance = random.Random(1)
    public_key = signature.raw_public_key(cases.GRANT_KEY)
    signed = []
    for length in range(200):
        message = chance.randbytes(length)
        good = cases.GRANT_KEY.sign(message)
        at = chance.randrange(64)
        bad = good[:at] + bytes([good[at] ^ 1 << chance.randrange(8)]) + good[at + 1 :]
        signed += [(message, good), (message, bad), (message + b"\0", good)]
    rows = conn.execute(
        "select pgfence._ed25519_verify(%s, g.message, g.signature)"
        " from unnest(%s::bytea[], %s::bytea[]) with ordinality as g (message, signature, n)"
        " order by g.n",
        [public_key, [message for message, _ in signed], [bytes_ for _, bytes_ in signed]],
    ).fetchall()
    assert [valid for (valid,) in rows] == [True, False, False] * 200


def test_r2_points_are_what_they_are_said_to_be(conn: Connection) -> None:
    p = 2**255 - 19
    d = -121665 * pow(121666, -1, p) % p

    def add(a: tuple[int, int], b: tuple[int, int]) -> tuple[int, int]:
        product = d * a[0] * b[0] * a[1] * b[1] % p
        return (
            (a[0] * b[1] + a[1] * b[0]) * pow(1 + product, -1, p) % p,
            (a[1] * b[1] + a[0] * b[0]) * pow(1 - product, -1, p) % p,
        )

    def times(n: int, point: tuple[int, int]) -> tuple[int, int]:
        total = (0, 1)
        for bit in f"{n:b}":
            total = add(total, total)
            if bit == "1":
                total = add(total, point)
        return total

    rows = conn.execute(
        "select slot, y_plus_x, y_less_x, xy2d from pgfence.ed25519_points where key_id = 0"
    ).fetchall()
    assert len(rows) == 8192
    half = pow(2, -1, p)
    points = {}
    for slot, plus, less, xy2d in rows:
        x, y = (int(plus) - int(less)) * half % p, (int(plus) + int(less)) * half % p
        assert int(xy2d) == 2 * d * x * y % p
        points[slot] = (x, y)
    base = points[1]
    assert base[1] == 4 * pow(5, -1, p) % p
    assert base[0] % 2 == 0
    for slot in (0, 2, 3, 255, 256, 257, 511, 4242, 8191):
        assert points[slot] == times(slot % 256 * 256 ** (slot // 256), base)


def test_r2_absent_or_incomplete_points_are_an_error_and_never_a_good_signature(
    conn: Connection,
) -> None:
    public_key = signature.raw_public_key(cases.GRANT_KEY)
    message, good = b"message", cases.GRANT_KEY.sign(b"message")
    verify = "select pgfence._ed25519_verify(%s, %s, %s)"
    assert conn.execute(verify, [public_key, message, good]).fetchone() == (True,)
    for loss in (
        "delete from pgfence.ed25519_points where key_id <> 0",
        "delete from pgfence.ed25519_points where key_id = 0",
        "delete from pgfence.ed25519_points where slot between 256 and 511 and key_id = 0",
        "delete from pgfence.ed25519_keys where key_id <> 0",
        "truncate pgfence.ed25519_points",
    ):
        with conn.transaction(force_rollback=True):
            conn.execute(loss)
            with pytest.raises(psycopg.errors.DataCorrupted, match="absent or incomplete"):
                conn.execute(verify, [public_key, message, good])
    # and the points are what decides: one wrong number, and the good signature is refused
    with conn.transaction(force_rollback=True):
        conn.execute("update pgfence.ed25519_points set xy2d = xy2d + 1 where slot < 256")
        assert conn.execute(verify, [public_key, message, good]).fetchone() == (False,)


def test_r2_base64url_has_one_text_for_the_same_bytes(conn: Connection) -> None:
    texts = [
        "",
        "AA",
        "AAA",
        "AAAA",
        "-_-_",
        "A",
        "AAAAA",
        "AB",
        "AAB",
        "AA==",
        "A A",
        "AA\n",
        "+/",
    ]
    texts += ["é", "AAAé", "AA.A", "-_-/"]
    expected = [b"", b"\0", b"\0\0", b"\0\0\0", b"\xfb\xff\xbf", *[None] * 12]
    rows = conn.execute(
        "select pgfence._base64url_decode(g.text) from unnest(%s::text[]) with ordinality"
        " as g (text, n) order by g.n",
        [texts],
    ).fetchall()
    assert [value for (value,) in rows] == expected
    long = random.Random(2).randbytes(3000)
    row = conn.execute("select pgfence._base64url_decode(%s)", [cases.base64url(long)]).fetchone()
    assert row == (long,)


def test_r1_operation_root_is_the_same_in_both_languages(conn: Connection) -> None:
    for arguments in ("", '{"page": 1}', "ünï¢ødé 🔒", "x" * 70000):
        parts = ["invoice-batch/2026-07-19", "settle", "req-1", arguments]
        row = conn.execute("select pgfence.operation_root(%s, %s, %s, %s)", parts).fetchone()
        assert row == (operation_root(*parts),)
    for bad in (["a b", "c", "d", "e"], ["a", "", "d", "e"], ["a", "c", "d", None]):
        with pytest.raises(psycopg.Error) as caught, conn.transaction():
            conn.execute("select pgfence.operation_root(%s, %s, %s, %s)", bad)
        assert caught.value.sqlstate == "PF301"


def test_r31_first_bundle_gets_the_answer_of_the_table(conn: Connection) -> None:
    conn.execute("delete from pgfence.trust_keys")
    conn.execute("delete from pgfence.trust_bundles")
    conn.execute("update pgfence.configuration set audience = null")
    before = _trust_state(conn)
    table = cases.bundle_cases()
    answers = {}
    for case in table:
        answers[case.name] = _problem_of(conn, case)
        assert _trust_state(conn) == before, case.name
    assert answers == {case.name: case.problem for case in table}


def _problem_of(conn: Connection, case: cases.BundleCase) -> str | None:
    """What the database finds wrong with a first bundle; leaves nothing behind."""
    try:
        with conn.transaction(force_rollback=True):
            conn.execute(
                "select pgfence.install_trust_bundle(%s, %s)", [case.document, case.signatures]
            )
    except psycopg.Error as error:
        if error.sqlstate != "PF305":
            raise
        problem = json.loads(error.diag.message_detail or "")["problem"]
        return str(problem)
    return None


def _trust_state(conn: Connection) -> list[tuple[Any, ...]]:
    """Everything that a bundle changes, but for points, which are computed and trust nothing."""
    return conn.execute(
        "select b::text from pgfence.trust_bundles as b union all"
        " select k::text from pgfence.trust_keys as k union all"
        " select c::text from pgfence.configuration as c"
    ).fetchall()


def test_r31_null_is_a_clear_error(conn: Connection) -> None:
    for arguments in ([None, cases.SIGNATURES], [cases.BUNDLE.document, None]):
        with pytest.raises(psycopg.Error) as caught, conn.transaction():
            conn.execute("select pgfence.install_trust_bundle(%s, %s)", arguments)
        assert caught.value.sqlstate == "PF301"


def test_r31_installing_sets_the_audience_and_trust_bundle_shows_it(conn: Connection) -> None:
    assert conn.execute("select audience from pgfence.configuration").fetchone() == ("billing",)
    row = conn.execute("select * from pgfence.trust_bundle()").fetchone()
    assert row == (1, cases.BUNDLE.document, cases.BUNDLE.digest)
    rows = conn.execute(
        "select kid, purpose, public_key, pgfence._to_microseconds(not_before),"
        " pgfence._to_microseconds(expires_at) from pgfence.trust_keys order by kid"
    ).fetchall()
    assert rows == [
        (key.kid, key.purpose, key.public_key, key.not_before, key.expires_at)
        for key in cases.BUNDLE.keys
    ]
    row = conn.execute("select installed_by = session_user from pgfence.trust_bundles").fetchone()
    assert row == (True,)


def test_r27_who_may_ask_for_the_bundle_and_nobody_may_install_one(
    database: support.Database,
) -> None:
    for role, allowed in (
        ("worker_a", True),
        ("registry", True),
        ("auditor", True),
        ("outsider", False),
    ):
        connection = database.connect(role)
        if allowed:
            connection.execute("select * from pgfence.trust_bundle()")
        else:
            with pytest.raises(psycopg.errors.InsufficientPrivilege):
                connection.execute("select * from pgfence.trust_bundle()")
        for call in (
            "pgfence.install_trust_bundle('', '{}')",
            "pgfence._ed25519_install_key('')",
            "pgfence._verify_token('', 'lockGrant.v1', now())",
            "pgfence._parse_grant('')",
        ):
            with pytest.raises(psycopg.errors.InsufficientPrivilege):
                connection.execute(f"select {call}")


@pytest.mark.parametrize(
    "setting",
    [
        "standard_conforming_strings = off",
        "bytea_output = escape",
        "search_path = pg_temp",
        "timezone = 'Asia/Kathmandu'",
        "enable_indexscan = off",
    ],
)
def test_r5_settings_of_the_client_change_no_verdict(
    trusting: support.Database, setting: str
) -> None:
    # a connection of its own: a function is compiled under the settings of its first call
    with psycopg.connect(trusting.dsn()) as connection:
        connection.execute("set role pgfence_owner")
        connection.execute(f"set {setting}")
        names = ("the golden grant", "S plus the group's order", "key expired", "kid too long")
        for case in cases.envelope_cases():
            if case.name in names:
                assert sql_verdict(connection, case.token, case.now) == case.verdict


@pytest.mark.parametrize("encoding", ["LATIN1", "SQL_ASCII", "EUC_JP"])
def test_r5_any_database_encoding_gives_the_same_verdicts(
    cluster: support.TestServer, encoding: str
) -> None:
    name = f"pgfence_tokens_{encoding.lower()}_{os.getpid()}"
    with psycopg.connect(cluster.dsn, autocommit=True) as connection:
        connection.execute(
            sql.SQL(
                "create database {} template template0 encoding {} lc_collate 'C' lc_ctype 'C'"
            ).format(sql.Identifier(name), sql.Literal(encoding))
        )
        connection.execute(
            sql.SQL("grant create on database {} to dba").format(sql.Identifier(name))
        )
    database = support.Database(cluster, name)
    try:
        support.install_from_manifest(database)
        with psycopg.connect(database.dsn(), client_encoding="UTF8") as connection:
            few = [
                cases.trust_key(cases.GRANT_KEY, "grant"),
                cases.trust_key(cases.ROOT_KEYS[0], "root"),
            ]
            bundle = TrustBundle(
                version=1,
                audience="billing",
                keys=tuple(sorted(few, key=lambda key: key.kid)),
                lowest_epoch=1,
                root_threshold=1,
                issued_at=cases.NOW,
                expires_at=cases.END,
            )
            install_bundle(connection, bundle)
            table = [
                case
                for case in cases.envelope_cases() + cases.message_cases()
                if case.schema == cases.GRANT and case.token.isascii()
            ]
            verdicts = sql_verdicts(
                connection,
                cases.GRANT,
                [case.token for case in table],
                [case.now for case in table],
            )
            expected = [
                cases.python_verdict(case.token, cases.GRANT, case.now, bundle) for case in table
            ]
            assert verdicts == expected
            assert cases.GOOD in verdicts
            row = connection.execute(
                "select pgfence.operation_root('a', 'b', 'c', chr(228))"
                if encoding == "LATIN1"
                else "select pgfence.operation_root('a', 'b', 'c', 'd')"
            ).fetchone()
            assert row is not None
            root = row[0].decode() if isinstance(row[0], bytes) else row[0]
            assert root == operation_root("a", "b", "c", "ä" if encoding == "LATIN1" else "d")
    finally:
        database.drop()


def test_r2_verification_reads_its_64_points_by_index(conn: Connection) -> None:
    """What makes it fast enough to be paid once for each grant."""
    read = (
        "select seq_tup_read, idx_tup_fetch from pg_stat_xact_user_tables"
        " where relid = 'pgfence.ed25519_points'::regclass"
    )
    assert conn.execute(read).fetchone() == (0, 0)
    assert sql_verdict(conn, cases.TOKEN) == cases.GOOD
    assert conn.execute(read).fetchone() == (0, 64)
