"""How a program of ours ends: its exit code, every failure said on stderr, and no signal lost."""

from __future__ import annotations

import errno
import os
import resource
import signal
import sys
import traceback
from collections.abc import Callable
from contextlib import suppress
from types import FrameType
from typing import Final

from forge_pipeline import scratch
from forge_pipeline.errors import ForgeError, LimitError
from forge_pipeline.limits import blamed, exhaustion, lower
from forge_runtime.text import shown

BUG = 70  # EX_SOFTWARE of sysexits.h
SIGNALS: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGXCPU)
_ENVIRONMENT: Final = frozenset(
    {errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EROFS, errno.EACCES, errno.EPERM, errno.ENAMETOOLONG, errno.ESTALE}
)
AGAIN: Final = 0.2  # seconds until a stop that was swallowed is asked for once more


class Stopped(BaseException):
    """A signal ends this program: unwinds, so that child processes are ended and temporary folders removed."""


class _Stop:
    """Raises Stopped at a signal, and again where that is swallowed: in an import, a destructor, a bare `except`."""

    number = 0

    def listen(self) -> None:
        """Take the signals that would end this process; one that is ignored (`nohup`) stays so."""
        with suppress(ValueError):  # not in the main thread, where nobody can be asked to stop
            for number in SIGNALS:
                if signal.getsignal(number) is not signal.SIG_IGN:
                    signal.signal(number, self._raise)
            signal.signal(signal.SIGALRM, self._raise)
        sys.unraisablehook = _unraisable
        hard = resource.getrlimit(resource.RLIMIT_CPU)[1]
        if hard != resource.RLIM_INFINITY:
            lower(resource.RLIMIT_CPU, hard - 1, 1)  # a second to say so, and to tidy up

    def done(self) -> None:
        """Let a signal end this process at once from now on: nothing is under way."""
        with suppress(ValueError):
            signal.setitimer(signal.ITIMER_REAL, 0)
            for number in (*SIGNALS, signal.SIGALRM):
                if signal.getsignal(number) == self._raise:
                    signal.signal(number, _let_pass if number == signal.SIGXCPU else signal.SIG_DFL)

    def _raise(self, number: int, frame: FrameType | None) -> None:
        if number != signal.SIGALRM:
            self.number = self.number or number
        signal.setitimer(signal.ITIMER_REAL, AGAIN)
        error = sys.exception()
        while error is not None and not isinstance(error, Stopped):
            error = error.__context__
        if error is None:  # else it is on its way, through somebody's `finally`
            raise Stopped


def _let_pass(number: int, frame: FrameType | None) -> None:
    """Do nothing; SIG_IGN would be inherited by the programs that who called us as a function starts later."""


def _unraisable(ignored: sys.UnraisableHookArgs) -> None:
    """Say nothing of a stop that Python drops, such as in the weak references that every import makes."""
    if not isinstance(ignored.exc_value, Stopped):
        sys.__unraisablehook__(ignored)


def guarded(call: Callable[[], object]) -> int:
    """Call, and return the exit code for a program to end with.

    0 done, 1 a failure of input or environment, 2 usage, 70 a bug of ours, 128 + its number where a signal ended it.
    """
    _open_streams()
    stop, code, text = _Stop(), 0, ""
    try:
        stop.listen()
        call()
        sys.stdout.flush()
        if stop.number:
            code, text = _signalled(stop.number)
    except (Exception, KeyboardInterrupt, Stopped) as error:  # noqa: BLE001  the last resort of a program: all is reported
        stop.done()
        code, text = _signalled(stop.number) if stop.number else _failed(error)
    finally:
        stop.done()
        scratch.release()
        if text:
            with suppress(OSError):
                print(text, file=sys.stderr)
        _flush_streams()
    return code


def _signalled(number: int) -> tuple[int, str]:
    limit = None
    if number == signal.SIGXCPU:
        limit = blamed("forge-pipeline", "its processor time ran out", {resource.RLIMIT_CPU: sys.maxsize})
    if number == signal.SIGINT:  # OpenBLAS raises it where it cannot start its threads, while NumPy is imported
        needs = dict.fromkeys((resource.RLIMIT_AS, resource.RLIMIT_DATA), 1 << 30)
        limit = blamed("forge-pipeline", "it was interrupted, by a library or by you", needs)
    if limit is not None:
        return limit.exit_code, f"error: {limit}"
    what = "interrupted" if number == signal.SIGINT else f"ended by {signal.Signals(number).name}"
    return 128 + number, f"{what}; what was under way is not delivered"


def _failed(error: BaseException) -> tuple[int, str]:
    """Return the exit code, and what to say."""
    if isinstance(error, KeyboardInterrupt):  # at a prompt, without a signal
        return _signalled(signal.SIGINT)
    if isinstance(error, BrokenPipeError):
        return 1, ""  # the reader of our output has gone: there is nobody to tell
    error = _of_environment(error) or error
    if isinstance(error, ForgeError):
        return error.exit_code, f"error: {error}"
    lines = "\n".join(map(shown, "".join(traceback.format_exception(error)).splitlines()))
    return BUG, f"{lines}\nerror: this is a bug in forge_pipeline; please report it with the lines above"


def _of_environment(error: BaseException) -> ForgeError | None:
    """Return what to say where the machine, not the input or this program, is why ``error`` was raised."""
    if isinstance(error, LimitError):
        return error
    if refused := exhaustion(error):
        limit = blamed("forge-pipeline", refused)
        if limit is not None or not isinstance(error, ForgeError):
            return limit or LimitError("this machine", "memory, threads and files for the work", refused, "free some")
    if not isinstance(error, OSError):
        return None
    try:
        folder = os.getcwd()  # noqa: PTH109  Path.cwd() is the same
    except FileNotFoundError:
        return ForgeError("the current folder", "a folder that exists", "one that was removed", "change to another")
    if error.errno not in _ENVIRONMENT:
        return None
    where = error.filename or f"standard output, or a file of {folder}"
    return ForgeError(
        str(where), "a place that can be read and written", str(error.strerror), "make room, or choose another"
    )


def _open_streams() -> None:
    """Put /dev/null in place of a closed standard stream, or the next file that is opened would be written to."""
    for descriptor, name in enumerate(("stdin", "stdout", "stderr")):
        try:
            os.fstat(descriptor)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # the lowest free descriptor
        if getattr(sys, name) is None:
            setattr(sys, name, os.fdopen(descriptor, "r" if name == "stdin" else "w", closefd=False))


def _flush_streams() -> None:
    """Drop what a stream cannot take, or Python would end with another exit code."""
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except OSError:
            sink = os.open(os.devnull, os.O_WRONLY)
            os.dup2(sink, stream.fileno())
            os.close(sink)
