"""exp, log, sigmoid, tanh and erf as vector arithmetic: the C library's take one number at a time, by a call for each.

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
from tvm import tirx
from tvm.ir.op import register_op_attr
from tvm.tirx import register_intrin_lowering

EXP_HIGH, EXP_LOW = 89.0, -87.33654475055310
"""What exp is clipped to: it is infinity above the one, and zero below the other."""
MANTISSA = 23
ROUNDS = 1.5 * 2**MANTISSA
"""A number that has no fraction, and whose sum with one that does is rounded."""
BIAS = 127
LOG2_E, LN2_HIGH, LN2_LOW = 1.44269504088896341, 0.693359375, -2.12194440e-4
EXP = (1.9875691500e-4, 1.3981999507e-3, 8.3334519073e-3, 4.1665795894e-2, 1.6666665459e-1, 5.0000001201e-1)

LOG = (
    7.0376836292e-2, -1.1514610310e-1, 1.1676998740e-1, -1.2420140846e-1, 1.4249322787e-1, -1.6668057665e-1,
    2.0000714765e-1, -2.4999993993e-1, 3.3333331174e-1,
)  # fmt: skip
SMALLEST_NORMAL = 1.17549435e-38
ROOT_OF_HALF = 0x3F3504F3
"""The bits of the square root of one half, from which on mantissas are taken."""

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

    TVM takes a loop with erf or isnan apart, since it does not know that a vector of them can be computed: it is told.
    """
    for name in ("tirx.erf", "tirx.isnan"):
        register_op_attr(name, "TVectorizable", True)

    for name, expand in FUNCTIONS.items():
        register_intrin_lowering(name, target="llvm", f=partial(_lower, expand), level=ABOVE_TVM)


def _lower(expand: Callable[[Any], Any], call: Any) -> Any:
    (x,) = call.args
    dtype = str(x.ty.dtype)
    if not dtype.startswith("float32"):
        if call.op.name == "tirx.sigmoid":
            one = tirx.const(1, dtype)
            return one / (one + tirx.exp(-x))
        return tirx.call_llvm_pure_intrin(dtype, f"llvm.{call.op.name.removeprefix('tirx.')}", x)
    value = x.value if isinstance(x, tirx.Broadcast) else x
    if isinstance(value, tirx.FloatImm):  # such as what fills padding: TVM cannot bind a variable to a number twice
        with np.errstate(all="ignore"):
            known = float(np.float32(EXACT[call.op.name](np.float64(value.value))))
        return _number(x, known)
    variable = tirx.Var("x", dtype)
    return tirx.Let(variable, x, expand(variable))


def _number(x: Any, value: float) -> Any:
    return tirx.const(value, str(x.ty.dtype))


def _polynomial(x: Any, coefficients: Sequence[float]) -> Any:
    """Return the polynomial of ``x`` by Horner's rule, the highest coefficient first."""
    total = _number(x, coefficients[0])
    for coefficient in coefficients[1:]:
        total = total * x + _number(x, coefficient)
    return total


def _clipped(x: Any, low: float, high: float) -> Any:
    """Return ``x`` within bounds; NaN stays NaN, since no comparison with it holds."""
    least, most = _number(x, low), _number(x, high)
    below = tirx.Var("below", str(x.ty.dtype))
    return tirx.Let(below, tirx.Select(most < x, most, x), tirx.Select(least > below, least, below))


def _exp(x: Any) -> Any:
    return _power_of_e(_clipped(x, EXP_LOW, EXP_HIGH), 1)


def _sigmoid(x: Any) -> Any:
    return _number(x, 1.0) / (_number(x, 1.0) + _power_of_e(_clipped(x, -EXP_HIGH, -EXP_LOW), -1))


def _power_of_e(x: Any, sign: int) -> Any:
    """Return exp(sign x) of what is clipped: twice the curve, by half the power of two, as 2^128 has no float32."""
    dtype = str(x.ty.dtype)
    integers = dtype.replace("float", "int")
    clipped, rounded, count, rest = (tirx.Var(name, dtype) for name in ("clipped", "rounded", "count", "rest"))
    shifted = ROUNDS + BIAS - 1  # the last bits are the exponent
    curve = _polynomial(rest, [2 * coefficient for coefficient in (*EXP, 1.0, 1.0)])
    power = tirx.reinterpret(dtype, tirx.reinterpret(integers, rounded) << tirx.const(MANTISSA, integers))
    reduced = clipped * _number(x, sign) - count * _number(x, LN2_HIGH) - count * _number(x, LN2_LOW)
    value: Any = tirx.Let(rest, reduced, curve * power)
    value = tirx.Let(count, rounded - _number(x, shifted), value)
    return tirx.Let(clipped, x, tirx.Let(rounded, clipped * _number(x, sign * LOG2_E) + _number(x, shifted), value))


def _log(x: Any) -> Any:
    dtype = str(x.ty.dtype)
    integers = dtype.replace("float", "int")

    def whole(value: int) -> Any:
        return tirx.const(value, integers)

    bits, count, rest, square = (
        tirx.Var(name, integers if name == "bits" else dtype) for name in ("bits", "count", "rest", "square")
    )
    is_small = x < _number(x, SMALLEST_NORMAL)
    scaled = tirx.Select(is_small, x * _number(x, 2.0**MANTISSA), x)
    offset = tirx.Select(is_small, _number(x, -float(MANTISSA)), _number(x, 0.0))
    mantissa = tirx.reinterpret(dtype, (bits & whole((1 << MANTISSA) - 1)) + whole(ROOT_OF_HALF))
    curve = _polynomial(rest, LOG) * rest * square + count * _number(x, LN2_LOW)
    value: Any = (curve - _number(x, 0.5) * square) + rest + count * _number(x, LN2_HIGH)
    value = tirx.Let(rest, mantissa - _number(x, 1.0), tirx.Let(square, rest * rest, value))
    value = tirx.Let(count, (bits >> whole(MANTISSA)).astype(dtype) + offset, value)
    value = tirx.Let(bits, tirx.reinterpret(integers, scaled) - whole(ROOT_OF_HALF), value)
    infinite = _number(x, float("inf"))
    value = tirx.Select(x < infinite, value, x)  # infinity, and NaN
    value = tirx.Select(x == _number(x, 0.0), -infinite, value)
    return tirx.Select(x < _number(x, 0.0), _number(x, float("nan")), value)


def _rational(x: Any, bound: float, odd: Sequence[float], even: Sequence[float]) -> Any:
    """Return x P(x^2) / Q(x^2), with ``x`` clipped to where the function has not yet reached one."""
    dtype = str(x.ty.dtype)
    clipped, square = tirx.Var("clipped", dtype), tirx.Var("square", dtype)
    value = clipped * _polynomial(square, odd) / _polynomial(square, even)
    return tirx.Let(clipped, _clipped(x, -bound, bound), tirx.Let(square, clipped * clipped, value))


def _tanh(x: Any) -> Any:
    return _rational(x, TANH_BOUND, TANH_ODD, TANH_EVEN)


def _erf(x: Any) -> Any:
    return _rational(x, ERF_BOUND, ERF_ODD, ERF_EVEN)


FUNCTIONS: Mapping[str, Callable[[Any], Any]] = {
    "tirx.exp": _exp,
    "tirx.log": _log,
    "tirx.sigmoid": _sigmoid,
    "tirx.tanh": _tanh,
    "tirx.erf": _erf,
}
"""TVM's operator, and what computes it of float32."""
EXACT: Mapping[str, Callable[[Any], Any]] = {
    "tirx.exp": np.exp,
    "tirx.log": np.log,
    "tirx.sigmoid": lambda x: 1 / (1 + np.exp(-x)),
    "tirx.tanh": np.tanh,
    "tirx.erf": math.erf,
}
"""The same of a number that is known."""
