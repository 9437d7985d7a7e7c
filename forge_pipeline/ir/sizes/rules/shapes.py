"""Operators that read shapes, make them, or make tensors of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Final

import numpy as np
from onnx import TensorProto, helper, numpy_helper

from forge_pipeline.ir.sizes import expression as e
from forge_pipeline.ir.sizes import real
from forge_pipeline.ir.sizes.expression import Size, Whole
from forge_pipeline.ir.sizes.operation import Operation, Rule, Unknown, needed, whole
from forge_pipeline.ir.sizes.real import Real
from forge_pipeline.ir.sizes.rules.elementwise import FLOATS, whole_of
from forge_pipeline.ir.sizes.value import MOST, Array, Known, Shape, of_array, of_sizes
from forge_pipeline.ir.tensors import element_count


def numbers(shape: Shape) -> tuple[int, ...] | None:
    """Return a shape where every extent is a number."""
    found = tuple(size for size in shape if isinstance(size, int))
    return found if len(found) == len(shape) else None


def extents(op: Operation, index: int) -> Shape | None:
    """Return the sizes that a shape input holds; extents of their own where only their count is known.

    Raises Unknown where not even that is known.
    """
    known = op.input(index)
    if known.contents is not None:
        return tuple(whole(entry) for entry in known.contents.reshape(-1).tolist())
    if known.shape is None or len(known.shape) != 1 or not isinstance(known.shape[0], int) or known.shape[0] > 64:
        return None
    return tuple(op.fresh(str(axis)) for axis in range(known.shape[0]))


def shape_of(op: Operation) -> Sequence[Known]:
    """Shape, from ``start`` to ``end``."""
    shape = op.shape(0)
    if shape is None:
        return [Known(TensorProto.INT64, (op.fresh("rank"),))]
    return [of_sizes(shape[op.attribute("start", 0) : op.attribute("end", len(shape))])]


def size_of(op: Operation) -> Sequence[Known]:
    """Count elements."""
    shape = op.shape(0)
    if shape is None:
        return [Known(TensorProto.INT64, ())]
    contents = np.empty((), object)
    contents[()] = e.product(shape)
    return [Known(TensorProto.INT64, (), contents)]


def constant_of_shape(op: Operation) -> Sequence[Known]:
    """Fill a shape with one value."""
    value = op.attribute("value")
    fill = np.zeros(1, np.float32) if value is None else np.asarray(numpy_helper.to_array(value))
    dtype = TensorProto.FLOAT if value is None else value.data_type
    return [_filled(dtype, extents(op, 0), fill)]


def _filled(dtype: int, shape: Shape | None, fill: Array) -> Known:
    known = None if shape is None else numbers(shape)
    if known is None or min(known, default=0) < 0 or element_count(known) > MOST or fill.dtype.kind not in "biuf":
        return Known(dtype, shape)
    return of_array(np.full(known, fill.reshape(-1)[0]), dtype)


def expand(op: Operation) -> Sequence[Known]:
    """Broadcast to a shape."""
    given, target = op.input(0), extents(op, 1)
    if target is None or given.shape is None:
        return [Known(given.dtype, None)]
    shape = op.broadcast(given.shape, target)
    known = numbers(shape)
    if given.contents is None or known is None or element_count(known) > MOST:
        return [Known(given.dtype, shape)]
    return [Known(given.dtype, shape, np.broadcast_to(given.contents, known).copy())]


def tile(op: Operation) -> Sequence[Known]:
    """Repeat along axes."""
    given = op.input(0)
    repeats = extents(op, 1)
    if repeats is None or given.shape is None:
        return [Known(given.dtype, given.shape and tuple(op.fresh(str(axis)) for axis in range(len(given.shape))))]
    shape = tuple(size * count for size, count in zip(given.shape, repeats, strict=True))
    known, counts = numbers(shape), numbers(repeats)
    if given.contents is None or known is None or counts is None or element_count(known) > MOST:
        return [Known(given.dtype, shape)]
    return [Known(given.dtype, shape, np.tile(given.contents, counts))]


def range_of(op: Operation) -> Sequence[Known]:
    """Count from start to limit."""
    dtype = op.input(0).dtype
    parts = [op.input(index).contents for index in range(3)]
    if any(part is None for part in parts):
        return [Known(dtype, (op.fresh(""),))]
    start, limit, delta = (part.reshape(-1)[0] for part in parts if part is not None)
    count = _count(op, dtype, start, limit, delta)
    if isinstance(count, int) and all(isinstance(entry, (int, float)) for entry in (start, limit, delta)):
        if count > MOST:
            return [Known(dtype, (count,))]
        kind = helper.tensor_dtype_to_np_dtype(dtype)
        return [of_array((start + np.arange(count) * delta).astype(kind), dtype)]
    if isinstance(count, int) and count <= MOST and dtype not in FLOATS:
        return [of_sizes(tuple(start + index * delta for index in range(count)), dtype)]
    return [Known(dtype, (count,))]


def _count(op: Operation, dtype: int, start: object, limit: object, delta: object) -> Whole:
    if dtype in FLOATS:
        name = FLOATS[dtype]
        first, last, step = (_float(entry, name) for entry in (start, limit, delta))
        quotient = real.apply("div", name, real.apply("sub", name, last, first), step)
        return e.maximum(0, whole_of(op, real.apply("ceil", name, quotient)))
    stride, distance = whole(delta), whole(limit) - whole(start)
    low, high = e.bounds(stride)
    if low is None or low < 0:
        stride, distance = -stride, -distance
    if stride == 0 or ((low is None or low < 0) and (high is None or high > 0)):
        return op.fresh("")
    op.context.require_not_negative(stride - 1, f"{op.title}: the step is 0")
    return e.maximum(0, e.ceildiv(distance, stride))


def _float(entry: object, dtype: str) -> Real:
    if isinstance(entry, Real):
        return entry
    if isinstance(entry, Size):
        return real.of_size(entry, dtype)
    if isinstance(entry, (int, float)):
        return real.of_number(float(entry), dtype)
    raise Unknown


def reshape(op: Operation) -> Sequence[Known]:
    """Reshape: 0 copies an extent (unless ``allowzero``), -1 takes what is left."""
    given = op.input(0)
    target = op.sizes("shape", 1)
    if target is None:
        return [Known(given.dtype, extents(op, 1))]
    shape = _reshaped(op, given.shape, target)
    return [moved(given, shape, lambda contents, known: contents.reshape(known))]


def _reshaped(op: Operation, source: Shape | None, target: list[Whole]) -> Shape:
    entries: list[Whole | None] = []
    for axis, entry in enumerate(target):
        if isinstance(entry, int) and entry == -1:
            entries.append(None)
        elif isinstance(entry, int) and entry == 0 and not op.attribute("allowzero", 0):
            entries.append(source[axis] if source is not None and axis < len(source) else op.fresh(str(axis)))
        elif not op.context.assuming and (e.bounds(entry)[0] or 0) < 0:
            raise Unknown
        else:
            op.context.require_not_negative(entry, f"{op.title}: an extent of the target shape ({entry})")
            entries.append(entry)
    if source is None:
        return tuple(op.fresh(str(axis)) if entry is None else entry for axis, entry in enumerate(entries))
    return fitted(op, source, entries)


def fitted(op: Operation, source: Shape, entries: Sequence[Whole | None]) -> Shape:
    """Return the target shape with its open extent, and demand that it holds as many elements as the source."""
    count = e.product(source)
    others = e.product(entry for entry in entries if entry is not None)
    if None not in entries:
        op.require_equal(count, others, "the number of elements changes")
        return tuple(op.context.resolve(entry) for entry in entries if entry is not None)
    if isinstance(others, int) and others == 0:
        return tuple(op.fresh("left") if entry is None else entry for entry in entries)
    left = e.floordiv(count, others)
    op.require_equal(count, left * others, "the number of elements does not divide")
    return tuple(op.context.resolve(left if entry is None else entry) for entry in entries)


def moved(given: Known, shape: Shape, change: Callable[[Array, tuple[int, ...]], Array]) -> Known:
    """Return a value whose elements are moved to another shape by ``change(contents, shape)``."""
    known = numbers(shape)
    if given.contents is None or known is None:
        return Known(given.dtype, shape)
    try:
        if given.constant is not None:
            return of_array(change(given.constant, known), given.dtype)
        return Known(given.dtype, shape, change(given.contents, known))
    except ValueError:
        return Known(given.dtype, shape)


def flatten(op: Operation) -> Sequence[Known]:
    """Make a matrix, split at ``axis``."""
    given, shape = op.input(0), needed(op.shape(0))
    axis = op.axis(1, len(shape))
    result = (e.product(shape[:axis]), e.product(shape[axis:]))
    return [moved(given, result, lambda contents, known: contents.reshape(known))]


def squeeze(op: Operation) -> Sequence[Known]:
    """Remove axes of extent 1."""
    given, shape = op.input(0), needed(op.shape(0))
    axes = op.integers("axes", 1)
    if axes is None and op.has(1):
        raise Unknown
    if axes is None:
        if any(not isinstance(size, int) for size in shape):
            return [Known(given.dtype, None)]
        gone = {axis for axis, size in enumerate(shape) if e.is_one(size)}
    else:
        gone = {axis % len(shape) if shape else axis for axis in axes}
        for axis in sorted(gone):
            op.require_equal(shape[axis], 1, f"axis {axis} is to be removed")
    result = tuple(size for axis, size in enumerate(shape) if axis not in gone)
    return [moved(given, result, lambda contents, known: contents.reshape(known))]


def unsqueeze(op: Operation) -> Sequence[Known]:
    """Insert axes of extent 1."""
    given, shape = op.input(0), needed(op.shape(0))
    axes = op.integers("axes", 1)
    if axes is None:
        raise Unknown
    rank = len(shape) + len(axes)
    new = {axis + rank if axis < 0 else axis for axis in axes}
    old = iter(shape)
    result = tuple(1 if axis in new else next(old) for axis in range(rank))
    return [moved(given, result, lambda contents, known: contents.reshape(known))]


def identity(op: Operation) -> Sequence[Known]:
    """Pass the value on."""
    return [op.input(0)]


def dropout(op: Operation) -> Sequence[Known]:
    """Pass the value on, and say which elements were kept: all."""
    return [op.input(0), Known(TensorProto.BOOL, op.shape(0))]


def eye_like(op: Operation) -> Sequence[Known]:
    """Ones on a diagonal."""
    return [Known(int(op.attribute("dtype", op.input(0).dtype)), op.shape(0))]


def random(op: Operation) -> Sequence[Known]:
    """Random numbers of a given shape."""
    return [Known(int(op.attribute("dtype", TensorProto.FLOAT)), tuple(map(int, op.attribute("shape", ()))))]


RULES: Final[Mapping[str, Rule]] = {
    "Shape": shape_of,
    "Size": size_of,
    "ConstantOfShape": constant_of_shape,
    "Expand": expand,
    "Tile": tile,
    "Range": range_of,
    "Reshape": reshape,
    "Flatten": flatten,
    "Squeeze": squeeze,
    "Unsqueeze": unsqueeze,
    "Identity": identity,
    "Dropout": dropout,
    "EyeLike": eye_like,
    "RandomNormal": random,
    "RandomUniform": random,
}
