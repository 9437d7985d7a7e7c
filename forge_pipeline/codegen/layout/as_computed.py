"""Arithmetic and conditions as they are computed: what holds of numbers and not of floats is kept from TVM.

Its simplifier has ``(x + c) - c`` as ``x``, though a large ``c`` rounds it; ``x - x`` and ``0 * x`` as zero; ``x == x``
as true, which is how programs ask for what is no number; ``not (x < y)`` as ``x >= y``, and either of the two as true.
What does the same in another form, it leaves as it is, and LLVM, which knows floats, makes the same instructions of it.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping
from typing import Any

from tvm import relax, te, tirx, topi
from tvm.ir import GenericConst, Op

from forge_pipeline.codegen.tir.broadcasting import broadcast, places

Element = Callable[[Any, Any], Any]
"""From an element of each operand to the result's."""

Lowered = Callable[[Any, relax.Call], relax.Expr]
"""How ``LegalizeOps`` lowers an operator."""


def as_computed() -> Mapping[str, Lowered]:
    """Return how arithmetic and conditions are lowered so that TVM concludes nothing that is not so."""
    return {
        "relax.add": _wrapping("add", operator.add, _lowered("add")),
        "relax.subtract": _wrapping("subtract", operator.sub, _difference),
        "relax.multiply": _wrapping("multiply", operator.mul, _product),
        "relax.equal": _of_values("equal", _is_float, lambda a, b: tirx.And(a <= b, b <= a)),
        "relax.logical_and": _of_values("logical_and", _is_flag, tirx.bitwise_and),
        "relax.logical_or": _of_values("logical_or", _is_flag, tirx.bitwise_or),
        "relax.logical_not": _negation,
    }


def _wrapping(name: str, element: Element, other: Lowered) -> Lowered:
    """Lower 32 bits without a sign in 64, of which 32 are kept; ``other`` lowers all other types.

    TVM tells LLVM that they never overflow, which makes ``0 - x`` zero. Random numbers and hashes are made of such.
    """
    wide = "uint64" if name == "multiply" else "int64"
    kernel = _kernel(name, lambda a, b: tirx.Cast("uint32", element(tirx.Cast(wide, a), tirx.Cast(wide, b))))

    def lower(builder: Any, call: relax.Call) -> relax.Expr:
        is_one = str(call.args[0].ty.dtype) == "uint32"
        return builder.call_te(kernel, *call.args) if is_one else other(builder, call)

    return lower


def _of_values(name: str, fits: Callable[[relax.Expr], bool], element: Element) -> Lowered:
    """Lower an operator of two values that fit, neither of them constant; TVM lowers all others."""
    kernel, plain = _kernel(name, element), _lowered(name)

    def lower(builder: Any, call: relax.Call) -> relax.Expr:
        is_one = fits(call.args[0]) and not any(isinstance(operand, GenericConst) for operand in call.args)
        return builder.call_te(kernel, *call.args) if is_one else plain(builder, call)

    return lower


def _difference(builder: Any, call: relax.Call) -> relax.Expr:
    """A difference as the sum with what has the other sign; TVM concludes nothing of sums of floats."""
    first, second = call.args
    if not _is_float(first):
        return _lowered("subtract")(builder, call)
    if _is_number(second):
        added = relax.const(-float(second.value.numpy()), str(second.ty.dtype))
        return _lowered("add")(builder, relax.Call(Op.get("relax.add"), [first, added], ret_ty=call.ty))
    minus = tirx.const(-1, str(first.ty.dtype))
    return builder.call_te(_kernel("subtract", lambda a, b: a + b * minus), first, second)


def _product(builder: Any, call: relax.Call) -> relax.Expr:
    """A product; by zero as the difference of a value and itself, since infinity times zero is no number."""
    factors = list(call.args)
    zeros = [place for place, factor in enumerate(factors) if _is_float(factor) and _is_number(factor, 0.0)]
    if not zeros or isinstance(factors[1 - zeros[0]], GenericConst):
        return _lowered("multiply")(builder, call)
    other, minus = factors[1 - zeros[0]], tirx.const(-1, str(call.ty.dtype))
    return builder.call_te(_kernel("multiply", lambda a, b: a + b * minus), other, other)


def _is_number(operand: relax.Expr, wanted: float | None = None) -> bool:
    """Return whether an operand is a constant of one number without axes, and that the one that is wanted."""
    if not isinstance(operand, GenericConst) or operand.ty.ndim != 0:
        return False
    return wanted is None or float(operand.value.numpy()) == wanted


def _is_float(operand: relax.Expr) -> bool:
    return "float" in str(operand.ty.dtype)


def _is_flag(operand: relax.Expr) -> bool:
    return str(operand.ty.dtype) == "bool"


def _lowered(name: str) -> Lowered:
    """Return how TVM lowers an operator."""
    found: Lowered = Op.get(f"relax.{name}").get_attr("FLegalize")
    return found


def _kernel(name: str, element: Element) -> Callable[[te.Tensor, te.Tensor], te.Tensor]:
    def kernel(one: te.Tensor, other: te.Tensor) -> te.Tensor:
        def at_place(*at: Any) -> Any:
            return element(*(operand(*places(at, operand.shape)) for operand in (one, other)))

        return te.compute(broadcast(one.shape, other.shape), at_place, tag=topi.tag.BROADCAST)

    kernel.__name__ = name
    return kernel


def _negation(builder: Any, call: relax.Call) -> relax.Expr:
    def logical_not(flag: te.Tensor) -> te.Tensor:
        def element(*at: Any) -> Any:
            return tirx.Cast("bool", tirx.Cast("int8", flag(*at)) ^ tirx.const(1, "int8"))

        return te.compute(flag.shape, element, tag=topi.tag.ELEMWISE)

    return builder.call_te(logical_not, call.args[0])
