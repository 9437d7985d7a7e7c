"""Booleans are read and written one at a time: TVM's CUDA takes a vector of them from memory as 16-bit numbers.

A boolean fills a byte. `CodeGenCUDA` has no vector of them, and writes `*(ushort2*)` for two: it reads four bytes for
two, beyond the end of a tensor at the last ones.
"""

from __future__ import annotations

from typing import Any

import tvm
import tvm_ffi
from tvm import tirx
from tvm.ir import TensorLoad


def one_at_a_time(module: tvm.IRModule) -> tvm.IRModule:
    """Return ``module`` whose loops over vectors are unrolled where they read or write booleans."""
    changed = module.clone()
    for variable, function in module.functions_items():
        if isinstance(function, tirx.PrimFunc) and _touches(function.body):
            changed[variable] = function.with_body(tvm_ffi.structural_mutate(function.body, [(tirx.For, _unrolled)]))
    return changed


def _unrolled(loop: tirx.For, mutator: Any) -> tirx.For:
    inner = mutator.default_mutate(loop)
    if inner.kind != tirx.ForKind.VECTORIZED or not _touches(inner.body):
        return inner
    return tirx.For(inner.loop_var, inner.min, inner.extent, tirx.ForKind.UNROLLED, inner.body)


def _touches(body: Any) -> bool:
    """Return whether ``body`` reads or writes booleans in memory."""
    buffers: list[Any] = []
    reads = (TensorLoad, lambda load: buffers.append(load.source))
    writes = (tirx.BufferStore, lambda store: buffers.append(store.buffer))
    tvm_ffi.structural_walk(body, [reads, writes])
    return any(str(buffer.ty.dtype) == "bool" for buffer in buffers)
