"""exp, log, sigmoid, tanh, erf, sinh and cosh as vectors: the C library's take one number at a time, by a call each.

Every one is within a few units in the last place of the exact value, as the C library's float32 functions are. exp and
log are Cephes' (Moshier, expf.c and logf.c: range reduction by ln 2 in two parts, then a polynomial); tanh and erf are
the rational approximations of Eigen (GenericPacketMathFunctions.h). NaN stays NaN, exp overflows to infinity where it
must, and what is below the smallest normal number is zero.

exp's whole number of powers of two is rounded by adding 1.5 * 2^23, of which it then is the last bits: shifted into the
exponent, they are the power itself.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import cache, partial
from typing import Any

import numpy as np
import tvm
from tvm import tirx
from tvm.ir.op import register_op_attr
from tvm.tirx import register_intrin_lowering

from forge_pipeline.codegen.tir.math import angles, wide_math
from forge_pipeline.codegen.tir.math.angles import with_sign
from forge_pipeline.codegen.tir.math.polynomials import MANTISSA, SMALLEST_NORMAL, named, number, parted, polynomial

EXP_HIGH, EXP_LOW = 89.0, -87.33654475055310
"""What exp is clipped to: it is infinity above the one, and zero below the other."""
ROUNDS = 1.5 * 2**MANTISSA
"""A number that has no fraction, and whose sum with one that does is rounded."""
BIAS = 127
LOG2_E, LN2_HIGH, LN2_LOW = 1.44269504088896341, 0.693359375, -2.12194440e-4
EXP = (1.9875691500e-4, 1.3981999507e-3, 8.3334519073e-3, 4.1665795894e-2, 1.6666665459e-1, 5.0000001201e-1)

LOG = (
    7.0376836292e-2, -1.1514610310e-1, 1.1676998740e-1, -1.2420140846e-1, 1.4249322787e-1, -1.6668057665e-1,
    2.0000714765e-1, -2.4999993993e-1, 3.3333331174e-1,
)  # fmt: skip

SINH = tuple(1 / math.factorial(power) for power in (13, 11, 9, 7, 5, 3))
"""Taylor's coefficients, of which no more count up to one."""

TANH_BOUND = 7.90531110763549805
TANH_ODD = (
    -2.76076847742355e-16, 2.00018790482477e-13, -8.60467152213735e-11, 5.12229709037114e-08, 1.48572235717979e-05,
    6.37261928875436e-04, 4.89352455891786e-03,
)  # fmt: skip
TANH_EVEN = (1.19825839466702e-06, 1.18534705686654e-04, 2.26843463243900e-03, 4.89352518554385e-03)

ERF_BOUND = 4.0
ERF_ODD = (
    -2.72614225801306e-10, 2.77068142495902e-08, -2.10102402082508e-06, -5.69250639462346e-05, -7.34990630326855e-04,
    -2.95459980854025e-03, -1.60960333262415e-02,
)  # fmt: skip
ERF_EVEN = (
    -1.45660718464996e-05, -2.13374055278905e-04, -1.68282697438203e-03, -7.37332916720468e-03, -1.42647390514189e-02,
)  # fmt: skip

ABOVE_TVM = 99
"""Priority over the lowering rules that TVM registers itself."""


@cache
def install() -> None:
    """Make TVM's generation of machine code use these functions for float32, in this process, from now on.

    TVM takes a loop with fmod, isnan, nearbyint or one of `BY_LANE` apart: it does not know that there are vectors of
    them, and is told.
    """
    for name in (*BY_LANE, "tirx.fmod", "tirx.isnan", "tirx.nearbyint"):
        register_op_attr(name, "TVectorizable", True, level=ABOVE_TVM)

    for name, expand in FUNCTIONS.items():
        register_intrin_lowering(name, target="llvm", f=partial(_lower, expand), level=ABOVE_TVM)


def _lower(expand: Callable[..., Any], call: Any) -> Any:
    dtype, name = str(call.args[0].ty.dtype), call.op.name
    if not dtype.startswith("float32") or (name in WIDE and _lacks_doubles()):
        if name == "tirx.sigmoid":
            one = tirx.const(1, dtype)
            return one / (one + tirx.exp(-call.args[0]))
        if name == "tirx.fmod":
            return tirx.truncmod(*call.args)
        if name in BY_LANE:
            return _by_lane(BY_LANE[name], call.args[0])
        return tirx.call_llvm_pure_intrin(dtype, f"llvm.{name.removeprefix('tirx.')}", *call.args)
    known = [_known(argument) for argument in call.args]
    if all(value is not None for value in known):  # such as what fills padding
        with np.errstate(all="ignore"):
            return number(call.args[0], float(np.float32(EXACT[name](*(np.float64(value) for value in known)))))
    given = [  # as float32 has a number; TVM binds no variable to one
        tirx.Var("x", dtype) if value is None else number(argument, float(np.float32(value)))
        for argument, value in zip(call.args, known, strict=True)
    ]
    result = expand(*given)
    for variable, argument, value in zip(given, call.args, known, strict=True):
        bound = _multiplied(argument) if name == "tirx.erf" else argument
        result = tirx.Let(variable, bound, result) if value is None else result
    return result


def _by_lane(function: str, x: Any) -> Any:
    """Return the C library's function of each number of a vector of float64, or of float16 by way of it."""
    dtype = str(x.ty.dtype)
    kind, _, lanes = dtype.partition("x")

    def of_one(number: Any) -> Any:
        wide = tirx.call_pure_extern("float64", function, number.astype("float64"))
        return wide.astype(kind)

    if not lanes:
        return of_one(x)
    parts = [of_one(tirx.Shuffle([x], [tirx.const(lane, "int32")])) for lane in range(int(lanes))]
    return tirx.Shuffle(parts, [tirx.const(lane, "int32") for lane in range(int(lanes))])


def _multiplied(argument: Any) -> Any:
    """Return a quotient by a number as a product, as GELU's x / sqrt(2): a division takes as long as half an erf.

    For erf alone: its slope falls faster than the rounding of what it is given grows, unlike that of exp or fmod.
    """
    divisor = _known(argument.b) if isinstance(argument, tirx.Div) else None
    if not divisor or not np.isfinite(inverse := np.float32(1 / divisor)) or abs(inverse) < SMALLEST_NORMAL:
        return argument
    return argument.a * number(argument, float(inverse))


def _known(argument: Any) -> float | None:
    value = argument.value if isinstance(argument, tirx.Broadcast) else argument
    return float(value.value) if isinstance(value, tirx.FloatImm) else None


def _lacks_doubles() -> bool:
    """Return whether the target computes float64 by calls, as microcontrollers do."""
    target = tvm.target.Target.current(allow_none=True)
    return target is not None and str(target.attrs.get("mtriple", "")).startswith("thumb")


def _clipped(x: Any, low: float, high: float) -> Any:
    """Return ``x`` within bounds; NaN stays NaN, since no comparison with it holds."""
    least, most = number(x, low), number(x, high)
    below = tirx.Var("below", str(x.ty.dtype))
    return tirx.Let(below, tirx.Select(most < x, most, x), tirx.Select(least > below, least, below))


def _exp(x: Any) -> Any:
    return _power_of_e(_clipped(x, EXP_LOW, EXP_HIGH), 1)


def _sigmoid(x: Any) -> Any:
    return number(x, 1.0) / (number(x, 1.0) + _power_of_e(_clipped(x, -EXP_HIGH, -EXP_LOW), -1))


def _power_of_e(x: Any, sign: int) -> Any:
    """Return exp(sign x) of what is clipped: twice the curve, by half the power of two, as 2^128 has no float32."""
    dtype = str(x.ty.dtype)
    integers = dtype.replace("float", "int")
    clipped, rounded, count, rest = (tirx.Var(name, dtype) for name in ("clipped", "rounded", "count", "rest"))
    shifted = ROUNDS + BIAS - 1  # the last bits are the exponent
    curve = polynomial(rest, [2 * coefficient for coefficient in (*EXP, 1.0, 1.0)])
    power = tirx.reinterpret(dtype, tirx.reinterpret(integers, rounded) << tirx.const(MANTISSA, integers))
    reduced = clipped * number(x, sign) - count * number(x, LN2_HIGH) - count * number(x, LN2_LOW)
    value: Any = tirx.Let(rest, reduced, curve * power)
    value = tirx.Let(count, rounded - number(x, shifted), value)
    return tirx.Let(clipped, x, tirx.Let(rounded, clipped * number(x, sign * LOG2_E) + number(x, shifted), value))


def _log(x: Any) -> Any:
    count, rest, square = (tirx.Var(name, str(x.ty.dtype)) for name in ("count", "rest", "square"))
    curve = polynomial(rest, LOG) * rest * square + count * number(x, LN2_LOW)
    curve = (curve - number(x, 0.5) * square) + rest + count * number(x, LN2_HIGH)

    def use(mantissa: Any, exponent: Any) -> Any:
        inner = tirx.Let(rest, mantissa - number(x, 1.0), tirx.Let(square, rest * rest, curve))
        return tirx.Let(count, exponent, inner)

    value = parted(x, use)
    infinite = number(x, float("inf"))
    value = tirx.Select(x < infinite, value, x)  # infinity, and NaN
    value = tirx.Select(x == number(x, 0.0), -infinite, value)
    return tirx.Select(x < number(x, 0.0), number(x, float("nan")), value)


def _rational(x: Any, bound: float, odd: Sequence[float], even: Sequence[float]) -> Any:
    """Return x P(x^2) / Q(x^2), with ``x`` clipped to where the function has not yet reached one."""
    dtype = str(x.ty.dtype)
    clipped, square = tirx.Var("clipped", dtype), tirx.Var("square", dtype)
    value = clipped * polynomial(square, odd) / polynomial(square, even)
    return tirx.Let(clipped, _clipped(x, -bound, bound), tirx.Let(square, clipped * clipped, value))


def _tanh(x: Any) -> Any:
    return _rational(x, TANH_BOUND, TANH_ODD, TANH_EVEN)


def _erf(x: Any) -> Any:
    return _rational(x, ERF_BOUND, ERF_ODD, ERF_EVEN)


def _half_of_power(x: Any, use: Callable[[Any], Any]) -> Any:
    """Return ``use`` of half of e to the size of ``x``: by its root, as that itself may have no float32."""
    root = named("root", tirx.abs(x) * number(x, 0.5), _exp)
    return named("half", root, lambda root: named("power", number(x, 0.5) * root * root, use))


def _cosh(x: Any) -> Any:
    return _half_of_power(x, lambda half: half + number(x, 0.25) / half)


def _sinh(x: Any) -> Any:
    small = named("square", x * x, lambda square: polynomial(square, SINH) * square * x + x)

    def use(half: Any) -> Any:
        large = with_sign(half - number(x, 0.25) / half, x)
        return tirx.Select(tirx.abs(x) > number(x, 1.0), large, small)

    return _half_of_power(x, use)


FUNCTIONS: Mapping[str, Callable[..., Any]] = {
    "tirx.exp": _exp,
    "tirx.log": _log,
    "tirx.sigmoid": _sigmoid,
    "tirx.tanh": _tanh,
    "tirx.erf": _erf,
    "tirx.sinh": _sinh,
    "tirx.cosh": _cosh,
    "tirx.asin": angles.asin,
    "tirx.acos": angles.acos,
    "tirx.atan": angles.atan,
    "tirx.sin": wide_math.sin,
    "tirx.cos": wide_math.cos,
    "tirx.pow": wide_math.pow,
    "tirx.fmod": wide_math.fmod,
}
"""TVM's operator, and what computes it of float32."""
BY_LANE = {
    "tirx.erf": "erf", "tirx.sinh": "sinh", "tirx.cosh": "cosh", "tirx.asin": "asin", "tirx.acos": "acos",
    "tirx.atan": "atan",
}  # fmt: skip
"""Those that LLVM has no intrinsic of: the C library's functions of float64."""
WIDE = ("tirx.sin", "tirx.cos", "tirx.pow", "tirx.fmod")
"""Those that are computed in float64."""
EXACT: Mapping[str, Callable[..., Any]] = {
    "tirx.exp": np.exp,
    "tirx.log": np.log,
    "tirx.sigmoid": lambda x: 1 / (1 + np.exp(-x)),
    "tirx.tanh": np.tanh,
    "tirx.erf": math.erf,
    "tirx.sinh": np.sinh,
    "tirx.cosh": np.cosh,
    "tirx.asin": np.arcsin,
    "tirx.acos": np.arccos,
    "tirx.atan": np.arctan,
    "tirx.sin": np.sin,
    "tirx.cos": np.cos,
    "tirx.pow": np.power,
    "tirx.fmod": np.fmod,
}
"""The same of a number that is known."""
