"""Layers that carry a state from token to token: causal convolutions, and attention without a softmax.

Sources: ONNX Runtime's ContribOperators.md; Yang et al., "Gated Delta Networks", arXiv 2412.06464, for the rules by
which the state of linear attention is updated.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from onnx import GraphProto, NodeProto, TensorProto, helper

from forge_pipeline.ir.contrib.emitter import Emitter
from forge_pipeline.ir.contrib.inference import Dims
from forge_pipeline.ir.contrib.writer import Unusual, Writer

GATED, DELTA = ("gated", "gated_delta"), ("delta", "gated_delta")
"""The rules by which the state decays, and by which only what is new is added."""


def _convolution(writer: Writer, node: NodeProto) -> None:
    """CausalConvWithState (input, weight, bias, past_state): a filter for each channel over this and earlier tokens.

    The state has the tokens in front of the first, zeros where it is not given, and those in front of the next call's.
    """
    op = Emitter(writer, node)
    x, weight, bias, past = (op.input(place) for place in range(4))
    channels, width, dilation = op.size(weight, 0), op.size(weight, -1), op.integer("dilation", 1)
    if op.rank(weight, "filters") != 3 or op.rank(x, "an operand") != 3 or op.integer("ndim", 1) != 1:
        raise Unusual("a convolution over other than one axis")
    if op.integer("state_window") or channels is None or width is None or dilation < 1:
        raise Unusual("a state of several tokens" if op.integer("state_window") else "filters of an unknown size")
    is_last, kept = bool(op.integer("channels_last")), (width - 1) * dilation
    if is_last:
        x, past = op.transpose(x, 0, 2, 1), op.transpose(past, 0, 2, 1) if past else ""
    if past:
        x = op.concat(past, x, axis=2)
    elif kept:
        x = op("Pad", x, op.integers(0, 0, kept, 0, 0, 0))
    value = op("Conv", x, weight, *([bias] * bool(bias)), group=channels, dilations=[dilation])
    if op.text("activation", "none") in ("silu", "swish"):
        value = op.silu(value)
    elif op.text("activation", "none") != "none":
        raise Unusual(f"the activation {op.text('activation')}")
    op.give(0, op.transpose(value, 0, 2, 1) if is_last else value)
    if op.output(1):
        end = op.integers(np.iinfo(np.int64).max)
        state = op.slice(x, op.integers(-kept) if kept else end, end, 2)
        op.give(1, op.transpose(state, 0, 2, 1) if is_last else state)


def _gate(writer: Writer, node: NodeProto) -> None:
    """LinearAttentionGate (a, dt_bias, decay_scale, b): in 32 bits."""
    op = Emitter(writer, node)
    a, bias, scale, b = (op.input(place) for place in range(4))
    soft = op("Softplus", op("Add", op.cast(a, TensorProto.FLOAT), bias))
    op.give(0, op.cast(op("Mul", scale, soft), op.kind(a)))
    if b:
        op.result(1, "Sigmoid", b)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Layout:
    """Heads of queries and of keys and values, the sizes of a key and of a value, and the rule of the state."""

    heads: int
    groups: int
    key: int
    value: int
    rule: str
    scale: float


def _attention(writer: Writer, node: NodeProto) -> None:
    """LinearAttention (query, key, value, past_state, decay, beta): a state (batch, heads, key, value) that every token
    adds to, and every query reads."""
    op = Emitter(writer, node)
    layout = _layout(op)
    query, key, value = (op.input(place) for place in range(3))
    parts = [
        op.reshape(query, 0, 0, layout.heads, layout.key),
        op.reshape(key, 0, 0, layout.groups, layout.key),
        op.reshape(value, 0, 0, layout.groups, layout.value),
    ]
    if layout.heads < layout.groups:  # every query is that of several heads
        split = op.reshape(parts[0], 0, 0, layout.heads, 1, layout.key)
        wide = op("Expand", split, op.integers(1, 1, 1, layout.groups // layout.heads, 1))
        parts[0] = op.reshape(wide, 0, 0, layout.groups, layout.key)
    for place, is_used, size in ((4, layout.rule in GATED, layout.key), (5, layout.rule in DELTA, 1)):
        if is_used:
            width = op.size(op.input(place), -1)
            heads = 1 if width == 1 else layout.groups
            if width not in (1, layout.groups, layout.groups * size):
                raise Unusual(f"a gate of {width or 'an unknown number of'} channels")
            parts.append(op.reshape(op.input(place), 0, 0, heads, width // heads))
    state = op.input(3)
    if not state:
        shape = op.concat(op.length(query, 0), op.integers(layout.groups, layout.key, layout.value), axis=0)
        zero = helper.make_tensor("zero", op.kind(query), [1], np.zeros(1, np.float32))
        state = op("ConstantOfShape", shape, value=zero)
    _scan(op, layout, state, parts)


def _layout(op: Emitter) -> _Layout:
    heads, groups = op.integer("q_num_heads"), op.integer("kv_num_heads")
    rule = op.text("update_rule", "gated_delta")
    widths = [op.size(op.input(place), -1) for place in (0, 2)]
    if op.integer("state_window"):
        raise Unusual("a state of several tokens")
    if rule not in ("linear", *GATED, *DELTA) or min(heads, groups) < 1 or max(heads, groups) % min(heads, groups):
        raise Unusual(f"the rule {rule} for {heads} heads of queries and {groups} of keys")
    if widths[0] is None or widths[1] is None or widths[0] % heads or widths[1] % groups:
        raise Unusual("heads of an unknown size")
    if (rule in GATED and not op.input(4)) or (rule in DELTA and not op.input(5)):
        raise Unusual(f"no gate for the rule {rule}")
    key = widths[0] // heads
    scale = op.real("scale") or 1 / math.sqrt(key)
    return _Layout(heads=heads, groups=groups, key=key, value=widths[1] // groups, rule=rule, scale=scale)


def _scan(op: Emitter, layout: _Layout, state: str, parts: list[str]) -> None:
    """Give both results: of a token after the other."""
    writer = op.writer
    inner = Writer.of(GraphProto(), writer.source, writer.opset, writer)
    step = Emitter(inner, op.node)
    names = [inner.named(f"{op.base}/token") for _ in (state, *parts)]
    kind, heads = op.kind(state), max(layout.heads, layout.groups)
    shapes = [op.shape(state) or (None,) * 4, *(_of_a_token(op.shape(part)) for part in parts)]
    for name, shape in zip(names, shapes, strict=True):
        inner.types[name], inner.shapes[name] = kind, shape
    after, read = _token(step, layout, names)
    body = helper.make_graph(
        inner.nodes,
        "token",
        [helper.make_tensor_value_info(name, kind, shape) for name, shape in zip(names, shapes, strict=True)],
        [
            helper.make_tensor_value_info(after, kind, [None, layout.groups, layout.key, layout.value]),
            helper.make_tensor_value_info(read, kind, [None, heads, layout.value]),
        ],
    )
    last, every = op.output(1) or writer.named(f"{op.base}/state"), writer.named(f"{op.base}/read")
    count = len(parts)
    writer.add(
        helper.make_node(
            "Scan",
            [state, *parts],
            [last, every],
            name=op.node.name or every,
            body=body,
            num_scan_inputs=count,
            scan_input_axes=[1] * count,
            scan_output_axes=[1],
        )
    )
    inner_shape = op.shape(op.input(0)) or (None, None, None)
    writer.types[every], writer.shapes[every] = kind, (*inner_shape[:2], heads, layout.value)
    op.give(0, op.reshape(every, 0, 0, heads * layout.value))


def _of_a_token(shape: Dims | None) -> Dims:
    """Return (batch, heads, size) of (batch, tokens, heads, size)."""
    return (None,) * 3 if shape is None else (shape[0], *shape[2:])


def _token(op: Emitter, layout: _Layout, names: list[str]) -> tuple[str, str]:
    """Return the state behind a token, and what its queries read of it.

    ``names``: the state before, query, key and value (batch, heads, size), and the gates that the rule has.
    """
    state, query, key, value, *gates = names
    column, row = op.unsqueeze(key, 3), op.unsqueeze(value, 2)
    if layout.rule in GATED:
        state = op("Mul", state, op.unsqueeze(op("Exp", gates.pop(0)), 3))
    if layout.rule in DELTA:
        known = op("MatMul", op.unsqueeze(key, 2), state)
        row = op("Mul", op.unsqueeze(gates.pop(0), 3), op("Sub", row, known))
    state = op("Add", state, op("Mul", column, row))
    rows = op.reshape(query, 0, layout.groups, -1, layout.key)
    read = op("Mul", op("MatMul", rows, state), op.number(layout.scale, state))
    return state, op.reshape(read, 0, max(layout.heads, layout.groups), layout.value)


RULES = {"CausalConvWithState": _convolution, "LinearAttention": _attention, "LinearAttentionGate": _gate}
"""How to write out each operator of com.microsoft."""
