"""Numbers, polynomials and the parts of a float32 in the type of a tensor expression, of one number or of a vector."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tvm import tirx

MANTISSA, SMALLEST_NORMAL = 23, 1.17549435e-38
"""Of float32: the bits of a mantissa, and the smallest number that has all of them."""
ROOT_OF_HALF = 0x3F3504F3
"""The bits of the square root of one half, from which on mantissas are taken."""


def number(x: Any, value: float) -> Any:
    """Return a number in the type of ``x``."""
    return tirx.const(value, str(x.ty.dtype))


def polynomial(x: Any, coefficients: Sequence[float]) -> Any:
    """Return the polynomial of ``x`` by Horner's rule, the highest coefficient first."""
    total = number(x, coefficients[0])
    for coefficient in coefficients[1:]:
        total = total * x + number(x, coefficient)
    return total


def named(name: str, value: Any, use: Any) -> Any:
    """Return ``use(variable)``, where the variable is ``value``, computed once."""
    variable = tirx.Var(name, str(value.ty.dtype))
    return tirx.Let(variable, value, use(variable))


def parted(x: Any, use: Any) -> Any:
    """Return ``use(m, n)`` of a float32 above zero that is m times 2^n, m from the root of one half to that of two."""
    dtype = str(x.ty.dtype)
    integers = dtype.replace("float", "int")

    def whole(value: int) -> Any:
        return tirx.const(value, integers)

    def parts(bits: Any) -> Any:
        mantissa = tirx.reinterpret(dtype, (bits & whole((1 << MANTISSA) - 1)) + whole(ROOT_OF_HALF))
        return use(mantissa, (bits >> whole(MANTISSA)).astype(dtype) + offset)

    is_small = x < number(x, SMALLEST_NORMAL)
    scaled = tirx.Select(is_small, x * number(x, 2.0**MANTISSA), x)
    offset = tirx.Select(is_small, number(x, -float(MANTISSA)), number(x, 0.0))
    return named("bits", tirx.reinterpret(integers, scaled) - whole(ROOT_OF_HALF), parts)
