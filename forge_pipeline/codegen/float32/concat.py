"""Images whose channels are put together: a copy, unless the plan of the memory has the parts written in place."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tvm import relax, te, tirx

from forge_pipeline.codegen.layout.builder import Graph, Value, shape_of
from forge_pipeline.codegen.tir import primitives

NAME = "concat"
IS_CONCAT = "forge.joins"
"""The attribute of kernels that do nothing but copy their operands, one behind the other, into their result."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Joined:
    """Images in blocks side by side along ``axis``, each of whole blocks."""

    parts: tuple[Value, ...]
    axis: int

    @property
    def channels(self) -> int:
        """Those of all."""
        return sum(part.channels for part in self.parts)

    def emit(self, graph: Graph) -> Value:
        """Emit it of floats."""
        whole = concatenate(graph, [graph.blocked(part) for part in self.parts], axis=self.axis)
        return Value(blocked=whole, channels=self.channels)

    def halves(self, graph: Graph) -> relax.Expr:
        """Emit it of numbers in bfloat16, and in it."""
        return concatenate(graph, [graph.halves(part) for part in self.parts], axis=self.axis)


def concatenate(graph: Graph, parts: list[relax.Expr], axis: int) -> relax.Expr:
    """Emit images side by side along ``axis``; with a batch of one and axis 1, one is behind the other in memory."""
    extents = [extent for part in parts for extent in shape_of(part)]
    if axis == 1 and len(parts) > 1 and shape_of(parts[0])[0] == 1 and all(isinstance(item, int) for item in extents):
        return graph.kernel(_concatenate, *parts, name="join")
    return graph.emit(relax.op.concat(parts, axis=axis))


def _concatenate(*parts: te.Tensor) -> te.Tensor:
    blocks = [int(part.shape[1]) for part in parts]

    def element(n: Any, block: Any, *at: Any) -> Any:
        start = sum(blocks) - blocks[-1]
        value = parts[-1](n, block - start, *at)
        for part, count in zip(parts[-2::-1], blocks[-2::-1], strict=True):
            start -= count
            value = tirx.if_then_else(block < start + count, part(n, block - start, *at), value)
        return value

    shape = (parts[0].shape[0], sum(blocks), *parts[0].shape[2:])
    return te.compute(shape, element, name="T_concat", attrs={primitives.FAMILY: NAME})
