"""An LSTM whose state is rounded to bytes at every step: an operator of our own (``ir.program_operators``)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from tvm import relax
from tvm.relax import op

from forge_pipeline.codegen.onnx_import.node import Converter, NodeImport
from forge_pipeline.codegen.onnx_import.recurrent.rounded import (
    GATES,
    NAMES,
    by_block,
    form_of,
    kernel,
    packed,
    plain_products,
)
from forge_pipeline.ir.program_operators import ROUNDED_LSTM


def _rounded_lstm(node: NodeImport) -> list[Any]:
    """Return the last state, the last cell, and all states."""
    integers, zero, scale = (node.needed(place, "weights of a recurrence") for place in (3, 4, 5))
    hidden = integers.shape[0]
    form, columns = form_of(hidden, is_reverse=bool(node.attributes["reverse"])), GATES * hidden
    matrix = integers.astype(np.int16) - zero.reshape(-1).astype(np.int16)
    factors = np.broadcast_to(scale.reshape(-1).astype(np.float32), (columns,))
    constants = [
        node.const(packed(form, matrix), "int16"),
        node.const(by_block(form, factors), "float32"),
        node.const(by_block(form, matrix.astype(np.int32).sum(axis=0)), "int32"),
        node.const(np.zeros((1, 3, hidden)), "float32"),
    ]
    states = [node.emit(op.expand_dims(node.input(place), 0)) for place in (1, 2)]
    builder = node.scope.builder
    variable = builder.add_func(kernel(form, plain_products(form)), NAMES[int(form.reversals[0])])
    steps, batch = states_of(node)
    kinds = [relax.TensorType((steps, 1, batch, hidden), "float32")]
    kinds += [relax.TensorType((1, batch, hidden), "float32")] * 2
    done = node.emit(relax.call_tir(variable, [node.input(0), *constants, *states], kinds))
    every, state, cell = (node.emit(relax.TupleGetItem(done, part)) for part in range(3))
    return [
        node.emit(op.squeeze(state, [0])), node.emit(op.squeeze(cell, [0])), node.emit(op.squeeze(every, [1])),
    ]  # fmt: skip


def states_of(node: NodeImport) -> tuple[Any, Any]:
    """Return how many steps and sequences there are."""
    steps, batch, _ = node.shape(0)
    return node.size(steps), node.size(batch)


CONVERTERS: Mapping[str, Converter] = {ROUNDED_LSTM: _rounded_lstm}
"""By its name in our domain."""
