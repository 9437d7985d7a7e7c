"""LSTM, GRU and RNN: one product for all inputs, then a kernel for all steps."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from tvm import relax
from tvm.ir import GenericConst
from tvm.relax import op

from forge_pipeline.codegen.float32.weight_decode import dequantize
from forge_pipeline.codegen.onnx_import.node import Converter, NodeImport
from forge_pipeline.codegen.onnx_import.recurrent.form import Form, in_blocks, width_of
from forge_pipeline.codegen.onnx_import.recurrent.functions import functions_of
from forge_pipeline.codegen.onnx_import.recurrent.gru import gru_kernel, late_gru_kernel
from forge_pipeline.codegen.onnx_import.recurrent.lstm import lstm_kernel
from forge_pipeline.codegen.onnx_import.recurrent.rnn import rnn_kernel
from forge_pipeline.codegen.onnx_import.stored_constants import Stored
from forge_pipeline.ir.recurrent import GATES, REVERSALS, STATES

SERIAL_WORK = 1 << 17
"""Multiply-adds of a sequence below which all of them stay on one thread."""

LIKELY_STEPS = 16
"""What is supposed of a number of steps that is not known."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Layer:
    """A recurrent node: its inputs, with time before batch, and its attributes.

    ``lengths``: how many steps each sequence of the batch has; None where all have all.
    """

    kind: str
    builder: Any
    source: Any
    lengths: Any
    inputs: list[Any]
    hidden: int
    dtype: str
    reversals: tuple[bool, ...]
    attributes: Mapping[str, Any]

    @property
    def directions(self) -> int:
        return len(self.reversals)

    @property
    def has_later_bias(self) -> bool:
        """True for a GRU whose reset gate comes after the product, and after its bias."""
        return self.kind == "GRU" and bool(self.attributes.get("linear_before_reset", 0))

    @property
    def resets_state(self) -> bool:
        """True for a GRU whose reset gate comes before the candidate's product."""
        return self.kind == "GRU" and not self.has_later_bias

    def emit(self, expression: Any) -> Any:
        return self.builder.emit(self.builder.normalize(expression))

    def given(self, position: int) -> Any:
        """Return an input, or None; its first axis are the directions."""
        return self.inputs[position] if position < len(self.inputs) else None

    def zeros(self, *shape: int) -> Any:
        return relax.const(np.zeros(shape, self.dtype), self.dtype)


def _recurrent(kind: str, node: NodeImport) -> list[Any]:
    """Return Y, Y_h and, of an LSTM, Y_c."""
    inputs, is_batch_first = node.inputs(), node.attributes.get("layout", 0) == 1
    if is_batch_first:  # inputs 0, 5 and 6: the sequence and the initial states
        inputs = [
            node.emit(op.permute_dims(x, [1, 0, 2])) if i in (0, 5, 6) and x is not None else x
            for i, x in enumerate(inputs)
        ]
    source, hidden = inputs[0], node.shape(2)[-1]
    if source is None or not isinstance(hidden, int):
        raise NotImplementedError("weights whose extents are computed")
    layer = _Layer(
        kind=kind,
        builder=node.scope.builder,
        source=source,
        lengths=_lengths(node),
        inputs=inputs,
        hidden=hidden,
        dtype=node.dtype(),
        reversals=REVERSALS[node.text("direction", "forward")],
        attributes=node.attributes,
    )
    y, *states = _steps(layer)
    if is_batch_first:
        y, states = (
            layer.emit(op.permute_dims(y, [2, 0, 1, 3])),
            [layer.emit(op.permute_dims(state, [1, 0, 2])) for state in states],
        )
    return [y, *states]


def _lengths(node: NodeImport) -> Any:
    """Return how many steps each sequence has, or None where that is all of them."""
    if not node.has(4):
        return None
    known, steps = node.constant(4), node.shape()[1 if node.attributes.get("layout", 0) == 1 else 0]
    return None if known is not None and (known == steps).all() else node.input(4)


def _steps(layer: _Layer) -> list[Any]:
    """Return Y (steps, directions, batch, hidden), Y_h and, of an LSTM, Y_c (directions, batch, hidden)."""
    hidden, directions = layer.hidden, layer.directions
    steps, batch = layer.source.ty.shape.values[:2]
    form = Form(
        hidden=hidden,
        dtype=layer.dtype,
        reversals=layer.reversals,
        width=width_of(layer.kind, hidden, resets_late=layer.resets_state),
        is_parallel=_is_worth_threads(layer, steps, batch),
        has_lengths=layer.lengths is not None,
        is_coupled=bool(layer.attributes.get("input_forget", 0)),
    )
    functions = functions_of(layer.kind, layer.attributes, layer.directions, layer.dtype)
    products = [_product(layer, direction) for direction in range(directions)]
    states = [_initial(layer, position, batch) for position in STATES[layer.kind]]
    gates, extra, matrices = GATES[layer.kind], list[Any](), list[Any]()
    if layer.kind == "LSTM":
        kernel = lstm_kernel(form, functions)
        peepholes = layer.given(7)
        shape = (directions, 3, hidden)
        extra = [layer.zeros(*shape) if peepholes is None else _reshaped(layer, peepholes, shape)]
    elif layer.resets_state:
        kernel = late_gru_kernel(form, functions)
        matrices = [_in_blocks(layer, form, 0, 2), _in_blocks(layer, form, 2, 3)]
    elif layer.kind == "GRU":
        kernel = gru_kernel(form, functions)
        extra = [_later_bias(layer)]
    else:
        kernel = rnn_kernel(form, functions)
    matrices = matrices or [_in_blocks(layer, form, 0, gates)]
    variable = layer.builder.add_func(kernel, f"{layer.kind.lower()}_steps")
    types = [relax.TensorType((steps, directions, batch, hidden), layer.dtype)]
    types += [relax.TensorType((directions, batch, hidden), layer.dtype)] * len(states)
    lengths = relax.const(np.zeros(1, np.int32)) if layer.lengths is None else layer.lengths
    operands = [products[0], products[-1], *matrices, lengths, *extra, *states]
    done = layer.emit(relax.call_tir(variable, operands, types))
    return [layer.emit(relax.TupleGetItem(done, part)) for part in range(len(types))]


def _is_worth_threads(layer: _Layer, steps: Any, batch: Any) -> bool:
    """Return whether sequences are worth sharing out: there may be several, and each is some work."""
    several = layer.directions > 1 or _known(batch) != 1
    each = (_known(steps) or LIKELY_STEPS) * GATES[layer.kind] * layer.hidden**2
    return several and each >= SERIAL_WORK


def _known(extent: Any) -> int | None:
    return int(extent) if isinstance(extent, int) or hasattr(extent, "value") else None


def _product(layer: _Layer, direction: int) -> Any:
    """Return X W^T + bias of all steps (steps, batch, gates * hidden) in one direction."""
    width = GATES[layer.kind] * layer.hidden
    stored = Stored.of(layer.builder, layer.given(1))
    if stored is not None and layer.dtype == "float32":
        weight = layer.emit(stored.columns_of(direction))
    else:
        weight = _arranged(layer, _of(layer, layer.given(1), direction), [0, 2, 1], (-1, width))
    product = layer.emit(op.matmul(layer.source, weight))
    bias = layer.given(3)
    if bias is None:
        return product
    of_input, of_state = _halves(layer, bias)
    if layer.has_later_bias:
        zeros = layer.zeros(layer.directions, layer.hidden)
        of_state = layer.emit(op.concat([_columns(layer, of_state, 0, width - layer.hidden), zeros], 1))
    whole = _of(layer, layer.emit(op.add(of_input, of_state)), direction)
    return layer.emit(op.add(product, _reshaped(layer, whole, (width,))))


def _halves(layer: _Layer, bias: Any) -> tuple[Any, Any]:
    """Return the biases of the input's product and of the state's, (directions, gates * hidden) each."""
    width = GATES[layer.kind] * layer.hidden
    return _columns(layer, bias, 0, width), _columns(layer, bias, width, 2 * width)


def _later_bias(layer: _Layer) -> Any:
    """Return the recurrence bias of a candidate whose product is reset (directions, hidden)."""
    bias = layer.given(3)
    if bias is None or not layer.has_later_bias:
        return layer.zeros(layer.directions, layer.hidden)
    return _columns(layer, _halves(layer, bias)[1], 2 * layer.hidden, 3 * layer.hidden)


def _initial(layer: _Layer, position: int, batch: Any) -> Any:
    state = layer.given(position)
    if state is not None:
        return state
    shape = relax.ShapeExpr([layer.directions, batch, layer.hidden])
    return layer.emit(op.broadcast_to(layer.zeros(1, 1, layer.hidden), shape))


def _in_blocks(layer: _Layer, form: Form, first: int, last: int) -> Any:
    """Return R (directions, gates * hidden, hidden) of some gates, as the kernels read it (`in_blocks`)."""
    stored, weight, gates = Stored.of(layer.builder, layer.given(2)), layer.given(2), last - first
    rows = slice(first * layer.hidden, last * layer.hidden)
    if stored is not None and stored.fits_int8 and layer.dtype == "float32":
        scale = np.broadcast_to(stored.scale, (*stored.integers.shape[:2], 1)).astype(np.float32)
        parts = [in_blocks(array[:, rows], gates, form) for array in (stored.integers.astype(np.int8), scale)]
        return layer.builder.emit_te(dequantize, *map(relax.const, parts), primfunc_name_hint="dequantize_weight")
    array = _constant(weight)
    if array is not None:
        return _as_constant(layer, in_blocks(array[:, rows], gates, form))
    directions, hidden, blocks, width = layer.directions, layer.hidden, form.blocks, form.width
    apart = layer.emit(op.reshape(weight, (directions, GATES[layer.kind], hidden, hidden)))
    if gates < GATES[layer.kind]:
        apart = layer.emit(op.strided_slice(apart, [1], [first], [last]))
    if form.rest:
        apart = layer.emit(op.nn.pad(apart, [0, 0, 0, 0, 0, blocks * width - hidden, 0, 0]))
    split = layer.emit(op.reshape(apart, (directions, gates, blocks, width, hidden)))
    ordered = layer.emit(op.permute_dims(split, [0, 2, 1, 3, 4]))
    split = layer.emit(op.reshape(ordered, (directions, blocks, form.parts(gates), form.part(gates), hidden)))
    return layer.emit(op.permute_dims(split, [0, 1, 2, 4, 3]))


def _arranged(layer: _Layer, value: Any, order: list[int], shape: tuple[int, ...]) -> Any:
    """Transpose and reshape; a constant stays one, so that it is packed."""
    array = _constant(value)
    if array is None:
        return _reshaped(layer, layer.emit(op.permute_dims(value, order)), shape)
    return _as_constant(layer, array.transpose(order).reshape(shape))


def _reshaped(layer: _Layer, value: Any, shape: tuple[int, ...]) -> Any:
    array = _constant(value)
    return layer.emit(op.reshape(value, shape)) if array is None else _as_constant(layer, array.reshape(shape))


def _of(layer: _Layer, value: Any, direction: int) -> Any:
    """Return one direction of a value, (1, ...)."""
    array = _constant(value)
    if array is None:
        return (
            value if layer.directions == 1 else layer.emit(op.strided_slice(value, [0], [direction], [direction + 1]))
        )
    return _as_constant(layer, array[direction : direction + 1])


def _columns(layer: _Layer, value: Any, begin: int, end: int) -> Any:
    """Return columns of a matrix."""
    array = _constant(value)
    if array is None:
        return layer.emit(op.strided_slice(value, [1], [begin], [end]))
    return _as_constant(layer, array[:, begin:end])


def _constant(expression: Any) -> np.ndarray[Any, Any] | None:
    return expression.value.numpy() if isinstance(expression, GenericConst) else None


def _as_constant(layer: _Layer, array: np.ndarray[Any, Any]) -> Any:
    return relax.const(np.ascontiguousarray(array), layer.dtype)


CONVERTERS: Mapping[str, Converter] = {kind: partial(_recurrent, kind) for kind in GATES}
