"""Sums of two quantized values, each with its own scale: the residual connections of a network."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from forge_pipeline.codegen.graph import Graph, Value, shape_of
from forge_pipeline.codegen.integer import Affine, Clip, Dequantized, stored

if TYPE_CHECKING:
    from tvm import relax, te


@dataclass(frozen=True, slots=True, kw_only=True)
class Sum:
    """A sum that waits to be stored: a ``Waiting`` result."""

    left: Dequantized
    right: Dequantized
    rank: int
    clip: Clip

    def emit(self, graph: Graph) -> Value:
        """Emit it in float."""
        return self._emit(graph, None)

    def quantized(self, graph: Graph, affine: Affine) -> Value:
        """Emit it in uint8."""
        return self._emit(graph, affine)

    def _emit(self, graph: Graph, affine: Affine | None) -> Value:
        sources = [self.left.source, self.right.source]
        in_blocks = self.rank == 4 and any(graph.is_blocked(source) for source in sources)
        tensors = [graph.blocked(source) if in_blocks else graph.plain(source) for source in sources]
        affines = (self.left.affine, self.right.affine)
        total = graph.kernel(add, *tensors, name="add_u8", affines=affines, result=affine, clip=self.clip)
        return Value(blocked=total, channels=sources[0].channels) if in_blocks else Value(plain=total)


def add(
    left: te.Tensor, right: te.Tensor, affines: tuple[Affine, Affine], result: Affine | None, clip: Clip
) -> te.Tensor:
    """Describe the sum of two tensors of integers of one shape, in steps of the result where it is stored."""
    from tvm import te, tirx

    unit = np.float32(1.0 if result is None else result.scale)
    ratios = [tirx.const(float(np.float32(affine.scale) / unit), "float32") for affine in affines]

    def element(*at: relax.Expr) -> relax.Expr:
        terms = [
            (tensor(*at).astype("int32") - affine.zero).astype("float32") * ratio
            for tensor, affine, ratio in zip((left, right), affines, ratios, strict=True)
        ]
        value = terms[0] + terms[1]
        if result is not None:
            return stored(value, result, clip)
        if clip.low > float("-inf"):
            value = tirx.max(value, tirx.const(clip.low, "float32"))
        return tirx.min(value, tirx.const(clip.high, "float32")) if clip.high < float("inf") else value

    return te.compute(left.shape, element, name="add")


def binary(graph: Graph, call: relax.Call) -> Value | None:
    """Take sums of two dequantized values of one shape."""
    left, right = (graph.look(argument) for argument in call.args)
    if not isinstance(left, Dequantized) or not isinstance(right, Dequantized):
        return None
    shapes = [shape_of(argument) for argument in call.args]
    if len(shapes[0]) != len(shapes[1]):
        return None
    if any(str(one) != str(other) for one, other in zip(*shapes, strict=True)):
        return None
    return Value(pending=Sum(left=left, right=right, rank=len(shapes[0]), clip=Clip()))


HANDLERS = {"relax.add": binary}
