"""The CPU code generator: each family computes what ONNX Runtime computes, and nothing generic goes unsaid."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper

from forge_pipeline.codegen.build import build
from forge_pipeline.codegen.options import Options
from forge_pipeline.target import Target
from forge_runtime.engine import Engine
from tests.support.sums import assert_same_sums

TILED = Options(generator="tiled", opt_level=3, float16=False, channel_layout=None)
Node = tuple[str, list[str], dict[str, Any]]


def model_of(shape: Sequence[int | str], nodes: Sequence[Node], weights: dict[str, np.ndarray]) -> onnx.ModelProto:
    """Return a chain of nodes; "@" among a node's inputs is the output of the one before."""
    made, previous = [], "x"
    for index, (operator, inputs, attributes) in enumerate(nodes):
        names = [previous if name == "@" else name for name in inputs]
        previous = f"v{index}"
        made.append(helper.make_node(operator, names, [previous], **attributes))
    graph = helper.make_graph(
        made,
        "graph",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)],
        [helper.make_tensor_value_info(previous, TensorProto.FLOAT, None)],
        [numpy_helper.from_array(value, name) for name, value in weights.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=10)


def normal(*shape: int) -> np.ndarray:
    return np.random.default_rng(sum(shape)).standard_normal(shape).astype(np.float32)


def conv(filters: int, channels: int, kernel: int, **attributes: Any) -> tuple[list[Node], dict[str, np.ndarray]]:
    weights = {"w": normal(filters, channels, kernel, kernel) / kernel, "b": normal(filters)}
    return [("Conv", ["@", "w", "b"], {"kernel_shape": [kernel] * 2, **attributes})], weights


def followed(
    case: tuple[list[Node], dict[str, np.ndarray]], *operators: str
) -> tuple[list[Node], dict[str, np.ndarray]]:
    nodes, weights = case
    return [*nodes, *((operator, ["@"], {}) for operator in operators)], weights


def residual(case: tuple[list[Node], dict[str, np.ndarray]]) -> tuple[list[Node], dict[str, np.ndarray]]:
    nodes, weights = case
    return [*nodes, ("Add", ["@", "x"], {}), ("Relu", ["@"], {})], weights


CASES: dict[str, tuple[list[int | str], tuple[list[Node], dict[str, np.ndarray]]]] = {
    "a first convolution": ([1, 3, 21, 19], followed(conv(24, 3, 5, pads=[2] * 4, strides=[2, 2]), "Relu")),
    "channels that fill no vector": ([1, 20, 9, 9], conv(37, 20, 3, pads=[1, 0, 2, 1])),
    "a pointwise convolution in parts": ([1, 1024, 14, 14], conv(64, 1024, 1)),
    "stride, dilation and lopsided padding": (
        [2, 32, 17, 15],
        conv(32, 32, 3, strides=[2, 1], dilations=[1, 2], pads=[0, 2, 1, 3]),
    ),
    "groups smaller than a vector": ([1, 24, 8, 8], conv(48, 4, 3, group=6, pads=[1] * 4)),
    "groups as wide as vectors": ([1, 64, 8, 8], conv(64, 32, 3, group=2, pads=[1] * 4)),
    "a depthwise convolution": ([1, 40, 15, 13], followed(conv(40, 1, 3, group=40, pads=[1] * 4), "Relu")),
    "a depthwise convolution with stride": ([1, 16, 14, 14], conv(16, 1, 5, group=16, pads=[2] * 4, strides=[2, 2])),
    "Winograd with a residual": ([1, 64, 28, 28], residual(conv(64, 64, 3, pads=[1] * 4))),
    "Winograd with ragged edges": ([1, 32, 23, 30], followed(conv(80, 32, 3, pads=[1] * 4), "Sigmoid")),
    "Winograd without padding": ([1, 48, 42, 42], conv(48, 48, 3)),
    "a symbolic batch": (["N", 32, 16, 16], followed(conv(64, 32, 3, pads=[1] * 4), "Relu")),
    "a convolution over one axis": (
        [2, 20, 50],
        ([("Conv", ["@", "w"], {"strides": [2], "pads": [2, 1], "dilations": [2]})], {"w": normal(33, 20, 3)}),
    ),
    "pooling over odd windows": (
        [1, 32, 15, 15],
        (
            [
                *conv(32, 32, 1)[0],
                ("MaxPool", ["@"], {"kernel_shape": [3, 3], "strides": [2, 2], "ceil_mode": 1, "pads": [0, 0, 1, 1]}),
                ("AveragePool", ["@"], {"kernel_shape": [2, 3], "pads": [0, 1, 1, 1]}),
                ("GlobalAveragePool", ["@"], {}),
            ],
            conv(32, 32, 1)[1],
        ),
    ),
    "pooling of volumes": (
        [1, 8, 9, 7, 6],
        (
            [
                ("MaxPool", ["@"], {"kernel_shape": [2, 3, 2], "pads": [1, 0, 0, 0, 1, 1]}),
                ("AveragePool", ["@"], {"kernel_shape": [2] * 3, "strides": [2] * 3, "pads": [1] * 6, "ceil_mode": 1}),
                ("GlobalMaxPool", ["@"], {}),
            ],
            {},
        ),
    ),
    "pooling along a sequence": (
        ["N", 8, 41],
        (
            [
                ("AveragePool", ["@"], {"kernel_shape": [3], "pads": [1, 1], "count_include_pad": 1}),
                ("MaxPool", ["@"], {"kernel_shape": [3], "strides": [2], "ceil_mode": 1}),
            ],
            {},
        ),
    ),
    "the largest pixel of blocked images": (
        [1, 8, 6, 6],
        ([*conv(20, 8, 1)[0], ("GlobalMaxPool", ["@"], {})], conv(20, 8, 1)[1]),
    ),
    "a product of one row": ([1, 200], ([("MatMul", ["@", "w"], {})], {"w": normal(200, 70)})),
    "a product with a tail": ([3, 29, 64], ([("MatMul", ["@", "w"], {}), ("Relu", ["@"], {})], {"w": normal(64, 100)})),
    "a product of a symbolic batch": (["N", 64], ([("MatMul", ["@", "w"], {})], {"w": normal(64, 48)})),
    "products of one row and one column, and what follows": (
        [2, 8, 1, 16],
        (
            [
                ("Transpose", ["@"], {"perm": [0, 1, 3, 2]}),
                ("MatMul", ["x", "@"], {}),
                ("Div", ["@", "four"], {}),
            ],
            {"four": np.array(4, np.float32)},
        ),
    ),
    "softmax": ([4, 9, 64], ([("Softmax", ["@"], {"axis": -1})], {})),
    "layer normalization": (
        [2, 7, 96],
        ([("LayerNormalization", ["@", "s", "b"], {"axis": -1})], {"s": normal(96), "b": normal(96)}),
    ),
}


@pytest.mark.every(10)
@pytest.mark.parametrize("name", CASES)
def test_a_compiled_model_computes_what_onnx_runtime_computes_and_has_no_generic_kernel(name: str) -> None:
    shape, (nodes, weights) = CASES[name]
    model = model_of(shape, nodes, weights)
    library = build(model, Target.from_tag("host"), TILED)
    assert library.metadata["compile"]["fallbacks"] == []
    session = onnxruntime.InferenceSession(model.SerializeToString())
    engine = Engine(library.to_bytes(), threads=2)
    for batch in (1, 3) if "N" in shape else (1,):
        x = normal(*(batch if extent == "N" else extent for extent in shape))
        (expected,) = session.run(None, {"x": x})
        (found,) = engine(x)
        assert found.shape == expected.shape
        assert np.abs(found - expected).max() <= 5e-5 * np.abs(expected).max()


@pytest.mark.every(3)
@pytest.mark.parametrize("tag", ["x86-64/v2", "x86-64/v3"])
@pytest.mark.parametrize(
    "name", ["channels that fill no vector", "Winograd with ragged edges", "a product with a tail"]
)
def test_narrower_vectors_compute_the_same(tag: str, name: str) -> None:
    shape, (nodes, weights) = CASES[name]
    model = model_of(shape, nodes, weights)
    x = normal(*shape)  # type: ignore[arg-type]
    (expected,) = onnxruntime.InferenceSession(model.SerializeToString()).run(None, {"x": x})
    (found,) = Engine(build(model, Target.from_tag(tag), TILED).to_bytes(), threads=1)(x)
    assert np.abs(found - expected).max() <= 5e-5 * np.abs(expected).max()


@pytest.mark.parametrize("dtype", [np.int64, np.float64])
def test_constants_keep_their_type_and_their_rank(dtype: type) -> None:
    values = np.array([[1, 2], [3, 4]], dtype)
    nodes: list[Node] = [
        ("Greater", ["@", "zero"], {}),
        ("Where", ["@", "a", "b"], {}),
        ("ReduceSum", ["@"], {"keepdims": 0}),
        ("Add", ["@", "scalar"], {}),
    ]
    constants = {"zero": np.array(0, np.float32), "a": values, "b": -values, "scalar": np.array(7, dtype)}
    model = model_of([2, 2], nodes, constants)
    kind = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
    model.graph.output[0].type.tensor_type.elem_type = kind
    x = normal(2, 2)
    (expected,) = onnxruntime.InferenceSession(model.SerializeToString()).run(None, {"x": x})
    (found,) = Engine(build(model, Target.from_tag("host"), TILED).to_bytes(), threads=1)(x)
    assert (found.dtype, found.shape) == (dtype, ())
    np.testing.assert_array_equal(found, expected)


def test_the_branches_of_a_model_have_kernels_of_the_families() -> None:
    branches = {
        name: helper.make_graph(
            [helper.make_node(operator, ["x"], [name])],
            name,
            [],
            [helper.make_tensor_value_info(name, TensorProto.FLOAT, [2, 3])],
        )
        for name, operator in (("then_branch", "Relu"), ("else_branch", "Neg"))
    }
    model = model_of([2, 3], [("If", ["c"], branches)], {})
    model.graph.input.append(helper.make_tensor_value_info("c", TensorProto.BOOL, []))
    library = build(model, Target.from_tag("host"), TILED)
    assert library.metadata["compile"]["fallbacks"] == []
    engine, x = Engine(library.to_bytes(), threads=1), normal(2, 3)
    np.testing.assert_array_equal(engine(x, np.array(True))[0], np.maximum(x, 0))
    np.testing.assert_array_equal(engine(x, np.array(False))[0], -x)


def test_what_no_family_knows_is_reported_with_its_share() -> None:
    node = helper.make_node("MaxPool", ["x"], ["y", "places"], kernel_shape=[2, 2])
    ports = [
        helper.make_tensor_value_info(name, kind, shape)
        for name, kind, shape in (
            ("x", TensorProto.FLOAT, [1, 4, 8, 7]),
            ("y", TensorProto.FLOAT, [1, 4, 7, 6]),
            ("places", TensorProto.INT64, [1, 4, 7, 6]),
        )
    ]
    model = helper.make_model(
        helper.make_graph([node], "graph", ports[:1], ports[1:]), opset_imports=[helper.make_opsetid("", 17)],
        ir_version=10,
    )  # fmt: skip
    library = build(model, Target.from_tag("host"), TILED)
    (fallback,) = library.metadata["compile"]["fallbacks"]
    assert "max_pool" in fallback["operator"]
    assert fallback["shape"] == [1, 4, 7, 6]


def test_a_symbolic_batch_has_an_entry_for_one_which_shares_its_weights() -> None:
    nodes: list[Node] = [("Gemm", ["@", "w", "b"], {}), ("Relu", ["@"], {})]
    weights = {"w": normal(64, 48), "b": normal(48)}
    symbolic = build(model_of(["N", 64], nodes, weights), Target.from_tag("host"), TILED)
    single = build(model_of([1, 64], nodes, weights), Target.from_tag("host"), TILED)
    assert symbolic.metadata["entries"] == [{"function": "main_of_one", "extents": {"N": 1}}]
    assert single.metadata["entries"] == []
    assert bytes(symbolic.weights) == bytes(single.weights)
    engine, x = Engine(symbolic.to_bytes()), normal(5, 64)
    rows = np.concatenate([engine(x[index : index + 1])[0] for index in range(5)])
    assert_same_sums(engine(x)[0], rows, terms=64 + 1)
