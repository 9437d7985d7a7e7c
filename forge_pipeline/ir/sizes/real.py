"""Floats made of sizes: trees that are evaluated in their element type, one rounding an operation.

Exporters compute sizes in floats (``floor(height * scale)``). Where each step is proved to be exact, or to be a single
quotient, with a whole number added or not, that is rounded down or up next, the tree stands for a fraction of sizes;
else it is kept as it is.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, Final, Literal, TypeAlias

import numpy as np

from forge_pipeline.ir.sizes.expression import (
    Interval,
    Overgrown,
    Whole,
    bounds,
    ceildiv,
    evaluate,
    floordiv,
    names,
    replaced,
    truncation,
    truncdiv,
    weight,
)
from forge_pipeline.ir.sizes.polynomial import MAX_WEIGHT, Substitution

MANTISSA: Final[Mapping[str, int]] = {"float16": 11, "float32": 24, "float64": 53}
"""Element types that floats made of sizes may have, and how many bits of a whole number they hold."""

MOST_ROUNDINGS: Final = 2
"""Of a quotient, and of its sum with a whole number."""

Operation = Literal[
    "whole", "number", "add", "sub", "mul", "div", "min", "max", "neg", "abs", "floor", "ceil", "round", "sqrt", "cast"
]
Fraction: TypeAlias = "tuple[Whole, int]"

_FUNCTIONS: Final[Mapping[str, Callable[..., Any]]] = {
    "add": np.add,
    "sub": np.subtract,
    "mul": np.multiply,
    "div": np.divide,
    "min": np.minimum,
    "max": np.maximum,
    "neg": np.negative,
    "abs": np.abs,
    "floor": np.floor,
    "ceil": np.ceil,
    "round": np.rint,
    "sqrt": np.sqrt,
}


_KEEP_SIGN: Final = ("add", "mul", "div", "min", "max", "abs", "floor", "ceil", "round", "sqrt", "cast")


class Real:
    """A float of element type ``dtype``. Made by the functions below; never changed.

    ``fraction`` is what it is equal to, once every size in ``needs`` is at most what the type holds as a whole number;
    ``roundings`` to the type, two at most, are between the two. None where that is not known.
    """

    __slots__ = ("_text", "args", "dtype", "fraction", "names", "needs", "op", "roundings", "weight")

    def __init__(
        self,
        op: Operation,
        dtype: str,
        args: tuple[Real | Whole | float, ...],
        *,
        fraction: Fraction | None = None,
        roundings: int = 0,
    ) -> None:
        self.op, self.dtype, self.args, self.fraction, self.roundings = op, dtype, args, fraction, roundings
        parts = [arg for arg in args if isinstance(arg, Real)]
        self.names: frozenset[str] = frozenset().union(*(part.names for part in parts))
        self.needs: frozenset[Whole] = frozenset().union(*(part.needs for part in parts))
        numerators = [] if fraction is None else [fraction[0]]
        if roundings == MOST_ROUNDINGS:
            numerators = [2 * each for each in (*numerators, *(part.fraction[0] for part in parts if part.fraction))]
        self.needs |= {numerator for numerator in numerators if not _fits(numerator, dtype)}
        self.weight: int = 1 + sum(part.weight for part in parts)
        if op == "whole" and not isinstance(args[0], (Real, float)):
            self.names, self.weight = names(args[0]), 1 + weight(args[0])
        if self.weight > MAX_WEIGHT:
            raise Overgrown
        self._text: str | None = None

    def __repr__(self) -> str:
        if self._text is None:
            inner = ", ".join(map(repr, self.args))
            self._text = f"{self.dtype}({inner})" if self.op in ("whole", "number") else f"{self.op}({inner})"
        return self._text

    def __hash__(self) -> int:
        return hash(repr(self))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Real) and repr(self) == repr(other) and self.dtype == other.dtype

    def value(self, extents: Mapping[str, int]) -> float:
        """Return the float at the given extents. Raises KeyError for one that is missing."""
        return float(self._value(extents))

    def truncated(self, extents: Mapping[str, int]) -> int:
        """Return the float cut to a whole number. Raises Overgrown where it is none (NaN, an infinity)."""
        found = self.value(extents)
        if not math.isfinite(found):
            raise Overgrown
        return int(found)

    def _value(self, extents: Mapping[str, int]) -> Any:
        dtype = np.dtype(self.dtype).type
        if self.op == "whole":
            (size,) = self.args
            assert not isinstance(size, (Real, float))  # noqa: S101  narrows a union
            return dtype(evaluate(size, extents))
        if self.op == "number":
            return dtype(self.args[0])
        values = [arg._value(extents) for arg in self.args if isinstance(arg, Real)]
        with np.errstate(all="ignore"):
            return dtype(values[0]) if self.op == "cast" else dtype(_FUNCTIONS[self.op](*values))

    def substituted(self, change: Substitution) -> Real:
        """Return the float with sizes replaced."""
        if not change.touches(self.names):
            return self
        if self.op == "whole":
            (size,) = self.args
            assert not isinstance(size, (Real, float))  # noqa: S101  narrows a union
            return of_size(replaced(size, change), self.dtype)
        return apply(self.op, self.dtype, *(arg.substituted(change) for arg in self.args if isinstance(arg, Real)))

    def bounds(self) -> Interval:
        """Return bounds of the float cut to a whole number."""
        if self.op == "whole" and self.fraction is not None:
            return bounds(self.fraction[0])
        if self.op == "number" and isinstance(self.args[0], float) and math.isfinite(self.args[0]):
            return int(self.args[0]), int(self.args[0])
        lows = [arg.bounds()[0] for arg in self.args if isinstance(arg, Real)]
        if self.op not in _KEEP_SIGN or any(low is None or low < 0 for low in lows):
            return None, None
        return 0, None

    def to_whole(self, *, assuming: bool = False) -> Whole:
        """Return the float cut to a whole number, towards zero.

        With ``assuming``, its ``needs`` are taken to hold, for the caller to record.
        """
        if self.fraction is not None and (assuming or not self.needs):
            return truncdiv(*self.fraction)
        if self.op == "number" and isinstance(self.args[0], float) and math.isfinite(self.args[0]):
            return int(self.args[0])
        return truncation(self)


def of_size(size: Whole, dtype: str) -> Real:
    """Return a size as a float."""
    if isinstance(size, int):
        return of_number(float(size), dtype)
    return Real("whole", dtype, (size,), fraction=(size, 1))


def of_number(value: float, dtype: str) -> Real:
    """Return a constant."""
    fraction: Fraction | None = None
    if math.isfinite(value):
        numerator, denominator = float(np.dtype(dtype).type(value)).as_integer_ratio()
        fraction = (numerator, denominator) if max(abs(numerator), denominator) <= 1 << 53 else None
    return Real("number", dtype, (float(value),), fraction=fraction)


def apply(op: Operation, dtype: str, *args: Real) -> Real:
    """Return ``op`` of floats, rounded to ``dtype``; rounding is half to even where ``op`` is ``round``."""
    if all(arg.op == "number" for arg in args):
        value = Real(op, dtype, args)._value({})
        return of_number(float(value), dtype)
    fractions = [arg.fraction for arg in args]
    if any(fraction is None for fraction in fractions):
        return Real(op, dtype, args)
    fraction, roundings = _fraction(op, [fraction for fraction in fractions if fraction], args)
    if fraction is not None and _grows_too_fast(fraction[0], dtype):
        fraction, roundings = None, 0
    return Real(op, dtype, args, fraction=fraction, roundings=roundings)


def compared(a: Real, b: Real) -> tuple[Whole, Whole] | None:
    """Return two sizes that compare as the two floats do, None where that is not proved."""
    if a.fraction is None or b.fraction is None or a.roundings or b.roundings:
        return None
    return a.fraction[0] * b.fraction[1], b.fraction[0] * a.fraction[1]


def _fits(size: Whole, dtype: str) -> bool:
    low, high = bounds(size)
    most = 1 << MANTISSA[dtype]
    return low is not None and high is not None and -most <= low and high <= most


def _grows_too_fast(size: Whole, dtype: str) -> bool:
    """Return whether a whole number is not exact any more for extents that models have: from 2**16 on."""
    return not isinstance(size, int) and max(abs(c) for m, c in size.terms if m) > 1 << max(0, MANTISSA[dtype] - 16)


def _fraction(op: Operation, fractions: list[Fraction], args: tuple[Real, ...]) -> tuple[Fraction | None, int]:
    """Return what the result is equal to, and how often it is rounded to the type.

    A quotient of two whole numbers that the type holds, rounded to it, has the floor and the ceiling of the quotient:
    it lies further from the next whole number than half a unit of the last place, or is one. So has the sum of such a
    quotient and a whole number where the type holds twice the numerators of both: the two roundings move it by less
    than one part of the denominator.
    """
    a, p = fractions[0]
    roundings = sum(arg.roundings for arg in args)
    if op == "floor":
        return (floordiv(a, p), 1), 0
    if op == "ceil":
        return (ceildiv(a, p), 1), 0
    if op == "neg":
        return (-a, p), roundings
    if roundings and not (op in ("add", "sub") and _is_whole(args[0]) + _is_whole(args[1]) == roundings == 1):
        return None, 0
    if op in ("round", "cast") or op == "abs":
        low = bounds(a)[0]
        same = (p == 1) if op == "round" else (op == "cast" or (low is not None and low >= 0))
        return ((a, p) if same else None), 0
    if op == "sqrt" or len(fractions) != 2:
        return None, 0
    b, q = fractions[1]
    if op == "div":
        return _divided(a, p, b, q, args[1])
    if op == "mul":
        return _reduced(a * b, p * q), 0
    if op not in ("add", "sub"):
        return None, 0
    common = math.lcm(p, q)
    left, right = a * (common // p), b * (common // q)
    total = left + right if op == "add" else left - right
    return ((total, common), MOST_ROUNDINGS) if roundings else (_reduced(total, common), 0)


def _is_whole(value: Real) -> bool:
    return value.fraction is not None and value.fraction[1] == 1 and not value.roundings


def _divided(a: Whole, p: int, b: Whole, q: int, divisor: Real) -> tuple[Fraction | None, int]:
    if a == b and p == q:
        return (1, 1), 0
    if not isinstance(b, int) or b <= 0 or divisor.op != "number":
        return None, 0
    numerator, denominator = a * q, p * b
    if denominator & (denominator - 1) == 0:
        return _reduced(numerator, denominator), 0
    return ((a, b), 1) if p == q == 1 else (None, 0)


def _reduced(numerator: Whole, denominator: int) -> Fraction:
    if isinstance(numerator, int):
        shared = math.gcd(numerator, denominator)
        return numerator // shared, denominator // shared
    shared = math.gcd(denominator, *(c for _, c in numerator.terms))
    return floordiv(numerator, shared), denominator // shared
