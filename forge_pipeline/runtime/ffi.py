"""TVM's foreign-function interface, without what it would bring along."""

from __future__ import annotations

import ctypes
import functools
import importlib.util
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

from forge_pipeline.errors import ArtifactError

LIBRARY = "libtvm_runtime.so"


@contextmanager
def torch_hidden() -> Iterator[None]:
    """Let what is imported inside find no PyTorch, unless the process has it already.

    ``tvm_ffi`` imports PyTorch wherever it is installed, to be the second of the two on Windows: seconds and hundreds
    of megabytes, in programs that have no use for it.
    """
    if "torch" in sys.modules:
        yield
        return
    sys.modules["torch"] = None  # type: ignore[assignment]  # Python's own way to say: cannot be imported
    try:
        yield
    finally:
        del sys.modules["torch"]


def import_ffi() -> ModuleType:
    """Import ``tvm_ffi``."""
    with torch_hidden():
        import tvm_ffi
    module: ModuleType = tvm_ffi
    return module


@functools.cache
def runtime() -> tuple[Any, ctypes.CDLL]:
    """Load TVM's runtime library, once; return the module of its foreign-function interface, and the library."""
    # TVM would bind the calling thread, hence the whole Python process, to the first core, and use half of the cores.
    os.environ.setdefault("TVM_BIND_THREADS", "0")
    os.environ.setdefault("TVM_NUM_THREADS", str(os.cpu_count() or 1))
    package = importlib.util.find_spec("tvm")  # finds, and does not import
    origin = package.origin if package is not None else None
    path = Path(origin).parent / "lib" / LIBRARY if origin is not None else Path(LIBRARY)
    try:
        tvm_ffi = import_ffi()
        library = ctypes.CDLL(str(path), ctypes.RTLD_GLOBAL)  # global, for the libraries that are loaded afterwards
    except (ImportError, OSError) as error:
        fix = "pip install apache-tvm==0.27.0.post1 apache-tvm-ffi==0.1.14.post0"
        raise ArtifactError("TVM runtime", f"tvm_ffi and {LIBRARY}", str(error), fix) from error
    return tvm_ffi, library
