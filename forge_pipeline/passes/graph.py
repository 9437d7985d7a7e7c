"""A graph that can be edited: who produces a value, who uses it, what is constant, and what is its type.

Nodes stay ``onnx.NodeProto``; their order is settled when the model is written, so that an edit never has to find a
place. Values of enclosing graphs that a subgraph reads count as uses. Nothing here depends on hash order: the same
edits give the same bytes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from onnx import GraphProto, ModelProto, NodeProto, TensorProto, ValueInfoProto, helper

from forge_pipeline.ir.held import held_of, tensor_of
from forge_pipeline.ir.order import needs
from forge_pipeline.passes.graph_state import Array, GraphState
from forge_pipeline.passes.nodes import rename_inputs


class Graph(GraphState):
    """The main graph of a model under edit; the model that it was made from stays as it was."""

    # --- editing -----------------------------------------------------------------------------------------------

    def fresh(self, hint: str) -> str:
        """Return a name that nothing has, made from ``hint``, and take it."""
        name, number = hint, 0
        while name in self._names:
            number += 1
            name = f"{hint}_{number}"
        self._names.add(name)
        return name

    def add_constant(self, array: Array, hint: str) -> str:
        """Add a constant and return its name."""
        name = self.fresh(hint)
        self.set_constant(name, array)
        return name

    def set_constant(self, name: str, array: Array) -> None:
        """Give a constant new content. ``name`` may be a new one, or a value whose producer has gone."""
        array = np.asarray(array)
        array = array if array.flags.c_contiguous else np.ascontiguousarray(array)
        self.set_tensor(tensor_of(array, name))

    def set_tensor(self, tensor: TensorProto) -> None:
        """Add or replace a constant."""
        held = held_of(tensor)
        if held is not None:
            self.holds[held] = None
        self._names.add(tensor.name)
        self._constants[tensor.name] = tensor
        self._arrays.pop(tensor.name, None)
        if self._types is not None:
            self._types.set(tensor.name, tensor.data_type, tuple(tensor.dims))

    def drop_constant(self, name: str) -> None:
        """Remove a constant that nothing uses."""
        del self._constants[name]
        self._arrays.pop(name, None)

    def add(self, op: str, inputs: Sequence[str], hint: str, *, domain: str = "", **attributes: Any) -> NodeProto:
        """Add a node with one new output, named after ``hint``, and return it."""
        return self.add_node(helper.make_node(op, list(inputs), [self.fresh(hint)], domain=domain, **attributes))

    def add_node(self, node: NodeProto) -> NodeProto:
        """Add a ready node, whose outputs nothing else produces."""
        if not node.name:
            node.name = self.fresh(f"{node.op_type}_{node.output[0]}")
        self._link(node)
        return node

    def remove(self, node: NodeProto) -> None:
        """Remove a node; what it produced is free to be produced by another."""
        del self._nodes[id(node)]
        for name in needs(node):
            self._unuse(name, node)
        for name in node.output:
            if name:
                del self._producer[name]

    def set_input(self, node: NodeProto, index: int, name: str) -> None:
        """Make a node read another value; ``index`` one past the end adds an input."""
        if index == len(node.input):
            node.input.append("")
        if node.input[index]:
            self._unuse(node.input[index], node)
        node.input[index] = name
        if name:
            self._use(name, node)

    def set_inputs(self, node: NodeProto, names: Sequence[str]) -> None:
        """Replace all inputs of a node."""
        for name in node.input:
            if name:
                self._unuse(name, node)
        del node.input[:]
        node.input.extend(names)
        for name in names:
            if name:
                self._use(name, node)

    def set_body(self, node: NodeProto, body: GraphProto, content: GraphProto) -> None:
        """Give one of a node's own subgraphs other content."""
        for name in needs(node):
            self._unuse(name, node)
        body.CopyFrom(content)
        for name in needs(node):
            self._use(name, node)

    def set_output(self, node: NodeProto, index: int, name: str) -> None:
        """Give an output of a node another name, which nothing else produces."""
        if node.output[index]:
            del self._producer[node.output[index]]
        node.output[index] = name
        self._producer[name] = node

    def redirect(self, old: str, new: str) -> None:
        """Make everything that reads ``old`` read ``new``; outputs of the graph aside, which have their names."""
        for node in self.users(old):
            rename_inputs(node, old, new)
        for key, count in self._users.pop(old, {}).items():
            users = self._users.setdefault(new, {})
            users[key] = users.get(key, 0) + count

    def bypass(self, node: NodeProto, source: str) -> bool:
        """Remove a node of one output that equals ``source``. False where the interface's names forbid it."""
        target = node.output[0]
        if self.is_output(target):
            maker = self.producer(source)
            if maker is None or self.is_output(source):
                return False
            self.remove(node)
            self.redirect(source, target)
            self.set_output(maker, list(maker.output).index(source), target)
        else:
            self.remove(node)
            self.redirect(target, source)
        return True

    def rename(self, value: str, target: str) -> None:
        """Give a value that a node computes another name, which nothing produces (any more)."""
        maker = self._producer[value]
        self.redirect(value, target)
        self.set_output(maker, list(maker.output).index(value), target)

    def replace_value(self, name: str, source: str) -> None:
        """Let ``source`` stand for a value that nothing produces any more; an output of the graph becomes a copy."""
        if self.is_output(name):
            self.add_node(helper.make_node("Identity", [source], [name]))
        else:
            self.redirect(name, source)

    def replace(self, node: NodeProto, op: str, inputs: Sequence[str], *, domain: str = "", **attributes: Any) -> None:
        """Put another operator in a node's place; its first output keeps its name."""
        self.remove(node)
        self.add_node(helper.make_node(op, list(inputs), [node.output[0]], node.name, domain=domain, **attributes))

    def forget_types(self) -> None:
        """Have types inferred anew when they are next asked for."""
        self._types = None

    # --- writing -----------------------------------------------------------------------------------------------

    def model(self) -> ModelProto:
        """Return the graph as a model of its own; what was stated about inner values is left to inference."""
        model = ModelProto()
        model.CopyFrom(self.header)
        self._write(model.graph)
        return model

    def _write(self, graph: GraphProto) -> None:
        graph.name = self.name
        graph.node.extend(self.nodes)
        graph.initializer.extend(self._constants.values())
        graph.sparse_initializer.extend(self.sparse)
        graph.input.extend(self.inputs)
        graph.output.extend(self.outputs)
        graph.value_info.extend(value for value in self._stated if value.name in self._producer)
        graph.quantization_annotation.extend(self.annotations)

    def state(self, value: ValueInfoProto) -> None:
        """State a type for an inner value, in place of what was stated before."""
        self._stated = [known for known in self._stated if known.name != value.name]
        self._stated.append(value)

    def unstate(self) -> None:
        """Drop everything that is stated about inner values."""
        self._stated = []
        self._types = None
