"""Operators that compute each element from the elements at its place, after broadcasting."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial, reduce
from typing import Any, Final

import numpy as np
from tvm import te, tirx
from tvm.relax import op

from forge_pipeline.codegen.onnx_import.node import Converter, NodeImport
from forge_pipeline.codegen.tir.broadcasting import broadcast, places

FLOATS: Final = ("float16", "bfloat16", "float32", "float64")


def _unary(name: str, node: NodeImport) -> Any:
    return getattr(op, name)(node.input(0))


def _rounded(name: str, node: NodeImport) -> Any:
    """Ceil, Floor and Round, which leave integers alone."""
    return _unary(name, node) if node.dtype() in FLOATS else node.input(0)


def _binary(name: str, node: NodeImport) -> Any:
    return getattr(op, name)(node.agreeing(0), node.agreeing(1))


def _chain(name: str, node: NodeImport) -> Any:
    """Sum, Max and Min of many, as binary operators, which fuse."""
    operands = [node.agreeing(index) for index in range(len(node.proto.input))]
    return reduce(lambda left, right: node.emit(getattr(op, name)(left, right)), operands)


def _mean(node: NodeImport) -> Any:
    return op.divide(_chain("add", node), node.const(float(len(node.proto.input)), node.dtype()))


def _divide(node: NodeImport) -> Any:
    """Div; of integers, rounded towards zero. A division of integers by zero gives 0, where ONNX leaves it open."""
    dtype = node.dtype()
    if dtype in FLOATS:
        return _binary("divide", node)

    def divided(a: Any, b: Any) -> Any:
        shape, read = _broadcast(a, b)

        def element(*at: Any) -> Any:
            divisor = read(b, at)
            safe = tirx.Select(divisor.equal(tirx.const(0, dtype)), tirx.const(1, dtype), divisor)
            quotient = tirx.truncdiv(read(a, at), safe)
            return tirx.Select(divisor.equal(tirx.const(0, dtype)), tirx.const(0, dtype), quotient)

        return te.compute(shape, element, name="divide")

    divisor = node.constant(1)
    if divisor is not None and divisor.size and (divisor != 0).all() and divisor.dtype.kind == "u":
        return op.floor_divide(node.agreeing(0), node.agreeing(1))
    return node.kernel(divided, node.agreeing(0), node.agreeing(1), name="divide")


def _broadcast(a: Any, b: Any) -> tuple[list[Any], Any]:
    """Return the shape that two tensor expressions broadcast to, and what reads one of them at a place of it."""

    def read(tensor: Any, at: Any) -> Any:
        return tensor(*places(at, tensor.shape))

    return broadcast(a.shape, b.shape), read


def _mod(node: NodeImport) -> Any:
    """Mod, with the sign of the divisor, or with `fmod` of the dividend."""
    dtype = node.dtype()
    is_fmod = bool(node.attributes.get("fmod", 0))
    is_float = dtype in FLOATS

    def remainder(a: Any, b: Any) -> Any:
        shape, read = _broadcast(a, b)

        def element(*at: Any) -> Any:
            x, y = read(a, at), read(b, at)
            zero = tirx.const(0, dtype)
            safe = y if is_float else tirx.Select(y.equal(zero), tirx.const(1, dtype), y)
            rest = tirx.fmod(x, y) if is_float else tirx.truncmod(x, safe)
            if not is_fmod and not dtype.startswith("uint"):
                differs = tirx.any(tirx.all(rest < zero, y > zero), tirx.all(rest > zero, y < zero))
                rest = tirx.Select(differs, rest + y, rest)
            return rest if is_float else tirx.Select(y.equal(zero), zero, rest)

        return te.compute(shape, element, name="mod")

    return node.kernel(remainder, node.agreeing(0), node.agreeing(1), name="mod")


def _pow(node: NodeImport) -> Any:
    """Pow, of base and exponent of any types; the result has the base's."""
    base, exponent, dtype = node.agreeing(0), node.agreeing(1), node.dtype()
    if dtype in FLOATS:
        known = node.constant(1)
        if known is not None and known.size == 1 and known.ndim <= node.rank():
            times = known.reshape(()).item()
            if times in (2, 3):  # as ONNX Runtime has it, instead of a call of the C library for each number
                square = node.emit(op.multiply(base, base))
                return square if times == 2 else op.multiply(square, base)
            if times == 0.5:
                return op.sqrt(base)
        if node.dtype(1) != dtype:
            exponent = node.emit(op.astype(exponent, dtype))
        return op.power(base, exponent)
    if node.dtype(1) in FLOATS:
        wide = node.emit(op.power(node.emit(op.astype(base, "float64")), node.emit(op.astype(exponent, "float64"))))
        return op.astype(wide, dtype)

    def power(a: Any, b: Any) -> Any:
        """Squares and multiplies, for each bit of the exponent; one below 0 gives what truncates to 0, but of 1."""
        shape, read = _broadcast(a, b)

        def element(*at: Any) -> Any:
            x, n = read(a, at), read(b, at).astype("int64")
            one, zero = tirx.const(1, dtype), tirx.const(0, dtype)
            result, square = one, x
            for bit in range(6):
                result = tirx.Select(tirx.bitwise_and(n >> bit, 1).equal(1), result * square, result)
                square = square * square
            sign = tirx.Select(tirx.bitwise_and(n, 1).equal(1), x, one)
            low = tirx.Select(tirx.any(x.equal(one), x.equal(zero - one)), sign, zero)
            return tirx.Select(n < 0, low, result)

        return te.compute(shape, element, name="power")

    return node.kernel(power, base, exponent, name="power")


def _clip(node: NodeImport) -> Any:
    """Clip as maximum and minimum, which fuse."""
    value, dtype = node.input(0), node.dtype()
    for index, key, name in ((1, "min", "maximum"), (2, "max", "minimum")):
        if node.opset < 11:
            bound = node.const(node.attributes[key], dtype) if key in node.attributes else None
        else:
            bound = node.input(index) if node.has(index) else None
        if bound is None:
            continue
        known = node.constant(index) if node.opset >= 11 else np.asarray(node.attributes[key])
        is_relu = key == "min" and known is not None and known.size == 1 and float(known.reshape(-1)[0]) == 0.0
        if known is not None and known.ndim and known.size == 1:
            bound = node.const(known.reshape(()), dtype)
        is_relu = is_relu and dtype in FLOATS
        value = node.emit(op.nn.relu(value) if is_relu else getattr(op, name)(value, bound))
    return value


def _equal(node: NodeImport) -> Any:
    """Equal; of flags, as what is not exclusive: no machine code can be made of their comparison."""
    if node.dtype() == "bool":
        return op.logical_not(node.emit(_binary("logical_xor", node)))
    return _binary("equal", node)


def _where(node: NodeImport) -> Any:
    return op.where(node.agreeing(0), node.agreeing(1), node.agreeing(2))


def _is_inf(node: NodeImport) -> Any:
    value, dtype = node.input(0), node.dtype()
    signs = [sign for sign, key in ((1, "positive"), (-1, "negative")) if node.attributes.get(f"detect_{key}", 1)]
    found = [node.emit(op.equal(value, node.const(sign * np.inf, dtype))) for sign in signs]
    if not found:
        return op.zeros_like(value, dtype="bool")
    return found[0] if len(found) == 1 else op.logical_or(*found)


def _is_nan(node: NodeImport) -> Any:
    value = node.input(0)
    return op.isnan(node.emit(op.astype(value, "float32")) if node.dtype() == "bfloat16" else value)


def _reciprocal(node: NodeImport) -> Any:
    return op.divide(node.const(1, node.dtype()), node.input(0))


def _bit_shift(node: NodeImport) -> Any:
    """BitShift; by as many bits as there are, or more, or less than none, the sign alone stays, of what moves right."""
    dtype, bits = node.dtype(), 8 * np.dtype(node.dtype()).itemsize
    to_left, is_signed = node.text("direction", "LEFT") == "LEFT", not node.dtype().startswith("uint")

    def shifted(a: Any, b: Any) -> Any:
        shape, read = _broadcast(a, b)
        zero, most = tirx.const(0, dtype), tirx.const(bits - 1, dtype)

        def element(*at: Any) -> Any:
            x, by = read(a, at), read(b, at)
            inside = tirx.all(by >= zero, by <= most) if is_signed else by <= most
            kept = tirx.max(tirx.min(by, most), zero)
            if to_left:
                return tirx.Select(inside, x << kept, zero)
            return tirx.Select(inside, x >> kept, x >> most if is_signed else zero)

        return te.compute(shape, element, name="shift")

    return node.kernel(shifted, node.agreeing(0), node.agreeing(1), name="shift")


def _sign(node: NodeImport) -> Any:
    """Sign, which names its operand once, so that a chain of them stays small; of floats, what is no number stays none.

    Twice the largest power of two makes any float but zero larger than one.
    """
    value, dtype = node.input(0), node.dtype()
    if dtype in FLOATS:
        power = node.const(2.0 ** (15 if dtype == "float16" else 1023 if dtype == "float64" else 127), dtype)
        large = node.emit(op.multiply(node.emit(op.multiply(value, power)), power))
        return op.minimum(node.emit(op.maximum(large, node.const(-1, dtype))), node.const(1, dtype))
    zero = node.const(0, dtype)
    above = node.emit(op.astype(node.emit(op.greater(value, zero)), dtype))
    if dtype.startswith("uint"):
        return above
    below = node.emit(op.astype(node.emit(op.less(value, zero)), dtype))
    return op.subtract(above, below)


def _negate(node: NodeImport) -> Any:
    return op.negative(node.input(0))


def _absolute(node: NodeImport) -> Any:
    return node.input(0) if node.dtype().startswith("uint") else op.abs(node.input(0))


def _identity(node: NodeImport) -> Any:
    return node.input(0)


_UNARY = {
    "Sqrt": "sqrt", "Exp": "exp", "Log": "log", "Erf": "erf", "Sin": "sin", "Cos": "cos", "Tan": "tan",
    "Sinh": "sinh", "Cosh": "cosh", "Tanh": "tanh", "Asin": "asin", "Acos": "acos", "Atan": "atan", "Asinh": "asinh",
    "Acosh": "acosh", "Atanh": "atanh", "Not": "logical_not", "BitwiseNot": "bitwise_not",
}  # fmt: skip
_BINARY = {
    "Add": "add", "Sub": "subtract", "Mul": "multiply", "And": "logical_and", "Or": "logical_or", "Xor": "logical_xor",
    "Less": "less", "LessOrEqual": "less_equal", "Greater": "greater", "GreaterOrEqual": "greater_equal",
    "BitwiseAnd": "bitwise_and", "BitwiseOr": "bitwise_or", "BitwiseXor": "bitwise_xor",
}  # fmt: skip

CONVERTERS: Mapping[str, Converter] = {
    **{name: partial(_unary, own) for name, own in _UNARY.items()},
    **{name: partial(_binary, own) for name, own in _BINARY.items()},
    **{name: partial(_rounded, name.lower()) for name in ("Ceil", "Floor", "Round")},
    "Sum": partial(_chain, "add"),
    "Max": partial(_chain, "maximum"),
    "Min": partial(_chain, "minimum"),
    "Abs": _absolute,
    "BitShift": _bit_shift,
    "Clip": _clip,
    "Div": _divide,
    "Equal": _equal,
    "Identity": _identity,
    "IsInf": _is_inf,
    "IsNaN": _is_nan,
    "Mean": _mean,
    "Mod": _mod,
    "Neg": _negate,
    "OptionalGetElement": _identity,
    "Pow": _pow,
    "Reciprocal": _reciprocal,
    "Sign": _sign,
    "Where": _where,
}
