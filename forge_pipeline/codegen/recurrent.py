"""LSTM, GRU and RNN as Relax, which TVM's importer lacks: one product for all inputs, then a kernel for all steps."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from forge_pipeline.codegen.scan import gru_kernel, lstm_kernel, panel_width, rnn_kernel

DEFAULT_ACTIVATIONS = {"LSTM": ("Sigmoid", "Tanh", "Tanh"), "GRU": ("Sigmoid", "Tanh"), "RNN": ("Tanh",)}
ACTIVATIONS = frozenset({"Sigmoid", "Tanh", "Relu"})
DIRECTIONS = {"forward": (False,), "reverse": (True,), "bidirectional": (False, True)}
GATES = {"LSTM": 4, "GRU": 3, "RNN": 1}


@dataclass(frozen=True, slots=True, kw_only=True)
class _Layer:
    """A recurrent node: its inputs, with time before batch, and its attributes."""

    kind: str
    builder: Any
    source: Any
    inputs: list[Any]
    hidden: int
    dtype: str
    attributes: dict[str, Any]

    def emit(self, expression: Any) -> Any:
        return self.builder.emit(self.builder.normalize(expression))

    def of_direction(self, position: int, index: int) -> Any:
        """Return input ``position`` of direction ``index``, or None: a constant stays one, so that it is packed."""
        from tvm import relax
        from tvm.relax import op

        value = self.inputs[position] if position < len(self.inputs) else None
        if value is None:
            return None
        array = _constant(value)
        if array is not None:
            return relax.const(np.ascontiguousarray(array[index]), self.dtype)
        return self.emit(op.squeeze(op.strided_slice(value, [0], [index], [index + 1]), [0]))

    def zeros(self, *shape: int) -> Any:
        from tvm import relax

        return relax.const(np.zeros(shape, self.dtype), self.dtype)


def convert_lstm(builder: Any, inputs: list[Any], attributes: dict[str, Any], opset: int) -> Any:
    """Return (Y, Y_h, Y_c)."""
    return _convert("LSTM", builder, inputs, attributes)


def convert_gru(builder: Any, inputs: list[Any], attributes: dict[str, Any], opset: int) -> Any:
    """Return (Y, Y_h)."""
    return _convert("GRU", builder, inputs, attributes)


def convert_rnn(builder: Any, inputs: list[Any], attributes: dict[str, Any], opset: int) -> Any:
    """Return (Y, Y_h)."""
    return _convert("RNN", builder, inputs, attributes)


def _convert(kind: str, builder: Any, inputs: list[Any], attributes: dict[str, Any]) -> Any:
    from tvm import relax
    from tvm.relax import op

    def swapped(value: Any) -> Any:
        return builder.emit(builder.normalize(op.permute_dims(value, [1, 0, 2])))

    batch_first = attributes.get("layout", 0) == 1
    if batch_first:  # inputs 0, 5 and 6: the sequence and the initial states
        inputs = [swapped(x) if i in (0, 5, 6) and x is not None else x for i, x in enumerate(inputs)]
    layer = _Layer(
        kind=kind,
        builder=builder,
        source=inputs[0],
        inputs=inputs,
        hidden=int(attributes["hidden_size"]),
        dtype=str(inputs[0].ty.dtype),
        attributes=attributes,
    )
    reversals = DIRECTIONS[attributes.get("direction", b"forward").decode()]
    names = _activation_names(kind, attributes, len(reversals))
    parts = [_direction(layer, index, is_reversed, names[index]) for index, is_reversed in enumerate(reversals)]
    y, *states = zip(*parts, strict=True)
    result = layer.emit(op.stack(list(y), 1))
    results = [layer.emit(op.permute_dims(result, [2, 0, 1, 3])) if batch_first else result]
    results += [layer.emit(op.stack(list(state), 1 if batch_first else 0)) for state in states]
    return relax.Tuple(results)


def _direction(layer: _Layer, index: int, is_reversed: bool, names: tuple[str, ...]) -> list[Any]:
    """Return Y, Y_h and, of an LSTM, Y_c of one direction."""
    from tvm import relax
    from tvm.relax import op

    hidden, linear = layer.hidden, bool(layer.attributes.get("linear_before_reset", 0))
    functions = tuple(_function(name, layer.dtype) for name in names)
    steps, batch = layer.source.ty.shape.values[:2]
    product, later = _product(layer, index, keep_recurrence_bias=layer.kind == "GRU" and linear)
    states = [_initial(layer, position, index, batch) for position in ((5, 6) if layer.kind == "LSTM" else (5,))]
    extra: list[Any] = []
    if layer.kind == "LSTM":
        kernel = lstm_kernel(hidden, layer.dtype, functions, is_reversed)
        peepholes = layer.of_direction(7, index)
        given = layer.zeros(3, hidden) if peepholes is None else op.reshape(peepholes, (3, hidden))
        extra = [layer.emit(given)]
    elif layer.kind == "GRU":
        kernel = gru_kernel(hidden, layer.dtype, functions, is_reversed, linear=linear)
        extra = [layer.zeros(hidden) if later is None else later]
    else:
        kernel = rnn_kernel(hidden, layer.dtype, functions, is_reversed)
    variable = layer.builder.add_func(kernel, f"{layer.kind.lower()}_steps")
    types = [relax.TensorType((steps, batch, hidden), layer.dtype)]
    types += [relax.TensorType((batch, hidden), layer.dtype)] * len(states)
    recurrence = _in_panels(layer, layer.of_direction(2, index))
    done = layer.emit(relax.call_tir(variable, [product, recurrence, *extra, *states], types))
    return [layer.emit(relax.TupleGetItem(done, part)) for part in range(len(types))]


def _product(layer: _Layer, index: int, *, keep_recurrence_bias: bool) -> tuple[Any, Any]:
    """Return X W^T + bias of all steps, and the candidate's recurrence bias where it is not in that."""
    from tvm.relax import op

    product = layer.emit(op.matmul(layer.source, _transposed(layer, layer.of_direction(1, index))))
    bias = layer.of_direction(3, index)
    if bias is None:
        return product, None
    width = GATES[layer.kind] * layer.hidden
    of_input, of_state = _slice(layer, bias, 0, width), _slice(layer, bias, width, 2 * width)
    later = None
    if keep_recurrence_bias:
        later = _slice(layer, of_state, 2 * layer.hidden, width)
        of_state = layer.emit(op.concat([_slice(layer, of_state, 0, 2 * layer.hidden), layer.zeros(layer.hidden)]))
    return layer.emit(op.add(product, layer.emit(op.add(of_input, of_state)))), later


def _initial(layer: _Layer, position: int, index: int, batch: Any) -> Any:
    from tvm import relax
    from tvm.relax import op

    state = layer.of_direction(position, index)
    if state is not None:
        return state
    return layer.emit(op.broadcast_to(layer.zeros(1, layer.hidden), relax.ShapeExpr([batch, layer.hidden])))


def _activation_names(kind: str, attributes: dict[str, Any], directions: int) -> list[tuple[str, ...]]:
    defaults = DEFAULT_ACTIVATIONS[kind]
    names = [name.decode() for name in attributes.get("activations", ())] or list(defaults) * directions
    return [tuple(names[len(defaults) * n : len(defaults) * (n + 1)]) for n in range(directions)]


def _function(name: str, dtype: str) -> Callable[[Any], Any]:
    from tvm import tirx

    functions: dict[str, Callable[[Any], Any]] = {
        "Sigmoid": tirx.sigmoid,
        "Tanh": tirx.tanh,
        "Relu": lambda x: tirx.max(x, tirx.const(0, dtype)),
    }
    return functions[name]


def _constant(expression: Any) -> np.ndarray[Any, Any] | None:
    from tvm.ir import GenericConst

    return expression.value.numpy() if isinstance(expression, GenericConst) else None


def _transposed(layer: _Layer, value: Any) -> Any:
    from tvm import relax
    from tvm.relax import op

    array = _constant(value)
    return (
        layer.emit(op.permute_dims(value)) if array is None else relax.const(np.ascontiguousarray(array.T), layer.dtype)
    )


def _in_panels(layer: _Layer, value: Any) -> Any:
    """Return R (gates * hidden, hidden) as the kernels read it: (panels, hidden, width)."""
    from tvm import relax
    from tvm.relax import op

    width = panel_width(layer.hidden)
    shape = (GATES[layer.kind] * layer.hidden // width, width, layer.hidden)
    array = _constant(value)
    if array is None:
        return layer.emit(op.permute_dims(layer.emit(op.reshape(value, shape)), [0, 2, 1]))
    return relax.const(np.ascontiguousarray(array.reshape(shape).transpose(0, 2, 1)), layer.dtype)


def _slice(layer: _Layer, value: Any, begin: int, end: int) -> Any:
    from tvm import relax
    from tvm.relax import op

    array = _constant(value)
    if array is not None:
        return relax.const(np.ascontiguousarray(array[begin:end]), layer.dtype)
    return layer.emit(op.strided_slice(value, [0], [begin], [end]))
