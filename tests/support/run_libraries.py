"""Runs under memcheck: `run_libraries.py FOLDER SPARE`, each `*.library` with the inputs in the `*.npz` of its name.

Weights and inputs have memory of their own, which ends where they end, SPARE bytes before that for weights; so have
values between kernels, of a library that was compiled without a plan of its memory: TVM's virtual machine runs it, with
an allocation of the C library's for every tensor, which memcheck knows.
"""

from __future__ import annotations

import ctypes
import sys
import tempfile
from pathlib import Path

import numpy as np
import tvm
from tvm import relax

from forge_pipeline.content import in_memory
from forge_pipeline.runtime.bundle import Library
from forge_runtime.library import ALIGNMENT


def alone(array: np.ndarray, spare: int = 0) -> tvm.runtime.Tensor:
    """Return a copy at the start of a cache line whose last ``spare`` bytes nobody owns."""
    libc, place = ctypes.CDLL(None), ctypes.c_void_p()
    if libc.posix_memalign(ctypes.byref(place), ctypes.c_size_t(ALIGNMENT), ctypes.c_size_t(array.nbytes - spare)):
        raise MemoryError
    assert place.value is not None
    room = (ctypes.c_ubyte * array.nbytes).from_address(place.value)
    ctypes.memmove(place, array.tobytes(), array.nbytes - spare)
    copy: np.ndarray = np.frombuffer(room, np.uint8).view(array.dtype).reshape(array.shape)
    return tvm.runtime.from_dlpack(copy)


def run(library: Library, folder: Path, inputs: list[np.ndarray], spare: int) -> None:
    """Run a library; outputs are not looked at: memcheck is."""
    path = folder / "forge-model.so"
    path.write_bytes(library.elf)
    machine = relax.VirtualMachine(tvm.runtime.load_module(str(path)), tvm.cpu(), memory_cfg="naive")
    section = memoryview(in_memory(library.weights))
    raw, weights = [], []
    for row in library.metadata["weights"]:
        count = int(np.prod(row["shape"], dtype=np.int64))
        array = np.frombuffer(section, row["dtype"], count, row["offset"]).reshape(row["shape"])
        (raw if row["prepare"] else weights).append(alone(array, spare if array.nbytes > spare else 0))
    prepared = list(machine["prepare"](*raw)) if raw else []
    machine["main"](*map(alone, inputs), *weights, *prepared)


def main(folder: Path, spare: int) -> None:
    """Run all libraries."""
    for path in sorted(folder.glob("*.library")):
        print(f"running {path.stem}", file=sys.stderr, flush=True)
        library = Library.from_bytes(path.read_bytes())
        with np.load(path.with_suffix(".npz")) as arrays, tempfile.TemporaryDirectory() as own:
            run(library, Path(own), [arrays[row["name"]] for row in library.metadata["inputs"]], spare)


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
