"""Runs under memcheck: `run_libraries.py FOLDER SPARE`, each `*.library` with the inputs in the `*.npz` of its name.

Every kernel is called on copies, each in memory of its own that ends where the tensor ends, SPARE bytes before that.
A copy of a byte that was never written is one to memcheck, too.
"""

from __future__ import annotations

import ctypes
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from forge_pipeline.runtime.bundle import Library
from forge_runtime.library import ALIGNMENT
from tests.support.program import Model, tensors_of

CALL = 1
LIBC = ctypes.CDLL(None)
LIBC.aligned_alloc.restype = ctypes.c_void_p
LIBC.aligned_alloc.argtypes = [ctypes.c_size_t, ctypes.c_size_t]
LIBC.free.argtypes = [ctypes.c_void_p]


class Guarded(Model):
    """A library, each of whose kernels sees no memory but its tensors, less the last ``spare`` bytes of each."""

    spare = 0

    def _call(self, words: Sequence[int], tensors: Mapping[int, np.ndarray], heap: np.ndarray) -> Any:
        places, copies = [], {}
        for index in set(tensors_of(CALL, words)):
            array = tensors[index]
            size = max(array.nbytes - self.spare, 0) or array.nbytes
            place = LIBC.aligned_alloc(ALIGNMENT, size)
            ctypes.memmove(place, array.ctypes.data, size)
            memory = np.frombuffer((ctypes.c_ubyte * array.nbytes).from_address(place), np.uint8)
            copies[index] = memory.view(array.dtype).reshape(array.shape)
            places.append((array, place, size))
        found = super()._call(words, copies, heap)
        for array, place, size in places:
            ctypes.memmove(array.ctypes.data, place, size)
            LIBC.free(place)
        return found


def main(folder: Path, spare: int) -> None:
    """Run all libraries; outputs are not looked at: memcheck is."""
    Guarded.spare = spare
    for path in sorted(folder.glob("*.library")):
        print(f"running {path.stem}", file=sys.stderr, flush=True)
        with np.load(path.with_suffix(".npz")) as arrays, tempfile.TemporaryDirectory() as own:
            model = Guarded(Library.from_bytes(path.read_bytes()), Path(own))
            model([arrays[port.name] for port in model.table.inputs])


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
