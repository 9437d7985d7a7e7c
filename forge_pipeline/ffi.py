"""TVM's foreign-function interface, without what it would bring along."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType


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
