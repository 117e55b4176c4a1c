"""Documents whose commands are run: their code blocks, and psql to run them with."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from pgfence import embedded
from pgfence.embedded import Server
from tests import support

ROOT = Path(__file__).resolve().parents[2]

_BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_DIGEST = re.compile(r"\b[0-9a-f]{12,64}\b")


@dataclass(frozen=True)
class Block:
    """A fenced code block, and the number of its first line."""

    language: str
    text: str
    line: int


def blocks(path: Path) -> list[Block]:
    """The code blocks of a Markdown file, in order."""
    text = path.read_text(encoding="utf-8")
    return [
        Block(match[1], match[2], text.count("\n", 0, match.start()) + 1)
        for match in _BLOCK.finditer(text)
    ]


def script(server: Server, page: list[Block]) -> str:
    """One shell script of all blocks: SQL goes to psql as the role in its first line."""
    passwords = {"postgres": server.password}
    lines = ["set -euo pipefail", "trap 'kill $(jobs -p)' EXIT"]
    for block in page:
        passwords |= re.findall(r"create role (\w+) login .*password '([^']+)'", block.text)
        match block.language:
            case "sh":
                lines.append(block.text)
            case "sql":
                role = block.text.partition("\n")[0].removeprefix("-- ")
                database = "postgres" if role == "postgres" else "billing"
                psql = f"PGPASSWORD='{passwords[role]}' '{psql_program()}' -v ON_ERROR_STOP=1"
                lines.append(f"{psql} -X -U {role} -d {database} <<'SQL'\n{block.text}SQL")
            case "python":
                lines.append(f"'{sys.executable}' - <<'PYTHON'\n{block.text}PYTHON")
    return "\n".join(lines)


def normalised(output: str) -> str:
    """What psql printed, with digests as #1, #2, ... in order of appearance, and plain spacing."""
    digests: dict[str, str] = {}

    def name(match: re.Match[str]) -> str:
        return digests.setdefault(match[0], f"#{len(digests) + 1}")

    spaced = re.sub(r"-{2,}|\+", "-", _DIGEST.sub(name, output))
    lines = (" ".join(line.split()) for line in spaced.splitlines())
    return "\n".join(line for line in lines if line)


def psql_program() -> Path:
    """The psql of the wheel, or the one on the PATH."""
    try:
        return embedded.wheel_bin_dir() / "psql"
    except embedded.EmbeddedServerError as error:
        found = shutil.which("psql")
        return Path(found) if found else support.unavailable(f"no psql: {error}")


def program(folder: Path) -> Path:
    """The program `pgfence` of this checkout, as a file in `folder`."""
    folder.mkdir(exist_ok=True)
    path = folder / "pgfence"
    path.write_text(f"#!{sys.executable}\nfrom pgfence.cli import main\nmain()\n")
    path.chmod(0o755)
    return path


class Psql:
    """A psql that stays: one session, run block by block.

    It writes to a terminal, because only there it writes each line at once.
    """

    def __init__(self, dsn: str) -> None:
        terminal, output = os.openpty()
        self._terminal = terminal
        self._process = subprocess.Popen(
            [psql_program(), "--no-psqlrc", dsn],
            stdin=subprocess.PIPE,
            stdout=output,
            stderr=output,
            env=os.environ | {"PGOPTIONS": "", "PSQL_HISTORY": os.devnull},
            text=True,
        )
        os.close(output)
        self._blocks = 0

    def run(self, text: str) -> str:
        """What psql says to a block."""
        self._blocks += 1
        end = f"end of block {self._blocks}"
        assert self._process.stdin is not None
        self._process.stdin.write(f"{text}\n\\echo {end}\n")
        self._process.stdin.flush()
        said = ""
        while f"{end}\n" not in said:
            said += os.read(self._terminal, 65536).decode().replace("\r", "")
        return said.partition(f"{end}\n")[0]

    def close(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait(timeout=support.PATIENCE)
        os.close(self._terminal)


@contextmanager
def sessions(database: support.Database) -> Iterator[dict[str, Psql]]:
    """A psql for each role that is asked for; the key is the role."""

    class Sessions(dict[str, Psql]):
        def __missing__(self, role: str) -> Psql:
            self[role] = Psql(database.dsn(role))
            return self[role]

    opened = Sessions()
    try:
        yield opened
    finally:
        for session in opened.values():
            session.close()
