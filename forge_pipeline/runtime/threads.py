"""Which thread computes. TVM keeps a pool of threads for every thread that calls it, and none of them outlives a fork.

On one thread a run needs no pool: whoever calls computes. On more, one thread of ours computes what all others ask for,
so that there is one pool, and none that a forked process would wait for in vain, when it computes or when it ends.
Handing over takes 10 to 20 microseconds.
"""

from __future__ import annotations

import atexit
import os
import threading
from collections.abc import Callable
from queue import SimpleQueue
from typing import Any, Generic, TypeVar

from forge_pipeline.runtime.ffi import runtime

A = TypeVar("A")
T = TypeVar("T")

_SET_MAX_CONCURRENCY = "_ZN3tvm7runtime9threading17SetMaxConcurrencyEi"
_BIG_CORES = 1


class _Task(Generic[T]):
    """A call that another thread makes, and what came of it."""

    __slots__ = ("_call", "_error", "_result", "done", "is_done")

    def __init__(self, call: Callable[[], T]) -> None:
        self._call: Callable[[], T] | None = call
        self._error: BaseException | None = None
        self.is_done = False
        self.done = threading.Lock()
        self.done.acquire()

    def make(self) -> None:
        """Make the call, and keep nothing of it but its outcome."""
        call, self._call = self._call, None
        try:
            self._result = call()  # type: ignore[misc]
        except BaseException as error:  # noqa: BLE001  raised again in the thread that asked
            self._error = error
        del call
        self.is_done = True
        self.done.release()

    def outcome(self) -> T:
        """Return what the call returned, or raise what it raised."""
        error, self._error = self._error, None
        if error is None:
            return self._result
        try:
            raise error
        finally:
            del error  # it refers to this frame


class _Owned:
    """A thread that makes the calls of others, one at a time."""

    def __init__(self) -> None:
        self._tasks: SimpleQueue[_Task[Any]] = SimpleQueue()
        threading.Thread(target=self._work, name="forge-runtime", daemon=True).start()

    def call(self, call: Callable[[], T]) -> T:
        """Return or raise what ``call`` does. An interrupt waits for its end, as it does in a call of one's own."""
        task = _Task(call)
        self._tasks.put(task)
        try:
            task.done.acquire()
        except BaseException:
            if not task.is_done:
                task.done.acquire()
            raise
        return task.outcome()

    def _work(self) -> None:
        while True:
            task = self._tasks.get()
            task.make()
            del task  # nothing of a call is kept until the next


_told = threading.local()
"""How many threads TVM was told to use for what the calling thread calls: telling it costs system calls."""
_locks: set[threading.RLock] = set()
_held: list[threading.RLock] = []
_forking = False
_gate = threading.Lock()
"""Held by who forks."""
_starting = threading.Lock()
"""Held while the owned thread is started, and only by who holds one of the locks."""
_owned: _Owned | None = None


def wait_for_fork() -> None:
    """Wait while another thread is about to fork: it would never get its turn from those who call again and again."""
    if _forking:
        with _gate:
            pass


def new_lock() -> threading.RLock:
    """Return a lock to be held during all use of TVM. A fork waits until no other thread holds one."""
    lock = threading.RLock()
    _locks.add(lock)
    return lock


def forget_lock(lock: threading.RLock) -> None:
    """Let a fork wait for this lock no more."""
    _locks.discard(lock)


def compute(call: Callable[[A], T], argument: A, threads: int) -> T:
    """Return or raise what ``call(argument)`` does, computed on ``threads`` threads. Whoever calls holds a lock."""
    if threads == 1:
        return _on_one(call, argument)
    return _the_owned().call(lambda: _on_several(call, argument, threads))


def _on_one(call: Callable[[A], T], argument: A) -> T:
    if getattr(_told, "threads", 0) != 1:
        runtime()[1][_SET_MAX_CONCURRENCY](1)  # for the calling thread: TVM computes in it, without a pool
        _told.threads = 1
    return call(argument)


def _on_several(call: Callable[[A], T], argument: A, threads: int) -> T:
    if getattr(_told, "threads", 0) != threads:
        runtime()[0].get_global_func("runtime.config_threadpool")(_BIG_CORES, threads)
        _told.threads = threads
    return call(argument)


def _the_owned() -> _Owned:
    global _owned  # noqa: PLW0603  one for the process
    with _starting:
        if _owned is None:
            _owned = _Owned()
        return _owned


def _before_fork() -> None:
    """Wait until TVM does nothing."""
    global _forking  # noqa: PLW0603
    _gate.acquire()
    _forking = True
    for lock in tuple(_locks):
        lock.acquire()
        _held.append(lock)


def _after_fork() -> None:
    global _forking  # noqa: PLW0603
    _forking = False
    while _held:
        _held.pop().release()
    _gate.release()


def _in_child() -> None:
    """Start a new thread when one is needed: that of the parent is not there."""
    global _owned  # noqa: PLW0603
    _owned = None
    _after_fork()


def _at_exit() -> None:
    """Let no thread call TVM from now on: what came back from it too late would abort the process."""
    for lock in tuple(_locks):
        lock.acquire()


atexit.register(_at_exit)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_before_fork, after_in_parent=_after_fork, after_in_child=_in_child)
