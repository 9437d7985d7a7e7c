"""sin, cos, pow and fmod of float32 as vectors of float64: to half a unit in the last place, and a little more.

sin and cos are of what is left of x when it is divided by half of pi (Cody and Waite, Software Manual for the
Elementary Functions, 1980): in two parts, which float64 multiplies by the quotient without an error that counts. Of a
vector with a number from 2^20 on, the quotient comes from 203 bits of 2 / pi, of which what gives whole turns is left
out (Payne and Hanek, Radian reduction for trigonometric functions, 1983): its product with 29 of these bits is exact.

pow is the exponential of the exponent times the logarithm, to base 2. The logarithm of a mantissa m is a polynomial of
the square of (m - 1) / (m + 1). All polynomials are minimax fits (Remez). Special cases are IEEE 754's, 9.2.1.
"""

from __future__ import annotations

from typing import Any

from tvm import tirx

from forge_pipeline.codegen.tir.math.polynomials import named, number, parted, polynomial

ROUNDS = 1.5 * 2.0**52
"""A number that has no fraction, and whose sum with one that does is rounded: the last bits are a whole number."""
MANTISSA, BIAS = 52, 1023

QUOTIENT = 0.6366197723675814
"""2 / pi."""
PART_HIGH, PART_LOW = 1.57079631090164184570, 1.58932547735281966916e-08
"""Half of pi: 25 bits, and the rest."""
LARGE = 0x49800000
"""The bits of 2^20, from which on numbers are reduced with all bits of 2 / pi that there are."""
CHUNK = 29
CHUNKS = (341782637, 423170132, 352195499, 488592205, 461485765, 90590992, 478285810)
"""The bits of 2 / pi, 29 in each."""
SIN = (2.7182169232111265e-06, -0.0001983932502197057, 0.00833332935578633, -0.16666666641371405)
COS = (-2.7209359199227157e-07, 2.4799509508280436e-05, -0.001388888371419175, 0.0416666666223808)

MOST = 200.0
"""Powers of two from which on float32 has infinities, or zeros."""
LOG2 = (
    0.28292981912533227, 0.31990366513818147, 0.4122093008291911, 0.577077941896164, 0.9617966941149182,
    2.885390081777849,
)  # fmt: skip
EXP2 = (
    1.531658846632529e-05, 0.00015469864337287075, 0.001333342210572005, 0.009618025189167942, 0.05550410976766255,
    0.24022651216698993, 0.6931471805348256, 0.9999999999592251,
)  # fmt: skip


def sin(x: Any) -> Any:
    """Return the sine."""
    return _turned(x, 0)


def cos(x: Any) -> Any:
    """Return the cosine."""
    return _turned(x, 1)


def _turned(x: Any, quarter: int) -> Any:
    """Return the sine of ``x`` and so many quarter turns; that of one number does not hang on those beside it."""
    size = tirx.reinterpret(_like(x, "int32"), x) & tirx.const(0x7FFFFFFF, _like(x, "int32"))
    is_large = size >= tirx.const(LARGE, _like(x, "int32"))
    is_vector, any_large = _is_vector(x), _most(size) >= LARGE

    def use(wide: Any) -> Any:
        small, large = _reduced(wide, quarter), _reduced_exactly(wide, quarter)
        return tirx.if_then_else(any_large, tirx.Select(is_large, large, small) if is_vector else large, small)

    return named("wide", x.astype(_like(x, "float64")), use)


def _reduced(x: Any, quarter: int) -> Any:
    def use(rounded: Any) -> Any:
        count = _as_it_is(rounded) - number(x, ROUNDS)
        rest = x - count * number(x, PART_HIGH) - count * number(x, PART_LOW)
        return named("rest", rest, lambda rest: _curve(rest, rounded, quarter))

    return named("rounded", x * number(x, QUOTIENT) + number(x, ROUNDS), use)


def _reduced_exactly(x: Any, quarter: int) -> Any:
    """Add up the fractions of the quotient, and the whole parts of them, by chunks of 2 / pi.

    The lowest bit of a product with the first chunks may be above a turn: nothing is left of such a product.
    """
    whole, left, lets = number(x, 0.0), number(x, 0.0), list[tuple[Any, Any]]()

    def let(name: str, value: Any) -> Any:
        variable = tirx.Var(name, str(value.ty.dtype))
        lets.append((variable, value))
        return variable

    for place, chunk in enumerate(CHUNKS):
        product = let("product", x * number(x, chunk * 2.0 ** (-CHUNK * (place + 1))))
        turn = let("turn", product - number(x, 4.0) * _floor(product * number(x, 0.25) + number(x, 0.5)))
        near = let("near", _floor(turn + number(x, 0.5)))
        both = let("both", left + (turn - near))
        again = let("again", _floor(both + number(x, 0.5)))
        whole, left = let("whole", whole + near + again), let("left", both - again)
    rounded = let("rounded", whole + number(x, ROUNDS))
    rest = let("rest", left * number(x, PART_HIGH) + left * number(x, PART_LOW))
    value = _curve(rest, rounded, quarter)
    for variable, content in reversed(lets):
        value = tirx.Let(variable, content, value)
    return value


def _curve(rest: Any, rounded: Any, quarter: int) -> Any:
    """Return the sine of ``rest`` and of quarter turns: as the last bits of ``rounded`` say, and ``quarter`` more."""

    def use(square: Any) -> Any:
        turns = tirx.reinterpret(_like(rest, "int64"), rounded) + tirx.const(quarter, _like(rest, "int64"))
        one, two = (tirx.const(bit, _like(rest, "int64")) for bit in (1, 2))
        sine = rest * (number(rest, 1.0) + square * polynomial(square, SIN))
        cosine = number(rest, 1.0) - number(rest, 0.5) * square + square * square * polynomial(square, COS)
        value = tirx.Select((turns & one) == one, cosine, sine)
        sign = (turns & two) << tirx.const(62, _like(rest, "int64"))
        signed = tirx.reinterpret(_like(rest, "float64"), tirx.reinterpret(_like(rest, "int64"), value) ^ sign)
        return signed.astype(_like(rest, "float32"))

    return named("square", rest * rest, use)


def pow(x: Any, y: Any) -> Any:  # noqa: A001 - it is the operator's name
    """Return ``x`` to the power of ``y``."""
    zero, one, infinite = number(x, 0.0), number(x, 1.0), number(x, float("inf"))
    size = tirx.abs(x)

    def use(power: Any) -> Any:
        is_whole = _floor(y) == y
        half = y * number(y, 0.5)
        is_odd = tirx.all(is_whole, _floor(half) != half)
        is_below = tirx.reinterpret(_like(x, "int32"), x) < tirx.const(0, _like(x, "int32"))
        value = tirx.Select(tirx.all(is_below, is_odd), -power, power)
        value = tirx.Select(
            tirx.all(x < zero, tirx.all(size < infinite, tirx.Not(is_whole))), number(x, float("nan")), value
        )
        is_one = tirx.any(x == one, tirx.all(size == one, tirx.abs(y) == infinite))
        return tirx.Select(tirx.any(y == zero, is_one), one, value)

    logarithm = _log2(size)
    exponent = _opaque("fmuladd", logarithm, y.astype(_like(y, "float64")), number(logarithm, -0.0))
    return named("power", named("exponent", exponent, _exp2), use)


def fmod(x: Any, y: Any) -> Any:
    """Return what is left of ``x`` by ``y``, exactly; of a vector with a large quotient, as the C library has it.

    A product of 28 bits and 24 is exact in float64, and so is what is left by it. A quotient below a whole number is so
    by 2^-52 of it at least: it is not rounded up to it.
    """
    divisor = y.astype(_like(y, "float64"))
    infinite, one, none = number(y, float("inf")), tirx.const(1, _like(x, "int32")), tirx.const(0, _like(x, "int32"))

    def use(wide: Any, quotient: Any) -> Any:
        is_small = tirx.all(tirx.abs(quotient) < number(quotient, 2.0**28), tirx.abs(y) < infinite)
        far = _most(tirx.Select(is_small, none, one))
        rest = (wide - tirx.trunc(quotient) * divisor).astype(_like(x, "float32"))
        signed = tirx.call_llvm_pure_intrin(_like(x, "float32"), "llvm.copysign", rest, x)
        return tirx.if_then_else(far != 0, tirx.truncmod(x, y), signed)

    return named(
        "wide", x.astype(_like(x, "float64")),
        lambda wide: named("quotient", wide / divisor, lambda quotient: use(wide, quotient)),
    )  # fmt: skip


def _log2(x: Any) -> Any:
    """Return the logarithm, in float64, of a number that is not below zero."""

    def use(mantissa: Any, count: Any) -> Any:
        mantissa, count = (part.astype(_like(x, "float64")) for part in (mantissa, count))
        one = number(count, 1.0)
        curve = named(
            "part", (mantissa - one) / (mantissa + one), lambda part: part * named(
                "square", part * part, lambda square: polynomial(square, LOG2))
        )  # fmt: skip
        return count + curve

    value = parted(x, use)
    value = tirx.Select(x < number(x, float("inf")), value, x.astype(_like(x, "float64")))  # infinity, and NaN
    return tirx.Select(x == number(x, 0.0), number(value, -float("inf")), value)


def _exp2(x: Any) -> Any:
    """Return the power of two in float32 of a number in float64."""
    least, most = number(x, -MOST), number(x, MOST)
    bounded = tirx.Select(x > most, most, tirx.Select(x < least, least, x))

    def use(rounded: Any, count: Any, rest: Any) -> Any:
        bits = tirx.reinterpret(_like(x, "int64"), rounded) << tirx.const(MANTISSA, _like(x, "int64"))
        power = tirx.reinterpret(_like(x, "float64"), bits)
        return (polynomial(rest, EXP2) * power).astype(_like(x, "float32"))

    inside, rounded, count, rest = (tirx.Var(name, str(x.ty.dtype)) for name in ("inside", "rounded", "count", "rest"))
    value = tirx.Let(rest, inside - count, use(rounded, count, rest))
    value = tirx.Let(count, _as_it_is(rounded) - number(x, ROUNDS + BIAS), value)
    return tirx.Let(inside, bounded, tirx.Let(rounded, inside + number(x, ROUNDS + BIAS), value))


def _is_vector(x: Any) -> bool:
    return "x" in str(x.ty.dtype)


def _most(x: Any) -> Any:
    """Return the largest of the int32 of a vector, of which none is below zero; one that is by itself as it is."""
    return tirx.call_llvm_pure_intrin("int32", "llvm.vector.reduce.umax", x) if _is_vector(x) else x


def _as_it_is(x: Any) -> Any:
    """Return a number in a form of which TVM does not know what it is a sum of: it takes that for what it rounds."""
    return tirx.reinterpret(_like(x, "float64"), tirx.reinterpret(_like(x, "int64"), x))


def _floor(x: Any) -> Any:
    return _opaque("floor", x)


def _opaque(name: str, *arguments: Any) -> Any:
    """Return a call that TVM leaves as it is; to simplify others, it puts values in place of variables, and grows."""
    return tirx.call_llvm_intrin(str(arguments[0].ty.dtype), f"llvm.{name}", *arguments)


def _like(x: Any, kind: str) -> str:
    """Return a type with as many lanes as that of ``x``."""
    _, times, lanes = str(x.ty.dtype).partition("x")
    return kind + times + lanes
