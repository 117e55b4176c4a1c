"""Proposals on their way from root key to root key (R31)."""

from __future__ import annotations

import dataclasses
import json

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from pgfence.errors import InvalidArgumentError, TrustRefusedError
from pgfence.model.bundle import verify_next_bundle
from pgfence.model.proposal import NO_END, Proposal, first_proposal, next_proposal
from pgfence.model.signature import key_id, raw_public_key
from tests import rotation_cases as rotation
from tests.rotation_cases import ALICE, BOB, CAROL, DAVE, FIRST, after, keys
from tests.token_cases import END, GRANT_KEY, NOW, SECOND, UNKNOWN_KEY, trust_key

DAVE_FOR_CAROL = Proposal(FIRST, after(FIRST, keys=keys((ALICE, BOB, DAVE)), lowest_epoch=6))
ALICE_KID, BOB_KID, CAROL_KID, DAVE_KID = (
    key_id(raw_public_key(key)) for key in (ALICE, BOB, CAROL, DAVE)
)


def missing(proposal: Proposal) -> list[int]:
    return [quorum.missing for quorum in proposal.quorums(NOW)]


def test_r31_each_signature_counts_for_the_bundles_whose_root_key_it_is_of() -> None:
    proposal = DAVE_FOR_CAROL
    assert missing(proposal) == [2, 2]
    assert missing(proposal.sign(CAROL, NOW)) == [1, 2]
    assert missing(proposal.sign(DAVE, NOW)) == [2, 1]
    assert missing(proposal.sign(ALICE, NOW)) == [1, 1]
    both = proposal.sign(ALICE, NOW).sign(BOB, NOW)
    assert missing(both) == [0, 0]
    old, new = both.quorums(NOW)
    assert (old.bundle, set(old.signed), old.not_signed) == (1, {ALICE_KID, BOB_KID}, (CAROL_KID,))
    assert (new.bundle, set(new.signed), new.not_signed) == (2, {ALICE_KID, BOB_KID}, (DAVE_KID,))
    assert verify_next_bundle(FIRST, both.bundle.document, both.signatures, NOW) == both.bundle


def test_r31_who_has_signed_signs_no_second_time() -> None:
    once = DAVE_FOR_CAROL.sign(ALICE, NOW)
    assert once.sign(ALICE, NOW) == once


def test_r31_copies_that_were_signed_apart_are_put_together_in_any_order() -> None:
    copies = [DAVE_FOR_CAROL.sign(key, NOW) for key in (ALICE, DAVE, CAROL)]
    one, two, three = copies
    assert one.merge(two).merge(three) == three.merge(one).merge(two)
    assert missing(one.merge(two).merge(three)) == [0, 0]
    assert one.merge(one) == one
    with pytest.raises(InvalidArgumentError, match="different proposals"):
        one.merge(Proposal(FIRST, after(FIRST)))


@pytest.mark.parametrize("key", [GRANT_KEY, UNKNOWN_KEY], ids=["grant key", "stranger"])
def test_r31_a_key_that_is_no_root_key_does_not_sign(key: Ed25519PrivateKey) -> None:
    with pytest.raises(TrustRefusedError, match="no valid root key of trust bundle 1 or 2"):
        DAVE_FOR_CAROL.sign(key, NOW)


@pytest.mark.parametrize(
    ("proposal", "problem"),
    [
        (Proposal(FIRST, after(FIRST, lowest_epoch=4)), "EPOCH"),
        (Proposal(dataclasses.replace(FIRST, lowest_epoch=1), after(FIRST)), "PREVIOUS"),
        (Proposal(None, after(FIRST)), "NOT_FIRST"),
        (Proposal(FIRST, after(FIRST, issued_at=0, expires_at=SECOND)), "EXPIRED"),
        (
            Proposal(FIRST, after(FIRST), tuple(rotation.signed(FIRST.document, BOB))),
            "SIGNATURE",
        ),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_r31_nobody_signs_what_could_not_be_installed(proposal: Proposal, problem: str) -> None:
    """A proposer who shows another bundle as the one in force is found out, too."""
    with pytest.raises(TrustRefusedError) as caught:
        proposal.sign(ALICE, NOW)
    assert caught.value.detail["problem"] == problem


def test_r31_changes_are_told_in_words() -> None:
    changes = {c.what: (c.before, c.after) for c in DAVE_FOR_CAROL.changes()}
    since, until = "from 1970-01-01 00:00 UTC", "until 2126-06-25 00:00 UTC"
    assert changes == {
        "lowest good epoch": ("5", "6"),
        f"root key {CAROL_KID}": (f"{since} {until}", None),
        f"root key {DAVE_KID}": (None, f"{since} {until}"),
    }
    assert {c.what for c in Proposal(None, FIRST).changes()} >= {"audience", "expires"}
    assert Proposal(FIRST, after(FIRST)).changes() == []


def test_a_file_is_read_as_it_was_written_and_nothing_else_is_read() -> None:
    for proposal in (DAVE_FOR_CAROL.sign(ALICE, NOW), Proposal(None, FIRST)):
        assert Proposal.parse(proposal.encode()) == proposal
    fields = json.loads(DAVE_FOR_CAROL.encode())
    texts = [
        "", "[]", "null", "not JSON", "[" * 5000, json.dumps(fields | {"schema": "other"}),
        json.dumps(fields | {"more": 1}), json.dumps(fields | {"signatures": [1]}),
        json.dumps(fields | {"signatures": None}), json.dumps(fields | {"document": None}),
        json.dumps({name: value for name, value in fields.items() if name != "before"}),
    ]  # fmt: skip
    for text in texts:
        with pytest.raises(InvalidArgumentError, match="no trustProposal.v1"):
            Proposal.parse(text)
    for name in ("document", "before"):
        with pytest.raises(TrustRefusedError):
            Proposal.parse(json.dumps(fields | {name: fields[name] + " "}))


def test_r31_the_next_bundle_is_the_one_before_with_what_was_asked_for() -> None:
    added = trust_key(DAVE, "root", NOW, NO_END)
    proposal = next_proposal(
        FIRST, now_us=NOW, expires_at=END, add=[added], remove=[CAROL_KID],
        ends={ALICE_KID: NOW + 1}, threshold=1, lowest_epoch=9,
    )  # fmt: skip
    bundle = proposal.bundle
    assert (bundle.version, bundle.previous, bundle.audience) == (2, FIRST.digest, "billing")
    assert (bundle.root_threshold, bundle.lowest_epoch, bundle.issued_at) == (1, 9, NOW)
    assert {key.kid for key in bundle.roots} == {ALICE_KID, BOB_KID, DAVE_KID}
    assert bundle.key(ALICE_KID) == trust_key(ALICE, "root", 0, NOW + 1)
    assert bundle.key(DAVE_KID) == added
    unchanged = next_proposal(FIRST, now_us=NOW, expires_at=END).bundle
    assert unchanged == after(FIRST, issued_at=NOW, expires_at=END)


def test_r31_a_bundle_that_nobody_could_replace_is_not_proposed() -> None:
    grant = trust_key(rotation.NEXT_GRANT_KEY, "grant")
    with pytest.raises(InvalidArgumentError, match="2 signatures of 1 root keys"):
        next_proposal(FIRST, now_us=NOW, expires_at=END, remove=[ALICE_KID, BOB_KID])
    with pytest.raises(InvalidArgumentError, match="1 signatures of 0 root keys"):
        first_proposal("billing", [grant], 1, now_us=NOW, expires_at=END)
    with pytest.raises(InvalidArgumentError, match="given twice"):
        next_proposal(FIRST, now_us=NOW, expires_at=END, add=[grant, grant])
    with pytest.raises(InvalidArgumentError, match="added once"):
        next_proposal(FIRST, now_us=NOW, expires_at=END, add=[trust_key(GRANT_KEY, "status")])
    with pytest.raises(InvalidArgumentError, match="has no key 0000"):
        next_proposal(FIRST, now_us=NOW, expires_at=END, ends={"0000": NOW})
