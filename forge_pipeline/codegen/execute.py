"""Runs a library in this process, for checking it: TVM's virtual machine over the very bytes that are shipped."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from forge_pipeline.errors import CompileError
from forge_pipeline.runtime.bundle import Library

if TYPE_CHECKING:
    import numpy as np


def run_library(library: Library, inputs: Sequence[np.ndarray]) -> list[np.ndarray]:
    """Return the outputs for ``inputs``, in the order of the metadata. Raises CompileError where it does not run."""
    import tvm
    from tvm import relax

    with tempfile.TemporaryDirectory(prefix="forge-verify-") as folder:
        path = Path(folder) / "model_library.so"
        path.write_bytes(library.elf)
        try:
            machine = relax.VirtualMachine(tvm.runtime.load_module(str(path)), tvm.cpu())
            arguments = [tvm.runtime.tensor(array) for array in [*inputs, *_weights(library)]]
            result = machine["main"](*arguments)
        except (RuntimeError, ValueError, TypeError) as error:
            lines = [line.strip() for line in str(error).splitlines() if line.strip()]
            raise CompileError(
                where="compile.verify",
                expected="the compiled model to run on this machine",
                found=lines[-1] if lines else type(error).__name__,
                fix="try `compile.generator=stock`; if that works, report the model",
            ) from error
        return [array.numpy() for array in _flat(result)]


def _weights(library: Library) -> list[np.ndarray]:
    import ml_dtypes
    import numpy as np

    arrays = []
    for row in library.metadata["weights"]:
        dtype = np.dtype(getattr(ml_dtypes, row["dtype"], None) or row["dtype"])
        count = int(np.prod(row["shape"], dtype=np.int64))
        flat = np.frombuffer(library.weights, dtype, count, row["offset"])
        arrays.append(flat.reshape(row["shape"]))
    return arrays


def _flat(result: Any) -> list[Any]:
    return [result] if hasattr(result, "numpy") else list(result)
