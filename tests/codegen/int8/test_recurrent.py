"""Recurrent layers of quantized models: the input's product in integers, recurrent weights stored as bytes."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest

from forge_pipeline.codegen.build import build
from forge_pipeline.target import Target
from tests.support.emulated.choice import load
from tests.support.int8.compare import HERE, OPTIONS, reference
from tests.support.int8.net import Net
from tests.support.sums import assert_same_sums

STEPS, INPUTS, HIDDEN = 7, 24, 32


def layer(operator: str, gates: int, axis: int | None) -> tuple[onnx.ModelProto, Any]:
    """Return a layer in both directions, with one scale or with one for each index of ``axis``, and its input."""
    net = Net(STEPS, 2, INPUTS)
    weights = []
    for columns in (INPUTS, HIDDEN):
        shape = (2, gates * HIDDEN, columns)
        scale = np.float32(0.002) * (net.random.uniform(0.5, 2, shape[axis]) if axis is not None else np.float32(1))
        weights.append(net.weight(shape, scale.astype(np.float32), axis=axis or 0))
    bias = net.tensor(net.random.standard_normal((2, 2 * gates * HIDDEN)).astype(np.float32) / 10)
    y = net.node(operator, net.pair("x", (0.02, 120)), *weights, bias, hidden_size=HIDDEN, direction="bidirectional")
    return net.finish(y), net.random.standard_normal(net.shape).astype(np.float32)


@pytest.mark.every(2)
@pytest.mark.parametrize(("operator", "gates", "axis"), [("LSTM", 4, 1), ("GRU", 3, None)])
def test_a_recurrent_layer_of_bytes_computes_what_onnx_runtime_computes(
    operator: str, gates: int, axis: int | None
) -> None:
    model, x = layer(operator, gates, axis)
    library = build(model, Target.from_tag(HERE), OPTIONS)
    stored = [row["shape"] for row in library.metadata["weights"] if row["dtype"] == "int8" and row["prepare"]]
    assert 2 * gates * HIDDEN * HIDDEN == sum(int(np.prod(shape)) for shape in stored)
    assert not [row for row in library.metadata["compile"]["fallbacks"] if "matmul" in row["operator"]]
    assert sum(np.prod(row["shape"]) for row in library.metadata["weights"] if row["dtype"] == "float32") < 4096
    (wanted,) = reference(model, x, optimized=False)
    found = load(library.to_bytes(), Target.from_tag(HERE))(x)[0]
    assert_same_sums(found, wanted, terms=STEPS * (INPUTS + HIDDEN))
