"""The limits that a process is given (`ulimit`) or puts itself under, and how to tell that one was reached."""

from __future__ import annotations

import ctypes
import errno
import resource
import signal
from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import Final

from forge_pipeline.errors import ForgeError, LimitError

_PR_SET_PDEATHSIG: Final = 1
_SHELL: Final = {  # what a shell calls them, and the bytes or seconds that it counts in
    resource.RLIMIT_AS: ("ulimit -v", 1024),
    resource.RLIMIT_DATA: ("ulimit -d", 1024),
    resource.RLIMIT_CPU: ("ulimit -t", 1),
    resource.RLIMIT_FSIZE: ("ulimit -f", 1024),
    resource.RLIMIT_NOFILE: ("ulimit -n", 1),
    resource.RLIMIT_NPROC: ("ulimit -u", 1),
}
USUAL: Final = MappingProxyType(
    {
        resource.RLIMIT_AS: 16 << 30,
        resource.RLIMIT_DATA: 8 << 30,
        resource.RLIMIT_CPU: 3600,
        resource.RLIMIT_FSIZE: 8 << 30,
        resource.RLIMIT_NOFILE: 64,
        resource.RLIMIT_NPROC: 64,
    }
)
"""What the work of a build is sure to fit into: a limit below it is named where memory, time or files ran out."""

_ERRNOS: Final = frozenset({errno.ENOMEM, errno.EMFILE, errno.ENFILE, errno.EAGAIN, errno.EFBIG})
_MEMORY: Final = (  # how libraries say it, most of them in errors of no certain type
    *("can't allocate memory", "annot allocate memory", "bad_alloc", "bad allocation", "OOM when", "MemoryError"),
    *("Unable to allocate", "failed to map segment", "cannot create shared object", "Memory allocation still failed"),
)
_OTHER: Final = (
    *("can't start new thread", "Resource temporarily unavailable", "Too many open files", "File too large"),
    "No usable temporary directory",
)


_given: dict[int, int] = {resource.RLIMIT_CPU: resource.getrlimit(resource.RLIMIT_CPU)[0]}
"""What this process had before it lowered a limit itself, or the kernel raised it: it adds a second with SIGXCPU."""


def lower(kind: int, wanted: int, spare: int = 0) -> None:
    """Put this process under ``wanted``, or under what it was given where that is less.

    Its signal comes ``spare`` before the limit that kills.
    """
    soft, hard = (limit if limit != resource.RLIM_INFINITY else wanted + spare for limit in resource.getrlimit(kind))
    _given.setdefault(kind, resource.getrlimit(kind)[0])
    top = min(wanted + spare, hard)
    resource.setrlimit(kind, (max(0, min(wanted, soft, top - spare)), top))


def end_with_parent() -> None:
    """See that this process does not outlive the one that started it."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def below(needs: Mapping[int, int]) -> str:
    """Return the limits of this process that are lower than ``needs``, as a shell shows them; empty for none."""
    given = {kind: _given.get(kind, resource.getrlimit(kind)[0]) for kind in needs}
    low = [kind for kind, need in needs.items() if given[kind] != resource.RLIM_INFINITY and given[kind] < need]
    return ", ".join(f"`{_SHELL[kind][0]}` {given[kind] // _SHELL[kind][1]}" for kind in low)


def blamed(where: str, found: str, needs: Mapping[int, int] = USUAL) -> LimitError | None:
    """Return the error for what failed under a limit lower than ``needs``; None where there is no such limit."""
    low = below(needs)
    if not low:
        return None
    return LimitError(
        where=where,
        expected="limits that leave room for the work",
        found=f"{low}, and {found}",
        fix="raise what is named: in this shell or, if it is a hard limit, where the session is started",
    )


def is_memory(text: str) -> bool:
    """Tell what libraries say when memory is refused to them."""
    return any(words in text for words in _MEMORY)


def is_exhaustion(text: str) -> bool:
    """Tell what libraries say when memory, threads or files are refused to them."""
    return is_memory(text) or any(words in text for words in _OTHER)


def exhaustion(error: BaseException) -> str | None:
    """Return what was refused for want of memory, threads or files, if that is what ``error`` comes from."""
    for cause in _chain(error):
        if isinstance(cause, MemoryError):
            return "memory ran out"
        if (isinstance(cause, OSError) and cause.errno in _ERRNOS) or is_exhaustion(str(cause)):
            said = f"{cause.where}: {cause.found}" if isinstance(cause, ForgeError) else str(cause)
            return " ".join(said.split())[:300]
    return None


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        yield error
        error = error.__cause__ or error.__context__
