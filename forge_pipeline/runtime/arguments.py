"""How an array of the caller reaches compiled code: at the start of a cache line, with as little ado as possible."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    pass


Array = np.ndarray[Any, np.dtype[Any]]


ALIGNMENT = 64
"""Bytes: compiled code may use aligned loads of a whole cache line."""

STAGED_BYTES = 1 << 16
"""Size up to which copying an array costs less than wrapping it for TVM would."""


_BROUGHT = 2
"""What numpy calls a type that another package brings."""


def is_small(dtype: np.dtype[Any]) -> bool:
    """Return whether a type is one of ml_dtypes' of at most 8 bits, whose elements compiled code sees as bytes."""
    return dtype.isbuiltin == _BROUGHT and dtype.itemsize == 1


class Slot:
    """The place of one input: copies small arrays to memory that TVM knows already, wraps large ones as they are.

    Not for two threads at a time, and what it returned is overwritten by its next use.
    """

    __slots__ = ("_room", "_shape", "_staged", "_wrap")

    def __init__(self, wrap: Callable[[Array], Any]) -> None:
        self._wrap = wrap
        self._shape: tuple[int, ...] | None = None
        self._room: Array = np.empty(0)
        self._staged: Any = None

    def take(self, value: Array) -> Any:
        """Return TVM's tensor of the values of ``value``, an array of the input's dtype and of any layout."""
        if value.shape == self._shape:
            self._room[...] = value
            return self._staged
        if value.nbytes > STAGED_BYTES:
            return self._wrap(align(value))
        self._room = empty_aligned(value.shape, value.dtype)
        self._staged = self._wrap(self._room)
        self._shape = value.shape
        np.copyto(self._room, value)
        return self._staged


def align(value: Array) -> Array:
    """Return ``value`` if compiled code can read it in place, else a copy that it can read."""
    if value.flags.c_contiguous and _address(value) % ALIGNMENT == 0:
        return value
    copy = empty_aligned(value.shape, value.dtype)
    np.copyto(copy, value)
    return copy


def empty_aligned(shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
    """Return an array that starts at a cache line."""
    size = int(np.prod(shape, dtype=np.int64)) * dtype.itemsize
    room = np.empty(size + ALIGNMENT, np.uint8)
    start = -_address(room) % ALIGNMENT
    array: Array = room[start : start + size].view(dtype).reshape(shape)
    return array


def _address(array: Array) -> int:
    address: int = array.__array_interface__["data"][0]  # ten times as quick as array.ctypes.data
    return address
