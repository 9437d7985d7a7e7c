"""What is known of a graph under edit: who produces a value, who uses it, what is constant, what is its type."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
from onnx import ModelProto, NodeProto, TensorProto

from forge_pipeline.ir.held import Held, array_of, holds
from forge_pipeline.ir.order import needs, nodes_below, subgraphs
from forge_pipeline.passes.nodes import copied, names_within, topological
from forge_pipeline.passes.value_types import Shape, Types, infer_types

Array = np.ndarray[Any, Any]


class GraphState:
    """The nodes, constants and interface of a main graph, indexed; editing them is the work of Graph."""

    def __init__(self, model: ModelProto, *, names: set[str] | None = None) -> None:
        """Index ``model``; ``names`` are those of a larger model that this graph is a part of, and are taken too."""
        self.findings: dict[str, Any] = {}
        self.holds: dict[Held, None] = {}
        """The files that constants are in, if they are in files: kept open as long as the graph is there."""
        self._around = names
        self.reset(model)

    def reset(self, model: ModelProto) -> None:
        """Take over another model whole; what was found out about the one before stays in ``findings``."""
        graph = model.graph
        self.holds |= dict.fromkeys(holds(model))
        self.header = ModelProto()
        for name in ("ir_version", "producer_name", "producer_version", "domain", "model_version", "doc_string"):
            if model.HasField(name):
                setattr(self.header, name, getattr(model, name))
        self.header.metadata_props.extend(model.metadata_props)
        self.header.opset_import.extend(model.opset_import)
        self.header.functions.extend(model.functions)
        self.name = graph.name
        self.inputs = [copied(value) for value in graph.input]
        self.outputs = [copied(value) for value in graph.output]
        self.sparse = list(graph.sparse_initializer)
        self.annotations = list(graph.quantization_annotation)
        self._stated = [copied(value) for value in graph.value_info]
        self._nodes: dict[int, NodeProto] = {}
        self._constants: dict[str, TensorProto] = {}
        self._arrays: dict[str, Array] = {}
        self._producer: dict[str, NodeProto] = {}
        self._users: dict[str, dict[int, int]] = {}
        self._names: set[str] = set() if self._around is None else self._around
        self._types: Types | None = None
        for tensor in graph.initializer:
            self._constants[tensor.name] = tensor
        for node in graph.node:
            self._link(copied(node))
        self._names.update(self._constants)
        self._names.update(value.name for value in (*graph.input, *graph.output))
        self._names.update(tensor.values.name for tensor in graph.sparse_initializer)

    # --- looking -----------------------------------------------------------------------------------------------

    @property
    def nodes(self) -> list[NodeProto]:
        """The nodes in a topological order that keeps the present one where it can."""
        return list(topological(self._nodes, self._producer))

    def __len__(self) -> int:
        return len(self._nodes)

    def __contains__(self, node: NodeProto) -> bool:
        return id(node) in self._nodes

    def operators(self) -> Counter[str]:
        """Count the nodes by operator, those of subgraphs included."""
        return Counter(node.op_type for node in nodes_below(self._nodes.values()))

    @property
    def names(self) -> set[str]:
        """Every name that is taken; who makes names for a part of the model adds them here."""
        return self._names

    @property
    def input_names(self) -> list[str]:
        """Names of the inputs that must be fed."""
        return [value.name for value in self.inputs if value.name not in self._constants]

    @property
    def output_names(self) -> list[str]:
        """Names of the outputs, in order."""
        return [value.name for value in self.outputs]

    def opset(self, domain: str = "") -> int:
        """Return the version of an operator set, 0 where the model does not import it."""
        same = ("", "ai.onnx") if domain in ("", "ai.onnx") else (domain,)
        return next((entry.version for entry in self.header.opset_import if entry.domain in same), 0)

    def producer(self, name: str) -> NodeProto | None:
        """Return the node that computes a value; None for inputs, constants and values of no graph."""
        return self._producer.get(name)

    def users(self, name: str) -> list[NodeProto]:
        """Return the nodes that read a value, each once, subgraphs' captures included."""
        return [self._nodes[key] for key in self._users.get(name, ())]

    def is_output(self, name: str) -> bool:
        """Whether a value is an output of the graph."""
        return any(value.name == name for value in self.outputs)

    def only_user(self, name: str) -> NodeProto | None:
        """Return the one node that reads a value, once and as an ordinary input; None where there is more to it."""
        users = self._users.get(name, {})
        if len(users) != 1 or self.is_output(name):
            return None
        (key, count), *_ = users.items()
        node = self._nodes[key]
        return node if count == 1 and name in node.input else None

    def constant(self, name: str) -> TensorProto | None:
        """Return the constant of that name, be it an overridable default too."""
        return self._constants.get(name)

    def is_constant(self, name: str) -> bool:
        """Whether a value is the same whatever the graph is fed."""
        return name in self._constants and all(value.name != name for value in self.inputs)

    def array(self, name: str) -> Array | None:
        """Return a constant's elements (not to be written to), or None where the value is not constant."""
        if not self.is_constant(name):
            return None
        if name not in self._arrays:
            self._arrays[name] = array_of(self._constants[name])
        return self._arrays[name]

    @property
    def constants(self) -> dict[str, TensorProto]:
        """All constants by name, in order; a copy of the table."""
        return dict(self._constants)

    def shape(self, name: str) -> Shape | None:
        """Return a value's shape: numbers, symbols, None for unknown dimensions; None for an unknown rank."""
        return self._known().shape(name)

    def static_shape(self, name: str) -> tuple[int, ...] | None:
        """Return a value's shape where all of it is known as numbers."""
        shape = self.shape(name)
        if shape is None:
            return None
        known = tuple(dim for dim in shape if isinstance(dim, int))
        return known if len(known) == len(shape) else None

    def rank(self, name: str) -> int | None:
        """Return a value's number of dimensions, or None."""
        shape = self.shape(name)
        return None if shape is None else len(shape)

    def elem_type(self, name: str) -> int:
        """Return a value's element type as TensorProto numbers them, 0 where it is unknown."""
        return self._known().elem_type(name)

    def has_type(self, name: str) -> bool:
        """Whether the value is known to be a tensor, which sequences, maps and optionals are not."""
        return self.elem_type(name) != 0

    # --- within ------------------------------------------------------------------------------------------------

    def _known(self) -> Types:
        if self._types is None:
            self._types = infer_types(self)
        return self._types

    def _link(self, node: NodeProto) -> None:
        self._nodes[id(node)] = node
        for name in node.output:
            if name:
                self._producer[name] = node
                self._names.add(name)
        if node.name:
            self._names.add(node.name)
        for name in needs(node):
            self._use(name, node)
        for graph in subgraphs(node):
            self._names.update(names_within(graph))

    def _use(self, name: str, node: NodeProto) -> None:
        users = self._users.setdefault(name, {})
        users[id(node)] = users.get(id(node), 0) + 1

    def _unuse(self, name: str, node: NodeProto) -> None:
        users = self._users[name]
        users[id(node)] -= 1
        if not users[id(node)]:
            del users[id(node)]
