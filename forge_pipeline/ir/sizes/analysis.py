"""The sizes of every value of a model: one walk over its graph, a rule for each operator."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from onnx import AttributeProto, GraphProto, ModelProto, NodeProto, TensorProto, helper

from forge_pipeline.errors import ModelError
from forge_pipeline.ir.external_data.mapped import array_of, is_mapped
from forge_pipeline.ir.sizes import expression as e
from forge_pipeline.ir.sizes.expression import Overgrown, Size, Whole
from forge_pipeline.ir.sizes.interface import Limits, inputs_of, unused
from forge_pipeline.ir.sizes.operation import Operation, Unknown
from forge_pipeline.ir.sizes.real import Real
from forge_pipeline.ir.sizes.rules import rule_of
from forge_pipeline.ir.sizes.rules.fallback import inferred
from forge_pipeline.ir.sizes.value import MOST, UNKNOWN, Known, of_array
from forge_pipeline.ir.tensors import element_count

ROUNDS: Final = 4
"""How often a model is gone through: what its operators demand of an extent decides what is computed from it."""
STANDARD: Final = ("", "ai.onnx")


@dataclass(frozen=True, slots=True, kw_only=True)
class Constraint:
    """What must hold of the extents for a call to be defined.

    ``size`` must be 0, or with ``at_least`` it must not be negative. ``text`` names the operator that demands it.
    ``graph`` is the name of the If, Loop or Scan in whose graph it is demanded, if that runs; empty for all calls.
    """

    size: Whole
    at_least: bool
    text: str
    graph: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes:
    """What is known of a model's values.

    ``values`` has what every value is, subgraphs' included, by name. ``equalities`` are extents that follow from
    others; no other expression here names them. ``bounds_of_data`` has the extents that only data decides, each with
    the most that it can be, or None.
    """

    values: Mapping[str, Known]
    constraints: tuple[Constraint, ...]
    equalities: Mapping[str, Whole]
    bounds_of_data: Mapping[str, Whole | None]

    def shape(self, name: str) -> tuple[Whole, ...] | None:
        """Return the shape of a value, None where its rank is not known."""
        return self.values.get(name, UNKNOWN).shape


def analyse(model: ModelProto) -> Sizes:
    """Return the sizes of every value of a model without calls of local functions.

    An initializer that is listed as an input is a constant. Raises ModelError where two sizes cannot agree.
    """
    limits: dict[str, tuple[int, int | None]] = {}
    stated: list[Constraint] = []
    for _ in range(ROUNDS):
        walk = _Walk(model, limits)
        walk.main(model.graph)
        learned = walk.limits()
        if not learned:
            break
        for name, (low, high, text) in learned.items():
            before, after = limits.get(name, (0, None))
            limits[name] = (max(before, low), high if after is None or (high is not None and high < after) else after)
            size = e.extent(name) - low if low else (high or 0) - e.extent(name)
            stated.append(Constraint(size=size, at_least=True, text=text))
    return walk.sizes(stated)


class _Walk:
    """The context of all rules: values so far, and what is known to be equal."""

    def __init__(self, model: ModelProto, limits: Limits) -> None:
        self._limits = limits
        self._opsets = {entry.domain: entry.version for entry in model.opset_import}
        self._opset = self._opsets.get("", self._opsets.get("ai.onnx", 1))
        self._values: dict[str, Known] = {}
        self._seen: dict[str, int] = {}
        self._equal: dict[str, Whole] = {}
        self._version = 0
        self._constraints: dict[tuple[Whole, bool, str], Constraint] = {}
        self._data: dict[str, Whole | None] = {}
        self._order: dict[str, int] = {}
        self.named: dict[str, Whole] = {}
        self._taken: set[str] = set()
        self._graphs: list[str] = []
        self._hint = "data"

    def main(self, graph: GraphProto) -> None:
        weights = {tensor.name for tensor in graph.initializer}
        self._values = inputs_of((value for value in graph.input if value.name not in weights), self._limits)
        for known in self._values.values():
            for size in known.shape or ():
                for name in sorted(e.names(size)):
                    self._order.setdefault(name, len(self._order))
                    low, high = self._limits.get(name, (0, None))
                    self.named[name] = e.extent(name, high, low)
        self._taken.update(self._order)
        self._nodes(graph)

    def limits(self) -> dict[str, tuple[int, int | None, str]]:
        """Return what the operators demand of single extents of the inputs, beyond what was known before."""
        found: dict[str, tuple[int, int | None, str]] = {}
        for constraint in self._constraints.values():
            limit = e.least_extent(constraint.size) if constraint.at_least and not constraint.graph else None
            if limit is None or limit[0] in self._data:
                continue
            name, low, high = limit
            before, after = self._limits.get(name, (0, None))
            if low > max(before, found.get(name, (0,))[0]):
                found[name] = (low, None, constraint.text)
            elif name not in found and high is not None and (after is None or high < after):
                found[name] = (0, high, constraint.text)
        return found

    def sizes(self, stated: Sequence[Constraint]) -> Sizes:
        """Return what was found, with equal extents written in one way."""
        values = {name: self._read(name) for name in self._values}
        constraints = (*stated, *self._constraints.values())
        data = {n: None if b is None else self.resolve(b) for n, b in self._data.items() if n not in self._equal}
        return Sizes(values=values, constraints=constraints, equalities=dict(self._equal), bounds_of_data=data)

    def _nodes(self, graph: GraphProto) -> None:
        for tensor in graph.initializer:
            self._put(tensor.name, _tensor(tensor))
        for sparse in graph.sparse_initializer:
            self._put(sparse.values.name, Known(sparse.values.data_type, tuple(map(int, sparse.dims))))
        for node in graph.node:
            for name, known in zip(node.output, self._results(node), strict=False):
                if name:
                    self._put(name, known)

    def _put(self, name: str, known: Known) -> None:
        self._values[name] = known
        self._seen[name] = self._version

    def _read(self, name: str) -> Known:
        known = self._values.get(name, UNKNOWN)
        if self._equal and self._seen.get(name, 0) < self._version:
            known = self._resolved(known)
            self._put(name, known)
        return known

    def _results(self, node: NodeProto) -> Sequence[Known]:
        if node.op_type == "Constant" and node.domain in STANDARD:
            return [_constant(node)]
        inputs = [self._read(name) if name else None for name in node.input]
        operation = Operation(node, self._opset, inputs, self)
        self._hint = next((name for name in node.output if name), node.op_type)
        rule = rule_of(node)
        if rule is not None:
            try:
                return rule(operation)
            except (Unknown, Overgrown):
                pass
        return inferred(operation, self._opsets)

    def fresh(self, hint: str, high: Whole | None = None) -> Whole:
        """Return an extent that only data decides, at most ``high``."""
        name = unused(f"{self._hint}_{hint}" if hint else self._hint, self._taken)
        self._data[name] = high
        self._order[name] = len(self._order)
        return e.extent(name, e.bounds(high)[1] if high is not None else None)

    def require(self, difference: Whole, text: str) -> None:
        """Record that ``difference`` is 0, and solve for an extent: one that data decides, else the latest one."""
        low, high = e.bounds(difference)
        if (low is not None and low > 0) or (high is not None and high < 0):
            if self._graphs:
                return  # the branch is never taken, or the model is wrong where nobody can tell
            raise ModelError(
                where="sizes of the model",
                expected="operands whose sizes agree",
                found=text,
                fix="correct the model, or the dimensions that it states for its inputs",
            )
        graph = self._graphs[-1] if self._graphs else ""
        self._constraints.setdefault(
            (difference, False, graph), Constraint(size=difference, at_least=False, text=text, graph=graph)
        )
        if graph or isinstance(difference, int):
            return
        shared, _ = e._content(difference)
        reduced = e.floordiv(difference, shared)
        solved = e.linear_in(reduced) if isinstance(reduced, Size) else {}
        choices = [
            name for name in solved if (e.bounds(solved[name])[1] or 0) >= 0 or e.bounds(solved[name])[1] is None
        ]
        if choices:
            name = max(choices, key=lambda name: (name in self._data, self._order.get(name, 0)))
            self._replace(name, solved[name])

    def require_not_negative(self, size: Whole, text: str) -> None:
        """Record that ``size`` is not negative, where that is not proved."""
        if e.at_least(size, 0) != 1:
            graph = self._graphs[-1] if self._graphs else ""
            self._constraints.setdefault(
                (size, True, graph), Constraint(size=size, at_least=True, text=text, graph=graph)
            )

    def _replace(self, name: str, size: Whole) -> None:
        try:
            equal = {other: e.substitute(known, {name: size}) for other, known in self._equal.items()}
        except Overgrown:
            return
        self._equal = {**equal, name: size}
        self._version += 1

    def resolve(self, size: Whole) -> Whole:
        """Return a size with what is known to be equal replaced."""
        try:
            return e.substitute(size, self._equal) if self._equal else size
        except Overgrown:
            return size

    def of_data(self) -> frozenset[str]:
        """Return the extents so far that only data decides."""
        return frozenset(self._data)

    def value(self, name: str) -> Known:
        """Return what is known of any value so far."""
        return self._read(name)

    def _resolved(self, known: Known) -> Known:
        if known.is_sequence:
            items = None if known.items is None else tuple(map(self._resolved, known.items))
            element = None if known.element is None else self._resolved(known.element)
            return Known(known.dtype, known.shape, items=items, element=element)
        shape = known.shape
        if shape is not None and not all(isinstance(size, int) for size in shape):
            shape = tuple(map(self.resolve, shape))
        if known.constant is not None:
            return known
        contents = known.contents
        if contents is not None:
            flat = [self._element(entry) for entry in contents.reshape(-1).tolist()]
            contents = np.empty(contents.shape, object)
            contents.reshape(-1)[:] = flat
        return Known(known.dtype, shape, contents)

    def _element(self, entry: Whole | Real | float) -> Whole | Real | float:
        if isinstance(entry, Size):
            return self.resolve(entry)
        if isinstance(entry, Real):
            try:
                return entry.substituted(self._equal)
            except Overgrown:
                return entry
        return entry

    def graph(self, graph: GraphProto, inputs: Sequence[Known], *, certain: bool) -> list[Known]:
        """Return what is known of a subgraph's results."""
        if not certain:
            self._graphs.append(graph.name or "a subgraph")
        for value, known in zip(graph.input, inputs, strict=False):
            self._put(value.name, known)
        self._nodes(graph)
        found = [self._read(value.name) for value in graph.output]
        if not certain:
            self._graphs.pop()
        return found


def _tensor(tensor: TensorProto) -> Known:
    shape = tuple(map(int, tensor.dims))
    elsewhere = tensor.data_location == TensorProto.EXTERNAL and not is_mapped(tensor)
    if elsewhere or element_count(shape) > MOST or tensor.data_type == TensorProto.STRING:
        return Known(tensor.data_type, shape)
    try:
        array = array_of(tensor)
    except (ValueError, TypeError):
        return Known(tensor.data_type, shape)
    return of_array(array, tensor.data_type)


def _constant(node: NodeProto) -> Known:
    """Return the content of a Constant in any of its forms."""
    for entry in node.attribute:
        if entry.name == "value":
            return _tensor(entry.t)
        if entry.name == "sparse_value":
            return Known(entry.sparse_tensor.values.data_type, tuple(map(int, entry.sparse_tensor.dims)))
        if entry.name in ("value_int", "value_ints"):
            return of_array(np.array(helper.get_attribute_value(entry), np.int64))
        if entry.name in ("value_float", "value_floats"):
            return of_array(np.array(helper.get_attribute_value(entry), np.float32))
        if entry.name in ("value_string", "value_strings"):
            several = entry.type == AttributeProto.STRINGS
            return Known(TensorProto.STRING, (len(entry.strings),) if several else ())
    return UNKNOWN
