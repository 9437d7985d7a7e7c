"""The layout pass: every operator is offered to the families, which emit it in the form that suits the CPU."""

from __future__ import annotations

from collections import Counter
from typing import Any

import tvm
from tvm import relax, tirx
from tvm.ir import GenericConst

from forge_pipeline.codegen.families import handlers_of
from forge_pipeline.codegen.float32 import elementwise
from forge_pipeline.codegen.layout import compose, rows
from forge_pipeline.codegen.layout.builder import Graph, Value
from forge_pipeline.codegen.layout.origins import Emitter, Nodes, Origins
from forge_pipeline.codegen.layout.quantized_values import BlockWeight, IntegerWeight
from forge_pipeline.codegen.layout.symbolic_cast import cast
from forge_pipeline.codegen.layout.typical_extents import UNKNOWN, Typical
from forge_pipeline.codegen.tir.machine import Machine

KERNEL = "relax.call_tir"
ON_ROWS = frozenset(
    (*elementwise.ZERO_KEEPS_FINITE, *elementwise.BINARY, "relax.astype", "relax.nn.batch_norm", compose.OPERATOR)
)
"""Operators that do to values of one axis what they do to images of one row."""


def lay_out(
    module: tvm.IRModule,
    machine: Machine,
    origins: Origins,
    *,
    rearranges: bool = True,
    channels_last: bool = False,
    typical: Typical = UNKNOWN,
) -> tvm.IRModule:
    """Return ``module`` with the operators that the families know as kernels in their own layouts.

    Operators that they decline stay Relax operators on plain values. Interface and meaning stay as they are, to the
    rounding of sums whose products ``rearranges`` permits to change. ``channels_last`` keeps images as (N, H, W, C).
    ``typical`` has what open extents typically are, by name.
    """
    main = module["main"]
    kernels = {name: function for name, function in module.functions_items() if name.name_hint != "main"}
    builder = Emitter(origins, tvm.IRModule(kernels))
    bindings = [binding for block in main.body.blocks for binding in block.bindings]
    graph = Graph(
        builder=builder,
        machine=machine,
        uses=_count_uses(bindings, main.body.body),
        rearranges=rearranges,
        channels_last=channels_last,
        typical=typical,
    )
    parameters = [relax.Var(parameter.name, parameter.ty) for parameter in main.params]
    for old, new in zip(main.params, parameters, strict=True):
        graph.values[old] = Value(plain=new)
    with builder.function("main", parameters, attrs=dict(main.attrs or {})):
        with builder.dataflow():
            unread, waiting = Counter(graph.uses), dict[Any, Nodes]()
            for binding in bindings:
                graph.values[binding.var] = _emitted(graph, binding, waiting)
                _forget(graph, binding, unread)
            output = builder.emit_output(graph.plain(graph.look(main.body.body)))
        builder.emit_func_output(output)
    return builder.finalize()


def _count_uses(bindings: list[Any], result: relax.Expr) -> Counter[Any]:
    """Return how many bindings (and the result) read each variable."""
    uses: Counter[Any] = Counter()
    for expression in (*(binding.value for binding in bindings), result):
        uses.update(_variables(expression))
    return uses


def _variables(expression: relax.Expr) -> list[relax.Var]:
    """Return the variables that an expression reads, in order."""
    found: list[relax.Var] = []

    def note(part: relax.Expr) -> None:
        if isinstance(part, relax.Var):
            found.append(part)

    relax.analysis.post_order_visit(expression, note)
    return found


def _forget(graph: Graph, binding: relax.Binding, unread: Counter[Any]) -> None:
    """Let go of weights as arrays that nobody reads after this binding: all of a model's at once are many times it."""
    unread.subtract(_variables(binding.value))
    for variable in _variables(binding.value):
        value = graph.values.get(variable)
        if unread[variable] == 0 and isinstance(value, BlockWeight | IntegerWeight) and value.plain is None:
            del graph.values[variable]


def _emitted(graph: Graph, binding: relax.Binding, waiting: dict[Any, Nodes]) -> Value:
    """Emit a binding. Where nothing is emitted yet, its nodes are ``waiting`` for whoever reads it."""
    builder = graph.builder
    unread = (part for part in _variables(binding.value) if not _is_there(graph, part))
    folded = [node for part in unread for node in waiting.get(part, ())]
    builder.nodes = nodes = tuple(dict.fromkeys((*folded, *builder.origins.of(binding.var))))
    before = builder.emitted
    value = _emit(graph, binding)
    if builder.emitted == before:
        waiting[binding.var] = nodes
        if isinstance(value, Value) and value.deferred is not None:
            value.nodes = nodes
    return value


def _is_there(graph: Graph, variable: relax.Var) -> bool:
    """Return whether a value is emitted, in any form."""
    value = graph.values.get(variable)
    return isinstance(value, Value) and value.deferred is None and not (value.plain is None and value.blocked is None)


def _emit(graph: Graph, binding: relax.Binding) -> Value:
    if isinstance(binding, relax.MatchCast):
        return cast(graph, _value(graph, binding.value), binding.ty)
    return _value(graph, binding.value)


def _value(graph: Graph, expression: relax.Expr) -> Value:
    if isinstance(expression, relax.Var | GenericConst | relax.Tuple):
        return graph.look(expression)
    if isinstance(expression, relax.TupleGetItem):
        source = graph.look(expression.tuple_value)
        if source.parts is not None:
            part: Value = source.parts[expression.index]
            return part
        return Value(plain=graph.emit(relax.TupleGetItem(graph.plain(source), expression.index)))
    if not isinstance(expression, relax.Call):
        return Value(plain=graph.emit(expression))
    name = getattr(expression.op, "name", "")
    handlers = handlers_of(name)
    lifted = rows.lifted(graph, expression, handlers) if name in ON_ROWS else None
    if lifted is not None:
        return lifted
    for handler in handlers:
        value = handler(graph, expression)
        if value is not None:
            return cast(graph, value, expression.ty) if name == KERNEL and _is_open(expression) else value
    return graph.unchanged(expression)


def _is_open(call: relax.Call) -> bool:
    """Return whether a kernel of the importer makes an image whose extents have names of their own.

    The kernel that a family puts in its place has them as expressions.
    """
    shape = getattr(call.ty, "shape", None)
    return shape is not None and any(isinstance(extent, tirx.Var) for extent in shape.values[2:])
