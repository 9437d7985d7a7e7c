"""Operators that work element by element: shapes by broadcasting, contents where they are made of sizes."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import numpy as np
from onnx import TensorProto, helper

from forge_pipeline.ir.sizes import expression as e
from forge_pipeline.ir.sizes import real
from forge_pipeline.ir.sizes.expression import Overgrown, Whole
from forge_pipeline.ir.sizes.operation import Operation, Rule
from forge_pipeline.ir.sizes.real import MANTISSA, Real
from forge_pipeline.ir.sizes.value import MOST, Array, Element, Known

Function = Callable[..., Element]
FLOATS: Final = {TensorProto.FLOAT16: "float16", TensorProto.FLOAT: "float32", TensorProto.DOUBLE: "float64"}
INTEGERS: Final = {
    TensorProto.INT8, TensorProto.INT16, TensorProto.INT32, TensorProto.INT64, TensorProto.BOOL,
    TensorProto.UINT8, TensorProto.UINT16, TensorProto.UINT32, TensorProto.UINT64,
}  # fmt: skip


def contents_of(op: Operation, function: Callable[[int], Function | None]) -> Array | None:
    """Return the elements of an operator's result, each by ``function(elem_type)``; None where they are not known."""
    given = [known for known in op.inputs if known is not None]
    arrays = [known.contents for known in given]
    found = function(given[0].dtype) if given else None
    if found is None or any(array is None for array in arrays):
        return None
    try:
        whole = np.broadcast_arrays(*[array for array in arrays if array is not None])
        if whole[0].size > MOST:
            return None
        result = np.empty(whole[0].shape, object)
        result.reshape(-1)[:] = [
            found(*entries) for entries in zip(*(w.reshape(-1).tolist() for w in whole), strict=True)
        ]
    except (Overgrown, ZeroDivisionError, OverflowError, ValueError, TypeError):
        return None
    return result


def made(dtype: int, shape: tuple[Whole, ...] | None, contents: Array | None) -> Known:
    """Return what is known of a result; contents that its element type does not hold are left out."""
    if contents is None:
        return Known(dtype, shape)
    if dtype in INTEGERS and dtype != TensorProto.BOOL:
        limits = np.iinfo(helper.tensor_dtype_to_np_dtype(dtype))
        if any(isinstance(x, int) and not limits.min <= x <= limits.max for x in contents.reshape(-1).tolist()):
            return Known(dtype, shape)
    return Known(dtype, tuple(contents.shape), contents)


def elementwise(function: Callable[[int], Function | None] | None = None, result: int | None = None) -> Rule:
    """Return the rule of an operator with broadcasting, whose result has the first input's type or ``result``."""

    def rule(op: Operation) -> Sequence[Known]:
        given = [known for known in op.inputs if known is not None]
        shapes = [known.shape for known in given]
        dtype = given[0].dtype if result is None else result
        if any(shape is None for shape in shapes):
            return [Known(dtype, None)]
        shape = op.broadcast(*[shape for shape in shapes if shape is not None])
        return [made(dtype, shape, None if function is None else contents_of(op, function))]

    return rule


def where(op: Operation) -> Sequence[Known]:
    """Choose element by element."""
    dtype = op.input(1).dtype or op.input(2).dtype
    shapes = [op.shape(index) for index in range(3)]
    if any(shape is None for shape in shapes):
        return [Known(dtype, None)]
    shape = op.broadcast(*[shape for shape in shapes if shape is not None])
    return [made(dtype, shape, contents_of(op, lambda _: _selected))]


def cast(op: Operation) -> Sequence[Known]:
    """Convert to another element type; floats are cut towards zero."""
    given = op.input(0)
    to = int(op.attribute("to")) if op.node.op_type == "Cast" else op.input(1).dtype
    contents = given.contents
    if contents is None or given.shape is None:
        return [Known(to, given.shape)]
    if given.constant is not None and to in {**FLOATS, **dict.fromkeys(INTEGERS)}:
        return [Known(to, given.shape, constant=_cast_numbers(given.constant, to))]
    result = np.empty(contents.shape, object)
    try:
        flat = [_converted(op, entry, given.dtype, to) for entry in contents.reshape(-1).tolist()]
    except Overgrown:
        return [Known(to, given.shape)]
    if any(entry is None for entry in flat):
        return [Known(to, given.shape)]
    result.reshape(-1)[:] = flat
    return [made(to, given.shape, result)]


def _cast_numbers(numbers: Array, to: int) -> Array | None:
    """Return constants in another element type; None where a float does not fit, which each machine cuts otherwise."""
    dtype = np.dtype(helper.tensor_dtype_to_np_dtype(to))
    if numbers.dtype.kind == "f" and dtype.kind in "iu":
        limits = np.iinfo(dtype)
        if not np.isfinite(numbers).all() or ((numbers < limits.min) | (numbers > limits.max)).any():
            return None
    with np.errstate(all="ignore"):
        return numbers.astype(dtype)


def _converted(op: Operation, entry: Element | float, source: int, to: int) -> Element | float | None:
    if to in FLOATS:
        if isinstance(entry, Real):
            return real.apply("cast", FLOATS[to], entry)
        return float(entry) if isinstance(entry, (int, float)) else real.of_size(entry, FLOATS[to])
    if to not in INTEGERS:
        return None
    if isinstance(entry, float):
        entry = real.of_number(entry, FLOATS[source])
    if isinstance(entry, Real):
        if to == TensorProto.BOOL:
            return None
        return whole_of(op, entry)
    return e.negated(e.equal(entry, 0)) if to == TensorProto.BOOL and source != TensorProto.BOOL else entry


def whole_of(op: Operation, entry: Real) -> Whole:
    """Return a float cut to a whole number, and record what must hold for its arithmetic to be exact."""
    if entry.fraction is None or entry.dtype == "float16" or not op.context.assuming:
        return entry.to_whole()
    most = 1 << MANTISSA[entry.dtype]
    for size in sorted(entry.needs, key=str):
        op.context.require_not_negative(most - size, f"{op.title}: sizes computed in {entry.dtype} are exact to {most}")
    return entry.to_whole(assuming=True)


def _selected(condition: Whole, a: Element | float, b: Element | float) -> Any:
    if isinstance(condition, int):
        return a if condition else b
    if isinstance(a, (Real, float)) or isinstance(b, (Real, float)):
        if a == b:
            return a
        raise Overgrown
    return e.select(condition, a, b)


def _as_real(entry: Element | float, dtype: str) -> Real:
    if isinstance(entry, Real):
        return entry
    return real.of_number(float(entry), dtype) if isinstance(entry, (int, float)) else real.of_size(entry, dtype)


def _arithmetic(whole: Callable[..., Whole] | None, floating: str | None) -> Callable[[int], Function | None]:
    """Return a function for elements by element type: of integers, of floats, one or two operands or more."""

    def pick(dtype: int) -> Function | None:
        if dtype in FLOATS:
            name = FLOATS[dtype]
            return None if floating is None else lambda *args: _floating(floating, name, args)
        return whole if dtype in INTEGERS else None

    return pick


def _floating(name: str, dtype: str, args: tuple[Any, ...]) -> Any:
    found = _as_real(args[0], dtype)
    if len(args) == 1:
        found = real.apply(name, dtype, found)  # type: ignore[arg-type]
    for arg in args[1:]:
        found = real.apply(name, dtype, found, _as_real(arg, dtype))  # type: ignore[arg-type]
    return found.args[0] if found.op == "number" else found


def _comparison(function: Callable[[Whole, Whole], Whole]) -> Callable[[int], Function | None]:
    def pick(dtype: int) -> Function | None:
        if dtype in INTEGERS:
            return function
        if dtype not in FLOATS:
            return None

        def floats(a: Any, b: Any) -> Whole:
            if isinstance(a, float) and isinstance(b, float):
                if math.isnan(a) or math.isnan(b) or math.isinf(a) or math.isinf(b):
                    raise Overgrown
                (p, q), (r, s) = a.as_integer_ratio(), b.as_integer_ratio()
                return function(p * s, r * q)
            left, right = _as_real(a, FLOATS[dtype]), _as_real(b, FLOATS[dtype])
            pair = real.compared(left, right)
            if pair is None or left.needs or right.needs:
                raise Overgrown
            return function(*pair)

        return floats

    return pick


def _logic(function: Callable[..., Whole]) -> Callable[[int], Function | None]:
    return lambda dtype: function if dtype == TensorProto.BOOL else None


def _power(base: Whole, exponent: Whole) -> Whole:
    if not isinstance(exponent, int) or not 0 <= exponent <= 64:
        raise Overgrown
    return e.product([base] * exponent)


def _powers(dtype: int) -> Function | None:
    if dtype not in FLOATS:
        return _power if dtype in INTEGERS else None

    def floats(base: Element | float, exponent: Element | float) -> Any:
        """Squares, roots, and constants whose power is a whole number: those every implementation agrees on."""
        if exponent == 2.0:
            return _floating("mul", FLOATS[dtype], (base, base))
        if exponent == 0.5:
            return _floating("sqrt", FLOATS[dtype], (base,))
        if isinstance(base, float) and isinstance(exponent, float):
            found = base**exponent
            if isinstance(found, float) and found.is_integer() and abs(found) < 1 << 11:
                return found
        raise Overgrown

    return floats


def _remainder(op: Operation) -> Sequence[Known]:
    """Mod: the sign of the divisor, or with ``fmod`` that of the dividend."""
    if op.attribute("fmod", 0):
        return elementwise(_arithmetic(lambda a, b: a - b * e.truncdiv(a, b), None))(op)
    return elementwise(_arithmetic(e.mod, None))(op)


def _sign(a: Whole) -> Whole:
    return e.at_least(a, 1) - e.at_least(-1, a)


def _xor(a: Whole, b: Whole) -> Whole:
    return a + b - 2 * a * b


SAME_SHAPE: Final = (
    "Acos", "Acosh", "Asin", "Asinh", "Atan", "Atanh", "Celu", "Cos", "Cosh", "Elu", "Erf", "Exp", "Gelu",
    "HardSigmoid", "HardSwish", "LeakyRelu", "Log", "Mish", "Reciprocal", "Selu", "Shrink", "Sigmoid", "Sin", "Sinh",
    "Softplus", "Softsign", "Swish", "Tan", "Tanh", "ThresholdedRelu", "Hardmax", "LogSoftmax", "Softmax",
    "LpNormalization", "SimplifiedLayerNormalization", "MeanVarianceNormalization", "GroupNormalization",
    "InstanceNormalization", "LRN",
    "Trilu", "Scatter", "ScatterElements", "ScatterND", "CumSum", "CumProd", "TensorScatter", "BitwiseNot",
    "ReverseSequence", "RandomNormalLike", "RandomUniformLike", "Bernoulli",
)  # fmt: skip
"""Operators whose result has the first input's shape and type, and no contents that sizes are made of."""


def same_shape(op: Operation) -> Sequence[Known]:
    """Keep the first input's shape and type."""
    dtype = op.attribute("dtype", op.input(0).dtype) if op.node.op_type.endswith(("Like", "Bernoulli")) else None
    return [Known(op.input(0).dtype if dtype is None else int(dtype), op.shape(0))]


def clip(op: Operation) -> Sequence[Known]:
    """Clip, whose limits may be left out and are attributes of old."""
    given = op.input(0)
    most, least = (_arithmetic(whole, name)(given.dtype) for whole, name in ((e.maximum, "max"), (e.minimum, "min")))
    limits = [op.input(index).contents if op.has(index) else None for index in (1, 2)]
    unknown = any(op.has(index) and limits[index - 1] is None for index in (1, 2))
    if given.contents is None or most is None or least is None or unknown:
        return [Known(given.dtype, given.shape)]
    low, high = (
        op.attribute(name, None) if limit is None else limit.reshape(-1).tolist()[0]
        for limit, name in zip(limits, ("min", "max"), strict=True)
    )
    contents = np.empty(given.contents.shape, object)
    try:
        for index, entry in enumerate(given.contents.reshape(-1).tolist()):
            raised = entry if low is None else most(entry, low)
            contents.reshape(-1)[index] = raised if high is None else least(raised, high)
    except Overgrown:
        return [Known(given.dtype, given.shape)]
    return [made(given.dtype, given.shape, contents)]


def _ordered(name: str, whole: Callable[..., Whole]) -> Rule:
    return elementwise(_arithmetic(whole, name))


RULES: Final[Mapping[str, Rule]] = {
    "Add": _ordered("add", lambda a, b: a + b),
    "Sub": _ordered("sub", lambda a, b: a - b),
    "Mul": _ordered("mul", lambda a, b: a * b),
    "Div": _ordered("div", e.truncdiv),
    "Mod": _remainder,
    "Pow": elementwise(_powers),
    "Min": _ordered("min", e.minimum),
    "Max": _ordered("max", e.maximum),
    "Sum": _ordered("add", lambda *args: e.total(args)),
    "Mean": elementwise(),
    "PRelu": elementwise(),
    "Neg": _ordered("neg", lambda a: -a),
    "Abs": _ordered("abs", e.absolute),
    "Sign": elementwise(_arithmetic(_sign, None)),
    "Floor": elementwise(_arithmetic(None, "floor")),
    "Ceil": elementwise(_arithmetic(None, "ceil")),
    "Round": elementwise(_arithmetic(None, "round")),
    "Sqrt": elementwise(_arithmetic(None, "sqrt")),
    "Equal": elementwise(_comparison(e.equal), TensorProto.BOOL),
    "Greater": elementwise(_comparison(lambda a, b: e.at_least(a, b + 1)), TensorProto.BOOL),
    "GreaterOrEqual": elementwise(_comparison(e.at_least), TensorProto.BOOL),
    "Less": elementwise(_comparison(lambda a, b: e.at_least(b, a + 1)), TensorProto.BOOL),
    "LessOrEqual": elementwise(_comparison(lambda a, b: e.at_least(b, a)), TensorProto.BOOL),
    "And": elementwise(_logic(lambda a, b: a * b), TensorProto.BOOL),
    "Or": elementwise(_logic(lambda a, b: a + b - a * b), TensorProto.BOOL),
    "Xor": elementwise(_logic(_xor), TensorProto.BOOL),
    "Not": elementwise(_logic(e.negated), TensorProto.BOOL),
    "IsNaN": elementwise(None, TensorProto.BOOL),
    "IsInf": elementwise(None, TensorProto.BOOL),
    **dict.fromkeys(("BitwiseAnd", "BitwiseOr", "BitwiseXor", "BitShift"), elementwise()),
    "Clip": clip,
    "Relu": elementwise(_arithmetic(lambda a: e.maximum(a, 0), None)),
    "Where": where,
    "Cast": cast,
    "CastLike": cast,
    **dict.fromkeys(SAME_SHAPE, same_shape),
}
