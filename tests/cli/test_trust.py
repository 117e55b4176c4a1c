"""pgfence trust: three people rotate with two signatures, and what is refused on the way (R31)."""

from __future__ import annotations

import itertools
import json
import os
import re
import shutil
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from pgfence import tokens
from pgfence.model.canonical import encode
from pgfence.model.signature import key_id, raw_public_key
from tests import rotation_cases as rotation
from tests.cli.conftest import Pgfence, Said, command_line
from tests.cli.documents import ROOT
from tests.support import Database, Keys, TestServer, copied, create_database, make_bundle, rotate
from tests.workers import Worker, grant_of

PEOPLE = dict(zip(("alice", "bob", "carol", "dave"), rotation.PEOPLE, strict=False))
PUBLIC = {name: raw_public_key(key).hex() for name, key in PEOPLE.items()}
KIDS = {name: key_id(raw_public_key(key)) for name, key in PEOPLE.items()}
NEXT = raw_public_key(rotation.NEXT_GRANT_KEY).hex()
_numbers = itertools.count(1)


@dataclass
class Office:
    """A database, key files in the working directory, and commands that must succeed."""

    pgfence: Pgfence
    database: Database

    def __call__(self, *words: object, **options: Any) -> Said:
        said = self.pgfence("trust", *words, on=self.database, **options)
        assert said.exit_code == 0, said.err
        return said

    def refused(self, *words: object, **options: Any) -> str:
        said = self.pgfence("trust", *words, on=self.database, **options)
        assert said.exit_code == 4, (said.exit_code, said.out, said.err)
        return said.err

    def sign(self, file: str, *people: str) -> None:
        for person in people:
            self("sign", file, "--key", f"{person}.key", "--yes")

    def version(self) -> int:
        return int(self("show", "--json").document["version"])


@pytest.fixture(scope="module")
def opened(
    cluster: TestServer, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[Database, Path]]:
    """The first bundle is installed: alice, bob and carol, two of whom sign. And the key files."""
    folder = tmp_path_factory.mktemp("office")
    database = create_database(cluster, f"pgfence_office_{os.getpid()}")
    with pytest.MonkeyPatch.context() as patch, command_line(patch) as pgfence:
        patch.chdir(folder)
        for name, key in PEOPLE.items():
            tokens.write_key(Path(f"{name}.key"), key)
        assert pgfence("migrate", on=database).exit_code == 0
        office = Office(pgfence, database)
        roots = [word for name in ("alice", "bob", "carol") for word in ("--root", PUBLIC[name])]
        said = office("init", "--audience", "billing", *roots, "--json").document
        assert said["path"] == "trust-1.json"
        assert [quorum["threshold"] for quorum in said["quorums"]] == [2]
        assert {p: k["made"] for p, k in said["keys"].items()} == {"grant": True, "status": True}
        assert "no trust bundle" in office.refused("show")
        office.sign("trust-1.json", "alice", "carol")
        assert office("install", "trust-1.json", "--json").document["installed"] is True
    yield database, folder
    database.drop()


@pytest.fixture
def office(
    pgfence: Pgfence,
    opened: tuple[Database, Path],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> Iterator[Office]:
    """A copy of that database, and of the key files in the working directory."""
    original, folder = opened
    monkeypatch.chdir(shutil.copytree(folder, tmp_path / "office"))
    with copied(original, f"{original.name}_{next(_numbers)}") as database:
        yield Office(pgfence, database)


def test_r31_two_of_three_replace_a_root_key_and_the_grant_key(office: Office) -> None:
    grant = raw_public_key(tokens.load_key(Path("grant.key"))).hex()
    proposed = office(
        "propose", "--add", f"root:{PUBLIC['dave']}", "--remove", KIDS["carol"],
        "--add", f"grant:{NEXT}", "--end", f"{grant}:7", "--json",
    ).document  # fmt: skip
    assert [q["not_signed"] for q in proposed["quorums"]] == [
        sorted(KIDS[name] for name in ("alice", "bob", "carol")),
        sorted(KIDS[name] for name in ("alice", "bob", "dave")),
    ]
    assert {c["what"] for c in proposed["changes"]} >= {
        f"root key {KIDS['carol']}", f"root key {KIDS['dave']}",
    }  # fmt: skip
    office.sign("trust-2.json", "bob")
    Path("copy.json").write_text(Path("trust-2.json").read_text())
    office.sign("trust-2.json", "carol")
    said = office.refused("install", "trust-2.json")
    not_yet = ", ".join(sorted([KIDS["alice"], KIDS["dave"]]))
    assert f"1 more of the root keys of trust bundle 2 must sign: not signed by {not_yet}" in said
    assert office.version() == 1
    office.sign("copy.json", "dave")
    installed = office("install", "trust-2.json", "copy.json", "--json").document
    assert (installed["version"], installed["digest"]) == (2, proposed["digest"])
    ends = {key["public_key"]: key["expires_at"] for key in installed["keys"]}
    assert ends[grant] is not None
    assert [ends[NEXT], ends[PUBLIC["alice"]]] == [None, None]

    again = office("install", "trust-2.json")
    assert again.out == "trust bundle 2 is in force already: nothing to do\n"
    assert "follows bundle 1, and trust bundle 2" not in again.out


def test_r31_a_proposal_that_was_overtaken_is_refused(office: Office) -> None:
    office("propose", "--threshold", "1", "--out", "mine.json")
    office("propose", "--remove", KIDS["carol"], "--out", "yours.json")
    office.sign("mine.json", "alice", "bob")
    office.sign("yours.json", "alice", "bob")
    office("install", "mine.json")
    said = office.refused("install", "yours.json")
    assert "the proposed bundle follows bundle 1, and trust bundle 2" in said
    assert "is in force: nothing was changed" in said
    said = office.refused("install", "mine.json", "yours.json")
    assert "different proposals" in said


def test_r31_sign_shows_the_changes_and_asks(office: Office) -> None:
    office("propose", "--remove", KIDS["carol"], "--threshold", "1")
    before = Path("trust-2.json").read_text()
    for typed in ("n\n", "\n", ""):
        said = office.pgfence("trust", "sign", "trust-2.json", "--key", "bob.key", typed=typed)
        assert said.exit_code == 1
        assert "| 2 of 3" in said.out
        assert "| 1 of 2" in said.out
        assert f"root key {KIDS['carol']}" in said.out
        assert Path("trust-2.json").read_text() == before
    said = office.pgfence("trust", "sign", "trust-2.json", "--key", "bob.key", typed="y\n")
    assert said.exit_code == 0
    assert f"signed with key {KIDS['bob']}" in said.out
    assert "bundle 1 asks for 2 of its root keys" in said.out
    assert "has signed it already" in office("sign", "trust-2.json", "--key", "bob.key").out
    assert office.pgfence(
        "trust", "sign", "trust-2.json", "--key", "bob.key", "--json"
    ).exit_code == 2  # fmt: skip


def test_r31_sign_takes_only_a_root_key_and_only_what_could_be_installed(office: Office) -> None:
    office("propose", "--remove", KIDS["carol"])
    for key in ("dave.key", "grant.key", "status.key"):
        said = office.refused("sign", "trust-2.json", "--key", key, "--yes")
        assert "is no valid root key of trust bundle 1 or 2" in said
    office.sign("trust-2.json", "carol")

    good = json.loads(Path("trust-2.json").read_text())
    changed = json.loads(good["document"])
    changed["rootThreshold"] = 1
    for forged, says in (
        (good | {"document": encode(changed)}, "not that of a valid root key"),
        (good | {"before": None}, "the first bundle has version 1"),
        (good | {"before": rotation.FIRST.document}, "does not name the digest"),
        (good | {"document": good["document"] + " "}, "not a canonical"),
        (good | {"signatures": ["x"]}, "not that of a valid root key"),
        ([], "no trustProposal.v1"),
    ):
        Path("forged.json").write_text(json.dumps(forged))
        assert says in office.refused("sign", "forged.json", "--key", "alice.key", "--yes")
        assert says in office.refused("show", "forged.json")
    assert "cannot be read" in office.refused("show", "missing.json")
    assert office.version() == 1


def test_r31_the_database_has_the_last_word(office: Office) -> None:
    """Whatever the command believes: here a bad signature beside enough good ones."""
    office("propose")
    office.sign("trust-2.json", "alice", "bob")
    fields = json.loads(Path("trust-2.json").read_text())
    signature = fields["signatures"][0]
    fields["signatures"].append(KIDS["carol"] + signature[16:])
    Path("trust-2.json").write_text(json.dumps(fields))
    said = office.refused("install", "trust-2.json")
    assert "a signature is not that of a valid root key" in said
    assert office.version() == 1


@pytest.mark.parametrize(
    ("words", "code", "says"),
    [
        (["--add", "boss:" + NEXT], 2, "is not PURPOSE:KEY"),
        (["--add", "grant:xyz"], 2, "is no public key"),
        (["--add", "grant:" + "01" + "00" * 31], 4, "public_key is not valid"),
        (["--remove", "xyz"], 2, "is no public key"),
        (["--remove", "0" * 16], 4, "has no key 0000000000000000"),
        (["--end", NEXT], 2, "is not KEY:DAYS"),
        (["--end", f"{KIDS['alice']}:soon"], 2, "is not KEY:DAYS"),
        (["--add", "root:" + PUBLIC["alice"]], 4, "a key is added once"),
        (["--add", "root:" + NEXT, "--add", "grant:" + NEXT], 4, "given twice"),
        (["--threshold", "4"], 4, "4 signatures of 3 root keys"),
        (["--out", "alice.key"], 4, "never overwritten"),
    ],
)
def test_r31_propose_refuses_what_makes_no_bundle(
    office: Office, words: list[str], code: int, says: str
) -> None:
    said = office.pgfence("trust", "propose", *words, on=office.database)
    assert said.exit_code == code
    assert says in " ".join(re.sub(r"[│\n]", " ", said.err).split())
    assert not Path("trust-2.json").exists()


def test_r31_init_takes_people_or_a_file(office: Office, database: Database) -> None:
    for words in (
        ["--root", PUBLIC["alice"], "--root-key", "alice.key"],
        ["--threshold", "2"],
        ["--out", "x.json"],
        ["--root", "x"],
    ):
        assert office.pgfence("trust", "init", *words, on=office.database).exit_code == 2
    said = office.refused("init", "--root", PUBLIC["alice"])
    assert "has trust bundle 1: nothing was changed" in said


def test_r7_revoke_epoch_ends_the_grants_and_the_leases_of_before(
    pgfence: Pgfence, database: Database, keys: Keys, tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.chdir(tmp_path)
    tokens.write_key(Path("root.key"), keys.root)
    office, worker = Office(pgfence, database), Worker.login(database, keys, "worker_a")
    # As after a failover: the registry's epoch is above the bundle's.
    database.connect("dba").execute("select from pgfence.restored()")
    old = worker.acquire("a")
    epoch = grant_of(old.token).issuer_epoch
    assert worker.apply(old.token, 1).verdict == "ACCEPTED"

    proposed = office("revoke-epoch", "--json", role="auditor").document
    assert {"what": "lowest good epoch", "before": "1", "after": str(epoch + 1)} in proposed[
        "changes"
    ]
    office("sign", "trust-2.json", "--key", "root.key", "--yes")
    office("install", "trust-2.json")
    assert worker.apply(old.token, 2).verdict == "REVOKED_EPOCH"
    new = worker.acquire("a")
    assert (new.state, grant_of(new.token).issuer_epoch) == ("HELD", epoch + 1)
    assert worker.apply(new.token, 1).verdict == "ACCEPTED"


def test_r26_whoever_can_read_proposes_and_only_the_owner_installs(
    pgfence: Pgfence, database: Database, keys: Keys, tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.chdir(tmp_path)
    tokens.write_key(Path("root.key"), keys.root)
    office = Office(pgfence, database)
    for number, role in enumerate(("worker_a", "registry", "auditor")):
        office("show", role=role)
        office("propose", "--out", f"{number}.json", role=role)
    for words, role, needs in (
        (["show"], "outsider", "a role in pgfence_auditor, pgfence_app or pgfence_registry"),
        (["propose"], "outsider", "a role in pgfence_auditor, pgfence_app or pgfence_registry"),
        (["revoke-epoch"], "worker_a", "a role in pgfence_auditor"),
        (["install", "2.json"], "auditor", "a member of pgfence_owner"),
    ):
        office("sign", "2.json", "--key", "root.key", "--yes")
        assert f"next: This takes {needs}." in office.refused(*words, role=role)


def test_show_warns_of_a_bundle_that_ends_soon(
    pgfence: Pgfence, database: Database, keys: Keys
) -> None:
    assert pgfence("trust", "show", on=database).exit_code == 0
    ends = int(time.time() + 29 * 86400) * 1_000_000
    rotate(database, rotation.after(make_bundle(keys), expires_at=ends), keys.root)
    said = pgfence("trust", "show", on=database, role="auditor")
    assert said.exit_code == 1
    assert "It ends soon" in said.out
    said = pgfence("trust", "show", "--json", on=database, role="worker_a")
    assert (said.exit_code, said.document["ends_soon"]) == (1, True)


def test_json_keys_of_the_manual_are_those_of_trust(office: Office) -> None:
    manual = (ROOT / "docs" / "cli.md").read_text(encoding="utf-8")
    office("propose")
    signed = office("sign", "trust-2.json", "--key", "bob.key", "--yes", "--json").document
    proposal = office("show", "trust-2.json", "--json").document
    assert proposal == signed
    office.sign("trust-2.json", "alice")
    shown = office("show", "--json").document
    installed = office("install", "trust-2.json", "--json").document
    for name, document in (
        ("show PROPOSAL", proposal),
        ("show", shown),
        ("install", {"installed": installed["installed"]}),
    ):
        (row,) = re.findall(rf"^\| `trust {name}` \| (.*) \|$", manual, re.MULTILINE)
        for key in re.findall(r'"(\w+)":', json.dumps(document)):
            assert f"`{key}`" in row
    assert installed.keys() - {"installed"} == shown.keys() - {"ends_soon"}
