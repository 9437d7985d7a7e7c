"""Constants of a Relax module without copies of them: TVM and numpy look at the same memory, or the same file."""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import tvm
from tvm import relax

from forge_pipeline.ir.external_data.mapped import spill

SHARED: Final = 1 << 16
"""Bytes from which on an array is shared with TVM, not copied."""

_ALIGNMENT: Final = 64  # what TVM's kernels expect, also of what the compiler itself evaluates
_DLPACK: Final = (1, 0)  # the first version that can say "read-only"

Array = np.ndarray[Any, Any]

FOLDED_SHAPES: Final = ("relax.expand_dims", "relax.permute_dims", "relax.reshape", "relax.squeeze")
"""Operators that change the shape alone: done to a constant at once."""


def constant(array: Array, *, is_on_file: bool = False) -> relax.Expr:
    """Return a constant with the content of ``array``, which nobody may write to any more.

    ``is_on_file``: the array is a view of a file already, and need not be put on one.
    """
    array = np.asarray(array, order="C")  # ascontiguousarray would give a scalar an axis
    if array.nbytes < SHARED:
        return relax.const(array, str(array.dtype))  # without it, 64 bits would become 32
    if not is_on_file or array.ctypes.data % _ALIGNMENT:
        array = spill(array)
    if array.ctypes.data % _ALIGNMENT:
        return relax.const(array, str(array.dtype))  # without it, 64 bits would become 32
    return relax.const(tvm.runtime.from_dlpack(array.__dlpack__(max_version=_DLPACK)))


def reshaped(array: Array, call: relax.Call) -> Array:
    """Return what a call of one of FOLDED_SHAPES makes of an array; its result's extents are known."""
    if call.op.name == "relax.permute_dims":
        axes = call.attrs.axes
        return array.transpose(None if axes is None else [int(axis) for axis in axes])
    return array.reshape([int(extent) for extent in call.ty.shape.values])


def array_view(tensor: Any) -> Array:
    """Return what a TVM tensor holds: a view that is not to be written to, or a copy where it is small."""
    if tensor.dtype == "bool" or int(np.prod(tensor.shape, dtype=np.int64)) < SHARED // 8:
        return np.asarray(tensor.numpy())
    try:
        view = np.from_dlpack(tensor)
    except (BufferError, RuntimeError, TypeError):  # a type that numpy does not know, such as bfloat16
        return np.asarray(tensor.numpy())
    view.flags.writeable = False
    return view
