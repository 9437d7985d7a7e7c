"""Sparse constants of TensorFlow Lite, made dense.

The form is that of the Tensor Algebra Compiler (Kjolstad et al., OOPSLA 2017): a tree with one level for each dimension
in the order of traversal, dense (every index) or compressed (segments and indices); blocks are dimensions of their own
behind those of the tensor (schema.fbs, SparsityParameters).
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np

_DENSE: Final = 0  # DimensionType; 1 is SPARSE_CSR
_VECTORS: Final = {1: "Int32Vector", 2: "Uint16Vector", 3: "Uint8Vector"}  # SparseIndexVector


def dense(values: np.ndarray, parameters: Any, shape: list[int]) -> np.ndarray:
    """Return the array of ``shape`` whose stored entries are ``values``. Raises ValueError for what does not fit."""
    order = [int(parameters.TraversalOrder(level)) for level in range(parameters.TraversalOrderLength())]
    blocked = [int(parameters.BlockMap(position)) for position in range(parameters.BlockMapLength())]
    rank, most = len(shape), int(np.prod(shape, dtype=np.int64))
    if sorted(order) != list(range(rank + len(blocked))) or parameters.DimMetadataLength() != len(order):
        raise ValueError(f"a sparse tensor of rank {rank} that is traversed in the order {order[:16]}")
    if len(set(blocked)) != len(blocked) or not set(blocked) <= set(range(rank)):
        raise ValueError(f"blocks of the dimensions {blocked[:16]} of {rank}")
    entries = np.zeros(1, np.int64)
    coordinates: dict[int, np.ndarray] = {}
    sizes: dict[int, int] = {}
    for level, dimension in enumerate(order):
        parent, index, entries, sizes[dimension] = _descend(parameters.DimMetadata(level), entries, most)
        coordinates = {other: known[parent] for other, known in coordinates.items()} | {dimension: index}
    place = [coordinates[axis] for axis in range(rank)]
    for position, axis in enumerate(blocked):
        place[axis] = place[axis] * sizes[rank + position] + coordinates[rank + position]
    if any(
        index.size and not 0 <= index.min() <= index.max() < extent for index, extent in zip(place, shape, strict=True)
    ):
        raise ValueError(f"an entry outside of {shape}")
    result = np.zeros(shape, values.dtype)
    result[tuple(place)] = values[entries]
    return result


def _descend(level: Any, entries: np.ndarray, most: int) -> tuple[np.ndarray, np.ndarray, np.ndarray, int]:
    """Return of each child of ``entries`` its parent's position, its index and its entry; and the level's size."""
    if level.Format() == _DENSE:
        size = int(level.DenseSize())
        if size < 0 or size * entries.size > most:
            raise ValueError(f"a sparse tensor with {size} times {entries.size} entries of {most}")
        parent = np.repeat(np.arange(entries.size), size)
        index = np.tile(np.arange(size), entries.size)
        return parent, index, entries[parent] * size + index, size
    segments = _vector(level.ArraySegmentsType(), level.ArraySegments())
    indices = _vector(level.ArrayIndicesType(), level.ArrayIndices())
    counts = segments[entries + 1] - segments[entries]
    if counts.size and (counts.min() < 0 or counts.sum() > min(most, indices.size)):
        raise ValueError(f"segments {segments[:8]} of {indices.size} indices")
    parent = np.repeat(np.arange(entries.size), counts)
    before = np.cumsum(counts) - counts
    entry = segments[entries][parent] + np.arange(parent.size) - before[parent]
    return parent, indices[entry], entry, int(indices.max(initial=-1)) + 1


def _vector(kind: int, table: Any) -> np.ndarray:
    import tflite

    if kind not in _VECTORS or table is None:
        raise ValueError(f"a vector of indices of kind {kind}")
    vector = getattr(tflite, _VECTORS[kind])()
    vector.Init(table.Bytes, table.Pos)
    return np.asarray(vector.ValuesAsNumpy() if vector.ValuesLength() else [], np.int64)
