"""A node of a Relax graph: a binding, a parameter or a result, and what it reads and gives."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from tvm import relax

from forge_pipeline.ir.relax_flat import Expr, attributes, operands, plain

if TYPE_CHECKING:
    from forge_pipeline.ir.relax_graph import Graph

INPUT, OUTPUT = "input", "output"


class Node:
    """A binding of a function, a parameter (``op_type`` input) or its result (``output``)."""

    __slots__ = ("_reads", "graph", "name", "op_type", "value")

    def __init__(self, graph: Graph, name: str, op_type: str, value: Expr, reads: Sequence[str]) -> None:
        self.graph, self.name, self.op_type, self.value = graph, name, op_type, value
        self._reads = tuple(reads)

    @property
    def inputs(self) -> list[str]:
        """The values that it reads, those within tuples included: names of values, ``constant_N`` for constants."""
        return list(self._reads)

    @property
    def outputs(self) -> list[str]:
        """The value that it defines; none for the output."""
        return [] if self.op_type == OUTPUT else [self.name]

    @property
    def attributes(self) -> dict[str, Any]:
        """Attributes as Python knows them, and under ``arguments`` the shapes and numbers among the arguments."""
        found = attributes(self.value)
        if isinstance(self.value, relax.Call):
            others = [argument for argument in self.value.args if not any(True for _ in operands(argument))]
            shown = [_shown(plain(argument)) for argument in others if not isinstance(argument, relax.Tuple)]
            if shown:
                found["arguments"] = shown
        return found

    @property
    def shape(self) -> tuple[int | str, ...] | None:
        """The shape of its value: numbers, and names of symbolic dimensions; None for what is no tensor."""
        kind = self.value.ty
        return shape_of(kind) if isinstance(kind, relax.TensorType) and kind.shape is not None else None

    @property
    def dtype(self) -> str | None:
        """The element type of its value; None for what is no tensor."""
        return str(self.value.ty.dtype) if isinstance(self.value.ty, relax.TensorType) else None

    @property
    def producers(self) -> list[Node]:
        """The nodes whose values it reads, each once; parameters are none."""
        found = (self.graph.producer(name) for name in dict.fromkeys(self._reads))
        return [node for node in found if node is not None]

    @property
    def consumers(self) -> list[Node]:
        """The nodes that read its value, each once."""
        return [node for name in self.outputs for node in self.graph.consumers(name)]

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Node):
            return NotImplemented
        return self.name == other.name and self.op_type == other.op_type and self.value.same_as(other.value)

    def __hash__(self) -> int:
        return hash((self.name, self.op_type))

    def __repr__(self) -> str:
        return f"Node({self.op_type}({', '.join(self._reads)}) -> {', '.join(self.outputs)})"


def shape_of(kind: relax.TensorType) -> tuple[int | str, ...]:
    """Return a tensor type's shape: a number, or the text of a symbolic dimension, for each."""
    if kind.shape is None:
        return ("?",) * max(int(kind.ndim), 0)
    values = kind.shape.values if isinstance(kind.shape, relax.ShapeExpr) else kind.shape.ty.values
    return tuple(x if isinstance(x := plain(value), int) else str(x) for value in values or ())


def _shown(value: Any) -> Any:
    if isinstance(value, list):
        return [_shown(item) for item in value]
    return value if isinstance(value, bool | int | float | str) else str(value)
