"""Bounds of floats that keep what is no number, as ONNX Runtime's do.

A maximum is ``a > b ? a : b``, on x86 one instruction, which gives its second operand where either is no number. TVM
has the bound second: Relu of NaN was 0, and a fault could not be seen in the result. The bound first costs nothing. Of
two values, one is tested, which names it three times: in a row of bounds that is what joins the row, as the expression
of the row itself would grow threefold with each.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

from tvm import relax, te, tirx, topi
from tvm.ir import GenericConst, GlobalVar, Op

NAMES: Final = ("maximum", "minimum")
"""TVM's operators, and how the names of their kernels begin."""


def bounds() -> Mapping[str, Callable[[Any, relax.Call], relax.Expr]]:
    """Return how ``LegalizeOps`` lowers Relu, maximum and minimum."""
    return {
        "relax.nn.relu": _relu,
        **{f"relax.{name}": _Bound(f"relax.{name}", getattr(topi, name)) for name in NAMES},
    }


def _relu(builder: Any, call: relax.Call) -> relax.Expr:
    def relu(value: te.Tensor) -> te.Tensor:
        zero = tirx.const(0, value.dtype)
        return te.compute(value.shape, lambda *at: tirx.max(zero, value(*at)), tag=topi.tag.ELEMWISE)

    return builder.call_te(relu, call.args[0])


class _Bound:
    """Lowers a maximum or a minimum."""

    def __init__(self, name: str, of_two: Callable[[te.Tensor, te.Tensor], te.Tensor]) -> None:
        self._of_two, self._plain = of_two, Op.get(name).get_attr("FLegalize")

    def __call__(self, builder: Any, call: relax.Call) -> relax.Expr:
        first, second = call.args
        if isinstance(second, GenericConst) or _is_bounded(builder, first) > _is_bounded(builder, second):
            first, second = second, first
        if isinstance(first, GenericConst) or "float" not in str(call.ty.dtype):
            return self._plain(builder, relax.Call(call.op, [first, second], ret_ty=call.ty))

        def bound(one: te.Tensor, other: te.Tensor) -> te.Tensor:
            asked = topi.cast(one, "float32") if str(one.dtype) == "bfloat16" else one  # TVM asks no bfloat16
            return topi.where(topi.isnan(asked), one, self._of_two(one, other))

        bound.__name__ = self._of_two.__name__
        return builder.call_te(bound, first, second)


def _is_bounded(builder: Any, operand: Any) -> bool:
    """Return whether an operand is a maximum or a minimum of others itself."""
    value = builder.lookup_binding(operand) if isinstance(operand, relax.Var) else None
    kernel = value.args[0] if isinstance(value, relax.Call) and len(value.args) else None
    return isinstance(kernel, GlobalVar) and kernel.name_hint.startswith(NAMES)
