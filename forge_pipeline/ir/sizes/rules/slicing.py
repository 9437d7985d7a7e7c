"""Slice, Split, Concat, Pad and their kin."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

import numpy as np

from forge_pipeline.ir.sizes import expression as e
from forge_pipeline.ir.sizes.expression import Whole
from forge_pipeline.ir.sizes.operation import Operation, Rule, Unknown, needed
from forge_pipeline.ir.sizes.value import MOST, Known, Shape

FAR: Final = (1 << 31) - 1
"""A slice's end from which on it means all that there is: no extent is larger."""


def slice_of(op: Operation) -> Sequence[Known]:
    """Slice: starts, ends, axes and steps as sizes."""
    given, shape = op.input(0), needed(op.shape(0))
    starts, ends = op.sizes("starts", 1), op.sizes("ends", 2)
    axes = op.integers("axes", 3)
    steps = op.integers("steps", 4)
    if (axes is None and op.has(3)) or (steps is None and op.has(4)):
        return [_open(op, given, range(len(shape)))]
    if axes is None:
        count = len(starts or ends or shape)
        axes = list(range(count))
    axes = [axis + len(shape) if axis < 0 else axis for axis in axes]
    if starts is None or ends is None:
        return [_open(op, given, axes)]
    result, cuts = list(shape), [slice(None)] * len(shape)
    whole = True
    for axis, start, end, step in zip(axes, starts, ends, steps or [1] * len(axes), strict=True):
        result[axis] = sliced(shape[axis], start, end, step)
        if isinstance(start, int) and isinstance(end, int) and isinstance(shape[axis], int):
            cuts[axis] = slice(start, end, step)
        else:
            whole = whole and result[axis] == shape[axis] and step == 1
    contents = given.contents
    if contents is None or not whole:
        return [Known(given.dtype, tuple(result))]
    return [Known(given.dtype, tuple(result), _cut(contents, axes, starts, ends, steps))]


def _cut(
    contents: np.ndarray[tuple[int, ...], np.dtype[np.object_]],
    axes: list[int],
    starts: list[Whole],
    ends: list[Whole],
    steps: list[int] | None,
) -> np.ndarray[tuple[int, ...], np.dtype[np.object_]]:
    for axis, start, end, step in zip(axes, starts, ends, steps or [1] * len(axes), strict=True):
        if isinstance(start, int) and isinstance(end, int):
            size = contents.shape[axis]
            last: int | None = max(end, -size - 1) if step > 0 else (None if end < -size else end)
            cuts = [slice(None)] * contents.ndim
            cuts[axis] = slice(start, last, step)
            contents = contents[tuple(cuts)]
    return contents


def _open(op: Operation, given: Known, axes: Sequence[int]) -> Known:
    shape = list(needed(given.shape))
    for axis in axes:
        shape[axis] = op.fresh(str(axis), shape[axis])
    return Known(given.dtype, tuple(shape))


def sliced(size: Whole, start: Whole, end: Whole, step: int) -> Whole:
    """Return how many entries a slice takes of an axis: starts and ends are clamped to it, negative ones count back."""
    if step == 0:
        raise Unknown
    if step > 0:
        first = e.maximum(0, e.minimum(_counted(size, start), size))
        last = size if isinstance(end, int) and end >= FAR else e.maximum(0, e.minimum(_counted(size, end), size))
        return e.maximum(0, e.ceildiv(last - first, step))
    far = isinstance(start, int) and start >= FAR
    first = size - 1 if far else e.maximum(0, e.minimum(_counted(size, start), size - 1))
    low: Whole = -1
    if not (isinstance(end, int) and end <= -FAR):
        low = e.maximum(-1, e.minimum(_counted(size, end), size - 1))
    return e.maximum(0, e.ceildiv(first - low, -step))


def _counted(size: Whole, position: Whole) -> Whole:
    low, high = e.bounds(position)
    if low is not None and low >= 0:
        return position
    if high is not None and high < 0:
        return position + size
    return e.select(e.at_least(position, 0), position, position + size)


def split(op: Operation) -> Sequence[Known]:
    """Split along an axis into parts given, or into equal ones (the last one smaller)."""
    given, shape = op.input(0), needed(op.shape(0))
    axis, count = op.axis(0, len(shape)), len(op.node.output)
    parts = op.sizes("split", 1)
    if parts is None and op.has(1):
        parts = [op.fresh(f"part_{index}", shape[axis]) for index in range(count)]
    elif parts is None:
        part = e.ceildiv(shape[axis], int(op.attribute("num_outputs", count)))
        parts = [part] * (count - 1) + [shape[axis] - part * (count - 1)]
        if "num_outputs" not in {entry.name for entry in op.node.attribute}:
            op.require_equal(shape[axis], part * count, f"axis {axis} does not split into {count} equal parts")
            parts = [op.context.resolve(part)] * count
    else:
        op.require_equal(shape[axis], e.total(parts), f"the parts of axis {axis} do not add up")
    shapes = [(*shape[:axis], part, *shape[axis + 1 :]) for part in parts]
    contents = given.contents
    if contents is None or any(not isinstance(part, int) for part in parts):
        return [Known(given.dtype, found) for found in shapes]
    ends = np.cumsum([part for part in parts if isinstance(part, int)])[:-1].tolist()
    pieces = np.split(contents, ends, axis)
    return [Known(given.dtype, found, piece) for found, piece in zip(shapes, pieces, strict=True)]


def concat(op: Operation) -> Sequence[Known]:
    """Join along an axis."""
    given = [known for known in op.inputs if known is not None]
    dtype = given[0].dtype
    shapes = [needed(known.shape) for known in given]
    axis = op.axis(1, len(shapes[0]))
    shape = joined(op, shapes, axis)
    arrays = [known.contents for known in given]
    if any(array is None for array in arrays):
        return [Known(dtype, shape)]
    contents = np.concatenate([array for array in arrays if array is not None], axis)
    return [Known(dtype, shape, contents if contents.size <= MOST else None)]


def joined(op: Operation, shapes: Sequence[Shape], axis: int) -> Shape:
    """Return the shape of what is joined along an axis; the other extents agree."""
    result = list(shapes[0])
    for shape in shapes[1:]:
        for index, size in enumerate(shape):
            if index != axis:
                result[index] = op.require_equal(result[index], size, f"axis {index} of what is joined differs")
    result[axis] = e.total(shape[axis] for shape in shapes)
    return tuple(op.context.resolve(size) for size in result)


def pad(op: Operation) -> Sequence[Known]:
    """Add entries before and behind each axis, or take them away."""
    given, shape = op.input(0), needed(op.shape(0))
    pads = op.sizes("pads", 1) or op.sizes("paddings", 1)
    axes = op.integers("axes", 3)
    if pads is None or (axes is None and op.has(3)):
        return [_grown(op, given, range(len(shape)))]
    axes = [axis % len(shape) for axis in axes] if axes is not None else list(range(len(shape)))
    result = list(shape)
    for index, axis in enumerate(axes):
        result[axis] = shape[axis] + pads[index] + pads[index + len(axes)]
    return [Known(given.dtype, tuple(result))]


def _grown(op: Operation, given: Known, axes: Sequence[int]) -> Known:
    shape = list(needed(given.shape))
    for axis in axes:
        shape[axis] = op.fresh(str(axis))
    return Known(given.dtype, tuple(shape))


RULES: Final[Mapping[str, Rule]] = {"Slice": slice_of, "Split": split, "Concat": concat, "Pad": pad}
