"""The sizes of every value of a model: a walk over its graph with a rule for each operator.

What operators demand of a single extent (a window fits into an axis that is at least as large) decides what is computed
from it, also before the operator: the walk is repeated until it learns no more of that kind. Exporters write an If
where an axis is removed if its extent is 1: where nothing behind it can go on with one of its branches, the other one
is what runs, and its condition is demanded of every call.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from onnx import GraphProto, ModelProto, NodeProto, TensorProto

from forge_pipeline.errors import ModelError
from forge_pipeline.ir.constant_node import STANDARD, constant_tensor
from forge_pipeline.ir.external_data.mapped import array_of, is_mapped
from forge_pipeline.ir.sizes import expression as e
from forge_pipeline.ir.sizes.evaluation import evaluated
from forge_pipeline.ir.sizes.expression import Overgrown, Whole
from forge_pipeline.ir.sizes.facts import Constraint, Facts
from forge_pipeline.ir.sizes.interface import inputs_of
from forge_pipeline.ir.sizes.operation import Operation, Unknown
from forge_pipeline.ir.sizes.polynomial import Memo
from forge_pipeline.ir.sizes.rules import rule_of
from forge_pipeline.ir.sizes.rules.fallback import inferred
from forge_pipeline.ir.sizes.value import MOST, UNKNOWN, Known, Shape, of_array
from forge_pipeline.ir.tensors import element_count
from forge_pipeline.ir.values import fed

ROUNDS: Final = 4
"""How often a model is gone through at most."""
MOST_CHOICES: Final = 16
"""How many Ifs are tried both ways, where their branches differ in rank."""
DEEPEST: Final = 4
"""Graphs within graphs that are gone into where loops are among them, whose bodies are gone through several times."""
MALFORMED: Final = (ValueError, IndexError, TypeError, KeyError, AttributeError, ZeroDivisionError, OverflowError)
"""What a rule raises for a node that is not as the standard has it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes:
    """What is known of a model's values.

    ``values`` has what every value is, those of subgraphs that may run included, by name. ``equalities`` has what
    follows from the constraints: extents and other atoms, by their texts, that other sizes do not name any more.
    ``bounds_of_data`` has the extents that only data decides, each with the most that it can be, or None. ``axes`` has
    the inputs' axes on which an extent is found.
    """

    values: Mapping[str, Known]
    constraints: tuple[Constraint, ...]
    equalities: Mapping[str, Whole]
    bounds_of_data: Mapping[str, Whole | None]
    axes: Mapping[str, tuple[tuple[str, int], ...]]

    def shape(self, name: str) -> Shape | None:
        """Return the shape of a value, None where its rank is not known."""
        return self.values.get(name, UNKNOWN).shape

    def explained(self, constraint: Constraint) -> str:
        """Return what a demand is about: the operator, and the axes of inputs on which its extents are found."""
        found = [(name, self.axes[name][0]) for name in sorted(e.names(constraint.size)) if name in self.axes]
        places = [f"{name} is axis {axis} of input {value!r}" for name, (value, axis) in found]
        return "; ".join((constraint.text, *places))


NOTHING: Final = Sizes(values={}, constraints=(), equalities={}, bounds_of_data={}, axes={})
"""The sizes of a model of which nothing is known."""


def analyse(model: ModelProto, *, assuming: bool = True) -> Sizes:
    """Return the sizes of every value of a model without calls of local functions.

    With ``assuming``, an open extent that meets another one is never broadcast, sizes that go through floats are small
    enough to be exact, and so on: what every call must keep is in the constraints, and calls that ONNX would accept
    are among those that do not. Without, what is said holds for every call that ONNX accepts.

    An initializer that is listed as an input is a constant. Raises ModelError where two sizes cannot agree.
    """
    choices: dict[str, bool] = {}
    walk, stated = _settled(model, choices, assuming=assuming)
    if not assuming:
        return walk.sizes(stated)
    open_ = list(walk.open)
    for _ in range(MOST_CHOICES):
        name = next((name for name in open_ if name not in choices), None)
        if name is None:
            break
        found = [(choice, _tried(model, {**choices, name: choice})) for choice in (True, False)]
        kept = [(choice, *result) for choice, result in found if result and result[0].refused <= walk.refused]
        if len(kept) == 1:
            choices[name], walk, stated = kept[0]
            open_ = [*open_, *(other for other in walk.open if other not in open_)]
        open_.remove(name)
    return walk.sizes(stated)


def _tried(model: ModelProto, choices: Mapping[str, bool]) -> tuple[_Walk, list[Constraint]] | None:
    """Return the walk that takes these branches, None where they cannot run."""
    try:
        return _settled(model, choices, assuming=True)
    except ModelError:
        return None


def _settled(model: ModelProto, choices: Mapping[str, bool], *, assuming: bool) -> tuple[_Walk, list[Constraint]]:
    """Return a walk that learns no more about single extents, and the demands that it learned from."""
    limits: dict[str, tuple[int, int | None]] = {}
    stated: list[Constraint] = []
    walk = _Walk(model, limits, choices, assuming=assuming)
    for _ in range(ROUNDS - 1):
        learned = walk.facts.limits()
        if not learned:
            break
        for name, (low, high, text) in learned.items():
            before, after = limits.get(name, (0, None))
            limits[name] = (max(before, low), high if after is None or (high is not None and high < after) else after)
            size = e.extent(name) - low if low else (high or 0) - e.extent(name)
            stated.append(Constraint(size=size, at_least=True, text=text))
        walk = _Walk(model, limits, choices, assuming=assuming)
    return walk, stated


class _Walk:
    """The context of all rules: values so far, and what is known to be equal."""

    def __init__(
        self,
        model: ModelProto,
        limits: Mapping[str, tuple[int, int | None]],
        choices: Mapping[str, bool],
        *,
        assuming: bool,
    ) -> None:
        self.assuming = assuming
        self._choices = choices
        self.open: dict[str, None] = {}
        self.refused = 0
        self._opsets = {entry.domain: entry.version for entry in model.opset_import}
        self._opset = self._opsets.get("", self._opsets.get("ai.onnx", 1))
        self._node = NodeProto()
        self._depth = self._trials = 0
        self._seen: dict[str, int] = {}
        inputs = fed(model.graph)
        memo: Memo = {}
        self._values = inputs_of(inputs, limits, memo)
        self._axes: dict[str, list[tuple[str, int]]] = {}
        for name, known in self._values.items():
            for axis, size in enumerate(known.shape or ()):
                for extent in sorted(e.names(size)):
                    self._axes.setdefault(extent, []).append((name, axis))
        named = {dim.dim_param for value in inputs for dim in value.type.tensor_type.shape.dim}
        self.facts = Facts(limits, sorted(self._axes, key=lambda name: name not in named), memo)
        self._nodes(model.graph)

    def sizes(self, stated: Sequence[Constraint]) -> Sizes:
        """Return what was found, with equal sizes written in one way."""
        facts = self.facts
        return Sizes(
            values={name: self._read(name) for name in list(self._values)},
            constraints=(*stated, *facts.constraints),
            equalities=dict(facts.equalities),
            bounds_of_data={name: high if high is None else facts.resolve(high) for name, high in facts.data.items()},
            axes={name: tuple(places) for name, places in self._axes.items()},
        )

    def _nodes(self, graph: GraphProto) -> None:
        for tensor in graph.initializer:
            self._put(tensor.name, tensor_of(tensor))
        for sparse in graph.sparse_initializer:
            self._put(sparse.values.name, Known(sparse.values.data_type, tuple(map(int, sparse.dims))))
        for node in graph.node:
            version = self.facts.version  # what the node itself shows is not in its results yet
            for name, known in zip(node.output, self._results(node), strict=False):
                if name:
                    self._put(name, known, version)

    def _put(self, name: str, known: Known, version: int | None = None) -> None:
        self._values[name] = known
        self._seen[name] = self.facts.version if version is None else version

    def _read(self, name: str) -> Known:
        known = self._values.get(name, UNKNOWN)
        if self._seen.get(name, 0) < self.facts.version:
            known = self.facts.resolved(known)
            self._put(name, known)
        return known

    def _results(self, node: NodeProto) -> Sequence[Known]:
        if node.op_type == "Constant" and node.domain in STANDARD:
            return [constant_of(node)]
        inputs = [self._read(name) if name else None for name in node.input]
        operation = Operation(node, self._opset, inputs, self)
        rule = rule_of(node)
        found: Sequence[Known] | None = None
        if rule is not None:
            outer, self._node = self._node, node
            try:
                found = rule(operation)
            except (Unknown, Overgrown, *MALFORMED):
                pass
            finally:
                self._node = outer
        if found is None:
            outer, self._node = self._node, node
            found = inferred(operation, self._opsets)
            self._node = outer
            if found is None:
                self.refused += 1
                found = [UNKNOWN] * len(node.output)
        return evaluated(operation, found, self._opsets)

    def fresh(self, hint: str, high: Whole | None = None) -> Whole:
        """Return an extent that only data decides, named after the node's first result."""
        name = next((name for name in self._node.output if name), self._node.op_type)
        return self.facts.fresh(f"{name}_{hint}" if hint else name, high)

    def require(self, difference: Whole, text: str) -> None:
        """Record that ``difference`` must be 0, and use it."""
        self.facts.require(difference, text)

    def require_not_negative(self, size: Whole, text: str) -> None:
        """Record that ``size`` must not be negative."""
        self.facts.require_not_negative(size, text)

    def resolve(self, size: Whole) -> Whole:
        """Return a size with what is known to be equal replaced."""
        return self.facts.resolve(size)

    def choice(self) -> bool | None:
        """Return which branch of the If at hand is taken to run, if one is."""
        return None if self.facts.graph else self._choices.get(self._node.output[0])

    def leave_open(self) -> None:
        """Record that the branches of the If at hand differ in more than sizes, and that only sizes decide it."""
        if not self.facts.graph:
            self.open[self._node.output[0]] = None

    def graph(self, attribute: str, inputs: Sequence[Known], *, certain: bool) -> tuple[list[Known], frozenset[str]]:
        """Return what is known of the results of a subgraph of the node at hand, and the extents made within it.

        ``certain`` says that it runs whenever the node does.
        """
        node, outer = self._node, self.facts.graph
        if self._trials and self._depth >= DEEPEST:
            raise Unknown
        graph = next(entry.g for entry in node.attribute if entry.name == attribute)
        before = set(self.facts.data)
        if not certain:
            self.facts.graph = f"{next((name for name in node.output if name), node.op_type)}.{attribute}"
        for value, known in zip(graph.input, inputs, strict=False):
            self._put(value.name, known)
        self._depth += 1
        self._nodes(graph)
        self._depth -= 1
        self.facts.graph, self._node = outer, node
        return [self._read(value.name) for value in graph.output], frozenset(set(self.facts.data) - before)

    def trial(self, attribute: str, inputs: Sequence[Known]) -> list[Known]:
        """Return what a subgraph's results would be, and conclude nothing from it."""
        state = self.facts.snapshot()
        self._trials += 1
        try:
            return self.graph(attribute, inputs, certain=False)[0]
        finally:
            self._trials -= 1
            self.facts.restore(state)


def tensor_of(tensor: TensorProto) -> Known:
    """Return what is known of a tensor of the model; its elements where they are few."""
    shape = tuple(map(int, tensor.dims))
    elsewhere = tensor.data_location == TensorProto.EXTERNAL and not is_mapped(tensor)
    if elsewhere or element_count(shape) > MOST or tensor.data_type == TensorProto.STRING:
        return Known(tensor.data_type, shape)
    try:
        return of_array(array_of(tensor), tensor.data_type)
    except (ValueError, TypeError):
        return Known(tensor.data_type, shape)


def constant_of(node: NodeProto) -> Known:
    """Return the content of a Constant in any of its forms."""
    tensor = constant_tensor(node)
    if tensor is not None:
        return tensor_of(tensor)
    for entry in node.attribute:
        if entry.name == "sparse_value":
            return Known(entry.sparse_tensor.values.data_type, tuple(map(int, entry.sparse_tensor.dims)))
    return UNKNOWN
