"""TVM's Relax virtual machine, driven through its C interface alone: the compiler (260 MB) is never imported."""

from __future__ import annotations

import ctypes
import functools
import importlib.util
import os
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from forge_pipeline.errors import ArtifactError, DataError
from forge_pipeline.runtime.arguments import Slot
from forge_pipeline.runtime.ffi import import_ffi

if TYPE_CHECKING:
    from forge_pipeline.runtime.arguments import Array
    from forge_pipeline.runtime.interface import Interface

LIBRARY = "libtvm_runtime.so"
_CPU, _FIRST_DEVICE, _POOLED_ALLOCATOR = 1, 0, 2
_BIG_CORES = 1
_DLPACK = (1, 0)  # the first version that can say "read-only"
_pool = threading.local()
"""How many threads TVM's pool has, of which it keeps one for each calling thread. Setting it costs system calls."""
_TVM_ERRORS = (RuntimeError, ValueError, TypeError, AttributeError)


class Machine:
    """One loaded model, with its weights. Calls from several threads take turns: there is one set of frames.

    Weights must start at a cache line. They are read in place, and kept as long as they are needed.
    """

    def __init__(self, path: str, interface: Interface, *, threads: int, where: str) -> None:
        runtime = _runtime()
        try:
            executable = runtime.get_global_func("ffi.Module.load_from_file.so")(path, "so")
            machine = executable["vm_load_executable"]()
            machine["vm_initialization"](_CPU, _FIRST_DEVICE, _POOLED_ALLOCATOR)
            self._instrument = machine["set_instrument"]
            self._main = machine["main"]
            self._single = self._main if interface.single is None else machine[interface.single]
            prepare = machine["prepare"] if interface.raw_weights else None
        except _TVM_ERRORS as error:
            raise ArtifactError(
                where,
                "a library that TVM's runtime can load",
                f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else 'no reason given'}",
                "build it anew, with the apache-tvm version of this installation",
            ) from error
        wrap = functools.partial(_wrap, runtime.from_dlpack)  # no method: an engine that is gone frees its library
        self._tensor = runtime.Tensor
        self._weights = [wrap(array) for array in interface.weights]
        self._slots = [Slot(wrap) for _ in interface.inputs]
        self._batched = [index for index, tensor in enumerate(interface.inputs) if tensor.has_named_batch]
        self._threads = threads
        self._lock = threading.Lock()
        self._configure = runtime.get_global_func("runtime.config_threadpool")
        if prepare is not None:
            self._use_threads()
            prepared = prepare(*map(wrap, interface.raw_weights))
            self._weights += [prepared[index] for index in range(len(prepared))]

    def __call__(self, arrays: Sequence[Array]) -> list[Array]:
        """Run ``main`` on the model's inputs; return its results as arrays of their own. Raises DataError."""
        with self._lock:
            self._use_threads()
            tensors = [slot.take(array) for slot, array in zip(self._slots, arrays, strict=True)]
            is_single = all(arrays[index].shape[0] == 1 for index in self._batched)
            try:
                results = (self._single if is_single else self._main)(*tensors, *self._weights)
                # Copied, because a result may be an input or a weight itself.
                if isinstance(results, self._tensor):
                    return [np.from_dlpack(results).copy()]
                return [np.from_dlpack(tensor).copy() for tensor in results]
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
        self._instrument(instrument)
        try:
            yield
        finally:
            self._instrument(None)

    def _use_threads(self) -> None:
        if getattr(_pool, "threads", None) != self._threads:
            self._configure(_BIG_CORES, self._threads)
            _pool.threads = self._threads


def _wrap(from_dlpack: Callable[[Any], Any], array: Array) -> Any:
    return from_dlpack(array.__dlpack__(max_version=_DLPACK))


def registered() -> frozenset[str]:
    """Return the names of the functions that a library can call."""
    return frozenset(_runtime().registry.list_global_func_names())


def available_cores() -> int:
    """Return the number of physical cores that this process may use: two threads of a core share its vector units."""
    cpus = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else range(os.cpu_count() or 1)
    siblings = {_siblings(cpu) for cpu in cpus}
    return max(1, len(siblings))


def _siblings(cpu: int) -> str:
    path = Path(f"/sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list")
    return path.read_text() if path.exists() else str(cpu)


@functools.cache
def _runtime() -> Any:
    """Load TVM's runtime library, once, and return the module of its foreign-function interface."""
    # TVM would bind the calling thread, hence the whole Python process, to the first core, and use half of the cores.
    os.environ.setdefault("TVM_BIND_THREADS", "0")
    os.environ.setdefault("TVM_NUM_THREADS", str(os.cpu_count() or 1))
    package = importlib.util.find_spec("tvm")  # finds, and does not import
    origin = package.origin if package is not None else None
    path = Path(origin).parent / "lib" / LIBRARY if origin is not None else Path(LIBRARY)
    try:
        tvm_ffi = import_ffi()
        ctypes.CDLL(str(path), ctypes.RTLD_GLOBAL)  # global, for the libraries that are loaded afterwards
    except (ImportError, OSError) as error:
        fix = "pip install apache-tvm==0.27.0.post1 apache-tvm-ffi==0.1.14.post0"
        raise ArtifactError("TVM runtime", f"tvm_ffi and {LIBRARY}", str(error), fix) from error
    return tvm_ffi
