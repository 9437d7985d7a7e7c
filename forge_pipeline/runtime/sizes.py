"""Calls whose sizes the library's code does not take as they are: empty ones, and ones that no entry has."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from forge_pipeline.errors import DataError
from forge_pipeline.runtime.arguments import Array
from forge_pipeline.runtime.interface import Call, Interface, Tensor
from forge_runtime.entries import Entry, Sizes

Compute = Callable[[Sequence[Array]], list[Array]]


def computed(interface: Interface, call: Call, compute: Compute, *, pad: bool) -> list[Array]:
    """Return the outputs for a call, by ``compute`` where there is something to compute.

    Where an extent is 0, outputs without elements follow from their shapes, as in ONNX Runtime. With ``pad``, a call
    is made larger, with zeros, for the entry that has to be given least of them, and its outputs are cut. Raises
    DataError for sizes that no entry has.
    """
    sizes = call.sizes
    if 0 in sizes.values():
        empty = [_empty(tensor, sizes) for tensor in interface.outputs]
        if all(array is not None for array in empty):
            return [array for array in empty if array is not None]
    entry = interface.entries.holding(sizes) if pad else None
    if entry is not None and not entry.takes(sizes):
        return _padded(interface, call.arrays, entry, sizes, compute)
    if not interface.entries.is_open and interface.entries.taking(sizes) is None:
        raise DataError(
            where="inputs",
            expected="sizes that the library was compiled for: " + "; ".join(map(str, interface.entries.rows)),
            found=", ".join(f"{name}={size}" for name, size in sizes.items()),
            fix="fill the inputs up to one of them, have Engine(..., pad=True) do it, or compile with "
            "`compile.open_form=true`",
        )
    return compute(call.arrays)


def _empty(tensor: Tensor, sizes: Sizes) -> Array | None:
    """Return an output that has no elements; None where it may have some, as a first step has without a past."""
    shape = [extent if isinstance(extent, int) else sizes.get(extent, -1) for extent in tensor.shape]
    return None if -1 in shape or 0 not in shape else np.empty(shape, tensor.dtype)


def _padded(interface: Interface, arrays: Sequence[Array], entry: Entry, sizes: Sizes, compute: Compute) -> list[Array]:
    larger = [_grown(array, tensor, entry) for tensor, array in zip(interface.inputs, arrays, strict=True)]
    found = compute(larger)
    return [_cut(array, tensor, entry, sizes) for tensor, array in zip(interface.outputs, found, strict=True)]


def _grown(array: Array, tensor: Tensor, entry: Entry) -> Array:
    target = [
        entry.extents.get(name, size) if isinstance(name, str) else size
        for name, size in zip(tensor.shape, array.shape, strict=True)
    ]
    if tuple(target) == array.shape:
        return array
    grown = np.zeros(target, array.dtype)
    grown[tuple(slice(size) for size in array.shape)] = array
    return grown


def _cut(array: Array, tensor: Tensor, entry: Entry, sizes: Sizes) -> Array:
    kept = [slice(sizes[name] if isinstance(name, str) and name in entry.extents else None) for name in tensor.shape]
    return array[tuple(kept)].copy()
