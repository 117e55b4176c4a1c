"""A command as a process group of its own, for `pgfence run`. Unix only.

The group is led by a *warden*: a shell of a few lines that waits at a pipe whose other end this
process holds. When the pipe closes, whether we let go of it or were killed (SIGKILL leaves nobody
time to clean up), the warden ends the group: SIGTERM, a while of grace, SIGKILL. The group is there
before the command is, so there is no moment at which the command could outlive us unseen.

Signals that come to us are passed on to the group. A command that is stopped (Ctrl-Z) stops us too,
as in any shell, and goes on with us if it still may. It gets the terminal when it reads from it.
"""

import os
import signal
import subprocess
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import NamedTuple, Self

#: What is passed on to the command. SIGTSTP too: a command that obeys it stops, and then we do.
_FORWARDED = (
    signal.SIGHUP, signal.SIGINT, signal.SIGQUIT, signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2,
    signal.SIGWINCH, signal.SIGTSTP,
)  # fmt: skip
#: Python ignores these for itself; the command gets what it would have got from a shell.
_IGNORED_BY_PYTHON = (signal.SIGPIPE, signal.SIGXFSZ)
#: No signal: somebody rang.
_RUNG = 0

_WARDEN = """
trap '' HUP INT QUIT TERM USR1 USR2 TSTP TTIN TTOU
echo ready
read -r _ && exit
kill -s TERM 0
kill -s CONT 0
sleep "$1"
kill -s KILL 0
"""


class Ended(NamedTuple):
    """How a command ended: its exit status as a shell has it, and whether we stopped it."""

    exit_code: int
    stopped: bool


def run(
    command: Sequence[str],
    environment: Mapping[str, str],
    must_stop: Callable[[], bool],
    watch: Callable[[Callable[[], object]], object],
    grace: float,
) -> Ended:
    """Run a command to its end, or until `must_stop` says so. In the main thread.

    must_stop: asked before a stopped command goes on, and when something happens. watch: called
    with a function that any thread may call when `must_stop` has another answer. grace: seconds
    between SIGTERM and SIGKILL. When the command itself has ended after SIGTERM, what is left of
    its group is killed at once. What leaves the group (setsid) is out of reach.

    Raises OSError when the command cannot be started.
    """
    with _Signals() as signals, _Warden(grace) as warden:
        watch(signals.ring)
        terminal = _Terminal(warden.group)
        try:
            return _Command(command, environment, must_stop, signals, warden, terminal).run()
        finally:
            terminal.close()


class _Command:
    def __init__(
        self,
        command: Sequence[str],
        environment: Mapping[str, str],
        must_stop: Callable[[], bool],
        signals: "_Signals",
        warden: "_Warden",
        terminal: "_Terminal",
    ) -> None:
        self._must_stop = must_stop
        self._signals = signals
        self._warden = warden
        self._terminal = terminal
        self._stopping = False
        try:
            self._pid = os.posix_spawnp(
                command[0],
                list(command),
                environment,
                setpgroup=warden.group,
                setsigdef=_IGNORED_BY_PYTHON,
            )
        except BaseException:
            warden.dismiss()
            raise

    def run(self) -> Ended:
        while (exit_code := self._exit_code()) is None:
            for number in self._signals.wait():
                if number == signal.SIGCONT:
                    self._go_on()
                elif number not in (signal.SIGCHLD, _RUNG):
                    self._warden.signal_group(number)
            self._look()
        if self._stopping:
            self._warden.signal_group(signal.SIGKILL)
        else:
            self._warden.dismiss()
        return Ended(exit_code, self._stopping)

    def _look(self) -> None:
        if not self._stopping and self._must_stop():
            self._stopping = True
            self._warden.end_group()

    def _exit_code(self) -> int | None:
        """None while the command runs, or has been stopped."""
        pid, status = os.waitpid(self._pid, os.WNOHANG | os.WUNTRACED)
        if pid == 0:
            return None
        if not os.WIFSTOPPED(status):
            code = os.waitstatus_to_exitcode(status)
            return code if code >= 0 else 128 - code
        wants_terminal = os.WSTOPSIG(status) in (signal.SIGTTIN, signal.SIGTTOU)
        if wants_terminal and self._terminal.lend():
            self._warden.signal_group(signal.SIGCONT)
        elif not self._stopping:
            self._stop_ourselves()
        return None

    def _stop_ourselves(self) -> None:
        """Returns when we are continued; or at once where nobody could continue us."""
        before = signal.signal(signal.SIGTSTP, signal.SIG_IGN)
        if self._terminal.lent:
            # The terminal told the command's group alone; the rest of ours wants to know too.
            os.kill(0, signal.SIGTSTP)
        signal.signal(signal.SIGTSTP, signal.SIG_DFL)
        # To this thread: another one might be too late for the default action.
        signal.raise_signal(signal.SIGTSTP)
        signal.signal(signal.SIGTSTP, before)

    def _go_on(self) -> None:
        """We were continued, so the command is, unless its time was up meanwhile."""
        self._look()
        if not self._stopping:
            if self._terminal.lent:
                self._terminal.lend()
            self._warden.signal_group(signal.SIGCONT)


class _Warden:
    """The leader of the command's group, which outlives us and ends it."""

    def __init__(self, grace: float) -> None:
        self._process = subprocess.Popen(
            ["/bin/sh", "-c", _WARDEN, "pgfence-warden", str(grace)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            process_group=0,
        )
        self.group = self._process.pid
        assert self._process.stdout is not None  # noqa: S101 - it is a pipe
        self._process.stdout.readline()  # until it is deaf to what the group gets to hear

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.end_group()  # where an error led here: the command is gone before the lease is
        self._process.wait()
        assert self._process.stdout is not None  # noqa: S101
        self._process.stdout.close()

    def signal_group(self, number: int) -> None:
        """Send a signal to the command and all that it started."""
        with suppress(ProcessLookupError):
            os.killpg(self.group, number)

    def end_group(self) -> None:
        """Let go of the pipe: SIGTERM now, SIGKILL later."""
        assert self._process.stdin is not None  # noqa: S101 - it is a pipe
        self._process.stdin.close()

    def dismiss(self) -> None:
        """The command has ended by itself: nothing is to be done any more."""
        assert self._process.stdin is not None  # noqa: S101
        with suppress(BrokenPipeError):
            self._process.stdin.write(b"done\n")
            self._process.stdin.flush()


class _Signals:
    """The signals that come to us while the block runs, in order, and a bell for other threads.

    What is ignored (SIGHUP under nohup) stays ignored, also by the command.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._closed = False

    def __enter__(self) -> Self:
        self._read, self._write = os.pipe()
        os.set_blocking(self._write, False)
        self._before_fd = signal.set_wakeup_fd(self._write, warn_on_full_buffer=False)
        self._before = {
            number: signal.signal(number, lambda *_: None)
            for number in (*_FORWARDED, signal.SIGCONT, signal.SIGCHLD)
            if signal.getsignal(number) is not signal.SIG_IGN
        }
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)
        signal.set_wakeup_fd(self._before_fd)
        with self._lock:
            self._closed = True
            os.close(self._read)
            os.close(self._write)

    def ring(self) -> None:
        """Wake whoever waits; from any thread, at any time."""
        with self._lock:
            if not self._closed:
                os.write(self._write, bytes([_RUNG]))

    def wait(self) -> bytes:
        """The numbers of what has come, as soon as something has."""
        return os.read(self._read, 4096)


class _Terminal:
    """The terminal that we were started from, if any: the command gets it when it asks for it."""

    def __init__(self, group: int) -> None:
        self._group = group
        #: The command has, or had, the terminal.
        self.lent = False
        self._fd: int | None = None
        with suppress(OSError):
            self._fd = os.open(os.ctermid(), os.O_RDWR | os.O_CLOEXEC | os.O_NOCTTY)

    def lend(self) -> bool:
        """Give it to the command, if it is ours to give."""
        if self._fd is None or os.tcgetpgrp(self._fd) != os.getpgrp():
            return False
        self._give_to(self._group)
        self.lent = True
        return True

    def close(self) -> None:
        """Take it back."""
        if self._fd is not None:
            if self.lent and os.tcgetpgrp(self._fd) == self._group:
                self._give_to(os.getpgrp())
            os.close(self._fd)

    def _give_to(self, group: int) -> None:
        assert self._fd is not None  # noqa: S101 - asked by the callers
        # Whoever changes this without having the terminal is stopped by SIGTTOU, unless it waits.
        before = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTTOU])
        os.tcsetpgrp(self._fd, group)
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
