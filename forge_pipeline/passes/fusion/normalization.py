"""Normalizations spelt out in elementary operators, recognised where the operator set has them as one."""

from __future__ import annotations

from typing import Any

from onnx import NodeProto

from forge_pipeline.passes.contract import NoOptions, Tolerance, verified
from forge_pipeline.passes.fusion.activations import FLOATS
from forge_pipeline.passes.graph import Graph
from forge_pipeline.passes.nodes import attribute
from forge_pipeline.passes.rewrite import Builder, Match, Operation, RewriteRulePass


@verified(Tolerance())
class FuseLayerNorm(RewriteRulePass[NoOptions]):
    """Mean, variance, quotient, scale and shift over the last axis -> LayerNormalization, operator set 17.

    Source: Ba et al., arXiv 1607.06450.
    """

    def call(self, graph: Graph) -> int:
        """Fuse to operators of the declared set only."""
        return super().call(graph) if graph.opset() >= 17 else 0

    def pattern(self, op: Any, x: Any, scale: Any, shift: Any, eps: Any, axes: Any) -> tuple[Operation, ...]:
        """The square as Pow or Mul; the quotient as Div or as Mul by a Reciprocal; axes as attribute or as input."""
        found = []
        for extra in ((), (axes,)):
            centred = op.Sub(x, op.ReduceMean(x, *extra, _label="mean"))
            for square in (op.Pow(centred, 2.0), op.Mul(centred, centred)):
                deviation = op.Sqrt(op.Add(op.ReduceMean(square, *extra, _label="variance"), eps))
                for quotient in (op.Div(centred, deviation), op.Mul(centred, op.Reciprocal(deviation))):
                    found.append(op.Add(op.Mul(quotient, scale), shift))
        return tuple(found)

    def check(self, graph: Graph, x: str, scale: str, shift: str, eps: str, match: Match) -> bool:  # type: ignore[override]
        """Both means over the last axis, and one scale and shift for each of its elements."""
        if graph.elem_type(x) not in FLOATS or not _over_last_axis(graph, x, match, "mean", "variance"):
            return False
        size = (graph.shape(x) or (None,))[-1]
        return _scalar(graph, eps) is not None and graph.shape(scale) == (size,) == graph.shape(shift)

    def rewrite(self, op: Builder, x: str, scale: str, shift: str, eps: str) -> str:  # type: ignore[override]
        """One operator, in the precision that the spelt out form has."""
        epsilon = _scalar(op.graph, eps)
        return str(op.LayerNormalization(x, scale, shift, axis=-1, epsilon=epsilon))


@verified(Tolerance())
class FuseRMSNorm(RewriteRulePass[NoOptions]):
    """``x / sqrt(mean(x^2) + eps) * scale -> RMSNormalization``, operator set 23.

    Source: Zhang and Sennrich, arXiv 1910.07467.
    """

    def call(self, graph: Graph) -> int:
        """Fuse to operators of the declared set only."""
        return super().call(graph) if graph.opset() >= 23 else 0

    def pattern(self, op: Any, x: Any, scale: Any, eps: Any, axes: Any) -> tuple[Operation, ...]:
        """The square as Pow or Mul; the quotient as Div or as Mul by a Reciprocal."""
        found = []
        for square in (op.Pow(x, 2.0), op.Mul(x, x)):
            deviation = op.Sqrt(op.Add(op.ReduceMean(square, axes, _label="mean"), eps))
            for quotient in (op.Div(x, deviation), op.Mul(x, op.Reciprocal(deviation))):
                found.append(op.Mul(quotient, scale))
        return tuple(found)

    def check(self, graph: Graph, x: str, scale: str, eps: str, match: Match) -> bool:  # type: ignore[override]
        """The mean over the last axis, and one scale for each of its elements."""
        size = (graph.shape(x) or (None,))[-1]
        last = graph.elem_type(x) in FLOATS and _over_last_axis(graph, x, match, "mean")
        return last and _scalar(graph, eps) is not None and graph.shape(scale) == (size,)

    def rewrite(self, op: Builder, x: str, scale: str, eps: str) -> str:  # type: ignore[override]
        """One operator."""
        return str(op.RMSNormalization(x, scale, axis=-1, epsilon=_scalar(op.graph, eps)))


def _over_last_axis(graph: Graph, x: str, match: Match, *labels: str) -> bool:
    rank = graph.rank(x)
    return rank is not None and all(_is_last(graph, match.labelled[label], rank) for label in labels)


def _is_last(graph: Graph, node: NodeProto, rank: int) -> bool:
    axes = attribute(node, "axes")
    if len(node.input) > 1 and node.input[1]:
        array = graph.array(node.input[1])
        axes = None if array is None else array.reshape(-1).tolist()
    return bool(attribute(node, "keepdims", 1)) and axes in ([-1], [rank - 1])


def _scalar(graph: Graph, name: str) -> float | None:
    array = graph.array(name)
    return float(array.reshape(())) if array is not None and array.size == 1 else None
