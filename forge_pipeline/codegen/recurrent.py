"""LSTM, GRU and RNN as Relax, which TVM's importer lacks: one product for all inputs, then a step per time.

Equations, gate order and names are those of the ONNX operator reference (LSTM-14, GRU-14, RNN-14). The steps are
written out, so the number of them must be known; their kernels are shared, so the code does not grow with it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

MOST_STEPS = 1024
ACTIVATIONS = {"Sigmoid": "sigmoid", "Tanh": "tanh", "Relu": "nn.relu"}
DEFAULT_ACTIVATIONS = {"LSTM": ("Sigmoid", "Tanh", "Tanh"), "GRU": ("Sigmoid", "Tanh"), "RNN": ("Tanh",)}
DIRECTIONS = {"forward": (False,), "reverse": (True,), "bidirectional": (False, True)}

State = tuple[Any, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Layer:
    """One direction. ``product`` is X W^T + bias of all steps: (steps, batch, gates * hidden)."""

    emit: Callable[[Any], Any]
    hidden: int
    product: Any
    recurrence: Any  # R^T: (hidden, gates * hidden)
    recurrence_bias: Any  # of shape (gates * hidden,), where it may not be added to the product; else None
    peepholes: tuple[Any, ...]  # p_i, p_o, p_f, or none
    functions: tuple[Callable[[Any], Any], ...]
    linear_before_reset: bool


def convert_lstm(builder: Any, inputs: list[Any], attributes: dict[str, Any], opset: int) -> Any:
    """Return (Y, Y_h, Y_c)."""
    return _convert("LSTM", 4, _lstm_step, builder, inputs, attributes)


def convert_gru(builder: Any, inputs: list[Any], attributes: dict[str, Any], opset: int) -> Any:
    """Return (Y, Y_h)."""
    return _convert("GRU", 3, _gru_step, builder, inputs, attributes)


def convert_rnn(builder: Any, inputs: list[Any], attributes: dict[str, Any], opset: int) -> Any:
    """Return (Y, Y_h)."""
    return _convert("RNN", 1, _rnn_step, builder, inputs, attributes)


def _lstm_step(layer: _Layer, product: Any, state: State) -> State:
    from tvm.relax import op

    hidden, cell = state
    gates = layer.emit(op.add(product, layer.emit(op.matmul(hidden, layer.recurrence))))
    i, o, f, c = _split(layer, gates, 4)
    gate, candidate, output = layer.functions
    if layer.peepholes:
        i = op.add(i, op.multiply(layer.peepholes[0], cell))
        f = op.add(f, op.multiply(layer.peepholes[2], cell))
    kept = op.multiply(gate(f), cell)
    new_cell = layer.emit(op.add(kept, op.multiply(gate(i), candidate(c))))
    if layer.peepholes:
        o = op.add(o, op.multiply(layer.peepholes[1], new_cell))
    return layer.emit(op.multiply(gate(o), output(new_cell))), new_cell


def _gru_step(layer: _Layer, product: Any, state: State) -> State:
    from tvm.relax import op

    (hidden,) = state
    gate, candidate = layer.functions
    z, r, h = _split(layer, product, 3)
    to_z, to_r, to_h = _split_columns(layer, 3)
    z = layer.emit(gate(op.add(z, op.matmul(hidden, to_z))))
    r = layer.emit(gate(op.add(r, op.matmul(hidden, to_r))))
    if layer.linear_before_reset:
        inner = op.matmul(hidden, to_h)
        if layer.recurrence_bias is not None:
            inner = op.add(inner, layer.recurrence_bias)
        h = candidate(op.add(h, op.multiply(r, inner)))
    else:
        h = candidate(op.add(h, op.matmul(layer.emit(op.multiply(r, hidden)), to_h)))
    return (layer.emit(op.add(h, op.multiply(z, op.subtract(hidden, h)))),)


def _rnn_step(layer: _Layer, product: Any, state: State) -> State:
    from tvm.relax import op

    (hidden,) = state
    return (layer.emit(layer.functions[0](op.add(product, op.matmul(hidden, layer.recurrence)))),)


def _convert(
    kind: str, gates: int, step: Callable[[_Layer, Any, State], State], builder: Any, inputs: list[Any], attrs: Any
) -> Any:
    from tvm import relax
    from tvm.relax import op

    def emit(expression: Any) -> Any:
        return builder.emit(builder.normalize(expression))

    def given(index: int) -> Any:
        return inputs[index] if index < len(inputs) else None

    batch_first = attrs.get("layout", 0) == 1
    source = emit(op.permute_dims(inputs[0], [1, 0, 2])) if batch_first else inputs[0]
    hidden_size = int(attrs["hidden_size"])
    reversals = DIRECTIONS[attrs.get("direction", b"forward").decode()]
    names = _activation_names(kind, attrs, len(reversals))
    states = [given(5), given(6)][: 2 if kind == "LSTM" else 1]
    if batch_first:
        states = [state if state is None else emit(op.permute_dims(state, [1, 0, 2])) for state in states]
    steps, batch = int(source.ty.shape.values[0]), source.ty.shape.values[1]
    outputs, finals = [], []
    for index, is_reversed in enumerate(reversals):
        layer = _layer(kind, gates, emit, source, inputs, index, hidden_size, names[index], attrs)
        zeros = relax.const(np.zeros((1, hidden_size), str(source.ty.dtype)))
        state = tuple(
            emit(op.broadcast_to(zeros, relax.ShapeExpr([batch, hidden_size])))
            if initial is None
            else emit(op.squeeze(op.strided_slice(initial, [0], [index], [index + 1]), [0]))
            for initial in states
        )
        by_time: list[Any] = [None] * steps
        for time in range(steps)[:: -1 if is_reversed else 1]:
            at_time = emit(op.squeeze(op.strided_slice(layer.product, [0], [time], [time + 1]), [0]))
            state = step(layer, at_time, state)
            by_time[time] = state[0]
        outputs.append(emit(op.stack(by_time, 0)))
        finals.append(state)
    axes = [2, 0, 1, 3] if batch_first else None
    y = emit(op.stack(outputs, 1))
    results = [y if axes is None else emit(op.permute_dims(y, axes))]
    for part in range(len(states)):
        final = emit(op.stack([state[part] for state in finals], 1 if batch_first else 0))
        results.append(final)
    return relax.Tuple(results)


def _layer(
    kind: str, gates: int, emit: Any, source: Any, inputs: list[Any], index: int, hidden: int, names: Any, attrs: Any
) -> _Layer:
    from tvm import relax
    from tvm.relax import op

    def of_direction(position: int) -> Any:
        value = inputs[position] if position < len(inputs) else None
        return None if value is None else _pick(emit, value, index)

    product = emit(op.matmul(source, _transposed(emit, of_direction(1))))
    bias, later = of_direction(3), None
    linear = bool(attrs.get("linear_before_reset", 0))
    if bias is not None:
        width = gates * hidden
        of_input, of_state = _slice(emit, bias, 0, width), _slice(emit, bias, width, 2 * width)
        if kind == "GRU" and linear:
            later = _slice(emit, of_state, 2 * hidden, width)
            nothing = relax.const(np.zeros(hidden, str(source.ty.dtype)))
            of_state = emit(op.concat([_slice(emit, of_state, 0, 2 * hidden), nothing]))
        product = emit(op.add(product, emit(op.add(of_input, of_state))))
    peepholes = of_direction(7) if kind == "LSTM" else None
    return _Layer(
        emit=emit,
        hidden=hidden,
        product=product,
        recurrence=_transposed(emit, of_direction(2)),
        recurrence_bias=later,
        peepholes=()
        if peepholes is None
        else tuple(_slice(emit, peepholes, n * hidden, (n + 1) * hidden) for n in range(3)),
        functions=tuple(_function(name) for name in names),
        linear_before_reset=linear,
    )


def _activation_names(kind: str, attributes: Any, directions: int) -> list[tuple[str, ...]]:
    defaults = DEFAULT_ACTIVATIONS[kind]
    names = [name.decode() for name in attributes.get("activations", ())] or list(defaults) * directions
    return [tuple(names[len(defaults) * n : len(defaults) * (n + 1)]) for n in range(directions)]


def _function(name: str) -> Callable[[Any], Any]:
    from tvm.relax import op

    function: Any = op
    for part in ACTIVATIONS[name].split("."):
        function = getattr(function, part)
    result: Callable[[Any], Any] = function
    return result


def _constant(expression: Any) -> np.ndarray[Any, Any] | None:
    from tvm.ir import GenericConst

    return expression.value.numpy() if isinstance(expression, GenericConst) else None


def _pick(emit: Any, value: Any, index: int) -> Any:
    """Return ``value[index]``; of a constant, a constant, so that generators can pack it."""
    from tvm import relax
    from tvm.relax import op

    array = _constant(value)
    if array is not None:
        return relax.const(np.ascontiguousarray(array[index]))
    return emit(op.squeeze(op.strided_slice(value, [0], [index], [index + 1]), [0]))


def _transposed(emit: Any, value: Any) -> Any:
    from tvm import relax
    from tvm.relax import op

    array = _constant(value)
    return emit(op.permute_dims(value)) if array is None else relax.const(np.ascontiguousarray(array.T))


def _slice(emit: Any, value: Any, begin: int, end: int) -> Any:
    from tvm import relax
    from tvm.relax import op

    array = _constant(value)
    return emit(op.strided_slice(value, [0], [begin], [end])) if array is None else relax.const(array[begin:end])


def _split(layer: _Layer, gates: Any, count: int) -> list[Any]:
    """Return the columns of each gate of a (batch, gates * hidden) array."""
    from tvm.relax import op

    size = layer.hidden
    return [op.strided_slice(gates, [1], [n * size], [(n + 1) * size]) for n in range(count)]


def _split_columns(layer: _Layer, count: int) -> list[Any]:
    """Return each gate's part of the recurrence matrix."""
    from tvm import relax

    array, size = _constant(layer.recurrence), layer.hidden
    if array is None:
        return _split(layer, layer.recurrence, count)
    return [relax.const(np.ascontiguousarray(array[:, n * size : (n + 1) * size])) for n in range(count)]
