"""A graph that can be edited: who produces a value, who uses it, what is constant, and what is its type.

Nodes stay ``onnx.NodeProto``; their order is settled when the model is written, so that an edit never has to find a
place. Values of enclosing graphs that a subgraph reads count as uses. Nothing here depends on hash order: the same
edits give the same bytes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from onnx import GraphProto, ModelProto, NodeProto, TensorProto, ValueInfoProto, helper

from forge_pipeline.errors import ModelError
from forge_pipeline.ir.external_data.mapped import MappedFile, array_of, mapped_file_of, mapped_files, tensor_of
from forge_pipeline.ir.sizes.analysis import NOTHING, Sizes, analyse
from forge_pipeline.ir.tensors import byte_count
from forge_pipeline.ir.traversal import needs, nodes_below, subgraphs
from forge_pipeline.ir.values import unused
from forge_pipeline.passes.nodes import clone, names_within, rename_inputs, topological
from forge_pipeline.passes.value_types import SMALL, OpenShape, Shape, Types, infer_model_types

Array = np.ndarray[Any, Any]


class GraphState:
    """The nodes, constants and interface of a main graph, indexed; editing them is the work of Graph."""

    def __init__(self, model: ModelProto, *, names: set[str] | None = None) -> None:
        """Index ``model``; ``names`` are those of a larger model that this graph is a part of, and are taken too."""
        self.findings: dict[str, Any] = {}
        self.mapped_files: dict[MappedFile, None] = {}
        """The files that constants are in, if they are in files: kept open as long as the graph is there."""
        self._around = names
        self.reset(model)

    def reset(self, model: ModelProto) -> None:
        """Take over another model whole; what was found out about the one before stays in ``findings``."""
        graph = model.graph
        self.mapped_files |= dict.fromkeys(mapped_files(model))
        self.header = ModelProto()
        for name in ("ir_version", "producer_name", "producer_version", "domain", "model_version", "doc_string"):
            if model.HasField(name):
                setattr(self.header, name, getattr(model, name))
        self.header.metadata_props.extend(model.metadata_props)
        self.header.opset_import.extend(model.opset_import)
        self.header.functions.extend(model.functions)
        self.name = graph.name
        self.inputs = tuple(clone(value) for value in graph.input)
        self.outputs = tuple(clone(value) for value in graph.output)
        self.sparse = list(graph.sparse_initializer)
        self.annotations = list(graph.quantization_annotation)
        self._stated = [clone(value) for value in graph.value_info]
        self._nodes: dict[int, NodeProto] = {}
        self._constants: dict[str, TensorProto] = {}
        self._arrays: dict[str, Array] = {}
        self._producer: dict[str, NodeProto] = {}
        self._users: dict[str, dict[int, int]] = {}
        self._names: set[str] = set() if self._around is None else self._around
        self._types: Types | None = None
        self._sizes: Sizes | None = None
        for tensor in graph.initializer:
            self._constants[tensor.name] = tensor
        for node in graph.node:
            self._link(clone(node))
        self._names.update(self._constants)
        self._names.update(value.name for value in (*graph.input, *graph.output))
        self._names.update(tensor.values.name for tensor in graph.sparse_initializer)

    # --- looking -----------------------------------------------------------------------------------------------

    @property
    def nodes(self) -> list[NodeProto]:
        """The nodes in a topological order that keeps the present one where it can."""
        return list(topological(self._nodes, self._producer))

    @property
    def inputs(self) -> tuple[ValueInfoProto, ...]:
        """The inputs, those that are overridable defaults too; their names are looked up, so none is written to."""
        return self._inputs

    @inputs.setter
    def inputs(self, values: Iterable[ValueInfoProto]) -> None:
        self._inputs = tuple(values)
        self._input_names = frozenset(value.name for value in self._inputs)

    @property
    def outputs(self) -> tuple[ValueInfoProto, ...]:
        """The outputs, in order, as ``inputs``."""
        return self._outputs

    @outputs.setter
    def outputs(self, values: Iterable[ValueInfoProto]) -> None:
        self._outputs = tuple(values)
        self._output_names = frozenset(value.name for value in self._outputs)

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
        return name in self._output_names

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
        return name in self._constants and name not in self._input_names

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

    def open_shape(self, name: str) -> OpenShape | None:
        """Return a value's shape, open sizes as expressions where they hold for every call that ONNX accepts."""
        static = self.static_shape(name)
        if static is not None:
            return static
        if self._sizes is None:
            self._sizes = sizes_of(self)
        return self._sizes.shape(name) or self.shape(name)

    def rank(self, name: str) -> int | None:
        """Return a value's number of dimensions, or None."""
        shape = self.shape(name) or self.open_shape(name)
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


def infer_types(graph: GraphState) -> Types:
    """Infer the types of all values of ``graph``; values that inference does not understand are left out."""
    return Types(infer_model_types(skeleton(graph)))


def sizes_of(graph: GraphState) -> Sizes:
    """Return the sizes of all values as they hold for every call that ONNX accepts."""
    try:
        return analyse(skeleton(graph), assuming=False)
    except ModelError:
        return NOTHING  # sizes that cannot agree: whoever runs the model says so


def skeleton(graph: GraphState) -> ModelProto:
    """Return the model with its larger weights turned into inputs of the same type."""
    model = ModelProto()
    model.CopyFrom(graph.header)
    model.ir_version = max(model.ir_version, 4)  # from here on an initializer need not be an input
    model.graph.name = graph.name
    model.graph.node.extend(graph.nodes)
    constants = graph.constants
    model.graph.input.extend(value for value in graph.inputs if value.name not in constants)
    model.graph.output.extend(graph.outputs)
    for tensor in constants.values():
        if graph.is_constant(tensor.name) and byte_count(tensor) <= SMALL:
            model.graph.initializer.append(tensor)
        else:
            model.graph.input.append(helper.make_tensor_value_info(tensor.name, tensor.data_type, list(tensor.dims)))
    for sparse in graph.sparse:
        dims = list(sparse.dims)
        model.graph.input.append(helper.make_tensor_value_info(sparse.values.name, sparse.values.data_type, dims))
    return model


class Graph(GraphState):
    """The main graph of a model under edit; the model that it was made from stays as it was."""

    # --- editing -----------------------------------------------------------------------------------------------

    def fresh(self, hint: str) -> str:
        """Return a name that nothing has, made from ``hint``, and take it."""
        return unused(hint, self._names)

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
        mapped = mapped_file_of(tensor)
        if mapped is not None:
            self.mapped_files[mapped] = None
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
            rename_inputs(node, {old: new})
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
        self._types = self._sizes = None

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
        self.forget_types()
