"""What may follow the trust bundle in force, with the answer that Python and SQL must both give.

One table for both (R31): tests/unit/test_bundle.py runs it through `verify_next_bundle`, and
tests/sql/test_rotation_sql.py through `install_trust_bundle`. Each bad case is bad for one reason.
First bundles have a table of their own, `token_cases.bundle_cases`.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from pgfence.model.bundle import TrustBundle, TrustKey, sign_bundle
from pgfence.model.canonical import encode
from pgfence.model.signature import key_id, raw_public_key
from tests.token_cases import (
    END,
    GRANT_KEY,
    NOW,
    ROOT_KEYS,
    SECOND,
    STATUS_KEY,
    UNKNOWN_KEY,
    private_key,
    trust_key,
)

ALICE, BOB, CAROL = ROOT_KEYS
DAVE, ERIN, FRANK = (private_key(seed) for seed in (11, 12, 13))
NEXT_GRANT_KEY, NEXT_STATUS_KEY = private_key(14), private_key(15)
PEOPLE = [ALICE, BOB, CAROL, DAVE, ERIN, FRANK]


def keys(
    roots: Sequence[Ed25519PrivateKey] = (ALICE, BOB, CAROL),
    grants: Sequence[Ed25519PrivateKey] = (GRANT_KEY,),
    statuses: Sequence[Ed25519PrivateKey] = (STATUS_KEY,),
    *others: TrustKey,
) -> tuple[TrustKey, ...]:
    """Keys of a bundle, valid for a century, and others as they are."""
    trusted = [trust_key(key, "root") for key in roots]
    trusted += [trust_key(key, "grant") for key in grants]
    trusted += [trust_key(key, "status") for key in statuses]
    return tuple(sorted((*trusted, *others), key=lambda key: key.kid))


FIRST = TrustBundle(
    version=1,
    audience="billing",
    keys=keys(),
    lowest_epoch=5,
    root_threshold=2,
    issued_at=NOW - SECOND,
    expires_at=END - SECOND,
)


def after(before: TrustBundle, **changes: Any) -> TrustBundle:
    """The next version, with nothing changed but `changes`."""
    following: dict[str, Any] = {"version": before.version + 1, "previous": before.digest}
    return dataclasses.replace(before, **(following | changes))


def with_next_grant_key(before: TrustBundle, **changes: Any) -> TrustBundle:
    """The next version, with `NEXT_GRANT_KEY` in place of the grant keys."""
    return _with_next_key(before, "grant", NEXT_GRANT_KEY, **changes)


def with_next_status_key(before: TrustBundle) -> TrustBundle:
    """The next version, with `NEXT_STATUS_KEY` in place of the status keys."""
    return _with_next_key(before, "status", NEXT_STATUS_KEY)


def _with_next_key(
    before: TrustBundle, purpose: str, key: Ed25519PrivateKey, **changes: Any
) -> TrustBundle:
    others = [trusted for trusted in before.keys if trusted.purpose != purpose]
    trusted = tuple(sorted((*others, trust_key(key, purpose)), key=lambda each: each.kid))
    return after(before, **({"keys": trusted} | changes))


def with_bob(not_before: int, expires_at: int) -> TrustBundle:
    """`FIRST`, with another window of Bob's key."""
    bob = trust_key(BOB, "root", not_before, expires_at)
    return dataclasses.replace(FIRST, keys=keys((ALICE, CAROL), (GRANT_KEY,), (STATUS_KEY,), bob))


SECOND_BUNDLE = after(FIRST)


def signed(document: str, *people: Ed25519PrivateKey) -> list[str]:
    return [sign_bundle(document, person) for person in people]


@dataclass(frozen=True)
class Case:
    name: str
    #: The bundle in force; None: nothing is installed.
    before: TrustBundle | None
    document: str
    signatures: list[str]
    #: None: it may follow.
    problem: str | None


def rotation_cases() -> list[Case]:
    def case(
        name: str,
        problem: str | None,
        bundle: TrustBundle,
        *people: Ed25519PrivateKey,
        before: TrustBundle | None = FIRST,
    ) -> Case:
        return Case(name, before, bundle.document, signed(bundle.document, *people), problem)

    def follows(name: str, *people: Ed25519PrivateKey, **changes: Any) -> Case:
        return case(name, None, after(FIRST, **changes), *(people or (ALICE, BOB)))

    def refused(name: str, problem: str, *people: Ed25519PrivateKey, **changes: Any) -> Case:
        return case(name, problem, after(FIRST, **changes), *(people or (ALICE, BOB)))

    def no_document(name: str, **changes: Any) -> Case:
        text = encode(json.loads(SECOND_BUNDLE.document) | changes)
        return Case(name, FIRST, text, signed(text, ALICE, BOB, CAROL), "DOCUMENT")

    document = SECOND_BUNDLE.document
    by_alice, by_bob = signed(document, ALICE, BOB)
    encoded = [key._encode() for key in FIRST.keys]
    other_first = dataclasses.replace(FIRST, lowest_epoch=6)
    expired = dataclasses.replace(FIRST, issued_at=0, expires_at=SECOND)
    bob_ended = with_bob(0, 2 * SECOND)
    bob_began = with_bob(2 * SECOND, END)
    without_carol = after(FIRST, keys=keys((ALICE, BOB)))
    dave_for_carol = {"keys": keys((ALICE, BOB, DAVE))}
    all_new = {"keys": keys((DAVE, ERIN, FRANK))}

    return [
        # who signs
        follows("nothing changes but the version"),
        follows("signed by the other two", CAROL, BOB),
        follows("signed by all three", CAROL, ALICE, BOB),
        follows("a root key replaced, signed by two who stay", **dave_for_carol),
        follows("a root key replaced, signed by who leaves, stays and comes",
                CAROL, ALICE, DAVE, **dave_for_carol),
        follows("a root key replaced, signed by everybody",
                ALICE, BOB, CAROL, DAVE, **dave_for_carol),
        follows("all root keys replaced, signed by both quorums",
                ALICE, BOB, DAVE, ERIN, **all_new),
        follows("threshold raised, signed by as many",
                ALICE, BOB, CAROL, root_threshold=3),
        follows("threshold lowered by the quorum", root_threshold=1),
        follows("one of the new threshold of one is among the old quorum",
                ALICE, BOB, root_threshold=1, keys=keys((BOB, DAVE))),
        case("third version by the roots of the second", None,
             after(without_carol), ALICE, BOB, before=without_carol),
        Case("signed by nobody", FIRST, document, [], "OLD_QUORUM"),
        refused("signed by one of two", "OLD_QUORUM", ALICE),
        refused("only the new quorum", "OLD_QUORUM", DAVE, ERIN, FRANK, **all_new),
        refused("the new quorum and one of the old", "OLD_QUORUM", DAVE, ERIN, CAROL, **all_new),
        refused("threshold lowered by one", "OLD_QUORUM", ALICE, root_threshold=1),
        refused("a newcomer makes up the old quorum", "OLD_QUORUM", ALICE, DAVE, **dave_for_carol),
        refused("only the old quorum", "QUORUM", ALICE, BOB, **all_new),
        refused("the old quorum and one of the new", "QUORUM", ALICE, BOB, DAVE, **all_new),
        refused("who leaves makes up the new quorum", "QUORUM", ALICE, CAROL, **dave_for_carol),
        refused("threshold raised, signed by fewer", "QUORUM", ALICE, BOB, root_threshold=3),
        # signatures
        Case("one key twice", FIRST, document, [by_alice, by_alice], "SIGNATURE"),
        Case("one key twice beside a quorum", FIRST, document, [by_alice, by_bob, by_alice],
             "SIGNATURE"),
        Case("one key twice, in other letters", FIRST, document,
             [by_alice, by_alice[:17] + by_alice[17:].upper()], "SIGNATURE"),
        Case("a bad one beside a quorum", FIRST, document,
             [by_alice, by_bob, signed(document, CAROL)[0][:-8] + "0" * 8], "SIGNATURE"),
        Case("the kid of one, the signature of another", FIRST, document,
             [by_alice, by_bob[:17] + by_alice[17:]], "SIGNATURE"),
        Case("signatures of the bundle in force", FIRST, document,
             signed(FIRST.document, ALICE, BOB), "SIGNATURE"),
        Case("signed without the schema", FIRST, document,
             [by_alice, f"{by_bob[:17]}{BOB.sign(document.encode()).hex()}"], "SIGNATURE"),
        Case("an empty signature", FIRST, document, [by_alice, by_bob, ""], "SIGNATURE"),
        refused("a stranger beside a quorum", "SIGNATURE", ALICE, BOB, UNKNOWN_KEY),
        refused("the grant key beside a quorum", "SIGNATURE", ALICE, BOB, GRANT_KEY),
        refused("the status key makes up the quorum", "SIGNATURE", ALICE, STATUS_KEY),
        case("a root key that has left", "SIGNATURE",
             after(without_carol), ALICE, CAROL, before=without_carol),
        # order of versions
        case("the bundle in force again", "INSTALLED", FIRST, ALICE, BOB),
        case("another bundle of the version in force", "VERSION", other_first, ALICE, BOB),
        refused("a version skipped", "VERSION", version=3),
        case("back to the version before", "VERSION", FIRST, ALICE, BOB, before=SECOND_BUNDLE),
        case("two bundles follow the first", "VERSION",
             after(FIRST, lowest_epoch=6), ALICE, BOB, before=SECOND_BUNDLE),
        case("a first bundle of other roots", "VERSION",
             dataclasses.replace(FIRST, keys=keys((DAVE, ERIN, FRANK))), DAVE, ERIN),
        case("forged roots, the rest right", "OLD_QUORUM",
             after(FIRST, keys=keys((DAVE, ERIN, FRANK))), DAVE, ERIN, FRANK),
        case("nothing is installed", "NOT_FIRST", SECOND_BUNDLE, ALICE, BOB, before=None),
        refused("names no bundle before it", "PREVIOUS", previous=""),
        refused("names another bundle", "PREVIOUS", previous=other_first.digest),
        case("names the one before the one in force", "PREVIOUS",
             after(SECOND_BUNDLE, previous=FIRST.digest), ALICE, BOB, before=SECOND_BUNDLE),
        # what it says
        follows("the grant key replaced", keys=keys(grants=(NEXT_GRANT_KEY,))),
        follows("a second grant key", keys=keys(grants=(GRANT_KEY, NEXT_GRANT_KEY))),
        follows("a key that ends", keys=keys(
            (ALICE, BOB, CAROL), (NEXT_GRANT_KEY,), (), trust_key(GRANT_KEY, "grant", 0, NOW))),
        follows("root keys and nothing else", keys=keys(grants=(), statuses=())),
        follows("the lowest epoch raised", lowest_epoch=6),
        follows("it expires earlier", expires_at=END - 2 * SECOND),
        refused("the lowest epoch lowered", "EPOCH", lowest_epoch=4),
        refused("the lowest epoch lowered by everybody", "EPOCH",
                ALICE, BOB, CAROL, lowest_epoch=0),
        refused("another audience", "AUDIENCE", audience="payroll"),
        refused("an audience in other letters", "AUDIENCE", audience="Billing"),
        refused("a root key becomes a grant key", "PURPOSE", keys=keys((ALICE, BOB), (CAROL,))),
        refused("a grant key becomes a root key", "PURPOSE",
                keys=keys((ALICE, BOB, CAROL, GRANT_KEY), (NEXT_GRANT_KEY,))),
        refused("grant and status key change places", "PURPOSE",
                keys=keys(grants=(STATUS_KEY,), statuses=(GRANT_KEY,))),
        no_document("no key", keys=[]),
        no_document("no root key", keys=[key for key in encoded if key["purpose"] != "root"]),
        no_document("fewer root keys than the threshold", rootThreshold=4),
        no_document("threshold 0", rootThreshold=0),
        no_document("a key with two purposes", keys=[
            encoded[0] | {"purpose": "grant"}, encoded[0] | {"purpose": "status"}, *encoded[1:]]),
        no_document("keys in another order", keys=encoded[::-1]),
        no_document("a kid of another key", keys=[
            encoded[0] | {"kid": key_id(raw_public_key(UNKNOWN_KEY))}, *encoded[1:]]),
        no_document("previous in upper case", previous=FIRST.digest.upper()),
        no_document("a claim too many", note="trust me"),
        Case("white space", FIRST, document.replace(",", ", ", 1),
             signed(document.replace(",", ", ", 1), ALICE, BOB), "DOCUMENT"),
        Case("empty", FIRST, "", [], "DOCUMENT"),
        # time
        refused("it has expired", "EXPIRED", issued_at=0, expires_at=SECOND),
        case("the bundle in force has expired", None, after(expired, expires_at=END), ALICE, BOB,
             before=expired),
        follows("a root key ends that did not sign", ALICE, CAROL, keys=bob_ended.keys),
        case("an ended root key is prolonged by the others", None,
             after(bob_ended, keys=FIRST.keys), ALICE, CAROL, before=bob_ended),
        case("an ended root key prolongs itself", "OLD_QUORUM",
             after(bob_ended, keys=FIRST.keys), ALICE, BOB, before=bob_ended),
        case("a root key that has ended", "SIGNATURE",
             after(bob_ended), ALICE, BOB, before=bob_ended),
        case("a root key that has ended since the bundle was issued", "SIGNATURE",
             after(bob_ended, issued_at=SECOND), ALICE, BOB, before=bob_ended),
        case("a root key that began after the bundle was issued", "SIGNATURE",
             after(bob_began, issued_at=SECOND), ALICE, BOB, before=bob_began),
        refused("a new root key that has not begun", "SIGNATURE", ALICE, BOB, DAVE, keys=(
            keys((ALICE, BOB, CAROL), (), (), trust_key(DAVE, "root", END - 1, END)))),
    ]  # fmt: skip
