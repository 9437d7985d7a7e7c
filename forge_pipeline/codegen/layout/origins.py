"""Which nodes of the model a kernel computes: followed from variable to variable, as functions are made anew.

A variable that one of our own functions emits has the nodes of the variable that it stands for. TVM's passes keep the
variables whose types they leave as they are; where they do not, or fuse, the nodes are found again by the place of a
binding, or by what is computed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

import tvm
from tvm import relax
from tvm.ir import GenericConst, GlobalVar, Op

from forge_pipeline.quantization.network import layer

if TYPE_CHECKING:
    from onnx import GraphProto

QUANTIZERS: Final = ("QuantizeLinear", "DequantizeLinear")

Nodes = tuple[str, ...]
"""Names of nodes, in the order in which the model has them."""
Calls = Sequence[tuple[str, Nodes]]
"""Kernels that are called one after another, and the nodes that each call computes."""
Number = int


@dataclass(slots=True)
class Origins:
    """The nodes that each variable of the functions of a lowering comes from; a variable of which nothing is known is
    not there."""

    known: dict[Any, Nodes] = field(default_factory=dict)

    def of(self, *variables: Any) -> Nodes:
        """Return the nodes of all of these together."""
        return tuple(dict.fromkeys(node for variable in variables for node in self.known.get(variable, ())))

    def note(self, variable: Any, nodes: Nodes) -> None:
        """Say what a variable comes from, beside what is known of it."""
        if nodes:
            self.known[variable] = tuple(dict.fromkeys((*self.known.get(variable, ()), *nodes)))

    def carry(self, before: tvm.IRModule, after: tvm.IRModule) -> None:
        """Give variables that took the place of others what these had, where `main` has as many calls as it had."""
        old, new = list(_calls(before["main"])), list(_calls(after["main"]))
        if len(old) == len(new):
            for was, now in zip(old, new, strict=True):
                if now.var not in self.known:
                    self.note(now.var, self.of(was.var))

    def fused(self, before: tvm.IRModule, after: tvm.IRModule) -> None:
        """Give the results of groups what the calls had that went into them."""
        numbers = _Numbers()
        nodes: dict[Number, Nodes] = {}
        for binding in _bindings(before["main"]):
            number = numbers.bind(binding)
            if not isinstance(binding.value, relax.Call):
                continue
            nodes[number] = tuple(dict.fromkeys((*nodes.get(number, ()), *self.of(binding.var))))
        for binding in _bindings(after["main"]):
            group = _group(after, binding.value)
            if group is None:
                numbers.bind(binding)
                continue
            known = dict(zip(group.params, map(numbers.of, binding.value.args), strict=True))
            inner = _Numbers(numbers.numbers, known)
            found = [inner.bind(item) for item in _bindings(group)]
            numbers.known[binding.var] = inner.of(group.body.body)
            for number in found:
                self.note(binding.var, nodes.get(number, ()))

    def of_calls(self, module: tvm.IRModule) -> Calls:
        """Return the kernels that `main` calls, in this order, and the nodes that each call computes."""
        return [
            (binding.value.args[0].name_hint, self.of(binding.var))
            for binding in _calls(module["main"])
            if binding.value.args and isinstance(binding.value.args[0], GlobalVar)
        ]


class Emitter(relax.BlockBuilder):  # type: ignore[misc]
    """A builder whose variables come from ``nodes``, which whoever emits sets beforehand; ``emitted`` counts them."""

    def __init__(self, origins: Origins, module: tvm.IRModule | None = None) -> None:
        super().__init__(module)
        self.origins, self.nodes, self.emitted = origins, Nodes(), 0

    def emit(self, expr: Any, name_hint: str = "") -> Any:
        """Emit an operator."""
        return self._noted(super().emit(expr, name_hint))

    def match_cast(self, value: Any, ty: Any, name_hint: str = "") -> Any:
        """Emit a cast."""
        return self._noted(super().match_cast(value, ty, name_hint))

    def emit_output(self, output: Any, name_hint: str = "") -> Any:
        """Emit what a block gives, which comes from what its value does."""
        made = super().emit_output(output, name_hint)
        self.origins.note(made, self.origins.of(output))
        return made

    def _noted(self, variable: Any) -> Any:
        self.emitted += 1
        self.origins.note(variable, self.nodes)
        return variable


@dataclass(slots=True)
class _Numbers:
    """Equal numbers for equal values: results of equal calls on equal values are one."""

    numbers: dict[Any, Number] = field(default_factory=dict)
    known: dict[Any, Number] = field(default_factory=dict)

    def bind(self, binding: Any) -> Number:
        """Return the number of what a binding computes, which its variable has from now on."""
        number = self.known[binding.var] = self.of(binding.value)
        return number

    def of(self, value: Any) -> Number:
        """Return the number of an expression."""
        if value in self.known:
            return self.known[value]
        return self.numbers.setdefault(self._key(value), len(self.numbers))

    def _key(self, value: Any) -> Any:
        if isinstance(value, relax.Tuple):
            return "tuple", *map(self.of, value.fields)
        if isinstance(value, relax.TupleGetItem):
            return "part", self.of(value.tuple_value), value.index
        if isinstance(value, relax.Call):
            return "call", value.op.name if isinstance(value.op, Op) else str(value.op), *map(self.of, value.args)
        return value if isinstance(value, GenericConst) else str(value)


def _bindings(function: Any) -> Iterator[Any]:
    return (binding for block in function.body.blocks for binding in block.bindings)


def _calls(function: Any) -> Iterator[Any]:
    return (binding for binding in _bindings(function) if isinstance(binding.value, relax.Call))


def _group(module: tvm.IRModule, value: Any) -> Any:
    """Return the function of calls that a call calls, or None."""
    if not isinstance(value, relax.Call) or not isinstance(value.op, GlobalVar):
        return None
    found = module[value.op]
    return found if isinstance(found, relax.Function) else None


def matched(calls: Calls, called: Iterable[str]) -> Calls:
    """Return the kernels that were ``called`` at last, with the nodes of each call.

    They are those of the same call of the kernel, if it has as many in ``calls``; else those of all of them together.
    """
    known: dict[str, list[Nodes]] = {}
    for kernel, nodes in calls:
        known.setdefault(kernel, []).append(nodes)
    called = list(called)
    counts, found = Counter(called), {}
    for kernel, own in known.items():
        together = tuple(dict.fromkeys(node for nodes in own for node in nodes))
        found[kernel] = iter(own if len(own) == counts[kernel] else [together] * counts[kernel])
    return [(kernel, next(found[kernel]) if kernel in found else ()) for kernel in called]


def layers(calls: Iterable[Calls], graph: GraphProto) -> dict[str, list[list[str]]]:
    """Return the layers of every kernel, for each of its ``calls``: nodes in the order of ``graph``.

    Those that only quantize are left out where there are others.
    """
    operators = {layer(node): node.op_type for node in graph.node}
    places = {name: place for place, name in enumerate(operators)}
    found: dict[str, list[list[str]]] = {}
    for kernel, names in (call for function in calls for call in function):
        row = sorted(names, key=lambda name: places.get(name, len(places)))
        computing = [name for name in row if operators.get(name) not in QUANTIZERS]
        found.setdefault(kernel, []).append(computing or row)
    return {kernel: rows for kernel, rows in sorted(found.items()) if any(rows)}
