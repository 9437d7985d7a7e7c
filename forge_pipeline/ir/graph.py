"""Looking at and editing an ONNX graph. Every edit is checked before it happens: what it would break, it refuses.

The invariants: a value is defined once; what is read is defined; there is no cycle; inputs and outputs of the graph
keep their names. Nodes are kept in topological order, as ONNX demands of a file. A failed edit changes nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import count
from typing import Any

from onnx import GraphProto, NodeProto, helper

from forge_pipeline.errors import ModelError
from forge_pipeline.ir.traversal import captured, needs, nodes_below, post_order, subgraphs
from forge_pipeline.ir.values import fed


class Node:
    """A node of a graph. Two are equal when they are the same node of the same model."""

    __slots__ = ("graph", "proto")

    def __init__(self, graph: Graph, proto: NodeProto) -> None:
        self.graph, self.proto = graph, proto

    @property
    def name(self) -> str:
        """The node's name; often empty, and never needed."""
        return str(self.proto.name)

    @property
    def op_type(self) -> str:
        """The operator's name within its domain."""
        return str(self.proto.op_type)

    @property
    def inputs(self) -> list[str]:
        """The values it reads, empty where an optional one is left out."""
        return list(self.proto.input)

    @property
    def outputs(self) -> list[str]:
        """The values it defines, empty where an optional one is left out."""
        return list(self.proto.output)

    @property
    def attributes(self) -> dict[str, Any]:
        """Attributes as Python knows them, strings as str; changing the dictionary changes nothing."""
        values = {entry.name: helper.get_attribute_value(entry) for entry in self.proto.attribute}
        return {name: value.decode() if isinstance(value, bytes) else value for name, value in values.items()}

    @property
    def producers(self) -> list[Node]:
        """The nodes whose values it reads, captures of its subgraphs included, each once."""
        found = (self.graph.producer(name) for name in dict.fromkeys(needs(self.proto)))
        return list({id(node.proto): node for node in found if node is not None}.values())

    @property
    def consumers(self) -> list[Node]:
        """The nodes that read its values, each once."""
        found = (node for name in self.outputs if name for node in self.graph.consumers(name))
        return list({id(node.proto): node for node in found}.values())

    @property
    def subgraphs(self) -> list[Graph]:
        """The graphs among its attributes, by attribute name."""
        return [Graph(graph) for graph in subgraphs(self.proto)]

    def __eq__(self, other: object) -> bool:
        return self.proto is other.proto if isinstance(other, Node) else NotImplemented

    def __hash__(self) -> int:
        return id(self.proto)

    def __repr__(self) -> str:
        return f"Node({self.name!r}: {self.op_type}({', '.join(self.inputs)}) -> {', '.join(self.outputs)})"


class Graph:
    """A graph of a model, edited in place. Nothing is remembered between calls, so other edits may happen beside."""

    __slots__ = ("proto",)

    def __init__(self, proto: GraphProto) -> None:
        self.proto = proto

    # --- looking -------------------------------------------------------------------------------------------------

    def __iter__(self) -> Iterator[Node]:
        """Walk the nodes in topological order, which is the order of the file."""
        return (Node(self, proto) for proto in self.proto.node)

    def __len__(self) -> int:
        return len(self.proto.node)

    def __repr__(self) -> str:
        return f"Graph({len(self)} nodes, {', '.join(self.inputs)} -> {', '.join(self.outputs)})"

    @property
    def inputs(self) -> list[str]:
        """Names of the inputs that have to be fed."""
        return [value.name for value in fed(self.proto)]

    @property
    def outputs(self) -> list[str]:
        """Names of the outputs."""
        return [value.name for value in self.proto.output]

    @property
    def constants(self) -> list[str]:
        """Names of the initializers."""
        sparse = [tensor.values.name for tensor in self.proto.sparse_initializer]
        return [tensor.name for tensor in self.proto.initializer] + sparse

    def find(
        self, op_type: str | None = None, *, name: str | None = None, where: Callable[[Node], bool] | None = None
    ) -> list[Node]:
        """Return the nodes with this operator, this name and this property, in topological order."""
        return [
            node
            for node in self
            if op_type in (None, node.op_type) and name in (None, node.name) and (where is None or where(node))
        ]

    def producer(self, value: str) -> Node | None:
        """Return the node that defines a value; None for an input, a constant or a value of another graph."""
        return next((node for node in self if value and value in node.proto.output), None)

    def consumers(self, value: str) -> list[Node]:
        """Return the nodes that read a value, in themselves or in their subgraphs."""
        return [node for node in self if value in needs(node.proto)]

    # --- editing -------------------------------------------------------------------------------------------------

    def add(self, op_type: str, *inputs: str, name: str = "", domain: str = "", **attributes: Any) -> Node:
        """Add a node that reads ``inputs`` and defines one new value; nothing reads that yet. Raises ModelError."""
        with self._edit(f"add {op_type}"):
            proto = self._append(op_type, inputs, name, domain, attributes)
        return Node(self, proto)

    def insert(
        self, op_type: str, value: str, *others: str, name: str = "", domain: str = "", **attributes: Any
    ) -> Node:
        """Put a node behind ``value``: whatever read the value now reads the node's result. Raises ModelError.

        Where ``value`` is an output of the graph, the node defines the output, and the value gets a new name.
        """
        with self._edit(f"insert {op_type} behind {value!r}"):
            readers, maker = self.consumers(value), self.producer(value)
            proto = self._append(op_type, (value, *others), name, domain, attributes)
            if value not in self.outputs:
                for reader in readers:
                    rename_reads(reader.proto, value, proto.output[0])
            elif maker is not None:
                inner, proto.output[0] = proto.output[0], value
                _put(maker.proto.output, value, inner)
                _put(proto.input, value, inner)
            else:
                raise _refused("insert", f"{value!r}, both an input or constant and an output", "use another value")
        return Node(self, proto)

    def replace(self, node: Node, op_type: str, *inputs: str, domain: str = "", **attributes: Any) -> None:
        """Put another operator in a node's place: same name and outputs, these ``inputs``. Raises ModelError."""
        with self._edit(f"replace {node!r}"):
            made = helper.make_node(op_type, inputs, node.outputs, node.name, domain=domain, **attributes)
            node.proto.CopyFrom(made)

    def rewire(self, node: Node, index: int, value: str) -> None:
        """Make input ``index`` of a node read ``value``. Raises ModelError for a cycle or an undefined value."""
        with self._edit(f"rewire input {index} of {node!r}"):
            if not 0 <= index < len(node.proto.input):
                raise _refused("rewire", f"{len(node.proto.input)} inputs", "give the index of an input it has")
            node.proto.input[index] = value

    def remove(self, node: Node, using: str | None = None) -> None:
        """Remove a node; what read its value reads ``using`` instead, its first input where none is given.

        Where the node defines an output of the graph, the value that takes its place gets the output's name.
        Raises ModelError where that cannot be, or where another output of the node is still read.
        """
        value = next(name for name in node.outputs if name)
        with self._edit(f"remove {node!r}", removing=node.proto):
            substitute = using if using is not None else next((name for name in node.inputs if name), "")
            maker, readers = self.producer(substitute), self.consumers(value)
            if value in self.outputs:
                if maker is None or substitute in self.outputs:
                    found = f"{substitute!r}, which has a name to keep, in place of output {value!r}"
                    raise _refused("remove", found, "replace the node by Identity instead")
                for reader in self.consumers(substitute):
                    rename_reads(reader.proto, substitute, value)
                _put(maker.proto.output, substitute, value)
            elif readers:
                for reader in readers:
                    rename_reads(reader.proto, value, substitute)

    # --- within --------------------------------------------------------------------------------------------------

    def _append(
        self, op_type: str, inputs: tuple[str, ...], name: str, domain: str, attributes: dict[str, Any]
    ) -> NodeProto:
        taken = {value for node in nodes_below(self.proto.node) for value in (*node.input, *node.output)}
        taken.update(self.constants, captured(self.proto))
        taken.update(value.name for value in (*self.proto.input, *self.proto.output))
        output = next(fresh for n in count() if (fresh := f"{op_type}_{n}") not in taken)
        proto = self.proto.node.add()
        proto.CopyFrom(helper.make_node(op_type, inputs, [output], name, domain=domain, **attributes))
        return proto

    @contextmanager
    def _edit(self, where: str, *, removing: NodeProto | None = None) -> Iterator[None]:
        """Let an edit happen, check what it led to, and take it back where that is no graph."""
        protos = list(self.proto.node)
        saved = [_copied(proto) for proto in protos]
        known = {value.name for value in self.proto.input} | {*self.constants, *captured(self.proto)}
        try:
            yield
            order = self._order(known, removing)
        except ModelError as error:
            del self.proto.node[len(protos) :]
            for proto, before in zip(protos, saved, strict=True):
                proto.CopyFrom(before)
            raise _refused(where, error.found, error.fix if error.expected == _INVARIANTS else _FIX) from error
        if removing is not None:
            self.proto.node.remove(removing)
        place = {id(proto): index for index, proto in enumerate(order)}
        self.proto.node.sort(key=lambda proto: place[id(proto)])

    def _order(self, known: set[str], without: NodeProto | None) -> list[NodeProto]:
        """Return the nodes in topological order, the present one where that will do."""
        kept = [proto for proto in self.proto.node if proto is not without]
        roots = [name for proto in kept for name in proto.output if name]
        order: list[NodeProto] = []
        for item in post_order(self.proto, roots=[*roots, *self.outputs], without=without):
            if isinstance(item, NodeProto):
                order.append(item)
            elif item not in known:
                raise _refused("graph", f"{item!r}, which nothing defines", _FIX)
        return order


def rename_reads(node: NodeProto, old: str, new: str) -> None:
    """Make a node, and the graphs in its attributes, read ``new`` where they read ``old``."""
    for index, name in enumerate(node.input):
        if name == old:
            node.input[index] = new
    for graph in subgraphs(node):
        for inner in graph.node:
            rename_reads(inner, old, new)
        for value in graph.output:
            if value.name == old:  # a captured value that is handed straight on
                value.name = new


_INVARIANTS = "a graph in which every value is defined, once, and before it is read"
_FIX = "read values that come before, and keep every value that is still read"


def _refused(where: str, found: str, fix: str) -> ModelError:
    return ModelError(where=where, expected=_INVARIANTS, found=found, fix=fix)


def _put(names: Any, old: str, new: str) -> None:
    for index, name in enumerate(names):
        if name == old:
            names[index] = new


def _copied(proto: NodeProto) -> NodeProto:
    duplicate = NodeProto()
    duplicate.CopyFrom(proto)
    return duplicate
