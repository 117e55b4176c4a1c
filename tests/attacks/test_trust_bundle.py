"""Nobody puts a trust bundle in force without the root keys that it takes (R27, R31, R32)."""

from __future__ import annotations

import dataclasses
import json
import random
from typing import Any

import psycopg
import pytest

from pgfence.errors import TrustRefusedError
from pgfence.model.bundle import TrustBundle, sign_bundle, verify_next_bundle
from tests import rotation_cases as rotation
from tests.support import Database, Keys, make_bundle
from tests.token_cases import NOW, SECOND, trust_key

INSTALL = "select pgfence.install_trust_bundle(%s, %s)"


@pytest.fixture
def first(keys: Keys) -> TrustBundle:
    return make_bundle(keys)


@pytest.fixture
def second(first: TrustBundle) -> TrustBundle:
    return rotation.after(first, lowest_epoch=2)


def problem(conn: psycopg.Connection[Any], document: str, signatures: Any) -> str | None:
    """Why it is refused; None: it would be installed. Leaves nothing behind."""
    try:
        with conn.transaction(force_rollback=True):
            conn.execute(INSTALL, [document, signatures])
    except psycopg.Error as error:
        assert error.sqlstate == "PF305", error
        return str(json.loads(error.diag.message_detail or "")["problem"])
    return None


def python_problem(before: TrustBundle, document: str, signatures: list[str]) -> str | None:
    try:
        verify_next_bundle(before, document, signatures, NOW)
    except TrustRefusedError as refused:
        return str(refused.detail["problem"])
    return None


def test_r31_a_changed_document_or_signature_is_refused_by_both_sides_alike(
    database: Database, keys: Keys, first: TrustBundle, second: TrustBundle
) -> None:
    rng = random.Random(31)
    document, signature = second.document, sign_bundle(second.document, keys.root)
    alphabet = "0123456789abcdefABCDEF:\"',{}[] é０\n"
    attempts: list[tuple[str, list[str]]] = [(document, [signature])]
    for _ in range(60):
        at, letter = rng.randrange(len(signature)), rng.choice(alphabet)
        attempts.append((document, [signature[:at] + letter + signature[at + 1 :]]))
        at, letter = rng.randrange(len(document)), rng.choice(alphabet)
        attempts.append((document[:at] + letter + document[at + 1 :], [signature]))
        attempts.append((document, [signature[: rng.randrange(len(signature))]]))
    conn = database.connect("dba")
    for changed, signatures in attempts:
        answer = problem(conn, changed, signatures)
        assert answer == python_problem(first, changed, signatures), (changed, signatures)
        assert (answer is None) == ((changed, signatures) == attempts[0])


@pytest.mark.parametrize("signatures", [[None], [["x"]], ["", None]], ids=repr)
def test_r31_what_is_no_list_of_signatures_is_no_quorum(
    database: Database, second: TrustBundle, signatures: list[Any]
) -> None:
    conn = database.connect("dba")
    assert problem(conn, second.document, signatures) in {"SIGNATURE", "OLD_QUORUM"}


def test_r31_a_bundle_of_another_database_of_the_same_people_is_refused(
    database: Database, keys: Keys, first: TrustBundle
) -> None:
    conn = database.connect("dba")
    elsewhere = dataclasses.replace(first, audience="payroll")
    for bundle in (rotation.after(elsewhere), rotation.after(first, audience="payroll")):
        signatures = [sign_bundle(bundle.document, keys.root)]
        assert problem(conn, bundle.document, signatures) in {"PREVIOUS", "AUDIENCE"}
    control = rotation.after(first)
    assert problem(conn, control.document, [sign_bundle(control.document, keys.root)]) is None


def test_r31_one_of_two_does_not_get_round_the_other_in_two_steps(
    database: Database, keys: Keys, first: TrustBundle
) -> None:
    """With a quorum of two, one holder tries to lower it, to outvote, and to put the other out."""
    conn, alice, bob = database.connect("dba"), keys.root, rotation.BOB
    both = rotation.after(
        first,
        keys=tuple(sorted((*first.keys, trust_key(bob, "root")), key=lambda key: key.kid)),
        root_threshold=2,
    )
    conn.execute(INSTALL, [both.document, [sign_bundle(both.document, k) for k in (alice, bob)]])
    mine = [key for key in both.keys if key.public_key != trust_key(bob, "root").public_key]
    puppets = [trust_key(key, "root") for key in (rotation.DAVE, rotation.ERIN)]
    bob_ended = [
        dataclasses.replace(key, expires_at=SECOND) if key not in mine else key for key in both.keys
    ]
    for trusted, threshold in (
        (both.keys, 1), (mine, 1), ([*both.keys, *puppets], 2), ([*mine, *puppets], 3),
        (bob_ended, 1),
    ):  # fmt: skip
        ordered = tuple(sorted(trusted, key=lambda key: key.kid))
        bundle = rotation.after(both, keys=ordered, root_threshold=threshold)
        signers = [alice, rotation.DAVE, rotation.ERIN] if len(ordered) > 4 else [alice]
        signatures = [
            sign_bundle(bundle.document, key)
            for key in signers
            if any(trust_key(key, "root").public_key == k.public_key for k in ordered)
        ]
        assert problem(conn, bundle.document, signatures) == "OLD_QUORUM"
        with_bob = [*signatures, sign_bundle(bundle.document, bob)]
        assert problem(conn, bundle.document, with_bob) is None


def test_r27_a_right_to_call_it_is_not_enough(
    database: Database, keys: Keys, second: TrustBundle
) -> None:
    """As after a restore without privileges; the control is the installer's role."""
    database.connect().execute("grant execute on all functions in schema pgfence to public")
    arguments = [second.document, [sign_bundle(second.document, keys.root)]]
    for role in ("worker_a", "registry", "auditor", "billing_owner"):
        conn = database.connect(role)
        with pytest.raises(psycopg.errors.InsufficientPrivilege):
            conn.execute(INSTALL, arguments)
    assert database.connect("dba").execute(INSTALL, arguments).fetchone() == (2,)
