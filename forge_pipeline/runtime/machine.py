"""TVM's Relax virtual machine, driven through its C interface alone: the compiler (260 MB) is never imported."""

from __future__ import annotations

import functools
import os
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import numpy as np

from forge_pipeline.errors import ArtifactError, DataError
from forge_pipeline.runtime import threads as use_of_threads
from forge_pipeline.runtime.arguments import Slot, is_small
from forge_pipeline.runtime.execution import Execution
from forge_pipeline.runtime.ffi import runtime
from forge_runtime.entries import MAIN

if TYPE_CHECKING:
    from threading import RLock

    from forge_pipeline.runtime.arguments import Array
    from forge_pipeline.runtime.interface import Interface

_CPU, _FIRST_DEVICE, _POOLED_ALLOCATOR = 1, 0, 2
_DLPACK = (1, 0)  # the first version that can say "read-only"
_TVM_ERRORS = (RuntimeError, ValueError, TypeError, AttributeError)
_RUNS_KEPT = 256
"""Runs after which TVM's memory is released in any case: sizes may follow from values too, not from shapes alone."""
_PROGRAMS_KEPT = 8
"""Runs of a program after which it is: there, data decide sizes, and each may be another one."""


class Machine:
    """One loaded model, with its weights. Calls from several threads take turns: there is one set of frames.

    Weights must start at a cache line. They are read in place, and kept as long as they are needed. TVM keeps memory
    for the next run by its exact size, so it is released when shapes change, and when the machine is gone.
    """

    def __init__(self, path: str, interface: Interface, *, threads: int, where: str) -> None:
        ffi, _ = runtime()
        self._tensor = ffi.Tensor
        self._element = ffi.get_global_func("ffi.ArrayGetItem")
        self._outputs = range(len(interface.outputs))
        self._small = [(index, row.dtype) for index, row in enumerate(interface.outputs) if is_small(row.dtype)]
        self._threads = threads
        self._release = ffi.get_global_func("vm.builtin.memory_manager.clear")
        self._shapes: list[tuple[int, ...]] | None = None
        self._runs = 0
        self._runs_kept = _RUNS_KEPT if interface.program is None else _PROGRAMS_KEPT
        wrap = functools.partial(_wrap, ffi.from_dlpack)  # no method: an engine that is gone frees its library
        self._slots = [Slot(wrap) for _ in interface.inputs]
        places = interface.places()
        self._entries = [
            (row.function, [(*places[name], size) for name, size in row.extents.items()])
            for row in interface.entries.rows
        ]
        self._lock = use_of_threads.new_lock()
        self._loaded = SimpleNamespace()
        weakref.finalize(self, _unload, self._loaded, self._lock, self._release).atexit = False
        use_of_threads.wait_for_fork()
        with self._lock:
            use_of_threads.compute(self._load, (path, interface, wrap, where), threads)

    def _load(self, source: tuple[str, Interface, Callable[[Array], Any], str]) -> None:
        (path, interface, wrap, where), loaded, (ffi, _) = source, self._loaded, runtime()
        try:
            executable = ffi.get_global_func("ffi.Module.load_from_file.so")(path, "so")
            machine = executable["vm_load_executable"]()
            machine["vm_initialization"](_CPU, _FIRST_DEVICE, _POOLED_ALLOCATOR)
            loaded.instrument = machine["set_instrument"]
            program = interface.program
            functions = [MAIN] if program is None else [region.function for region in program.regions]
            entries = [machine[name] for name in functions]
            loaded.functions = [(machine[name], sizes) for name, sizes in self._entries]
            prepare = machine["prepare"] if interface.raw_weights else None
        except _TVM_ERRORS as error:
            raise ArtifactError(
                where,
                "a library that TVM's runtime can load",
                f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else 'no reason given'}",
                "build it anew, with the apache-tvm version of this installation",
            ) from error
        loaded.weights = [wrap(array) for array in interface.weights]
        if prepare is not None:
            prepared = prepare(*map(wrap, interface.raw_weights))
            loaded.weights += [prepared[index] for index in range(len(prepared))]
        if program is None:
            loaded.main = entries[0]
        else:
            try:
                own = [[loaded.weights[place] for place in region.weights] for region in program.regions]
            except IndexError as error:
                found = f"regions that take others than these {len(loaded.weights)}"
                raise ArtifactError(where, "regions that take the library's weights", found, "build it anew") from error
            regions = [_with(entry, weights) for entry, weights in zip(entries, own, strict=True)]
            loaded.main = Execution(program, regions, wrap, interface.demands)
            loaded.weights = []

    def __call__(self, arrays: Sequence[Array]) -> list[Array]:
        """Run ``main`` on the model's inputs; return its results as arrays of their own. Raises DataError."""
        use_of_threads.wait_for_fork()
        with self._lock:
            shapes = [array.shape for array in arrays]
            self._runs += 1
            if shapes == self._shapes and self._runs % self._runs_kept:
                return use_of_threads.compute(self._run, arrays, self._threads)
            self._release()
            loaded = self._loaded
            loaded.entry = next((entry for entry, sizes in loaded.functions if _have(arrays, sizes)), loaded.main)
            try:
                return use_of_threads.compute(self._run, arrays, self._threads)
            finally:
                self._release()  # what the virtual machine held of the run before, too
                self._shapes = shapes

    def _run(self, arrays: Sequence[Array]) -> list[Array]:
        results = self._computed(arrays)
        for index, dtype in self._small:
            results[index] = results[index].view(dtype)
        return results

    def _computed(self, arrays: Sequence[Array]) -> list[Array]:
        loaded = self._loaded
        tensors = [slot.take(array) for slot, array in zip(self._slots, arrays, strict=True)]
        try:
            results = loaded.entry(*tensors, *loaded.weights)
            # Copied, because a result may be an input or a weight itself.
            if isinstance(results, self._tensor):
                return [np.from_dlpack(results).copy()]
            if isinstance(results, list):
                return [np.from_dlpack(tensor).copy() for tensor in results]
            element = self._element  # TVM's arrays ask for their length before each element
            return [np.from_dlpack(element(results, index)).copy() for index in self._outputs]
        except _TVM_ERRORS as error:
            raise DataError(
                where="inputs",
                expected="sizes that the model can compute with",
                found=", ".join(str(array.shape) for array in arrays) + f": {str(error).splitlines()[0][:200]}",
                fix="give larger inputs, or sizes that go together: an image must be wider than the kernels",
            ) from error

    @contextmanager
    def observed(self, instrument: Callable[..., int] | None) -> Iterator[None]:
        """Have ``instrument(function, name, is_before, result, *arguments)`` called around every kernel of a run."""
        self._loaded.instrument(instrument)
        try:
            yield
        finally:
            self._loaded.instrument(None)


def _have(arrays: Sequence[Array], sizes: Sequence[tuple[int, int, int]]) -> bool:
    """Return whether the arrays have these sizes, each of one array's one axis."""
    return all(arrays[index].shape[axis] == size for index, axis, size in sizes)


def _unload(loaded: SimpleNamespace, lock: RLock, release: Callable[[], object]) -> None:
    """Free what TVM holds of a machine that is gone: what its objects had returns to the pool, and from there."""
    use_of_threads.forget_lock(lock)
    vars(loaded).clear()
    release()


def _with(entry: Callable[..., Any], weights: list[Any]) -> Callable[..., Any]:
    return lambda *tensors: entry(*tensors, *weights)


def _wrap(from_dlpack: Callable[[Any], Any], array: Array) -> Any:
    if is_small(array.dtype):
        array = array.view(np.uint8)
    if not array.size:  # numpy's strides of nothing are other than a library expects
        strides = [array.itemsize]
        for extent in array.shape[:0:-1]:
            strides.insert(0, strides[0] * extent)
        array = np.lib.stride_tricks.as_strided(array, strides=strides[-array.ndim :])
    return from_dlpack(array.__dlpack__(max_version=_DLPACK))


def registered() -> frozenset[str]:
    """Return the names of the functions that a library can call."""
    return frozenset(runtime()[0].registry.list_global_func_names())


def available_cores() -> int:
    """Return the number of physical cores that this process may use: two threads of a core share its vector units."""
    cpus = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else range(os.cpu_count() or 1)
    siblings = {_siblings(cpu) for cpu in cpus}
    return max(1, len(siblings))


def _siblings(cpu: int) -> str:
    path = Path(f"/sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list")
    return path.read_text() if path.exists() else str(cpu)
