"""A run of ONNX Runtime that may end its process: first in a copy of ours, which is ended in our place.

Some operators divide by extents that are zero for a few sizes alone (a Scan over nothing, an integer division), and no
exception comes of what the processor stops.
"""

from __future__ import annotations

import faulthandler
import os
import resource
import select
import signal
from collections.abc import Iterable, Mapping
from contextlib import suppress
from typing import Any, Final

from forge_pipeline.errors import DataError
from forge_pipeline.ir.reference.interpreter import Interpreter

PATIENCE: Final = 120  # seconds; a copy that is silent for longer has told nothing, and is taken for alive
_DEADLY: Final = (signal.SIGFPE, signal.SIGSEGV, signal.SIGBUS, signal.SIGABRT, signal.SIGILL)


def check_survival(run: Interpreter, feeds: Iterable[Mapping[str, Any]]) -> None:
    """Raise DataError where ``run`` ends its process on one of the feeds; a refusal is no end."""
    child = os.fork()
    if child == 0:
        _run(run, feeds)
    status = _status_of(child)
    if os.WIFSIGNALED(status) and os.WTERMSIG(status) in _DEADLY:
        raise DataError(
            where="ONNX Runtime",
            expected="sizes and values that the model computes with",
            found=f"a process that is ended by {signal.Signals(os.WTERMSIG(status)).name}",
            fix="give the model inputs of sizes that it is made for",
        )


def _run(run: Interpreter, feeds: Iterable[Mapping[str, Any]]) -> None:
    """Run the model in a child, without a word and without a core file."""
    try:
        faulthandler.disable()
        for deadly in _DEADLY:
            signal.signal(deadly, signal.SIG_DFL)
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
        with suppress(Exception):
            for feed in feeds:
                run(feed)
    finally:
        os._exit(0)


def _status_of(child: int) -> int:
    handle = os.pidfd_open(child)
    try:
        if not select.select([handle], [], [], PATIENCE)[0]:
            os.kill(child, signal.SIGKILL)
    except BaseException:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        raise
    finally:
        os.close(handle)
    return os.waitpid(child, 0)[1]
