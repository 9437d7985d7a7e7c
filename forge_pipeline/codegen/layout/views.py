"""Values in another shape that is known only when a kernel runs: the same memory, not a copy.

As a kernel, such a reshape divides each element's position by extents that nothing is known about, four times or more.
LLVM took over a minute for one of them, and what it made was slow. TVM's virtual machine gives the operand another
shape instead. Where all extents are numbers, TVM's lowering fuses the copy, or finds by itself that it is none.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from tvm import relax, tirx
from tvm.ir import Op

RESHAPE = "relax.reshape"
OPERATORS = (RESHAPE, "relax.flatten")


def open_reshapes() -> Mapping[str, Callable[[Any, relax.Call], relax.Expr]]:
    """Return how ``LegalizeOps`` lowers operators that change no element's place: to views where extents are open."""
    return {name: _Lowering(Op.get(name).get_attr("FLegalize")) for name in OPERATORS}


class _Lowering:
    """Leaves a reshape as it is where an extent is no number; what TVM makes of it where all are."""

    def __init__(self, otherwise: Any) -> None:
        self._otherwise = otherwise

    def __call__(self, builder: Any, call: relax.Call) -> relax.Expr:
        operand, shape = call.args[0], call.ty.shape
        if not isinstance(shape, relax.ShapeExpr) or not (_is_open(operand.ty.shape) or _is_open(shape)):
            return self._otherwise(builder, call)
        return call if call.op.name == RESHAPE else relax.op.reshape(operand, shape)


def _is_open(shape: Any) -> bool:
    """Return whether a shape has an extent that is no number."""
    return isinstance(shape, relax.ShapeExpr) and any(not isinstance(item, tirx.IntImm) for item in shape.values)
