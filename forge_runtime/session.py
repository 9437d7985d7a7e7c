"""Calls of a model: what a call of some shapes needs is made once, and used again while shapes stay the same."""

from __future__ import annotations

import ctypes
import functools
import math
import os
import sys
import threading
import weakref
from collections.abc import Callable, Sequence
from typing import Any, cast

import numpy as np

from forge_runtime.errors import ArtifactError
from forge_runtime.interface import Array, Tensor
from forge_runtime.library import ALIGNMENT, SAME, Call, ForgeArray, Kernel, failure, libforge
from forge_runtime.model import Model

STAGED_BYTES = 1 << 16
"""Size up to which copying an input costs less than finding out where it lies."""
PLANS = 8
"""Shapes of calls that are remembered."""
KEPT = 2
"""Copies of a large output whose memory is kept for the next."""
UNUSED = 2
"""What `sys.getrefcount` says of an array that only a list has: that, and its own argument."""

Shapes = tuple[tuple[int, ...], ...]


class Session:
    """The memory and the threads that calls of ``model`` need. One thread at a time may use it: see ``lock``.

    A process that was forked has none of the threads: it forgets the session (``renew``), and starts another one.
    """

    def __init__(self, model: Model, threads: int) -> None:
        self.model, self.threads = model, threads
        self.lock = threading.RLock()
        self.last: Plan | None = None
        self._plans: dict[Shapes, Plan] = {}
        self.large = [np.empty(0, np.uint8) for _ in model.interface.inputs]
        self._handle: ctypes.c_void_p | None = None
        self._end: weakref.finalize[..., Any] | None = None
        self._start()
        _sessions.add(self)

    def _start(self) -> ctypes.c_void_p:
        made = ctypes.c_void_p()
        if code := libforge().forge_start(self.model.handle, self.threads, ctypes.byref(made)):
            raise failure(code, self.model.names)
        self._handle = made
        self._end = weakref.finalize(self, libforge().forge_stop, made.value)
        self._end.atexit = False
        return made

    def renew(self) -> None:
        """Let go of what belongs to the process that this one was forked from."""
        self.lock = threading.RLock()
        self._plans, self.last, self._handle = {}, None, None
        if self._end is not None:
            self._end()

    @property
    def handle(self) -> ctypes.c_void_p:
        """What libforge knows it by."""
        return self._handle or self._start()

    def call(self, arrays: Sequence[Array]) -> list[Array]:
        """Return the outputs for arrays whose dtypes and shapes fit the interface. Raises DataError."""
        shapes = tuple(array.shape for array in arrays)
        plan = self._plans.get(shapes)
        if plan is None:
            if len(self._plans) == PLANS:
                self._plans.clear()
            plan = self._plans[shapes] = Plan(self, shapes)
        self.last = plan
        return cast(list[Array], plan.call(arrays))

    @property
    def length(self) -> int:
        """How many tokens its caches have."""
        length: int = libforge().forge_length(self.handle)
        return length

    def rewind(self, length: int) -> None:
        """Forget all tokens but the first ``length``; 0: all state. Raises ConfigError for more than there are."""
        if code := libforge().forge_rewind(self.handle, length):
            raise failure(code, self.model.names)

    def places(self, run: Callable[[], object]) -> list[tuple[str, int, int]]:
        """Return the name, calls and nanoseconds at each place that calls a kernel, of what ``run`` does."""
        library, handle, kernel, found = libforge(), self.handle, Kernel(), []
        if code := library.forge_profile(handle, 1):
            raise failure(code, self.model.names)
        try:
            run()
            for index in range(library.forge_places(handle)):
                library.forge_place_time(handle, index, ctypes.byref(kernel))
                found.append((kernel.name.decode("utf-8", "replace"), kernel.calls, kernel.nanoseconds))
        finally:
            library.forge_profile(handle, 0)
        return found


class Plan:
    """Calls of one shape for each input: places for inputs, and views of where outputs were the last time.

    Small inputs are copied to memory that libforge knows already. Large ones are read where they lie if they can be.
    """

    def __init__(self, session: Session, shapes: Shapes) -> None:
        interface = session.model.interface
        self._names, self._outputs = session.model.names, interface.outputs
        self._given = (ForgeArray * len(interface.inputs))()
        self._made = (ForgeArray * len(interface.outputs))()
        self._slots = [
            _slot(session, index, shape, row)
            for index, (shape, row) in enumerate(zip(shapes, self._given, strict=True))
        ]
        call = Call(session.handle, ctypes.addressof(self._given), ctypes.addressof(self._made))
        # An object of ctypes, made once, is what it passes on quickest.
        self._repeat = functools.partial(libforge().forge_repeat, ctypes.c_void_p(ctypes.addressof(call)))
        self._call = call  # must live as long
        self._copies: list[Callable[[], Array]] = []

    def call(self, values: Sequence[object]) -> list[Array] | None:
        """Run the model, as often and as quickly as it may be; return its outputs as arrays of their own.

        None where ``values``, one for each input, are not arrays of this plan's dtypes and shapes. Raises DataError.
        """
        for value, (shape, dtype, place, take) in zip(values, self._slots):  # noqa: B905  there is one for each
            if type(value) is not np.ndarray or value.shape != shape:
                return None
            if value.dtype is not dtype and value.dtype != dtype:
                return None
            if take is None:
                place[...] = value
            else:
                take(value)
        code = self._repeat()  # outputs stay in the session's memory
        if code != SAME:
            if code:
                ctypes.memset(self._made, 0, ctypes.sizeof(self._made))  # some may have been written
                raise failure(code, self._names)
            self._copies = [_copier(_view(tensor, row)) for tensor, row in zip(self._outputs, self._made, strict=True)]
        copies = self._copies
        return [copies[0]()] if len(copies) == 1 else [copy() for copy in copies]


_Slot = tuple[tuple[int, ...], np.dtype[Any], Array, Callable[[Array], None] | None]


def _slot(session: Session, index: int, shape: tuple[int, ...], row: ForgeArray) -> _Slot:
    """Return the shape, the dtype and the place of an input, and for a large one what puts it there."""
    dtype = session.model.interface.inputs[index].dtype
    size = row.size = math.prod(shape) * dtype.itemsize
    row.shape[: len(shape)] = shape
    if size > STAGED_BYTES:
        return shape, dtype, np.empty(0), _taker(session.large, index, row)
    place = aligned(size).view(dtype).reshape(shape)
    row.data = address(place)
    return shape, dtype, place, None


def aligned(size: int) -> Array:
    """Return ``size`` bytes that start where compiled code may load whole cache lines."""
    room = np.empty(size + ALIGNMENT, np.uint8)
    start = -address(room) % ALIGNMENT
    return room[start : start + size]


def address(array: Array) -> int:
    """Return where an array starts."""
    place: int = array.__array_interface__["data"][0]  # ten times as quick as array.ctypes.data
    return place


def _taker(large: list[Array], index: int, row: ForgeArray) -> Callable[[Array], None]:
    """Return what has libforge read a large array where it lies, or a copy where it cannot, in memory that grows."""

    def take(value: Array) -> None:
        if not value.flags.c_contiguous or address(value) % ALIGNMENT:
            if large[index].nbytes < value.nbytes:
                large[index] = aligned(value.nbytes)
            copy: Array = large[index][: value.nbytes].view(value.dtype).reshape(value.shape)
            copy[...] = value
            value = copy
        row.data = address(value)

    return take


def _view(tensor: Tensor, row: ForgeArray) -> Array:
    shape = tuple(row.shape[: len(tensor.shape)])
    if row.size != math.prod(shape) * tensor.dtype.itemsize:
        expected = f"{tensor.dtype} in output {tensor.name!r}"
        raise ArtifactError("model library", expected, f"{row.size} bytes of shape {list(shape)}", "build it anew")
    if not row.size:
        return np.empty(shape, tensor.dtype)
    view: Array = np.frombuffer((ctypes.c_uint8 * row.size).from_address(row.data), np.uint8)
    return view.view(tensor.dtype).reshape(shape)


def _copier(view: Array) -> Callable[[], Array]:
    """Return what copies ``view``; a large one into memory of a copy that nobody has any more.

    The system gives fresh memory page by page: 3 ms for 9.5 MB (measured). Who calls in a loop has the last result
    while the next one is made, so there are two, the newest. Whatever is made of a result holds it and its memory.
    """
    if view.nbytes <= STAGED_BYTES:
        return view.copy
    rooms: list[Array] = []

    def copy() -> Array:
        free = [index for index in range(len(rooms)) if sys.getrefcount(rooms[index]) == UNUSED]
        room = rooms.pop(free[0]) if free else np.empty_like(view)
        rooms[:] = [*rooms[1 - KEPT :], room]
        np.copyto(room, view)
        return room[...]

    return copy


_sessions: weakref.WeakSet[Session] = weakref.WeakSet()
"""Those that there are."""


def _in_child() -> None:
    for session in tuple(_sessions):
        session.renew()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_in_child)
