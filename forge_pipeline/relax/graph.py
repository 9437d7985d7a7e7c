"""Looking at and editing a function of a Relax module, with the words of ``ir.graph``.

The invariants: what is read is defined before it is read; types fit, since they are deduced anew; parameters, and the
number, order and types of outputs, stay. An edit that breaks this is refused and changes nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any, Protocol

import numpy as np
import tvm
import tvm_ffi
from tvm import relax

from forge_pipeline.errors import did_you_mean
from forge_pipeline.relax.bindings import (
    Bound,
    Expr,
    attributes,
    bindings,
    is_variable,
    operands,
    operator,
    plain,
    rebuilt,
    result,
    results,
    substituted,
)
from forge_pipeline.relax.names import Names, refused, telling_line

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


class Holder(Protocol):
    """What a graph belongs to: a thing with a module, told when that changes."""

    @property
    def mod(self) -> tvm.IRModule:
        """The module as it is now."""

    def replace(self, mod: tvm.IRModule) -> None:
        """Take ``mod`` in place of the module."""


class Graph:
    """A function of a Relax module, edited in place. Nothing is remembered between calls."""

    __slots__ = ("_holder", "name")

    def __init__(self, holder: Holder, name: str) -> None:
        self._holder, self.name = holder, name

    @property
    def function(self) -> relax.Function:
        """The function as it is now."""
        return self._holder.mod[self.name]

    # --- looking -------------------------------------------------------------------------------------------------

    def __iter__(self) -> Iterator[Node]:
        """Walk the bindings in order, which is topological."""
        names = self._names()
        for bound in bindings(self.function):
            reads = [names.of(expr) for expr in operands(bound.value)]
            yield Node(self, names.of(bound.variable), operator(bound.value), _typed(bound), reads)

    def __len__(self) -> int:
        return len(bindings(self.function))

    def __repr__(self) -> str:
        shown = ", ".join(str(variable.name) for variable in self.function.params)
        return f"Graph({self.name}: {len(self)} nodes, reads {shown})"

    @property
    def input_nodes(self) -> list[Node]:
        """The parameters, weights among them where they are not constants."""
        names = self._names()
        return [Node(self, names.of(variable), INPUT, variable, ()) for variable in self.function.params]

    @property
    def output_nodes(self) -> list[Node]:
        """The outputs, each reading the value that it is."""
        names = self._names()
        return [
            Node(self, f"output_{index}", OUTPUT, value, [names.of(expr) for expr in operands(value)])
            for index, value in enumerate(results(self.function))
        ]

    @property
    def inputs(self) -> list[str]:
        """Names of the parameters."""
        return [node.name for node in self.input_nodes]

    @property
    def outputs(self) -> list[str]:
        """Names of the values that are returned."""
        return [name for node in self.output_nodes for name in node.inputs]

    @property
    def constants(self) -> list[str]:
        """Names of the constants, in the order in which they are first read."""
        return [name for name in self._names().values() if name.startswith("constant_")]

    def find(
        self, op_type: str | None = None, *, name: str | None = None, where: Callable[[Node], bool] | None = None
    ) -> list[Node]:
        """Return the nodes with this operator (``nn.conv2d``), this name and this property, in order."""
        return [
            node
            for node in self
            if op_type in (None, node.op_type) and name in (None, node.name) and (where is None or where(node))
        ]

    def producer(self, value: str) -> Node | None:
        """Return the node that defines a value; None for a parameter or a constant."""
        return next((node for node in self if node.name == value), None)

    def consumers(self, value: str) -> list[Node]:
        """Return the nodes that read a value."""
        return [node for node in self if value in node.inputs]

    # --- editing -------------------------------------------------------------------------------------------------

    def add(self, op_type: str, *inputs: Any, **attributes: Any) -> str:
        """Add ``relax.op.<op_type>(*inputs, **attributes)``; return the name of its value, which nothing reads yet.

        An input is the name of a value, or a number, array or list, which becomes a constant or argument as the
        operator wants it. Raises ModelError.
        """
        names = self._names()
        steps = bindings(self.function)
        made = self._made(op_type, inputs, attributes, names)
        name = names.fresh(op_type.rpartition(".")[2])
        self._put(f"add {op_type}", [*steps, Bound(_variable(name, made), made)], result(self.function))
        return name

    def insert(self, op_type: str, value: str, *others: Any, **attributes: Any) -> str:
        """Put an operator behind ``value``: whatever read it, outputs included, reads the new one. Raises ModelError.

        ``value`` is the operator's first input, ``others`` and ``attributes`` are as for ``add``.
        """
        names = self._names()
        where = f"insert {op_type} behind {value!r}"
        old = names.expr(value, where)
        made = self._made(op_type, (value, *others), attributes, names)
        variable = _variable(names.fresh(op_type.rpartition(".")[2]), made)

        def change(expr: Expr) -> Expr:
            return variable if expr.same_as(old) else expr

        steps = bindings(self.function)
        place = next((index + 1 for index, step in enumerate(steps) if step.variable.same_as(old)), 0)
        behind = [replace(step, value=substituted(step.value, change)) for step in steps[place:]]
        self._put(
            where,
            [*steps[:place], Bound(variable, made), *behind],
            substituted(result(self.function), change),
        )
        return str(variable.name)

    def replace(self, node: Node, op_type: str, *inputs: Any, **attributes: Any) -> None:
        """Put another operator in a node's place; its readers stay, so its type must fit them. Raises ModelError."""
        where = f"replace {node!r}"
        names = self._names()
        place = self._place(node, where)
        steps = bindings(self.function)
        made = self._made(op_type, inputs, attributes, names)
        steps[place] = Bound(steps[place].variable, made)
        self._put(where, steps, result(self.function))

    def rewire(self, node: Node, index: int, value: str) -> None:
        """Make input ``index`` of a node (as ``node.inputs`` counts them) read ``value``. Raises ModelError."""
        where = f"rewire input {index} of {node!r}"
        if not 0 <= index < len(node.inputs):
            raise refused(where, f"{len(node.inputs)} inputs", "give the index of an input it has")
        new = self._names().expr(value, where)
        position = iter(range(len(node.inputs)))

        def change(expr: Expr) -> Expr:
            return new if next(position) == index else expr

        place = self._place(node, where)
        steps = bindings(self.function)
        steps[place] = replace(steps[place], value=substituted(steps[place].value, change))
        self._put(where, steps, result(self.function))

    def remove(self, node: Node, using: str | None = None) -> None:
        """Remove a node; what read its value reads ``using`` instead, its first input where none is given.

        Raises ModelError where the types do not fit, or ``using`` comes later.
        """
        where = f"remove {node!r}"
        substitute = using if using is not None else next(iter(node.inputs), "")
        new = self._names().expr(substitute, where)
        place = self._place(node, where)
        steps = bindings(self.function)
        old = steps.pop(place).variable

        def change(expr: Expr) -> Expr:
            return new if expr.same_as(old) else expr

        self._put(
            where,
            [replace(step, value=substituted(step.value, change)) for step in steps],
            substituted(result(self.function), change),
        )

    # --- within --------------------------------------------------------------------------------------------------

    def _names(self) -> Names:
        return Names(self.function)

    def _place(self, node: Node, where: str) -> int:
        for index, present in enumerate(self):
            if present.name == node.name and present.op_type == node.op_type:
                return index
        raise refused(where, "no such node in the graph any more", "find it again after an edit")

    def _made(self, op_type: str, inputs: Sequence[Any], attributes: dict[str, Any], names: Names) -> Expr:
        where = f"operator {op_type!r}"
        function: Any = relax.op
        for part in op_type.split("."):
            if not hasattr(function, part):
                near = did_you_mean(part, [name for name in dir(function) if not name.startswith("_")])
                raise refused(where, "no operator of that name", f"{near}use a function of tvm.relax.op")
            function = getattr(function, part)
        arguments = [names.expr(item, where) if isinstance(item, str) else _argument(item) for item in inputs]
        try:
            return function(*arguments, **attributes)
        except (TypeError, ValueError, RuntimeError, AttributeError) as error:
            raise refused(
                where, telling_line(error), "give the inputs and attributes that tvm.relax.op documents"
            ) from error

    def _put(self, where: str, steps: Sequence[Bound], outputs: Expr) -> None:
        """Check what an edit led to, and only then take it over."""
        before = [value.ty for value in results(self.function)]
        self._check_order(where, steps)
        try:
            module = rebuilt(self._holder.mod, self.name, steps, outputs)
            relax.analysis.well_formed(module)
        except (TypeError, ValueError, RuntimeError, KeyError) as error:
            raise refused(
                where, telling_line(error), "change what reads the value too, or use an operator that fits"
            ) from error
        after = [value.ty for value in results(module[self.name])]
        if len(before) != len(after) or not all(map(tvm_ffi.structural_equal, before, after)):
            shown = ", ".join(map(str, after))
            raise refused(where, f"outputs of other types ({shown})", "keep the types of the outputs")
        self._holder.replace(module)

    def _check_order(self, where: str, steps: Sequence[Bound]) -> None:
        seen = set(self.function.params)
        for step in steps:
            for expr in operands(step.value):
                if is_variable(expr) and expr not in seen:
                    raise refused(where, f"{expr.name!r} read before it is defined", "read values that come before")
            seen.add(step.variable)


def _typed(bound: Bound) -> Expr:
    """Return the value of a binding, or its variable where the value has no type of its own."""
    return bound.value if bound.cast is None else bound.variable


def _variable(name: str, value: Expr) -> Expr:
    kind = relax.BlockBuilder().normalize(value).ty
    return relax.Var(name, kind)


def _argument(item: Any) -> Any:
    """Make a constant of an array or a number; lists and tuples are shapes and the like, and stay."""
    if isinstance(item, np.ndarray | np.generic):
        return relax.const(np.asarray(item), str(item.dtype))
    if isinstance(item, float):
        return relax.const(item, "float32")
    return item
