"""`pgfence run -- command`, as people run it: a process, a command in it, and signals."""

from __future__ import annotations

import json
import os
import pty
import re
import select
import shlex
import signal
import subprocess
import sys
import termios
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from pgfence.cli import run as cli
from tests import guarded
from tests.cli.conftest import Pgfence
from tests.cli.documents import ROOT, psql_program
from tests.cli.test_commands import MANUAL
from tests.elsewhere import use_registry_elsewhere
from tests.guarded import BATCH, make_table, protect
from tests.proxy import proxy_to
from tests.registry import registry
from tests.rollout import shadow
from tests.support import PATIENCE, Database, Keys, issue, wait_until
from tests.workers import end_lease, fence_row

PROGRAM = [sys.executable, "-c", "from pgfence.cli import main; main()", "run"]
HOLD = ["--resource", BATCH, "--operation", "settle"]
# What a command does that must be stopped: it says so, and ends when it wants to.
OBEDIENT = "trap 'echo stopped; exit 3' {signals}; echo up; while :; do sleep 0.05; done"
STUBBORN = (
    "trap '' TERM; sh -c 'while :; do sleep 0.05; done' & echo $!; while :; do sleep 0.05; done"
)


@pytest.fixture(autouse=True)
def _hang_up_is_heard() -> Iterator[None]:
    """Under nohup the tests, and whatever they start, would ignore it."""
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    yield
    signal.signal(signal.SIGHUP, before)


@pytest.fixture
def invoices(database: Database, keys: Keys) -> Iterator[Database]:
    """An invoice behind the guard, and a registry that signs."""
    owner = database.connect("billing_owner")
    make_table(owner, "invoices", "plain")
    owner.execute("insert into invoices values (1, '2026-07-19', 0)")
    protect(owner, "invoices")
    with registry(database, keys):
        yield database


@contextmanager
def running(
    database: Database, *arguments: str, role: str = "worker_a", **options: Any
) -> Iterator[subprocess.Popen[str]]:
    """pgfence run, holding BATCH; killed at the end if it still runs."""
    process = subprocess.Popen(
        [*PROGRAM, *HOLD, *arguments],
        cwd=ROOT,
        env=environment(database, role),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        **options,
    )
    with process:
        try:
            yield process
        finally:
            process.kill()


def environment(database: Database, role: str = "worker_a") -> dict[str, str]:
    others = {name: v for name, v in os.environ.items() if not name.startswith("PGFENCE_")}
    return others | {
        "PGFENCE_DSN": database.dsn(role),
        "PATH": f"{psql_program().parent}:{os.environ['PATH']}",
        "PGOPTIONS": "",
    }


def run(database: Database, *arguments: str, **options: Any) -> subprocess.CompletedProcess[str]:
    """What `running` says when it has ended."""
    with running(database, *arguments, **options) as process:
        out, err = process.communicate(timeout=PATIENCE)
        return subprocess.CompletedProcess(process.args, process.returncode, out, err)


def hear(process: subprocess.Popen[str]) -> str:
    """The command's next line."""
    assert process.stdout is not None
    return process.stdout.readline().strip()


def is_alive(pid: int) -> bool:
    """Whether there is such a process, and it is more than a zombie."""
    try:
        os.kill(pid, 0)
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8")
    except ProcessLookupError:
        return False
    except FileNotFoundError:  # gone meanwhile, or no Linux
        return not Path("/proc/self/stat").exists()
    return stat.rpartition(")")[2].split()[0] != "Z"


def lease_of(database: Database) -> str:
    return str(fence_row(database, BATCH).current_lease)


def states(database: Database, table: str = "grants") -> list[str]:
    """Of all grants or requests, in their order."""
    at = {"grants": "granted_at", "requests": "asked_at"}[table]
    with database.connect() as conn:  # not kept: tests ask until it changes
        found = guarded.run(conn, f"select state from pgfence_registry.{table} order by {at}")
        return [state for (state,) in found.fetchall()]


SCRIPT = """
psql --no-psqlrc -qAt -v ON_ERROR_STOP=1 "$PGFENCE_DSN" <<'SQL'
\\getenv grant PGFENCE_GRANT
\\getenv segment PGFENCE_NEXT_SEGMENT
begin;
select verdict from pgfence.fenced_apply(:'grant', :segment, '{"invoice": 1}');
update invoices set amount = 7 where id = 1;
commit;
SQL
"""


@pytest.mark.rule("R5", "R15", "R36")
def test_the_command_applies_with_the_grant_in_its_environment_and_the_lease_is_released(
    invoices: Database,
) -> None:
    ended = run(invoices, "--", "sh", "-c", SCRIPT)
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "ACCEPTED\n", "")
    assert invoices.connect().execute("select amount from invoices").fetchone() == (7,)
    assert states(invoices) == ["RELEASED"]


@pytest.mark.rule("R23")
def test_the_same_command_without_pgfence_run_is_refused(invoices: Database) -> None:
    """The control."""
    script = SCRIPT.replace(":'grant'", "'none'").replace(":segment", "1")
    ended = subprocess.run(
        ["sh", "-c", script], env=environment(invoices), capture_output=True, text=True
    )
    assert (ended.returncode, ended.stdout) == (3, "MALFORMED\n")
    assert "belongs to the resource invoice-batch/2026-07-19" in ended.stderr


@pytest.mark.parametrize(
    "taking_up",
    [lambda root: ["--continues", root], lambda _: ["--take-up"]],
    ids=["root", "latest"],
)
def test_the_environment_says_what_is_held_and_where_the_work_stands(
    invoices: Database, taking_up: Callable[[str], list[str]]
) -> None:
    first = issue(invoices, "worker_b", BATCH)
    b = invoices.connect("worker_b")
    for segment in (1, 2):
        b.execute("select pgfence.fenced_apply(%s, %s, 'page')", [first.token, segment])
    b.execute("select pgfence_registry.release(%s)", [first.lease])
    show = ["--", "sh", "-c", "env | grep '^PGFENCE_' | sort"]
    ended = run(invoices, *taking_up(first.operation_root), *show)
    said = dict(line.split("=", 1) for line in ended.stdout.splitlines())
    names = set(said)
    row = fence_row(invoices, BATCH)
    assert said.pop("PGFENCE_GRANT").startswith("v4.public.")
    assert said.pop("PGFENCE_OPERATION_ROOT").startswith("sha256:")
    assert said == {
        "PGFENCE_CONTINUES_ROOT": first.operation_root,
        "PGFENCE_DSN": invoices.dsn("worker_a"),
        "PGFENCE_FENCE_TOKEN": str(row.issued_fence),
        "PGFENCE_NEXT_SEGMENT": "1",
        "PGFENCE_RESOURCE": BATCH,
        "PGFENCE_SEGMENTS_DONE": "2",
    }
    assert "PGFENCE_SEGMENTS_DONE=0\n" in run(invoices, *show).stdout
    documented = re.findall(r"^\| (`PGFENCE_.*?) \|", MANUAL, re.MULTILINE)
    elsewhere = {"PGFENCE_REGISTRY", "PGFENCE_STATUS_FILE"}
    assert set(re.findall(r"\w+", " ".join(documented))) == names | elsewhere


@pytest.fixture
def elsewhere(invoices: Database, registry_database: Database, keys: Keys) -> Iterator[list[str]]:
    """The options of pgfence run where another database is the registry, which signs."""
    use_registry_elsewhere(invoices, registry_database, tolerance_ms=100)
    with registry(registry_database, keys):
        yield ["--registry", registry_database.dsn("worker_a")]


@pytest.mark.rule("R13", "R21")
def test_r13_with_the_registry_elsewhere_the_command_reads_the_latest_proof_from_a_file(
    invoices: Database, registry_database: Database, elsewhere: list[str]
) -> None:
    script = """
        test $(stat -c %a "$(dirname "$PGFENCE_STATUS_FILE")") = 700 || exit 9
        echo "$PGFENCE_STATUS_FILE"
        for renewal in 1 2; do
            before=$(cat "$PGFENCE_STATUS_FILE")
            while [ "$before" = "$(cat "$PGFENCE_STATUS_FILE")" ]; do sleep 0.05; done
        done
    """
    apply = '\\set status `cat "$PGFENCE_STATUS_FILE"`\nbegin;'
    shown = SCRIPT.replace("begin;", apply).replace(" 1}')", " 1}', :'status')")
    # The grant alone shows it for half of the lease, which is renewed at each third of it.
    short = ["--ttl", "5", "--grace", "0"]
    alone = run(invoices, *elsewhere, *short, "--", "sh", "-c", script + SCRIPT)
    assert (alone.returncode, alone.stdout.split()[1:]) == (3, ["STALE_STATUS"])
    ended = run(invoices, *elsewhere, *short, "--", "sh", "-c", script + shown)
    file, verdict = ended.stdout.split()
    assert (ended.returncode, verdict) == (0, "ACCEPTED")
    assert not Path(file).parent.exists()
    assert states(registry_database) == ["RELEASED", "RELEASED"]
    assert invoices.connect().execute("select amount from invoices").fetchone() == (7,)


def test_r13_what_stands_of_an_operation_is_said_with_the_registry_elsewhere_too(
    invoices: Database, elsewhere: list[str]
) -> None:
    show = "echo $PGFENCE_OPERATION_ROOT $PGFENCE_SEGMENTS_DONE $PGFENCE_NEXT_SEGMENT"
    first = run(invoices, *elsewhere, "--", "sh", "-c", show + SCRIPT).stdout.split()
    assert first[1:] == ["0", "1", "ACCEPTED"]
    taken_up = run(invoices, *elsewhere, "--continues", first[0], "--", "sh", "-c", show)
    assert taken_up.stdout.split()[1:] == ["1", "1"]
    assert run(invoices, *elsewhere, "--", "sh", "-c", show).stdout.split()[1:] == ["0", "1"]


def test_r13_without_the_registry_s_dsn_the_command_is_not_run(
    invoices: Database, elsewhere: list[str]
) -> None:
    ended = run(invoices, "--", "echo", "ran")
    assert (ended.returncode, ended.stdout) == (77, "")


def test_what_is_taken_up_is_named_once(invoices: Database) -> None:
    ended = run(invoices, "--take-up", "--continues", "sha256:0", "--", "echo", "ran")
    assert (ended.returncode, ended.stdout) == (2, "")
    assert "leave out --continues" in ended.stderr
    assert states(invoices, "requests") == []


def test_the_manual_has_the_exit_codes() -> None:
    section = MANUAL.partition("## Running a command")[2].partition("\n## ")[0]
    codes = " ".join(re.findall(r"^\| ([\d, ]+) \|", section, re.MULTILINE))
    assert set(map(int, re.findall(r"\d+", codes))) == {
        cli.UNREACHABLE, cli.NOT_ACQUIRED, cli.LOST, cli.REFUSED, cli.CANNOT_RUN, cli.NOT_FOUND,
    }  # fmt: skip


@pytest.mark.parametrize(("command", "code"), [("exit 7", 7), ("kill -s KILL $$", 137)])
def test_the_exit_code_is_the_command_s(invoices: Database, command: str, code: int) -> None:
    assert run(invoices, "--", "sh", "-c", command).returncode == code


def test_a_resource_that_does_not_become_free_in_time_is_exit_code_75_or_another(
    invoices: Database,
) -> None:
    issue(invoices, "worker_b", BATCH)
    for arguments, code in ([], 75), (["-E", "9"], 9):
        ended = run(invoices, "--timeout", "0", *arguments, "--", "echo", "ran")
        assert (ended.returncode, ended.stdout) == (code, "")
        assert f"{BATCH} did not become ours in time: the resource is held" in ended.stderr
    assert states(invoices, "requests")[1:] == ["WITHDRAWN", "WITHDRAWN"]


def test_what_cannot_be_run_is_known_before_anybody_is_kept_waiting(
    pgfence: Pgfence, tmp_path: Path
) -> None:
    no_program = tmp_path / "notes.txt"
    no_program.touch(mode=0o600)
    assert pgfence("run", *HOLD, "--", tmp_path / "nothing").exit_code == 127
    assert pgfence("run", *HOLD, "--", no_program).exit_code == 126


def test_a_program_that_the_system_does_not_know_is_exit_code_126(
    invoices: Database, tmp_path: Path
) -> None:
    program = tmp_path / "program"
    program.write_bytes(b"\x7fELF, and nothing more")
    program.chmod(0o755)
    ended = run(invoices, "--", str(program))
    assert ended.returncode == 126
    assert f"{program} cannot be run" in ended.stderr
    assert states(invoices) == ["RELEASED"]


def test_refused_and_unreachable_have_exit_codes_of_their_own(
    invoices: Database, pgfence: Pgfence
) -> None:
    auditor = run(invoices, "--", "echo", role="auditor")
    assert auditor.returncode == 77
    assert "This takes a role in pgfence_app" in auditor.stderr
    nobody = "postgresql://worker_a@127.0.0.1:1/billing?connect_timeout=5"
    assert pgfence("run", "--dsn", nobody, *HOLD, "--", "echo").exit_code == 69


@pytest.mark.parametrize("name", ["HUP", "INT", "TERM", "USR1"])
def test_a_signal_is_passed_on_to_the_command(invoices: Database, name: str) -> None:
    with running(invoices, "--", "sh", "-c", OBEDIENT.format(signals=name)) as process:
        assert hear(process) == "up"
        process.send_signal(signal.Signals[f"SIG{name}"])
        assert hear(process) == "stopped"
        assert process.wait(PATIENCE) == 3
    assert states(invoices) == ["RELEASED"]


def test_a_command_that_a_signal_kills_is_128_and_the_signal(invoices: Database) -> None:
    with running(invoices, "--", "sh", "-c", "echo up; exec sleep 600") as process:
        assert hear(process) == "up"
        process.terminate()
        assert process.wait(PATIENCE) == 128 + signal.SIGTERM


@pytest.mark.rule("R36")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_r36_a_signal_while_it_waits_leaves_the_queue(
    invoices: Database, number: signal.Signals
) -> None:
    issue(invoices, "worker_b", BATCH)
    with running(invoices, "--", "echo", "ran") as process:
        wait_until(lambda: "WAITING" in states(invoices, "requests"), "it waits")
        process.send_signal(number)
        assert process.wait(PATIENCE) == 128 + number
        assert hear(process) == ""
    assert states(invoices, "requests") == ["GRANTED", "WITHDRAWN"]


@pytest.mark.rule("R43")
def test_r43_a_command_whose_lease_is_lost_is_stopped(invoices: Database) -> None:
    command = OBEDIENT.format(signals="TERM")
    with running(invoices, "--ttl", "3", "--", "sh", "-c", command) as process:
        assert hear(process) == "up"
        end_lease(invoices, lease_of(invoices))
        assert hear(process) == "stopped"
        assert process.wait(PATIENCE) == 76
        assert process.stderr is not None
        assert "NOT_HELD (EXPIRED)" in process.stderr.read()


@pytest.mark.rule("R43")
def test_r43_a_command_that_does_not_heed_is_killed_with_all_that_it_started(
    invoices: Database,
) -> None:
    arguments = ["--ttl", "3", "--grace", "0.2", "--", "sh", "-c", STUBBORN]
    with running(invoices, *arguments) as process:
        child = int(hear(process))
        end_lease(invoices, lease_of(invoices))
        assert process.wait(PATIENCE) == 76
        wait_until(lambda: not is_alive(child), "the command's child is gone")


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSEGV])
def test_the_command_does_not_outlive_a_killed_pgfence_run(
    invoices: Database, number: signal.Signals
) -> None:
    with running(invoices, "--grace", "0.2", "--", "sh", "-c", f"echo $$; {STUBBORN}") as process:
        command, child = int(hear(process)), int(hear(process))
        process.send_signal(number)
        process.wait()
        wait_until(lambda: not (is_alive(command) or is_alive(child)), "the command is gone")


@pytest.mark.rule("R19", "R43")
def test_r43_a_pgfence_run_that_was_stopped_past_its_lease_stops_the_command(
    invoices: Database,
) -> None:
    """Meanwhile the command writes, and PostgreSQL refuses it."""
    command = f"echo ready; read -r go; {SCRIPT}\n{OBEDIENT.format(signals='TERM')}"
    arguments = ["--ttl", "4", "--", "sh", "-c", command]
    with running(invoices, *arguments, stdin=subprocess.PIPE) as process:
        assert hear(process) == "ready"
        process.send_signal(signal.SIGSTOP)
        over = "select clock_timestamp() > lease_ends_at from pgfence_registry.grants"
        watch = invoices.connect()
        wait_until(lambda: watch.execute(over).fetchone() == (True,), "the lease is over")
        assert process.stdin is not None
        process.stdin.write("go\n")
        process.stdin.flush()
        assert hear(process) == "NOT_HELD"
        assert hear(process) == "up"
        process.send_signal(signal.SIGCONT)
        assert hear(process) == "stopped"
        assert process.wait(PATIENCE) == 76
    assert invoices.connect().execute("select amount from invoices").fetchone() == (0,)


@pytest.mark.rule("R42", "R43")
def test_r43_a_command_whose_registry_is_silent_is_stopped_when_its_time_is_up(
    invoices: Database,
) -> None:
    """No error ever comes."""
    with proxy_to(invoices.dsn("worker_a")) as network:
        arguments = ["--dsn", network.dsn, "--ttl", "4"]
        command = OBEDIENT.format(signals="TERM")
        with running(invoices, *arguments, "--", "sh", "-c", command) as process:
            assert hear(process) == "up"
            network.freeze()
            network.refuse_new()
            assert hear(process) == "stopped"
            assert process.wait(PATIENCE) == 76


def test_a_lease_that_cannot_be_given_back_keeps_nobody_waiting(invoices: Database) -> None:
    with proxy_to(invoices.dsn("worker_a")) as network:
        arguments = ["--dsn", network.dsn, "--ttl", "5", "--", "sh", "-c", "echo up; read -r go"]
        with running(invoices, *arguments, stdin=subprocess.PIPE) as process:
            assert hear(process) == "up"
            network.freeze()
            network.refuse_new()
            _, err = process.communicate("go\n", timeout=PATIENCE)
            assert process.returncode == 0
            assert "was not released, it ends by itself" in err


@pytest.mark.rule("R28")
def test_r28_in_shadow_nothing_is_stopped(database: Database, keys: Keys) -> None:
    shadow(database, "invoice-batch/")
    command = "echo up; read -r go; echo went on"
    with (
        registry(database, keys),
        running(
            database, "--ttl", "9", "--", "sh", "-c", command, stdin=subprocess.PIPE
        ) as process,
    ):
        assert hear(process) == "up"
        end_lease(database, lease_of(database))
        assert process.stderr is not None
        assert "RENEWING -> EXPIRED" in process.stderr.readline()
        out, _ = process.communicate("go\n", timeout=PATIENCE)
    assert (process.returncode, out) == (0, "went on\n")


def test_json_tells_each_event_on_standard_error(invoices: Database) -> None:
    ended = run(invoices, "--json", "--", "sh", "-c", "exit 5")
    held, end = (json.loads(line) for line in ended.stderr.splitlines())
    assert (held["event"], held["resource"], held["fence_token"]) == ("held", BATCH, 1)
    assert (end["event"], end["exit_code"], end["stopped"]) == ("ended", 5, False)


# a terminal


class Terminal:
    """A terminal with a session of its own, as a person has it who types."""

    def __init__(self, command: list[str], env: dict[str, str]) -> None:
        self.pid, self._fd = pty.fork()
        if self.pid == 0:
            os.chdir(ROOT)
            os.execvpe(command[0], command, env)
        self._said = ""

    def type(self, text: str) -> None:
        os.write(self._fd, text.encode())

    def hear(self, text: str) -> None:
        """Return when it has shown that, after what was heard before."""
        deadline = time.monotonic() + PATIENCE
        while text not in self._said:
            if not select.select([self._fd], [], [], max(0, deadline - time.monotonic()))[0]:
                pytest.fail(f"the terminal does not show {text!r}: {self._said[-500:]!r}")
            with suppress(OSError):  # Linux: the other side is gone
                self._said += os.read(self._fd, 4096).decode()
        self._said = self._said.partition(text)[2]

    def silent(self) -> None:
        """What is typed is not shown."""
        attributes = termios.tcgetattr(self._fd)
        attributes[3] &= ~termios.ECHO
        termios.tcsetattr(self._fd, termios.TCSANOW, attributes)

    def close(self) -> None:
        os.close(self._fd)


@contextmanager
def terminal(command: list[str], env: dict[str, str]) -> Iterator[Terminal]:
    opened = Terminal(command, env)
    try:
        yield opened
    finally:
        opened.close()
        with suppress(ProcessLookupError):
            os.kill(opened.pid, signal.SIGKILL)
        with suppress(ChildProcessError):
            os.waitpid(opened.pid, 0)


READS = [
    "sh",
    "-c",
    "trap 'echo interrupted; exit 4' INT; echo up;"
    ' for n in 1 2 3; do read -r line; echo "$n: $line"; done',
]
# Not a loop in a shell: one that is stopped between vfork and exec is not seen to be stopped. And
# not in the command itself, which the shell shows at `fg`: what it says would be heard from there.
TICKS = [sys.executable, "-c", "import os; exec(os.environ['TICKING'])"]
TICKING = """
import time
print("up", flush=True)
try:
    while True:
        time.sleep(0.05)
        print("tick", flush=True)
except KeyboardInterrupt:
    print("interrupted")
    raise SystemExit(4)
"""


def test_the_command_gets_the_terminal_when_it_reads_and_what_is_typed_there(
    invoices: Database,
) -> None:
    with terminal([*PROGRAM, *HOLD, "--", *READS], environment(invoices)) as person:
        person.silent()
        person.hear("up")
        person.type("hello\n")
        person.hear("1: hello")
        person.type("\x03")
        person.hear("interrupted")
        _, status = os.waitpid(person.pid, 0)
        assert os.waitstatus_to_exitcode(status) == 4


@pytest.mark.parametrize("command", [TICKS, READS], ids=["ticks", "reads"])
def test_ctrl_z_stops_the_command_and_pgfence_and_fg_continues_both(
    invoices: Database, command: list[str]
) -> None:
    """The terminal is pgfence's as long as the command does not read from it."""
    shell = ["bash", "--norc", "--noprofile", "-i"]
    # What is typed is a word, since a shell edits lines.
    env = environment(invoices) | {"PS1": "prompt> ", "HOME": "/nonexistent"}
    env |= {"RUN": shlex.join([*PROGRAM, *HOLD, "--", *command]), "TICKING": TICKING}

    def go_on(n: int) -> None:
        if command == READS:
            person.type("line\n")
        person.hear(f"{n}: line" if command == READS else "tick")

    with terminal(shell, env) as person:
        person.silent()
        person.hear("prompt> ")
        person.type('eval "$RUN"\n')
        person.hear("up")
        go_on(1)
        person.type("\x1a")
        person.hear("Stopped")
        person.hear("prompt> ")
        person.type("fg\n")
        go_on(2)
        person.type("\x03")
        person.hear("interrupted")
        person.type("echo code $?\n")
        person.hear("code 4")
