"""Weights of four and eight bits with a scale for each block: products that dequantize them in registers."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import TensorProto, helper, numpy_helper

from forge_pipeline.codegen.build import build
from forge_pipeline.codegen.lowering import lower
from forge_pipeline.codegen.onnx_import.importer import import_model, prepare
from forge_pipeline.codegen.options import Options
from forge_pipeline.target import Target
from forge_runtime.engine import Engine

OPTIONS = Options(generator="tiled", opt_level=3, float16=False, channel_layout=None)


def model_of(rows: int, steps: int, columns: int, bits: int, block: int, axis: int, zero: bool) -> onnx.ModelProto:
    """Return x times a constant in blocks along ``axis``; along the last, it is transposed before it is multiplied."""
    import ml_dtypes

    rng = np.random.default_rng(0)
    shape = (steps, columns) if axis == 0 else (columns, steps)
    scales = list(shape)
    scales[axis] = -(-steps // block)
    low, high, kind = (-8, 8, ml_dtypes.int4) if bits == 4 else (-128, 128, np.int8)
    tensors = [
        numpy_helper.from_array(rng.integers(low, high, shape).astype(kind), "q"),
        numpy_helper.from_array(rng.random(scales).astype(np.float32) + 0.5, "scale"),
    ]
    if zero:
        tensors.append(numpy_helper.from_array(rng.integers(-2, 3, scales).astype(kind), "zero"))
    names = [tensor.name for tensor in tensors]
    nodes = [helper.make_node("DequantizeLinear", names, ["w"], axis=axis, block_size=block)]
    if axis == 1:
        nodes.append(helper.make_node("Transpose", ["w"], ["t"], perm=[1, 0]))
    nodes.append(helper.make_node("MatMul", ["x", "w" if axis == 0 else "t"], ["y"]))
    values = [helper.make_tensor_value_info(*value) for value in (
        ("x", TensorProto.FLOAT, [rows, steps]), ("y", TensorProto.FLOAT, [rows, columns]),
    )]  # fmt: skip
    graph = helper.make_graph(nodes, "net", values[:1], values[1:], tensors)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)


def error_of(library: Any, model: onnx.ModelProto, shape: tuple[int, ...] | None = None) -> float:
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    x = np.random.default_rng(1).standard_normal(shape or session.get_inputs()[0].shape).astype(np.float32)
    wanted = session.run(None, {"x": x})[0]
    found = Engine(library.to_bytes(), threads=1)(x)[0]
    return float(np.abs(found - wanted).max() / np.abs(wanted).max())


@pytest.mark.parametrize(
    ("rows", "steps", "columns", "bits", "block", "axis", "zero"),
    [(1, 64, 40, 4, 16, 0, False), (7, 80, 24, 4, 32, 1, False), (5, 33, 17, 4, 16, 0, False),
     (3, 64, 16, 8, 32, 0, True)],
    ids=["one row", "a short last block, transposed", "odd extents", "eight bits with zero points"],
)  # fmt: skip
def test_a_product_by_weights_in_blocks_is_what_onnx_runtime_computes(
    rows: int, steps: int, columns: int, bits: int, block: int, axis: int, zero: bool
) -> None:
    model = model_of(rows, steps, columns, bits, block, axis, zero)
    library = build(model, Target.from_tag("x86-64/v3"), OPTIONS)
    assert library.metadata["compile"]["fallbacks"] == []
    assert error_of(library, model) < 2e-6


def test_a_library_is_smaller_than_a_byte_for_each_weight_of_four_bits() -> None:
    model = model_of(1, 512, 1024, 4, 32, 0, False)
    library = build(model, Target.from_tag("x86-64/v3"), OPTIONS)
    assert len(library.to_bytes()) < 512 * 1024


@pytest.mark.parametrize("tag", ["x86-64/v3", "x86-64/v4"])
@pytest.mark.parametrize("rows", [40, "tokens"])
def test_steps_of_a_sequence_before_a_batch_of_one_share_what_is_dequantized(rows: int | str, tag: str) -> None:
    """XLNet's order: as 40 products of one row each, the weights would be dequantized 40 times."""
    model = model_of(1, 64, 48, 4, 16, 0, False)
    for value in (*model.graph.input, *model.graph.output):
        size = value.type.tensor_type.shape.dim[-1].dim_value
        value.CopyFrom(helper.make_tensor_value_info(value.name, TensorProto.FLOAT, [rows, 1, size]))
    target = Target.from_tag(tag)
    library = build(model, target, OPTIONS)
    kernels = lower(import_model(prepare(model)), target, OPTIONS).module
    texts = [function.script() for name, function in kernels.functions_items() if "dense_small" in name.name_hint]
    tiles = [int(size) for text in texts for size in re.findall(r"i0_1_init in T\.unroll\(T\.int64\((\d+)\)", text)]
    assert max(tiles) > 1
    if tag == "x86-64/v3":
        assert error_of(library, model, (40, 1, 64)) < 1e-5
