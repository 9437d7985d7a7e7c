"""Products of two activations that may be the scores of attention: emitted when it is known what follows them."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from tvm import relax

from forge_pipeline.codegen.float32 import softmax
from forge_pipeline.codegen.float32.products import amx_attention, attention, matmul
from forge_pipeline.codegen.layout.builder import Graph, Value, has_known_shape, is_spread, same_shape, shape_of


@dataclass(frozen=True, slots=True, kw_only=True)
class Scores:
    """A product, and the operators that follow it: ``calls`` of each the operator and which operand the scores are.

    ``steps`` and ``terms`` are what they do before the softmax, which ``is_shares`` says is there. ``zero_for_nan``:
    shares that are none are zeros.
    """

    product: relax.Call
    calls: tuple[tuple[relax.Call, int], ...] = ()
    steps: tuple[tuple[str, float | None], ...] = ()
    terms: tuple[Value, ...] = ()
    is_shares: bool = False
    zero_for_nan: bool = False

    def emit(self, graph: Graph) -> Value:
        """Emit it operator by operator."""
        value = matmul.multiply(graph, self.product) or graph.unchanged(self.product)
        for call, index in self.calls:
            graph.values[call.args[index]] = value
            is_softmax = call.op.name == SOFTMAX
            value = (softmax.normalize(graph, call) if is_softmax else None) or graph.unchanged(call)
        return value

    def and_then(self, call: relax.Call, index: int, **changes: Any) -> Value:
        """Return the value after one more operator."""
        return Value(deferred=replace(self, calls=(*self.calls, (call, index)), **changes))

    def without_nan(self, call: relax.Call) -> Value:
        """Return the shares, zero where they are no numbers."""
        return self.and_then(call, 2, zero_for_nan=True)


SOFTMAX = "relax.nn.softmax"


def multiply(graph: Graph, call: relax.Call) -> Value | None:
    """Take products whose results are scores, and those of shares by values."""
    left, right = call.args
    if not all(has_known_shape(side, symbolic_axes=range(8)) for side in (left, right)):
        return None
    shares = graph.look(left).deferred
    if isinstance(shares, Scores) and shares.is_shares and graph.is_used_once(left):
        return _attend(graph, shares, right)
    rows, columns = shape_of(left)[-2], shape_of(right)[-1]
    is_known = graph.look(right).constant is not None or call.attrs.out_dtype not in (None, "", "void", "float32")
    few = isinstance(rows, int) and rows < attention.FEW
    if is_known or few or (isinstance(columns, int) and columns <= attention.PANEL_VECTORS * graph.machine.lanes):
        return None
    if len(shape_of(left)) < 3 or not same_shape(shape_of(left)[:-2], shape_of(right)[:-2]):
        return None
    return Value(deferred=Scores(product=call))


def change(graph: Graph, call: relax.Call) -> Value | None:
    """Take what is added to scores, or what they are multiplied by, before their softmax."""
    for index, argument in enumerate(call.args[:2]):
        scores = _scores(graph, argument)
        if scores is None or scores.is_shares:
            continue
        if index == 1 and call.op.name in ("relax.subtract", "relax.divide"):
            return None
        other = call.args[1 - index]
        value = graph.look(other)
        if value.constant is not None and value.constant.size == 1 and value.constant.ndim <= len(shape_of(argument)):
            number = float(value.constant.reshape(()))
            return scores.and_then(call, index, steps=(*scores.steps, (call.op.name, number)))
        if not has_known_shape(other, symbolic_axes=range(8)) or isinstance(value.deferred, Scores):
            return None
        if not is_spread(shape_of(other), shape_of(argument)):
            return None
        return scores.and_then(call, index, steps=(*scores.steps, (call.op.name, None)), terms=(*scores.terms, value))
    return None


def normalize(graph: Graph, call: relax.Call) -> Value | None:
    """Take the softmax of scores along the last axis."""
    scores = _scores(graph, call.args[0])
    axis = int(call.attrs.axis)
    if scores is None or scores.is_shares or axis not in (-1, len(shape_of(call.args[0])) - 1):
        return None
    return scores.and_then(call, 0, is_shares=True)


HANDLERS = {
    "relax.matmul": multiply,
    SOFTMAX: normalize,
    **dict.fromkeys(attention.OPERATORS, change),
}


def _scores(graph: Graph, argument: relax.Expr) -> Scores | None:
    """Return the scores that an operand is, if nothing else reads it."""
    deferred = graph.look(argument).deferred
    return deferred if isinstance(deferred, Scores) and graph.is_used_once(argument) else None


def _attend(graph: Graph, shares: Scores, right: relax.Expr) -> Value | None:
    """Emit attention; values get columns until they fill vectors."""
    query, keys = shares.product.args
    (rows, depth), width = shape_of(query)[-2:], shape_of(right)[-1]
    lanes = graph.machine.lanes
    if not isinstance(width, int) or width == 1 or not same_shape(shape_of(query)[:-2], shape_of(right)[:-2]):
        return None
    machine, asked = graph.machine, graph.look(query)
    in_tiles = amx_attention.is_worth(machine, rows, depth, shape_of(keys)[-1])
    is_paired = not in_tiles and machine.multiplies_pairs(None) and isinstance(depth, int) and depth % 2 == 0
    operands = [graph.plain(graph.look(operand)) for operand in (query, keys, right)]
    operands[2] = _filled(graph, operands[2], lanes)
    if is_paired:
        values = graph.kernel(attention.in_pairs, operands[2], name="pair", lanes=lanes)
        operands = [matmul.in_pairs(graph, asked), operands[1], values]
    panel = attention.PANEL_VECTORS * lanes
    terms = [_filled(graph, graph.plain(term), panel) for term in shares.terms]
    shape = (*shape_of(query)[:-1], width)
    if in_tiles:
        values = graph.kernel(amx_attention.values_in_tiles, operands[2], name="pair")
        tiles = graph.kernel(
            amx_attention.attend, *operands[:2], values, *terms, name="attention", steps=shares.steps,
            zero_for_nan=shares.zero_for_nan,
        )  # fmt: skip
        return Value(plain=graph.kernel(amx_attention.crop, tiles, name="crop", shape=shape))
    tiles = graph.kernel(
        attention.attend, *operands, *terms, name="attention", steps=shares.steps, zero_for_nan=shares.zero_for_nan,
        tile=attention.tile_rows(machine, rows, depth // 2 if is_paired else depth), lanes=lanes,
    )  # fmt: skip
    return Value(plain=graph.kernel(attention.crop, tiles, name="crop", shape=shape))


def _filled(graph: Graph, term: relax.Expr, width: int) -> relax.Expr:
    columns = shape_of(term)[-1]
    if isinstance(columns, int) and (columns == 1 or columns % width == 0):
        return term
    return graph.kernel(attention.fill, term, name="fill", width=width)
