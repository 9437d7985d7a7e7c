"""TensorFlow Lite's operators that move numbers, change their type or look at shapes, each as ONNX.

Where operand and result mean the same by an integer, the integers are moved as they are.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

import numpy as np

from forge_pipeline.frontends.tflite.builder import (
    FIRST,
    INTEGER_RANGE,
    LAST,
    TO_FIRST,
    Builder,
    bound,
    onnx_type,
    option,
    options,
    unsupported,
)
from forge_pipeline.frontends.tflite.model import Operator

MOST: Final = (1 << 63) - 1
_FIRST_VALUE: Final = {"SPLIT": 1, "FILL": 1}


def read(b: Builder, op: Operator, index: int, layout: str = LAST) -> str:
    """Read an operand for a move: as it is stored where the result is stored alike, else as real numbers."""
    return b.stored(index, layout) if alike(b, op, index) else b.real(index, layout)


def alike(b: Builder, op: Operator, index: int) -> bool:
    """Tell whether an operand and the result mean the same by an integer."""
    given, result = b.tensor(index), b.tensor(op.outputs[0])
    if given.dtype != result.dtype or given.dtype not in INTEGER_RANGE:
        return given.dtype == result.dtype
    if given.quantization is None or result.quantization is None:
        return True
    return given.quantization.same(result.quantization)


def write(b: Builder, op: Operator, name: str, layout: str = LAST) -> None:
    """Write what was read by ``read`` and moved."""
    if all(alike(b, op, index) for index in _moved(op)):
        b.give(op.outputs[0], name, layout)
    else:
        b.put(op.outputs[0], name, layout)


def _moved(op: Operator) -> list[int]:
    """Return the operands whose numbers are moved: all of a concatenation, else the first."""
    return list(op.inputs) if op.name in ("CONCATENATION", "PACK") else [op.inputs[_FIRST_VALUE.get(op.name, 0)]]


def reshape(b: Builder, op: Operator) -> None:
    """RESHAPE: the shape is the result's own; where more than one of its sizes is open, that which is given."""
    shape, given = b.shape(op.outputs[0]), b.shape(op.inputs[0])
    one_pixel = len(given) == 4 and given[1:3] == (1, 1)  # the same order in both layouts
    values = read(b, op, op.inputs[0], b.layout(op.inputs[0]) if one_pixel else LAST)
    constant = len(op.inputs) < 2 or b.tensor(op.inputs[1]).data is not None
    if constant and sum(extent is None for extent in shape) <= 1:
        target = b.integers(*(-1 if extent is None else extent for extent in shape))
    elif len(op.inputs) > 1:
        target = b.int64(op.inputs[1])
    else:
        raise unsupported("a shape with two open sizes", "at most one open size")
    attributes = {"allowzero": 1} if 0 in shape else {}
    write(b, op, b.node("Reshape", [values, target], **attributes))


def squeeze(b: Builder, op: Operator) -> None:
    """SQUEEZE."""
    rank = b.rank(op.inputs[0])
    axes = [axis % rank for axis in options(op, "SqueezeDims")]
    axes = axes or [axis for axis, extent in enumerate(b.shape(op.inputs[0])) if extent == 1]
    write(b, op, b.node("Squeeze", [read(b, op, op.inputs[0]), b.integers(*axes)]))


def expand_dims(b: Builder, op: Operator) -> None:
    """EXPAND_DIMS."""
    axis = int(b.data(op.inputs[1], "axis").reshape(-1)[0])
    write(b, op, b.node("Unsqueeze", [read(b, op, op.inputs[0]), b.integers(axis)]))


def transpose(b: Builder, op: Operator) -> None:
    """TRANSPOSE."""
    order = [int(axis) for axis in b.data(op.inputs[1], "order of axes")]
    write(b, op, b.node("Transpose", [read(b, op, op.inputs[0])], perm=order))


def concatenation(b: Builder, op: Operator) -> None:
    """CONCATENATION, in the layout that all its operands share."""
    axis, kind = int(option(op, "Axis", 0)) % b.rank(op.outputs[0]), bound(op)
    layout = b.layout(*op.inputs)
    moved = not kind and all(alike(b, op, index) for index in op.inputs)
    names = [b.stored(index, layout) if moved else b.real(index, layout) for index in op.inputs]
    name = b.node("Concat", names, axis=TO_FIRST.index(axis) if layout == FIRST else axis)
    if moved:
        b.give(op.outputs[0], name, layout)
    else:
        b.put(op.outputs[0], b.activated(name, kind, op.outputs[0]), layout)


def split(b: Builder, op: Operator) -> None:
    """SPLIT: operands are the axis and the values."""
    axis = int(b.data(op.inputs[0], "axis").reshape(-1)[0])
    _parts(b, op, op.inputs[1], axis, [])


def split_v(b: Builder, op: Operator) -> None:
    """SPLIT_V: operands are the values, the sizes and the axis."""
    axis = int(b.data(op.inputs[2], "axis").reshape(-1)[0])
    sizes = [int(size) for size in b.data(op.inputs[1], "list of sizes").reshape(-1)]
    if -1 in sizes:
        whole = b.shape(op.inputs[0])[axis]
        if whole is None:
            raise unsupported("a part of open size", "sizes that are fixed")
        sizes[sizes.index(-1)] = whole - sum(size for size in sizes if size >= 0)
    _parts(b, op, op.inputs[0], axis, sizes)


def _parts(b: Builder, op: Operator, index: int, axis: int, sizes: Sequence[int]) -> None:
    count = len(op.outputs)
    if sizes:
        name = b.node("Split", [read(b, op, index), b.integers(*sizes)], count, axis=axis)
    else:
        name = b.node("Split", [read(b, op, index)], count, axis=axis, num_outputs=count)
    for position in range(count):
        part = name if position == 0 else f"{name}_{position}"
        write(b, replace(op, outputs=(op.outputs[position],)), part)


def pack(b: Builder, op: Operator) -> None:
    """PACK: a new axis."""
    axis = int(option(op, "Axis", 0))
    moved = all(alike(b, op, index) for index in op.inputs)
    names = [b.stored(index) if moved else b.real(index) for index in op.inputs]
    names = [b.node("Unsqueeze", [name, b.integers(axis)]) for name in names]
    write(b, op, b.node("Concat", names, axis=axis))


def unpack(b: Builder, op: Operator) -> None:
    """UNPACK: an axis less."""
    axis = int(option(op, "Axis", 0))
    for position, index in enumerate(op.outputs):
        one = replace(op, outputs=(index,))
        write(b, one, b.node("Gather", [read(b, one, op.inputs[0]), b.constant(np.int64(position))], axis=axis))


def tile(b: Builder, op: Operator) -> None:
    """TILE."""
    write(b, op, b.node("Tile", [read(b, op, op.inputs[0]), b.int64(op.inputs[1])]))


def broadcast_to(b: Builder, op: Operator) -> None:
    """BROADCAST_TO."""
    write(b, op, b.node("Expand", [read(b, op, op.inputs[0]), b.int64(op.inputs[1])]))


def broadcast_shapes(b: Builder, op: Operator) -> None:
    """BROADCAST_ARGS: the shape of what two shapes are broadcast to."""
    left, right = (b.int64(index) for index in op.inputs)
    name = b.node("Expand", [b.node("ConstantOfShape", [left]), right])
    b.give(op.outputs[0], b.cast(b.node("Shape", [name]), b.tensor(op.outputs[0]).dtype))


def shape(b: Builder, op: Operator) -> None:
    """SHAPE."""
    b.give(op.outputs[0], b.cast(b.node("Shape", [b.stored(op.inputs[0])]), b.tensor(op.outputs[0]).dtype))


def rank(b: Builder, op: Operator) -> None:
    """RANK."""
    b.give(op.outputs[0], b.constant(np.array(b.rank(op.inputs[0]), b.tensor(op.outputs[0]).dtype)))


def fill(b: Builder, op: Operator) -> None:
    """FILL."""
    write(b, op, b.node("Expand", [read(b, op, op.inputs[1]), b.int64(op.inputs[0])]))


def zeros_like(b: Builder, op: Operator) -> None:
    """ZEROS_LIKE: zero, as the result stores it."""
    tensor = b.tensor(op.outputs[0])
    quantization = tensor.quantization if tensor.dtype in INTEGER_RANGE else None
    zero = int(quantization.zero_point[0]) if quantization is not None else 0
    extent = b.node("Shape", [b.stored(op.inputs[0])])
    b.give(op.outputs[0], b.node("Expand", [b.constant(np.array(zero, tensor.dtype)), extent]))


def counted(b: Builder, op: Operator) -> None:
    """RANGE."""
    scalars = [b.node("Reshape", [b.stored(index), b.constant(np.zeros(0, np.int64))]) for index in op.inputs]
    b.give(op.outputs[0], b.node("Range", scalars))


def reverse(b: Builder, op: Operator) -> None:
    """REVERSE_V2 along constant axes."""
    axes = [int(axis) % b.rank(op.inputs[0]) for axis in b.data(op.inputs[1], "set of axes").reshape(-1)]
    count = len(axes)
    ends = b.integers(*[-MOST] * count)
    operands = [b.integers(*[-1] * count), ends, b.integers(*axes), b.integers(*[-1] * count)]
    write(b, op, b.node("Slice", [read(b, op, op.inputs[0]), *operands]))


def select(b: Builder, op: Operator) -> None:
    """SELECT_V2, and SELECT, whose condition may be a flag for each entry of the first axis."""
    condition, rank = b.stored(op.inputs[0]), b.rank(op.inputs[1])
    if op.name == "SELECT" and 0 < b.rank(op.inputs[0]) < rank:
        condition = b.node("Unsqueeze", [condition, b.integers(*range(1, rank))])
    b.put(op.outputs[0], b.node("Where", [condition, b.real(op.inputs[1]), b.real(op.inputs[2])]))


def quantize(b: Builder, op: Operator) -> None:
    """QUANTIZE: real numbers, or integers of another scale, to integers; ONNX's own operator knows none of 32 bits."""
    layout, tensor = b.layout(op.inputs[0]), b.tensor(op.outputs[0])
    name = b.real(op.inputs[0], layout)
    if tensor.dtype == "int32" and tensor.quantization is not None:
        scale = tensor.quantization.scale.astype(np.float64).reshape(())
        zero = tensor.quantization.zero_point.astype(np.int32).reshape(())
        steps = b.node("Div", [b.node("Cast", [name], to=onnx_type("float64")), b.constant(scale)])
        whole = b.node("Cast", [b.node("Round", [steps])], to=onnx_type("int32"))
        b.give(op.outputs[0], b.node("Add", [whole, b.constant(zero)]), layout)
    else:
        b.put(op.outputs[0], name, layout)


def dequantize(b: Builder, op: Operator) -> None:
    """DEQUANTIZE: of weights in half precision or integers, so that who uses them sees a constant; of values."""
    given = b.tensor(op.inputs[0])
    if given.data is not None:
        b.alias(op.outputs[0], op.inputs[0])
        return
    layout = b.layout(op.inputs[0])
    name = b.real(op.inputs[0], layout)
    if given.dtype == "float16":
        name = b.node("Cast", [name], to=onnx_type("float32"))
    elif given.dtype == "int32" and given.quantization is not None:
        name = b.dequantized(name, given.quantization, "int32", given.quantization.axis)
    b.give(op.outputs[0], name, layout)


def densify(b: Builder, op: Operator) -> None:
    """DENSIFY: sparse constants are dense since they were read."""
    b.data(op.inputs[0], "sparse tensor")
    b.alias(op.outputs[0], op.inputs[0])
