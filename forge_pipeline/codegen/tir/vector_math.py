"""exp, tanh and erf as vector arithmetic: the C library's take one number at a time, through a call for each lane.

Every one is within a few units in the last place of the exact value, as the C library's float32 functions are. exp is
Cephes' (Moshier, expf.c: range reduction by ln 2 in two parts, then a polynomial); tanh and erf are the rational
approximations of Eigen (GenericPacketMathFunctions.h). NaN stays NaN, exp overflows to infinity where it must, and what
is below the smallest normal number is zero.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache, partial
from typing import Any

from tvm import tirx
from tvm.ir.op import register_op_attr
from tvm.tirx import register_intrin_lowering

EXP_HIGH, EXP_LOW = 88.72283172607422, -87.33654475055310
LOG2_E, LN2_HIGH, LN2_LOW = 1.44269504088896341, 0.693359375, -2.12194440e-4
EXP = (1.9875691500e-4, 1.3981999507e-3, 8.3334519073e-3, 4.1665795894e-2, 1.6666665459e-1, 5.0000001201e-1)

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

    for name, expand in (("tirx.exp", _exp), ("tirx.tanh", _tanh), ("tirx.erf", _erf)):
        register_intrin_lowering(name, target="llvm", f=partial(_lower, expand), level=ABOVE_TVM)


def _lower(expand: Callable[[Any], Any], call: Any) -> Any:
    (x,) = call.args
    if not str(x.ty.dtype).startswith("float32"):
        return tirx.call_llvm_pure_intrin(str(x.ty.dtype), f"llvm.{call.op.name.removeprefix('tirx.')}", x)
    variable = tirx.Var("x", str(x.ty.dtype))
    value = tirx.Select(variable == variable, expand(variable), variable)  # noqa: PLR0124 - false for NaN alone
    return tirx.Let(variable, x, value)


def _number(x: Any, value: float) -> Any:
    return tirx.const(value, str(x.ty.dtype))


def _polynomial(x: Any, coefficients: Sequence[float]) -> Any:
    """Return the polynomial of ``x`` by Horner's rule, the highest coefficient first."""
    total = _number(x, coefficients[0])
    for coefficient in coefficients[1:]:
        total = total * x + _number(x, coefficient)
    return total


def _exp(x: Any) -> Any:
    dtype = str(x.ty.dtype)
    integers = dtype.replace("float", "int")
    count, rest = tirx.Var("count", dtype), tirx.Var("rest", dtype)
    clipped = tirx.max(tirx.min(x, _number(x, EXP_HIGH)), _number(x, EXP_LOW))
    curve = _polynomial(rest, EXP) * rest * rest + rest + _number(x, 1.0)
    half_scale = tirx.reinterpret(
        dtype, (count.astype(integers) + tirx.const(126, integers)) << tirx.const(23, integers)
    )
    value = curve * half_scale * _number(x, 2.0)  # in two steps: 2^128 has no float32
    value = tirx.Select(x > _number(x, EXP_HIGH), _number(x, float("inf")), value)
    reduced = clipped - count * _number(x, LN2_HIGH) - count * _number(x, LN2_LOW)
    nearest = tirx.floor(clipped * _number(x, LOG2_E) + _number(x, 0.5))
    return tirx.Let(count, nearest, tirx.Let(rest, reduced, value))


def _rational(x: Any, bound: float, odd: Sequence[float], even: Sequence[float]) -> Any:
    """Return x P(x^2) / Q(x^2), with ``x`` clipped to where the function has not yet reached one."""
    dtype = str(x.ty.dtype)
    clipped, square = tirx.Var("clipped", dtype), tirx.Var("square", dtype)
    value = clipped * _polynomial(square, odd) / _polynomial(square, even)
    limited = tirx.max(tirx.min(x, _number(x, bound)), _number(x, -bound))
    return tirx.Let(clipped, limited, tirx.Let(square, clipped * clipped, value))


def _tanh(x: Any) -> Any:
    return _rational(x, TANH_BOUND, TANH_ODD, TANH_EVEN)


def _erf(x: Any) -> Any:
    return _rational(x, ERF_BOUND, ERF_ODD, ERF_EVEN)
