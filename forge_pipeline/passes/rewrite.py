"""Passes that are a pattern, a check and a rewrite, in the style of onnxscript's rewriter and of onnx-passes.

A pattern is written as if it computed: ``op.Add(x, op.Mul(y, 2.0))``. Parameters of ``pattern`` after ``op`` stand for
any value, a number for a constant that is that number throughout, ``ANY`` for whatever is in an operand's place. Of
attributes only those are compared that the pattern names. Operands of commutative operators match in either order.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np
from onnx import NodeProto

from forge_pipeline.passes.contract import Kind, Options, Transformation
from forge_pipeline.passes.graph import Array, Graph
from forge_pipeline.passes.nodes import attribute

COMMUTATIVE = frozenset({"Add", "Mul", "And", "Or", "Xor", "Equal", "Max", "Min", "Sum", "Mean"})


@dataclass(frozen=True, slots=True)
class Variable:
    """Stands for any value; the same variable twice is the same value twice."""

    name: str


@dataclass(frozen=True, slots=True)
class Operation:
    """Stands for a node and what it is applied to. ``label`` names it for the check, if given."""

    op_type: str
    operands: tuple[Any, ...]
    attributes: Mapping[str, Any]
    domain: str
    label: str | None


ANY = Variable("")
Term = Variable | Operation | float | int


@dataclass(frozen=True, slots=True)
class _PatternOps:
    domain: str = ""

    def __getattr__(self, op_type: str) -> Any:
        if op_type.startswith("_"):
            raise AttributeError(op_type)

        def build(*operands: Term, _label: str | None = None, **attributes: Any) -> Operation:
            return Operation(op_type, operands, attributes, self.domain, _label)

        return build

    def of(self, domain: str) -> _PatternOps:
        """Operators of another domain."""
        return _PatternOps(domain)


@dataclass(slots=True)
class Match:
    """Where a pattern was found: the values of its variables, its nodes, and those that have a label."""

    values: dict[str, str] = field(default_factory=dict)
    nodes: list[NodeProto] = field(default_factory=list)
    labelled: dict[str, NodeProto] = field(default_factory=dict)

    def copy(self) -> Match:
        """Return a match to go on from, for another way to match the rest."""
        return Match(dict(self.values), list(self.nodes), dict(self.labelled))


@dataclass(slots=True)
class Builder:
    """Adds the nodes of a rewrite: ``op.Add(x, y, axis=1)`` gives the name of the new value."""

    graph: Graph
    hint: str
    domain: str = ""

    def __getattr__(self, op_type: str) -> Any:
        if op_type.startswith("_"):
            raise AttributeError(op_type)

        def build(*inputs: str, **attributes: Any) -> str:
            node = self.graph.add(op_type, inputs, self.hint, domain=self.domain, **attributes)
            return str(node.output[0])

        return build

    def of(self, domain: str) -> Builder:
        """Operators of another domain."""
        return Builder(self.graph, self.hint, domain)

    def constant(self, array: Array | float, dtype: Any = None) -> str:
        """Add a constant."""
        return self.graph.add_constant(np.asarray(array, dtype), f"{self.hint}_const")


class RewriteRulePass(Transformation[Options]):
    """Rewrites every match of ``pattern`` that passes ``check``, once each.

    ``check`` takes the graph and the variables by name, and sees labelled nodes through ``match`` if it asks for a
    parameter of that name; so does ``rewrite``, which takes a Builder in the graph's place. With ``exclusive``,
    inner values must have no other reader, so that the match disappears whole.
    """

    kind: ClassVar[Kind] = "rewrite"
    exclusive: ClassVar[bool] = True

    def pattern(self, op: Any, *variables: Any) -> Operation | tuple[Operation, ...]:
        """Return what is looked for, or alternatives over the same variables."""
        raise NotImplementedError

    def check(self, graph: Graph, **values: Any) -> bool:
        """Whether a match may be rewritten. By default it may."""
        return True

    def rewrite(self, op: Builder, **values: Any) -> str:
        """Build what takes the place of a match and return the name of its value."""
        raise NotImplementedError

    def call(self, graph: Graph) -> int:
        """Look at each node as the root of a match."""
        patterns = self._patterns()
        changes = 0
        for node in graph.nodes:
            if node in graph:
                found = (match for pattern in patterns for match in matches(graph, node, pattern))
                changes += any(self._apply(graph, match) for match in found)
        return changes

    def _patterns(self) -> tuple[Operation, ...]:
        names = [name for name in inspect.signature(self.pattern).parameters if name != "op"]
        found = self.pattern(_PatternOps(), *(Variable(name) for name in names))
        return found if isinstance(found, tuple) else (found,)

    def _apply(self, graph: Graph, match: Match) -> bool:
        root = match.nodes[0]
        if self.exclusive and not _is_exclusive(graph, match):
            return False
        if not self.check(graph, **_wanted(self.check, match)):
            return False
        target = root.output[0]
        before = {id(node) for node in graph.nodes}
        value = self.rewrite(Builder(graph, target), **_wanted(self.rewrite, match))
        maker = graph.producer(value)
        graph.remove(root)
        if maker is not None and maker is not root and id(maker) not in before:
            graph.redirect(value, target)
            graph.set_output(maker, list(maker.output).index(value), target)
        else:
            graph.replace_value(target, value)
        for node in match.nodes[1:]:
            if node in graph and not any(graph.users(name) or graph.is_output(name) for name in node.output if name):
                graph.remove(node)
        return True


def matches(graph: Graph, node: NodeProto, pattern: Operation) -> Iterator[Match]:
    """Yield the ways in which ``pattern`` matches with ``node`` as its root."""
    yield from _operation(graph, node, pattern, Match())


def _operation(graph: Graph, node: NodeProto, pattern: Operation, match: Match) -> Iterator[Match]:
    domain = "" if node.domain == "ai.onnx" else node.domain
    if node.op_type != pattern.op_type or domain != pattern.domain or len(node.input) < len(pattern.operands):
        return
    if not all(_same(attribute(node, name), want) for name, want in pattern.attributes.items()):
        return
    if any(node.input[len(pattern.operands) :]):
        return
    here = match.copy()
    here.nodes.append(node)
    if pattern.label is not None:
        here.labelled[pattern.label] = node
    orders = [tuple(node.input)]
    if len(node.input) == 2 and node.op_type in COMMUTATIVE and node.input[0] != node.input[1]:
        orders.append((node.input[1], node.input[0]))
    for names in orders:
        yield from _operands(graph, names, pattern.operands, here)


def _same(found: Any, want: Any) -> bool:
    return found is not None and bool(np.array_equal(np.asarray(found), np.asarray(want)))


def _operands(graph: Graph, names: tuple[str, ...], terms: tuple[Any, ...], match: Match) -> Iterator[Match]:
    if not terms:
        yield match
        return
    for found in _term(graph, names[0], terms[0], match):
        yield from _operands(graph, names[1:], terms[1:], found)


def _term(graph: Graph, name: str, term: Any, match: Match) -> Iterator[Match]:
    if isinstance(term, Variable):
        if term.name and match.values.get(term.name, name) != name:
            return
        bound = match.copy()
        if term.name:
            bound.values[term.name] = name
        yield bound
    elif isinstance(term, Operation):
        maker = graph.producer(name)
        if maker is not None and maker.output[0] == name:
            yield from _operation(graph, maker, term, match)
    elif is_number(graph, name, float(term)):
        yield match


def is_number(graph: Graph, name: str, number: float) -> bool:
    """Whether a value is a constant that is ``number`` throughout, as well as its type can tell."""
    array = graph.array(name)
    if array is None or not array.size or array.dtype.kind not in "fiu":
        return False
    near = 0.0 if array.dtype.kind != "f" else 4 * float(np.finfo(array.dtype).eps)
    return bool(np.allclose(array.astype(np.float64), number, rtol=near, atol=0.0))


def _is_exclusive(graph: Graph, match: Match) -> bool:
    inside = {id(node) for node in match.nodes}
    for node in match.nodes[1:]:
        for name in node.output:
            if name and (graph.is_output(name) or any(id(user) not in inside for user in graph.users(name))):
                return False
    return not any(graph.users(name) or graph.is_output(name) for name in match.nodes[0].output[1:] if name)


def _wanted(function: Any, match: Match) -> dict[str, Any]:
    """Return of the match what ``function`` has parameters for; a base class's takes everything."""
    parameters = inspect.signature(function).parameters
    everything = any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values())
    values: dict[str, Any] = {name: value for name, value in match.values.items() if everything or name in parameters}
    if "match" in parameters:
        values["match"] = match
    return values
