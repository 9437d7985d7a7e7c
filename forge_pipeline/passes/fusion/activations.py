"""Activations spelt out in elementary operators, recognised where the operator set has them as one."""

from __future__ import annotations

import math
from typing import Any, ClassVar

from forge_pipeline.passes.contract import NoOptions, Tolerance, verified
from forge_pipeline.passes.graph import Graph
from forge_pipeline.passes.rewrite import Builder, Operation, RewriteRulePass

FLOATS = (1, 10, 11, 16)


class _Activation(RewriteRulePass[NoOptions]):
    """A unary float activation that is an operator from operator set ``since`` on."""

    since: ClassVar[int]

    def call(self, graph: Graph) -> int:
        """Fuse to operators of the declared set only."""
        return super().call(graph) if graph.opset() >= self.since else 0

    def check(self, graph: Graph, x: str) -> bool:  # type: ignore[override]
        """Floats only: integers have other rules."""
        return graph.elem_type(x) in FLOATS


@verified(Tolerance())
class FuseGelu(_Activation):
    """``0.5 x (1 + erf(x / sqrt 2)) -> Gelu``. Source: Hendrycks and Gimpel, arXiv 1606.08415."""

    since = 20

    def pattern(self, op: Any, x: Any) -> tuple[Operation, ...]:
        """The orders of factors that PyTorch, Hugging Face and TensorFlow write."""
        found = []
        for inside in (op.Div(x, math.sqrt(2.0)), op.Mul(x, math.sqrt(0.5))):
            cdf = op.Add(op.Erf(inside), 1.0)
            found += [op.Mul(op.Mul(x, cdf), 0.5), op.Mul(op.Mul(x, 0.5), cdf), op.Mul(x, op.Mul(cdf, 0.5))]
        return tuple(found)

    def rewrite(self, op: Builder, x: str) -> str:  # type: ignore[override]
        """One operator."""
        return str(op.Gelu(x))


@verified(Tolerance())
class FuseSilu(_Activation):
    """``x sigmoid(x) -> Swish``. Source: Elfwing et al., arXiv 1702.03118."""

    since = 24

    def pattern(self, op: Any, x: Any) -> Operation:
        """As every exporter writes it."""
        return op.Mul(x, op.Sigmoid(x))  # type: ignore[no-any-return]

    def rewrite(self, op: Builder, x: str) -> str:  # type: ignore[override]
        """One operator; its factor alpha is 1 by default."""
        return str(op.Swish(x))


@verified(Tolerance())
class FuseHardSwish(_Activation):
    """``x hardsigmoid(x)`` or ``x relu6(x + 3) / 6 -> HardSwish``. Source: Howard et al., arXiv 1905.02244."""

    since = 14

    def pattern(self, op: Any, x: Any) -> tuple[Operation, ...]:
        """With HardSigmoid, or spelt out as TensorFlow and older PyTorch do."""
        relu6 = op.Clip(op.Add(x, 3.0), 0.0, 6.0)
        return (
            op.Mul(x, op.HardSigmoid(x, alpha=1 / 6)),
            op.Div(op.Mul(x, relu6), 6.0),
            op.Mul(op.Mul(x, relu6), 1 / 6),
            op.Mul(x, op.Div(relu6, 6.0)),
            op.Mul(x, op.Mul(relu6, 1 / 6)),
        )

    def rewrite(self, op: Builder, x: str) -> str:  # type: ignore[override]
        """One operator."""
        return str(op.HardSwish(x))
