"""The work of a model, counted by hand for small ones."""

from __future__ import annotations

import numpy as np
from onnx import TensorProto, helper, numpy_helper, parser

from forge_pipeline.evaluation.work import work_of
from forge_pipeline.ir import ONNXModule
from tests.support.native import convolutions


def test_convolutions_and_matrix_products_are_counted_for_the_sizes_of_the_call() -> None:
    model = ONNXModule(convolutions())
    found = work_of(model, {"x": np.zeros((2, 3, 24, 24), "f")})
    full = 24 * 24 * 16 * 3 * 9 + 24 * 24 * 16 * 16 * 9
    assert found.float_operations == 2 * 2 * (full + 16 * 5)
    assert found.byte_operations == 0
    assert found.bytes >= 4 * (16 * 27 + 16 * 144 + 80) + 4 * 2 * (3 * 24 * 24 + 5)


def test_what_both_are_dequantized_is_a_product_of_bytes() -> None:
    text = """<ir_version: 10, opset_import: ["": 21]>
    g (float[3, 8] x) => (float[3, 4] y)
    { q = QuantizeLinear (x, s, z) d = DequantizeLinear (q, s, z) e = DequantizeLinear (w, s, z) y = MatMul (d, e) }"""
    model = parser.parse_model(text)
    tensors = {"s": np.float32(0.1), "z": np.int8(0), "w": np.ones((8, 4), np.int8)}
    model.graph.initializer.extend(numpy_helper.from_array(np.asarray(value), name) for name, value in tensors.items())
    found = work_of(ONNXModule(model), {"x": np.ones((3, 8), "f")})
    assert (found.float_operations, found.byte_operations) == (0, 2 * 3 * 8 * 4)


def test_transposed_operands_and_convolutions_are_counted_by_what_they_sum() -> None:
    nodes = [
        helper.make_node("Gemm", ["a", "b"], ["c"], transA=1),
        helper.make_node("ConvTranspose", ["x", "w"], ["y"], strides=[2, 2]),
    ]
    inputs = {"a": (8, 3), "b": (8, 4), "x": (1, 2, 5, 5), "w": (2, 6, 2, 2)}
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name, shape in inputs.items()],
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in "cy"],
    )
    model = ONNXModule(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10))
    found = work_of(model, {name: np.ones(shape, "f") for name, shape in inputs.items()})
    assert found.float_operations == 2 * (3 * 4 * 8 + 10 * 10 * 6 * 2)
