"""Normalization of groups of channels, spelt out in elementary operators for generators that have no kernel of theirs.

TVM's own takes the square of the mean from the mean of the squares, which cancels out where the mean is large.
"""

from __future__ import annotations

from typing import Any

import tvm
from tvm import relax
from tvm.relax import op

OPERATOR = "relax.nn.group_norm"


@tvm.transform.module_pass(opt_level=0)
class SpellOutGroupNorm:
    """Mean, differences, and the mean of their squares, of each group."""

    def transform_module(self, module: tvm.IRModule, _: tvm.transform.PassContext) -> tvm.IRModule:
        """Return ``module`` without such normalization; itself where there is none."""
        if OPERATOR not in {name for _, function in module.functions_items() for name in _operators(function)}:
            return module
        spelling = _Spelling(module)
        for variable, function in module.functions_items():
            if isinstance(function, relax.Function):
                spelling.builder_.update_func(variable, spelling.visit_expr(function))
        return spelling.builder_.get()


def _operators(function: Any) -> set[str]:
    """Return the names of the operators that a function calls."""
    found: set[str] = set()
    if isinstance(function, relax.Function):
        relax.analysis.post_order_visit(
            function, lambda part: found.add(str(getattr(getattr(part, "op", None), "name", "")))
        )
    return found


@relax.expr_functor.mutator
class _Spelling(relax.PyExprMutator):  # type: ignore[misc]
    def visit_call_(self, call: relax.Call) -> relax.Expr:
        call = self.visit_expr_post_order(call)
        if getattr(call.op, "name", "") != OPERATOR:
            return call
        image, gamma, beta = call.args
        emit = self.builder_.emit
        batch, channels, *space = image.ty.shape.values
        groups = int(call.attrs.num_groups)
        axes, wide = list(range(2, 3 + len(space))), (1, channels, *(1 for _ in space))
        split: Any = emit(op.reshape(image, (batch, groups, int(channels) // groups, *space)))
        away = emit(op.subtract(split, emit(op.mean(split, axes, True))))
        variance = emit(op.mean(emit(op.multiply(away, away)), axes, True))
        deviation = emit(op.sqrt(emit(op.add(variance, relax.const(float(call.attrs.epsilon), str(image.ty.dtype))))))
        found = emit(op.reshape(emit(op.divide(away, deviation)), image.ty.shape))
        scaled = emit(op.multiply(found, emit(op.reshape(gamma, wide))))
        return op.add(scaled, emit(op.reshape(beta, wide)))
