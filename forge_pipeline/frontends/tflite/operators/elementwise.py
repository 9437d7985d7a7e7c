"""TensorFlow Lite's operators on single elements, each as ONNX."""

from __future__ import annotations

from collections.abc import Callable
from functools import reduce
from typing import Any, Final

import numpy as np

from forge_pipeline.frontends.tflite.builder import LAST, Builder, Converter, bound, option, unsupported
from forge_pipeline.frontends.tflite.model import Operator

_FLOATS: Final = ("float16", "float32", "float64")


def each(compute: Callable[..., str]) -> Converter:
    """Return the converter of what ``compute(b, op, *operands)`` adds: element by element, broadcast, in any layout."""

    def convert(b: Builder, op: Operator) -> None:
        fits = all(b.rank(index) <= 4 for index in op.inputs) and b.rank(op.outputs[0]) == 4
        layout = b.layout(*op.inputs) if fits else LAST  # a constant of more dimensions has no channels second
        b.put(op.outputs[0], compute(b, op, *(b.real(index, layout) for index in op.inputs)), layout)

    return convert


def plain(op_type: str, **attributes: Any) -> Converter:
    """Return the converter of what is one operator of ONNX."""
    return each(lambda b, _, *operands: b.node(op_type, list(operands), **attributes))


def binary(op_type: str) -> Converter:
    """Return the converter of one operator of ONNX, and a fused activation."""
    return each(lambda b, op, *operands: b.activated(b.node(op_type, list(operands)), bound(op), op.outputs[0]))


def clipped(low: float, high: float) -> Converter:
    """Return the converter of RELU6 and its like, as operators of their own."""
    return each(lambda b, op, x: b.node("Clip", [x, *(b.number(limit, op.inputs[0]) for limit in (low, high))]))


@each
def sum_of_all(b: Builder, _: Operator, *operands: str) -> str:
    """ADD_N."""
    return reduce(lambda left, right: b.node("Add", [left, right]), operands)


@each
def squared_difference(b: Builder, _: Operator, left: str, right: str) -> str:
    """SQUARED_DIFFERENCE."""
    difference = b.node("Sub", [left, right])
    return b.node("Mul", [difference, difference])


@each
def not_equal(b: Builder, _: Operator, left: str, right: str) -> str:
    """NOT_EQUAL."""
    return b.node("Not", [b.node("Equal", [left, right])])


@each
def floor_mod(b: Builder, op: Operator, left: str, right: str) -> str:
    """FLOOR_MOD: the result has the divisor's sign, which ONNX's Mod does for integers only."""
    if not _is_real(b, op.inputs[0]):
        return b.node("Mod", [left, right])
    quotient = b.node("Floor", [b.node("Div", [left, right])])
    return b.node("Sub", [left, b.node("Mul", [quotient, right])])


@each
def floor_div(b: Builder, op: Operator, left: str, right: str) -> str:
    """FLOOR_DIV: ONNX divides integers towards zero, so that what is left over is taken off first."""
    if _is_real(b, op.inputs[0]):
        return b.node("Floor", [b.node("Div", [left, right])])
    return b.node("Div", [b.node("Sub", [left, b.node("Mod", [left, right])]), right])


def _is_real(b: Builder, index: int) -> bool:
    return b.tensor(index).dtype in _FLOATS or b.is_quantized(index)


@each
def square(b: Builder, _: Operator, x: str) -> str:
    """SQUARE."""
    return b.node("Mul", [x, x])


@each
def rsqrt(b: Builder, _: Operator, x: str) -> str:
    """RSQRT."""
    return b.node("Reciprocal", [b.node("Sqrt", [x])])


@each
def leaky(b: Builder, op: Operator, x: str) -> str:
    """LEAKY_RELU."""
    return b.node("LeakyRelu", [x], alpha=float(option(op, "Alpha", 0.0)))


@each
def gelu(b: Builder, op: Operator, x: str) -> str:
    """GELU, by the error function or its approximation by tanh (Hendrycks and Gimpel, arXiv:1606.08415)."""
    return b.node("Gelu", [x], approximate="tanh" if option(op, "Approximate", False) else "none")


@each
def cube_root(b: Builder, _: Operator, x: str) -> str:
    """STABLEHLO_CBRT."""
    root = b.node("Pow", [b.node("Abs", [x]), b.constant(np.float32(1 / 3))])
    return b.node("Mul", [b.node("Sign", [x]), root])


def arc_tangent(b: Builder, op: Operator) -> None:
    """ATAN2 of y and x: the angle of the point (x, y), from that of y / x by the quadrant it lies in."""
    y, x = (b.real(index) for index in op.inputs)
    b.put(op.outputs[0], angle(b, y, x, b.tensor(op.outputs[0]).dtype))


def angle(b: Builder, y: str, x: str, dtype: str = "float32") -> str:
    """Return the angle of the points (x, y), in (-pi, pi]."""
    zero, pi, half = (b.constant(np.dtype(dtype).type(number)) for number in (0, np.pi, np.pi / 2))
    above = b.node("GreaterOrEqual", [y, zero])
    right = b.node("Atan", [b.node("Div", [y, x])])
    left = b.node("Add", [right, b.node("Where", [above, pi, b.node("Neg", [pi])])])
    axis = b.node("Mul", [b.node("Sign", [y]), half])
    rest = b.node("Where", [b.node("Less", [x, zero]), left, axis])
    return b.node("Where", [b.node("Greater", [x, zero]), right, rest])


@each
def fake_quantization(b: Builder, op: Operator, x: str) -> str:
    """FAKE_QUANT: to the nearest of the steps of a scale on which 0 is one (fake_quant.cc, NudgeQuantizationRange)."""
    least, most = int(option(op, "NarrowRange", False)), (1 << int(option(op, "NumBits", 8))) - 1
    low, high = np.float32(option(op, "Min", 0.0)), np.float32(option(op, "Max", 0.0))
    scale = np.float32((high - low) / np.float32(most - least))
    zero = np.float32(np.clip(np.floor(least - low / scale + np.float32(0.5)), least, most))
    lowest, highest = (least - zero) * scale, (most - zero) * scale
    bounds = [b.constant(np.float32(number)) for number in (lowest, highest)]
    above = b.node("Sub", [b.node("Clip", [x, *bounds]), bounds[0]])
    steps = b.node("Mul", [above, b.constant(np.float32(1) / scale)])
    steps = b.node("Floor", [b.node("Add", [steps, b.constant(np.float32(0.5))])])
    return b.node("Add", [b.node("Mul", [steps, b.constant(scale)]), bounds[0]])


def bucket(b: Builder, op: Operator) -> None:
    """BUCKETIZE: how many of the boundaries, which ascend, are not above the number."""
    count = option(op, "BoundariesLength", 0)
    boundaries = np.array([op.options.Boundaries(place) for place in range(count)], np.float32)
    values = b.node("Cast", [b.real(op.inputs[0])], to=1)
    above = b.node("GreaterOrEqual", [b.node("Unsqueeze", [values, b.integers(-1)]), b.constant(boundaries)])
    counted = b.node("ReduceSum", [b.node("Cast", [above], to=6), b.integers(-1)], keepdims=0)
    b.give(op.outputs[0], counted)


def of_bits(op_type: str) -> Converter:
    """Return the converter of BITWISE_XOR and its like: of flags, or of bits."""

    def convert(b: Builder, op: Operator) -> None:
        kind = op_type if b.tensor(op.inputs[0]).dtype == "bool" else f"Bitwise{op_type}"
        b.give(op.outputs[0], b.node(kind, [b.stored(index) for index in op.inputs]))

    return convert


def right_shift(b: Builder, op: Operator) -> None:
    """RIGHT_SHIFT, which keeps the sign: the quotient by a power of two, rounded down."""
    dtype = b.tensor(op.outputs[0]).dtype
    left, places = (b.int64(index) for index in op.inputs)
    power = b.node("Pow", [b.constant(np.int64(2)), places])
    name = b.node("Div", [b.node("Sub", [left, b.node("Mod", [left, power])]), power])
    b.give(op.outputs[0], b.cast(name, dtype))


def left_shift(b: Builder, op: Operator) -> None:
    """STABLEHLO_SHIFT_LEFT: the product with a power of two; what does not fit is cut off."""
    left, places = (b.int64(index) for index in op.inputs)
    name = b.node("Mul", [left, b.node("Pow", [b.constant(np.int64(2)), places])])
    b.give(op.outputs[0], b.cast(name, b.tensor(op.outputs[0]).dtype))


def bit_cast(b: Builder, op: Operator) -> None:
    """BITCAST between types of which ONNX has the same one."""
    given, wanted = (b.tensor(index).dtype for index in (op.inputs[0], op.outputs[0]))
    if given != wanted:
        raise unsupported(f"the bits of {given} as {wanted}", "numbers that keep their type")
    b.give(op.outputs[0], b.stored(op.inputs[0]))
