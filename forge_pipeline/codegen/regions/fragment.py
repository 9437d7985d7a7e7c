"""Nodes in the making: what is written in the place of a node, with constants and names of its own."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from onnx import NodeProto, TensorProto, helper, numpy_helper

from forge_pipeline.ir.program_operators import DOMAIN


@dataclass(slots=True, kw_only=True)
class Fragment:
    """What replaces the node whose first output is ``stem``; ``opset`` is ONNX's version."""

    stem: str
    opset: int
    nodes: list[NodeProto] = field(default_factory=list)
    weights: list[TensorProto] = field(default_factory=list)

    def name(self) -> str:
        """Return a name for one more value."""
        return f"{self.stem}/{len(self.nodes)}.{len(self.weights)}"

    def constant(self, value: Any, dtype: Any = np.int64) -> str:
        """Return the name of a constant."""
        name = self.name()
        self.weights.append(numpy_helper.from_array(np.array(value, dtype), name))
        return name

    def node(self, operator: str, *inputs: str, output: str = "", **attributes: Any) -> str:
        """Add a node of one output, and return that."""
        return self.nodes_of(operator, inputs, [output or self.name()], **attributes)[0]

    def nodes_of(
        self, operator: str, inputs: tuple[str, ...], outputs: list[str], *, domain: str = "", **attributes: Any
    ) -> list[str]:
        """Add a node of any outputs, and return them."""
        self.nodes.append(helper.make_node(operator, list(inputs), outputs, domain=domain, **attributes))
        return outputs

    def own(self, operator: str, *inputs: str, output: str = "", **attributes: Any) -> str:
        """Add an operator of our own (``ir.program_operators``)."""
        return self.nodes_of(operator, inputs, [output or self.name()], domain=DOMAIN, **attributes)[0]

    def integers(self, name: str) -> str:
        """Return a value in int64."""
        return self.node("Cast", name, to=TensorProto.INT64)

    def vector(self, name: str) -> str:
        """Return a value with one axis."""
        return self.node("Reshape", name, self.constant([-1]))

    def scalar(self, name: str) -> str:
        """Return a value of one element without an axis."""
        return self.node("Reshape", name, self.constant(np.zeros(0)))

    def copy(self, node: NodeProto, index: int, value: str, **attributes: Any) -> None:
        """Add ``node`` with another input, and with attributes that it lacks."""
        copy = NodeProto()
        copy.CopyFrom(node)
        copy.input[index] = value
        copy.attribute.extend(helper.make_attribute(key, value) for key, value in attributes.items())
        self.nodes.append(copy)
