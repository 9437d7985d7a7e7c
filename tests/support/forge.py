"""libforge by ctypes: forge.h as it is, for tests of what only that interface can do."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from forge_runtime.library import ForgeArray, Kernel, Source

MEMORY, FILE, DAMAGED, PASSWORD, MACHINE, INPUT, KERNEL, CANCELLED, UNSUPPORTED, USAGE, UNTRUSTED = range(1, 12)

Time = Kernel


class Array(ForgeArray):
    """`forge_array`."""

    @classmethod
    def of(cls, array: np.ndarray) -> Array:
        return cls(array.ctypes.data, array.nbytes, (ctypes.c_int64 * 8)(*array.shape))


class Forge:
    """forge.h by ctypes."""

    def __init__(self, path: Path) -> None:
        self.c = ctypes.CDLL(str(path))
        self.c.forge_message.restype = ctypes.c_char_p
        self.c.forge_arena.restype = ctypes.c_size_t

    def message(self) -> str:
        return self.c.forge_message().decode()

    def open(self, path: Path) -> ctypes.c_void_p:
        model = ctypes.c_void_p()
        assert self.c.forge_open(str(path).encode(), None, None, ctypes.c_size_t(0), ctypes.byref(model)) == 0, (
            self.message()
        )
        return model

    def open_memory(self, data: np.ndarray, size: int, model: ctypes.c_void_p) -> int:
        source = Source(file=data.ctypes.data, size=size)
        return self.c.forge_open_from(ctypes.byref(source), ctypes.byref(model))

    def start(self, model: ctypes.c_void_p, threads: int = 1) -> ctypes.c_void_p:
        session = ctypes.c_void_p()
        assert self.c.forge_start(model, threads, ctypes.byref(session)) == 0, self.message()
        return session

    def run(self, session: ctypes.c_void_p, inputs: Sequence[np.ndarray], outputs: Sequence[Array]) -> int:
        given = (Array * len(inputs))(*map(Array.of, inputs))
        made = (Array * len(outputs))(*outputs)
        code = self.c.forge_run(session, given, made)
        for output, result in zip(outputs, made, strict=True):
            output.data, output.size, output.shape = result.data, result.size, result.shape
        return code
