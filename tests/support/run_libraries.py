"""Runs under memcheck: `run_libraries.py FOLDER SPARE`, each `*.library` with the inputs in the `*.npz` of its name.

Weights and inputs have memory of their own, which ends where they end, SPARE bytes before that for weights; so have
values between kernels, of a library that was compiled without a plan of its memory.
"""

from __future__ import annotations

import ctypes
import sys
from pathlib import Path
from typing import Any

import numpy as np
from forge_pipeline.runtime.arguments import ALIGNMENT

from forge_pipeline.runtime import machine
from forge_runtime.engine import Engine

NAIVE_ALLOCATOR = 1
"""TVM's: every tensor is an allocation of the C library's, which memcheck knows."""


def alone(array: np.ndarray, spare: int = 0) -> np.ndarray:
    """Return a copy at the start of a cache line whose last ``spare`` bytes nobody owns."""
    libc, place = ctypes.CDLL(None), ctypes.c_void_p()
    if libc.posix_memalign(ctypes.byref(place), ctypes.c_size_t(ALIGNMENT), ctypes.c_size_t(array.nbytes - spare)):
        raise MemoryError
    assert place.value is not None
    room = (ctypes.c_ubyte * array.nbytes).from_address(place.value)
    ctypes.memmove(place, array.tobytes(), array.nbytes - spare)
    copy: np.ndarray = np.frombuffer(room, np.uint8).view(array.dtype).reshape(array.shape)
    return copy


class Slot:
    """In place of ``runtime.arguments.Slot``, whose memory is larger than an input."""

    def __init__(self, wrap: Any) -> None:
        self._wrap = wrap

    def take(self, value: np.ndarray) -> Any:
        """Return TVM's tensor of a copy."""
        return self._wrap(value)


def main(folder: Path, spare: int) -> None:
    """Run all libraries; outputs are not looked at: memcheck is."""
    wrap = machine._wrap
    machine._POOLED_ALLOCATOR, machine.Slot = NAIVE_ALLOCATOR, Slot
    machine._wrap = lambda runtime, array: wrap(runtime, alone(array, spare if array.nbytes > spare else 0))
    for path in sorted(folder.glob("*.library")):
        print(f"running {path.stem}", file=sys.stderr, flush=True)
        with np.load(path.with_suffix(".npz")) as arrays:
            Engine(path.read_bytes(), threads=1).run(**arrays)


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
