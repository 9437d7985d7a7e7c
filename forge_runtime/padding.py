"""Calls that are made larger, with zeros, for the entry that has to be given least of them; their outputs are cut."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from forge_runtime.entries import Entry, Sizes
from forge_runtime.interface import Array, Call, Interface, Tensor


def padded(interface: Interface, call: Call, compute: Callable[[Sequence[Array]], list[Array]]) -> list[Array] | None:
    """Return the outputs for a call, by a larger one; None where an entry takes it as it is, or none holds it."""
    sizes = call.sizes
    entry = interface.entries.holding(sizes)
    if entry is None or entry.takes(sizes) or 0 in sizes.values():
        return None
    larger = [_grown(array, tensor, entry) for tensor, array in zip(interface.inputs, call.arrays, strict=True)]
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
