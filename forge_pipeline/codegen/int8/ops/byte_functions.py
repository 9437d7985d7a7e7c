"""What an elementwise operator makes of a byte: its results for all 256, computed when the model is built.

Arithmetic is in float32, operator by operator, as ONNX Runtime computes it; exp and its like are rounded from double
precision, so that every machine builds the same table.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from forge_pipeline.codegen.layout.affine import LEVELS, Affine
from forge_pipeline.codegen.layout.builder import Array, Value
from forge_pipeline.codegen.layout.quantized_values import Dequantized

BYTES = np.arange(LEVELS + 1)


@dataclass(slots=True, kw_only=True)
class ByteFunction(Value):
    """A value that is a function of the bytes of ``source``: ``values`` has its 256 results, float32 or flags."""

    source: Value
    values: Array


@dataclass(slots=True, kw_only=True)
class Lookup(Value):
    """Bytes that ``table`` has for those of ``source``."""

    source: Value
    table: Array


def byte_function_of(value: Value) -> ByteFunction | None:
    """Return a value as a function of bytes: of the first ones, where tables were looked up in between."""
    if isinstance(value, ByteFunction):
        return value
    if not isinstance(value, Dequantized):
        return None
    values, source = reals(BYTES, value.affine), value.source
    while isinstance(source, Lookup):
        values, source = values[source.table], source.source
    return ByteFunction(source=source, values=values)


def reals(integers: Array, affine: Affine) -> Array:
    """Return what DequantizeLinear computes."""
    return (integers - affine.zero).astype(np.float32) * np.float32(affine.scale)


def steps_of(values: Array, affine: Affine) -> Array:
    """Return what QuantizeLinear computes: divided, rounded half to even, saturated."""
    with np.errstate(over="ignore"):
        steps = np.rint(values / np.float32(affine.scale)) + np.float32(affine.zero)
    return np.clip(steps, 0, LEVELS).astype(np.uint8)


def _rounded(function: Callable[..., Any]) -> Callable[..., Array]:
    """Return a function of arrays that computes in double precision; what it is not defined for is no number."""

    def one(x: float) -> float:
        try:
            return float(function(x))
        except ValueError:
            return math.nan
        except OverflowError:
            return math.inf

    def applied(_attributes: Any, x: Array) -> Array:
        return np.array([one(item) for item in x.astype(np.float64)], np.float32)

    return applied


def _exact(function: Callable[..., Any]) -> Callable[..., Array]:
    """Return a function that NumPy computes in the type that it is given, and that rounds at most once."""
    return lambda _attributes, *operands: np.asarray(function(*operands))


def _sigmoid(x: float) -> float:
    return 1 / (1 + math.exp(-x)) if x >= 0 else math.exp(x) / (1 + math.exp(x))


def _gelu_tanh(x: float) -> float:
    return x / 2 * (1 + math.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))


def _leaky(attributes: Any, x: Array) -> Array:
    return np.where(x >= 0, x, x * np.float32(attributes.alpha))


def _clip(_attributes: Any, x: Array, low: Any, high: Any) -> Array:
    return np.asarray(np.minimum(np.maximum(x, np.float32(low)), np.float32(high)))


def _power(_attributes: Any, x: Array, exponent: Array) -> Array:
    return _rounded(lambda one: math.pow(one, float(exponent)))(None, x)


def _cast(attributes: Any, x: Array) -> Array:
    return x.astype(str(attributes.dtype))


FUNCTIONS: Mapping[str, Callable[..., Array]] = {
    **{
        f"relax.{name}": _rounded(function)
        for name, function in (
            ("exp", math.exp), ("log", math.log), ("tanh", math.tanh), ("erf", math.erf), ("sin", math.sin),
            ("cos", math.cos), ("sigmoid", _sigmoid), ("nn.silu", lambda x: x * _sigmoid(x)),
            ("nn.gelu", lambda x: x / 2 * (1 + math.erf(x / math.sqrt(2)))), ("nn.gelu_tanh", _gelu_tanh),
            ("nn.softplus", lambda x: max(x, 0.0) + math.log1p(math.exp(-abs(x)))), ("atan", math.atan),
            ("sinh", math.sinh), ("cosh", math.cosh),
        )
    },
    **{
        f"relax.{name}": _exact(function)
        for name, function in (
            ("abs", np.abs), ("negative", np.negative), ("sqrt", np.sqrt), ("square", np.square), ("floor", np.floor),
            ("ceil", np.ceil), ("round", np.rint), ("sign", np.sign), ("nn.relu", partial(np.maximum, np.float32(0))),
            ("add", np.add), ("subtract", np.subtract), ("multiply", np.multiply), ("divide", np.divide),
            ("maximum", np.maximum), ("minimum", np.minimum), ("greater", np.greater), ("less", np.less),
            ("greater_equal", np.greater_equal), ("less_equal", np.less_equal), ("equal", np.equal),
            ("not_equal", np.not_equal), ("logical_and", np.logical_and), ("logical_or", np.logical_or),
            ("logical_not", np.logical_not), ("where", np.where),
        )
    },
    "relax.nn.leakyrelu": _leaky,
    "relax.clip": _clip,
    "relax.power": _power,
    "relax.astype": _cast,
}  # fmt: skip
"""By Relax operator: ``function(attributes, *operands)``; an operand is 256 results, or one number without axes."""
