"""exp for what becomes bfloat16: within 1e-4 of the value, where that type's step is 4e-3, in half the instructions."""

from __future__ import annotations

from functools import cache
from typing import Any, Final

from tvm import tirx
from tvm.tirx import register_intrin_lowering

from forge_pipeline.codegen.tir.bfloat16_pairs import register
from forge_pipeline.codegen.tir.math.polynomials import MANTISSA, named, number, polynomial
from forge_pipeline.codegen.tir.math.vector_math import BIAS, LOG2_E, ROUNDS

EXP: Final = "tirx.forge_exp_of_difference"

POWER = (0.05517166, 0.24261114, 0.69326099, 0.99992807)
"""2^r for r from -0.5 to 0.5, to 7.5e-5 of it: least squares, weighted anew by the errors until these are level."""

LOWEST = -126.0
"""The power of two that is taken for all below it, and is zero."""

register(EXP)


@cache
def install() -> None:
    """Make TVM's generation of machine code know the operator, in this process, from now on."""
    register_intrin_lowering(EXP, target="llvm", f=lambda call: _exp_of_difference(*call.args))


def exp_of_difference(x: Any, most: Any) -> Any:
    """Describe exp(x - most) of float32, where ``x`` is no greater; zero below the smallest normal number."""
    return tirx.call_intrin("float32", EXP, x, most)


def _exp_of_difference(x: Any, most: Any) -> Any:
    kind = str(x.ty.dtype)
    integers = kind.replace("float", "int")
    shift = number(x, ROUNDS + BIAS - 1)  # the last bits are the exponent, of half the power as in `vector_math`
    curve = [2 * coefficient for coefficient in POWER]

    def power(scaled: Any, rounded: Any) -> Any:
        whole = tirx.reinterpret(kind, tirx.reinterpret(integers, rounded) << tirx.const(MANTISSA, integers))
        return named("rest", scaled - (rounded - shift), lambda rest: polynomial(rest, curve) * whole)

    def bounded(scaled: Any) -> Any:
        least = number(x, LOWEST)
        return tirx.Select(least > scaled, least, scaled)  # of no number, itself: no comparison with it holds

    return named(
        "scaled",
        named("product", x * number(x, LOG2_E) - most * number(x, LOG2_E), bounded),
        lambda scaled: named("rounded", scaled + shift, lambda rounded: power(scaled, rounded)),
    )
