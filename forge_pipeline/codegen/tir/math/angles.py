"""asin, acos and atan of float32 as vectors: Cephes' (Moshier, asinf.c and atanf.c), to a few units in the last place.

Where a sine is above one half, its angle comes from that of half of what is left of a quarter turn. A tangent above
that of an eighth, or of three eighths, of half a turn is turned back by a quarter of it, or by half.
"""

from __future__ import annotations

import math
from typing import Any

from tvm import tirx

from forge_pipeline.codegen.tir.math.polynomials import named, number, polynomial

ASIN = (4.2163199048e-2, 2.4181311049e-2, 4.5470025998e-2, 7.4953002686e-2, 1.6666752422e-1)
ATAN = (8.05374449538e-2, -1.38776856032e-1, 1.99777106478e-1, -3.33329491539e-1)
EIGHTH, THREE_EIGHTHS = math.sqrt(2) - 1, math.sqrt(2) + 1
"""The tangents of these parts of half a turn."""


def asin(x: Any) -> Any:
    """Return the angle of a sine; NaN above one."""
    quarter = number(x, math.pi / 2)

    def use(angle: Any) -> Any:
        return with_sign(tirx.Select(_is_steep(x), quarter - angle - angle, angle), x)

    return _of_sine(x, use)


def acos(x: Any) -> Any:
    """Return the angle of a cosine; NaN above one."""
    zero = number(x, 0.0)

    def use(angle: Any) -> Any:
        steep = tirx.Select(x < zero, number(x, math.pi) - angle - angle, angle + angle)
        return tirx.Select(_is_steep(x), steep, number(x, math.pi / 2) - with_sign(angle, x))

    return _of_sine(x, use)


def atan(x: Any) -> Any:
    """Return the angle of a tangent."""
    size, one = tirx.abs(x), number(x, 1.0)
    is_steep, is_flat = size > number(x, THREE_EIGHTHS), size < number(x, EIGHTH)
    turned = tirx.Select(is_steep, -one / size, tirx.Select(is_flat, size, (size - one) / (size + one)))
    begin = tirx.Select(is_steep, number(x, math.pi / 2), tirx.Select(is_flat, number(x, 0.0), number(x, math.pi / 4)))

    def use(rest: Any) -> Any:
        return named("square", rest * rest, lambda square: polynomial(square, ATAN) * square * rest + rest)

    return with_sign(begin + named("rest", turned, use), x)


def with_sign(size: Any, x: Any) -> Any:
    """Return ``size``, which is not below zero, with the sign of ``x``."""
    return tirx.call_llvm_pure_intrin(str(x.ty.dtype), "llvm.copysign", size, x)


def _is_steep(x: Any) -> Any:
    return tirx.abs(x) > number(x, 0.5)


def _of_sine(x: Any, use: Any) -> Any:
    """Return ``use`` of the angle of a sine's size, or of half of what a steep one lacks of a quarter turn."""
    size, half = tirx.abs(x), number(x, 0.5)
    square = tirx.Select(_is_steep(x), half * (number(x, 1.0) - size), size * size)

    def angle(square: Any) -> Any:
        sine = tirx.Select(_is_steep(x), tirx.sqrt(square), size)
        return named("sine", sine, lambda sine: named("angle", polynomial(square, ASIN) * square * sine + sine, use))

    return named("square", square, angle)
