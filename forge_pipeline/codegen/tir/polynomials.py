"""Numbers and polynomials in the type of a tensor expression, of one number or of a vector."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tvm import tirx


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
