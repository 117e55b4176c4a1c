"""pgfence run -- COMMAND"""

import os
import shutil
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated, NoReturn

import typer

import pgfence
from pgfence import command as process
from pgfence import observe
from pgfence.cli.output import Dsn, Json, console, fail, told

# Of its own, and unlikely for a command: those of sysexits.h, and of every shell.
UNREACHABLE, NOT_ACQUIRED, LOST, REFUSED = 69, 75, 76, 77
CANNOT_RUN, NOT_FOUND = 126, 127
#: Seconds between two looks for a new status proof; the one before counts for much longer.
_LOOK = 0.1


def run(
    command: Annotated[
        list[str],
        typer.Argument(metavar="-- COMMAND [ARGUMENT]...", show_default=False, help="What to run."),
    ],
    resource: Annotated[
        str, typer.Option(metavar="ID", show_default=False, help="What to hold meanwhile.")
    ],
    operation: Annotated[
        str,
        typer.Option(metavar="CLASS", show_default=False, help="The class of work, for policies."),
    ],
    ttl: Annotated[
        float, typer.Option(metavar="SECONDS", help="Lease without renewal.", min=0.001)
    ] = 10.0,
    timeout: Annotated[
        float | None,
        typer.Option(
            metavar="SECONDS",
            show_default="for ever",
            help="How long to wait for the resource; 0 asks once.",
            min=0,
        ),
    ] = None,
    continues: Annotated[
        str,
        typer.Option(
            metavar="ROOT",
            show_default=False,
            help="The operation that this one takes up: operation_root of `pgfence status`.",
        ),
    ] = "",
    take_up: Annotated[
        bool,
        typer.Option("--take-up", help="Take up what was done last under the resource."),
    ] = False,
    grace: Annotated[
        float,
        typer.Option(metavar="SECONDS", help="From SIGTERM to SIGKILL, if it is lost.", min=0),
    ] = 10.0,
    conflict_exit_code: Annotated[
        int,
        typer.Option(
            "--conflict-exit-code", "-E", help="If it is not acquired in time.", min=0, max=255
        ),
    ] = NOT_ACQUIRED,
    registry: Annotated[
        str,
        typer.Option(
            envvar="PGFENCE_REGISTRY",
            show_default=False,
            help="Connection string of the registry's database, where that is another one.",
        ),
    ] = "",
    coordinator: Annotated[
        str,
        typer.Option(
            envvar="PGFENCE_COORDINATOR",
            show_default=False,
            help="URL of the lock service that says who may hold, where the registry has one.",
        ),
    ] = "postgres",
    dsn: Dsn = "",
    as_json: Json = False,
) -> None:
    """Hold a resource while a command runs, which finds the grant in its environment.

    As a role in pgfence_app. The lease is renewed while the command runs, and released when it
    ends; if it is lost, the command is stopped. With --registry the file PGFENCE_STATUS_FILE has
    the latest status proof. The exit code is the command's (128+N after signal N), or 75: not
    acquired in time, 76: lost, 69: unreachable, 77: refused, 126 and 127: the command cannot be
    run, is not found. With --json, standard error gets a line for each event.
    """
    if take_up and continues:
        raise typer.BadParameter("--take-up finds out what to take up: leave out --continues")
    _check(command[0])
    say = _Events(resource, as_json)
    needs = "a role in pgfence_app that acts for a workload"
    with told(unreachable=UNREACHABLE, refused=REFUSED, needs=needs), _terminable():
        try:
            with (
                pgfence.connect(dsn, registry=registry or None, coordinator=coordinator) as fence,
                fence.hold(
                    resource,
                    operation=operation,
                    ttl=ttl,
                    arguments=[os.fsencode(word).decode(errors="replace") for word in command],
                    continues_root=continues,
                    take_up=take_up,
                    timeout=timeout,
                ) as lease,
                _proofs(lease) as proofs,
            ):
                say.held(lease)
                environment = os.environ | _environment(lease) | proofs
                given = {"PGFENCE_DSN": dsn, "PGFENCE_REGISTRY": registry}
                environment.update((name, value) for name, value in given.items() if value)
                ended = process.run(
                    command, environment, lambda: say.is_lost(lease), lease.on_lost, grace
                )
        except (pgfence.AcquireTimeoutError, pgfence.ClaimLostError) as error:
            fail(conflict_exit_code, str(error), error.next_step)
        except pgfence.LockServiceError as error:
            fail(UNREACHABLE, str(error), error.next_step)
        except OSError as error:
            fail(CANNOT_RUN, f"{command[0]} cannot be run: {error.strerror}")
    say.ended(ended)
    raise typer.Exit(LOST if ended.stopped else ended.exit_code)


def _check(program: str) -> None:
    """Look for the program before anybody is kept waiting for it."""
    if shutil.which(program) is None:
        if shutil.which(program, os.F_OK) is None:
            fail(NOT_FOUND, f"{program} is not found")
        fail(CANNOT_RUN, f"{program} is not executable")


@contextmanager
def _terminable() -> Iterator[None]:
    """SIGTERM and SIGHUP end the wait for the resource as Ctrl-C does: the request is withdrawn."""

    def end(number: int, _: object) -> NoReturn:
        raise SystemExit(128 + number)

    before = {
        number: signal.signal(number, end)
        for number in (signal.SIGTERM, signal.SIGHUP)
        if signal.getsignal(number) is not signal.SIG_IGN
    }
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _environment(lease: pgfence.Lease) -> dict[str, str]:
    """What the command needs for `fenced_apply`.

    Others may read a process's environment (root, and whoever runs as the same user). The grant in
    it is no secret: only a session of its own workload can apply with it (R6).
    """
    grant = lease.grant
    position = lease.position()
    taken_up = bool(grant.continues_root) and grant.continues_root == position.written_root
    return {
        "PGFENCE_GRANT": lease.token,
        "PGFENCE_RESOURCE": lease.resource,
        "PGFENCE_FENCE_TOKEN": str(lease.fence_token),
        "PGFENCE_OPERATION_ROOT": lease.operation_root,
        "PGFENCE_CONTINUES_ROOT": grant.continues_root,
        "PGFENCE_NEXT_SEGMENT": str(lease.next_segment),
        "PGFENCE_SEGMENTS_DONE": str(position.total_segments if taken_up else 0),
    }


@contextmanager
def _proofs(lease: pgfence.Lease) -> Iterator[dict[str, str]]:
    """Where the registry is elsewhere, a file with the latest status proof, which no environment
    could keep up with; and the variable that names it.
    """
    if lease.shown is None:
        yield {}
        return
    with TemporaryDirectory(prefix="pgfence-") as folder:
        file, done = Path(folder, "status"), threading.Event()
        written = _write(lease, file, None)

        def keep() -> None:
            latest = written
            while not done.wait(_LOOK):
                with suppress(OSError):  # what is there is good for a while yet
                    latest = _write(lease, file, latest)

        keeper = threading.Thread(target=keep, name="pgfence proofs", daemon=True)
        keeper.start()
        try:
            yield {"PGFENCE_STATUS_FILE": str(file)}
        finally:
            done.set()
            keeper.join()


def _write(lease: pgfence.Lease, file: Path, before: str | None) -> str | None:
    """Put the latest proof into the file at once and whole, unless it is there already."""
    token = lease.shown.token if lease.shown else None
    if token is not None and token != before:
        new = file.with_suffix(".new")
        new.write_text(token, encoding="ascii")
        new.replace(file)
    return token


class _Events:
    """What is told on standard error: with --json everything, else only what went wrong."""

    def __init__(self, resource: str, as_json: bool) -> None:
        self._resource = resource
        self._as_json = as_json
        self._told = False

    def held(self, lease: pgfence.Lease) -> None:
        self._event("held", fence_token=lease.fence_token, operation_root=lease.operation_root)

    def is_lost(self, lease: pgfence.Lease) -> bool:
        """Whether the command must stop. In shadow nothing is stopped (R28)."""
        if self._told or not lease.lost.is_set():
            return False
        self._told = True
        try:
            lease.check()
        except pgfence.NotHeldError as error:
            self._event("lost", reason=error.verdict.reason)
            if not self._as_json:
                text = f"pgfence: {error}: the command is stopped"
                console(stderr=True).print(text, soft_wrap=True)
            return True
        return False

    def ended(self, ended: process.Ended) -> None:
        self._event("ended", exit_code=ended.exit_code, stopped=ended.stopped)

    def _event(self, event: str, **fields: object) -> None:
        if self._as_json:
            line = observe.line(event, resource=self._resource, **fields)
            print(line, file=sys.stderr, flush=True)
