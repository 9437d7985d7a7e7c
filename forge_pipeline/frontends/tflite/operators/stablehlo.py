"""StableHLO's operators in TensorFlow Lite's files, as far as they say what ONNX says."""

from __future__ import annotations

from string import ascii_letters
from typing import Final

import numpy as np

from forge_pipeline.frontends.tflite.builder import Builder, onnx_type, option, options, unsupported
from forge_pipeline.frontends.tflite.model import Operator

_COMPARISONS: Final = {0: "Equal", 2: "GreaterOrEqual", 3: "Greater", 4: "LessOrEqual", 5: "Less"}
_NOT_EQUAL: Final = 1


def compare(b: Builder, op: Operator) -> None:
    """STABLEHLO_COMPARE."""
    direction = int(option(op, "ComparisonDirection", 0))
    name = b.node(_COMPARISONS.get(direction, "Equal"), [b.real(index) for index in op.inputs])
    b.give(op.outputs[0], b.node("Not", [name]) if direction == _NOT_EQUAL else name)


def clamp(b: Builder, op: Operator) -> None:
    """STABLEHLO_CLAMP: least, values, most."""
    least, values, most = (b.real(index) for index in op.inputs)
    b.put(op.outputs[0], b.node("Min", [b.node("Max", [values, least]), most]))


def select(b: Builder, op: Operator) -> None:
    """STABLEHLO_SELECT."""
    condition, *values = op.inputs
    b.put(op.outputs[0], b.node("Where", [b.stored(condition), *(b.real(index) for index in values)]))


def remainder(b: Builder, op: Operator) -> None:
    """STABLEHLO_REMAINDER: with the sign of what is divided."""
    b.put(op.outputs[0], b.node("Mod", [b.real(index) for index in op.inputs], fmod=1))


def concatenate(b: Builder, op: Operator) -> None:
    """STABLEHLO_CONCATENATE."""
    axis = int(option(op, "Dimension", 0))
    b.put(op.outputs[0], b.node("Concat", [b.real(index) for index in op.inputs], axis=axis))


def transpose(b: Builder, op: Operator) -> None:
    """STABLEHLO_TRANSPOSE."""
    b.put(op.outputs[0], b.node("Transpose", [b.real(op.inputs[0])], perm=options(op, "Permutation")))


def broadcast_in_dim(b: Builder, op: Operator) -> None:
    """STABLEHLO_BROADCAST_IN_DIM: each axis of the values goes to one of the result's."""
    wanted, axes = _fixed(b, op.outputs[0]), options(op, "BroadcastDimensions")
    extents = [1] * len(wanted)
    for axis, extent in zip(axes, _fixed(b, op.inputs[0]), strict=True):
        extents[axis] = extent
    name = b.node("Reshape", [b.real(op.inputs[0]), b.integers(*extents)])
    b.put(op.outputs[0], b.node("Expand", [name, b.integers(*wanted)]))


def _fixed(b: Builder, index: int) -> list[int]:
    shape = b.shape(index)
    if None in shape:
        raise unsupported("an open size", "fixed sizes")
    return [extent for extent in shape if extent is not None]


def slice_(b: Builder, op: Operator) -> None:
    """STABLEHLO_SLICE."""
    ranges = [options(op, name) for name in ("StartIndices", "LimitIndices")]
    axes = range(len(ranges[0]))
    operands = [*(b.integers(*numbers) for numbers in ranges), b.integers(*axes), b.integers(*options(op, "Strides"))]
    b.put(op.outputs[0], b.node("Slice", [b.real(op.inputs[0]), *operands]))


def dynamic_slice(b: Builder, op: Operator) -> None:
    """STABLEHLO_DYNAMIC_SLICE: a part of fixed size; it is moved inside where it would reach beyond the end."""
    sizes = options(op, "SliceSizes")
    values = b.real(op.inputs[0])
    begins = [b.node("Reshape", [b.int64(index), b.integers(1)]) for index in op.inputs[1:]]
    limit = b.node("Sub", [b.node("Shape", [values]), b.integers(*sizes)])
    begin = b.node("Min", [b.node("Concat", begins, axis=0), limit])
    begin = b.node("Max", [begin, b.integers(0)])
    operands = [begin, b.node("Add", [begin, b.integers(*sizes)]), b.integers(*range(len(sizes)))]
    b.put(op.outputs[0], b.node("Slice", [values, *operands]))


def pad(b: Builder, op: Operator) -> None:
    """STABLEHLO_PAD without interior padding; a negative pad cuts off, in ONNX too."""
    if any(options(op, "InteriorPadding")):
        raise unsupported("padding between numbers", "padding around them")
    amounts = b.integers(*options(op, "EdgePaddingLow"), *options(op, "EdgePaddingHigh"))
    b.put(op.outputs[0], b.node("Pad", [b.real(op.inputs[0]), amounts, b.real(op.inputs[1])]))


def iota(b: Builder, op: Operator) -> None:
    """STABLEHLO_IOTA: numbers that count along an axis."""
    shape, axis = _fixed(b, op.outputs[0]), int(option(op, "IotaDimension", 0))
    numbers = np.arange(shape[axis]).reshape([-1 if place == axis else 1 for place in range(len(shape))])
    name = b.constant(numbers.astype(b.tensor(op.outputs[0]).dtype))
    b.give(op.outputs[0], b.node("Expand", [name, b.integers(*shape)]))


def convert(b: Builder, op: Operator) -> None:
    """STABLEHLO_CONVERT."""
    b.give(op.outputs[0], b.node("Cast", [b.real(op.inputs[0])], to=onnx_type(b.tensor(op.outputs[0]).dtype)))


def product(b: Builder, op: Operator) -> None:
    """STABLEHLO_DOT_GENERAL: any axes are summed over, any are a batch."""
    letters = iter(ascii_letters)
    sides = [["" for _ in range(b.rank(index))] for index in op.inputs]
    shared = []
    for kind in ("Batching", "Contracting"):
        pairs = zip(*(options(op, f"{side}{kind}Dimensions") for side in ("Lhs", "Rhs")), strict=True)
        for left, right in pairs:
            sides[0][left] = sides[1][right] = letter = next(letters)
            shared += [letter] if kind == "Batching" else []
    free = []
    for side in sides:
        for place, letter in enumerate(side):
            if not letter:
                side[place] = next(letters)
                free.append(side[place])
    equation = f"{''.join(sides[0])},{''.join(sides[1])}->{''.join([*shared, *free])}"
    b.put(op.outputs[0], b.node("Einsum", [b.real(index) for index in op.inputs], equation=equation))
