"""Import: all that cannot be compiled is named at once; what fails later names its node."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper, parser

from forge_pipeline.codegen.build import build
from forge_pipeline.codegen.onnx_import.importer import (
    check_supported,
    import_model,
    interface,
    outputs_of,
    prepare,
)
from forge_pipeline.codegen.options import Options
from forge_pipeline.errors import CompileError
from forge_pipeline.target import Target
from forge_runtime.engine import Engine

HOST = Target.from_tag("host")
OPTIONS = Options(generator="auto", opt_level=3, float16=False, channel_layout=None)
FLOAT = TensorProto.FLOAT


def chain(*operators: str, **attributes: object) -> onnx.ModelProto:
    """Return a model of unary operators, one after another."""
    nodes = [
        helper.make_node(name, [f"v{i}"], [f"v{i + 1}"], name=f"n{i}", **attributes) for i, name in enumerate(operators)
    ]
    ends = [helper.make_tensor_value_info(f"v{i}", FLOAT, [4]) for i in (0, len(operators))]
    graph = helper.make_graph(nodes, "chain", ends[:1], ends[1:])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10)


def test_every_unsupported_node_is_named_before_any_work_starts() -> None:
    with pytest.raises(CompileError) as refusal:
        import_model(prepare(chain("RandomNormalLike", "Relu", "RandomUniformLike", "Nothing")))
    reason = "random numbers: a compiled model gives the same results for the same inputs"
    assert refusal.value.found == (
        f"3 node(s) that cannot (Nothing, RandomNormalLike, RandomUniformLike): RandomNormalLike 'n0' ({reason}); "
        f"RandomUniformLike 'n2' ({reason}); Nothing 'n3' (no converter)"
    )


def test_a_foreign_domain_is_refused() -> None:
    model = chain("Relu")
    model.graph.node[0].domain = "com.example"
    with pytest.raises(CompileError, match=r"com.example.Relu 'n0' \(not an ONNX operator\)"):
        import_model(prepare(model))


def test_text_is_refused_as_an_input() -> None:
    model = chain("Identity")
    model.graph.input[0].type.tensor_type.elem_type = TensorProto.STRING
    with pytest.raises(CompileError, match=r"input or output 'v0' \(no tensor of numbers or flags\)"):
        import_model(prepare(model))


SEQUENCE = """
<ir_version: 10, opset_import: ["" : 18]>
cut (float[4, 2] x) => (%s)
<int64 second = {1}>
{
    parts = SplitToSequence<axis = 0>(x)
    y = SequenceAt(parts, second)
}
"""


def test_a_sequence_is_refused_as_an_output() -> None:
    model = onnx.parser.parse_model(SEQUENCE % "seq(float[2]) parts")
    for refuse in (check_supported, lambda model: build(model, HOST, OPTIONS)):
        with pytest.raises(CompileError, match=r"input or output 'parts' \(no tensor of numbers or flags\)"):
            refuse(prepare(model))


def test_a_model_of_sequences_alone_needs_no_kernel() -> None:
    model = onnx.parser.parse_model(SEQUENCE % "float[1, 2] y")
    x = np.arange(8, dtype=np.float32).reshape(4, 2)
    (found,) = Engine(build(model, HOST, OPTIONS).to_bytes(), threads=1)(x)
    np.testing.assert_array_equal(found, onnxruntime.InferenceSession(model.SerializeToString()).run(None, {"x": x})[0])


REFUSED: dict[str, tuple[str, dict[str, Any], dict[str, Any], str]] = {
    "rows before the first": (
        "ConvTranspose", {"x": ([1, 1, 3], FLOAT), "w": np.ones((1, 1, 2), np.float32)}, {"output_shape": [6]},
        "an output_shape that adds rows before the first",
    ),
    "axes that are data": (
        "ReduceSum", {"x": ([2, 3], FLOAT), "a": ([1], TensorProto.INT64)}, {},
        "axes that are computed from data",
    ),
    "training": (
        "Dropout", {"x": ([4], FLOAT), "r": np.float32(0.5), "t": np.bool_(True)}, {}, "training mode",
    ),
    "statistics in training": (
        "BatchNormalization", {"x": ([1, 2, 3], FLOAT), **{k: np.ones(2, np.float32) for k in "sbmv"}},
        {"training_mode": 1}, "training mode",
    ),
    "an activation that is none": (
        "RNN", {"x": ([3, 1, 2], FLOAT), **{k: np.ones((1, 2, 2), np.float32) for k in "wr"}},
        {"hidden_size": 2, "activations": ["Cosine"]}, "activation cosine",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED)
def test_a_form_that_our_converter_lacks_is_refused_with_its_node(
    case: str, model_of: Callable[..., onnx.ModelProto]
) -> None:
    operator, inputs, attributes, reason = REFUSED[case]
    with pytest.raises(CompileError) as refusal:
        import_model(prepare(model_of(operator, inputs, **attributes)))
    assert f"{operator} 'the_node' ({reason}" in refusal.value.found


def test_local_functions_are_inlined() -> None:
    body = [helper.make_node("Relu", ["a"], ["b"])]
    function = helper.make_function("local", "Twice", ["a"], ["b"], body, [helper.make_opsetid("", 18)])
    model = chain("Twice")
    model.graph.node[0].domain = "local"
    model.functions.append(function)
    model.opset_import.append(helper.make_opsetid("local", 1))
    assert [node.op_type for node in prepare(model).graph.node] == ["Relu"]


def test_progress_names_the_node_in_work() -> None:
    steps: list[str] = []
    import_model(prepare(chain("Relu", "Exp")), steps.append)
    assert steps == ["import Relu 'n0'", "import Exp 'n1'"]


def test_an_unnamed_extent_gets_a_name_of_its_own() -> None:
    model = chain("Relu")
    model.graph.input[0].type.tensor_type.shape.dim[0].Clear()
    assert interface(model.graph.input) == [{"name": "v0", "shape": ["v0_0"], "dtype": "float32"}]


INTEGERS = ("INT8", "UINT8", "INT16", "UINT16", "INT32", "UINT32", "INT64")


@pytest.mark.every(3)
@pytest.mark.parametrize("kind", ["float16", "float32", "float64"])
def test_floats_become_integers_as_numpy_has_it_and_numbers_that_are_none_become_nothing(kind: str) -> None:
    bits = np.finfo(kind).nmant
    exact = [sign * 2.0**power for power in range(min(bits, 15)) for sign in (1, -1)]
    wide = [] if kind == "float16" else [2.0**31 - 2.0**16, -(2.0**31), 70000.5, -32769.0]
    x = np.array([0.0, -0.0, 0.99, -0.99, 127.9, -128.9, 255.5, *exact, *wide], kind)
    odd = np.array([np.inf, -np.inf, np.nan], kind)
    nodes = [helper.make_node("Cast", ["x"], [name], to=getattr(TensorProto, name)) for name in INTEGERS]
    values = [helper.make_tensor_value_info(name, getattr(TensorProto, name), ["n"]) for name in INTEGERS]
    image = helper.make_tensor_value_info("x", helper.np_dtype_to_tensor_dtype(x.dtype), ["n"])
    graph = helper.make_graph(nodes, "casts", [image], values)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10)
    engine = Engine(build(model, HOST, OPTIONS).to_bytes(), threads=1)
    for name, found in engine.run(x).items():
        np.testing.assert_array_equal(found, x.astype(np.int64).astype(name.lower()), name)
    for name, found in engine.run(odd).items():
        limits = np.iinfo(np.int64)
        expected = np.array([limits.max, limits.min, limits.max] if name == "INT64" else [0, 0, 0])
        np.testing.assert_allclose(found.astype(np.float64), expected, rtol=1e-6, err_msg=name)


def test_of_floats_of_any_size_the_lowest_32_bits_are_left() -> None:
    powers = np.random.default_rng(0).uniform(-62, 62, 1000)
    edges = [sign * (2.0**power + step) for power in (31, 32) for step in (-256, -128, 0, 256) for sign in (1, -1)]
    x = np.array([*edges, *np.sign(powers) * np.exp2(np.abs(powers)), 2.0**63, 3e38, -3e38], np.float32)
    model = parser.parse_model(
        '<ir_version: 10, opset_import: ["": 21]> main (float[N] x) => (int32[N] i, uint32[N] u, int32[N] twice)'
        "{ i = Cast<to = 6>(x) u = Cast<to = 12>(x) f = Cast<to = 1>(i) g = Mul(f, f) twice = Cast<to = 6>(g) }"
    )
    i, u, twice = Engine(build(model, HOST, OPTIONS).to_bytes(), threads=1)(x)
    expected = np.clip(x, -(2.0**63), 2.0**63 - 2.0**39).astype(np.int64).astype(np.int32)
    np.testing.assert_array_equal(i, expected)
    np.testing.assert_array_equal(u, expected.view(np.uint32))
    squares = np.minimum(expected.astype(np.float32) ** 2, 2.0**63 - 2.0**39).astype(np.int64)
    np.testing.assert_array_equal(twice, squares.astype(np.int32))


def test_casts_in_a_row_are_one_small_expression() -> None:
    nodes = []
    for i in range(8):
        nodes.append(helper.make_node("Cast", [f"v{i}"], [f"n{i}"], to=TensorProto.INT8))
        nodes.append(helper.make_node("Cast", [f"n{i}"], [f"c{i}"], to=FLOAT))
        nodes.append(helper.make_node("Mul", [f"c{i}", "factor"], [f"v{i + 1}"]))
    ends = [helper.make_tensor_value_info(name, FLOAT, [512]) for name in ("v0", "v8")]
    factor = numpy_helper.from_array(np.float32(1.25), "factor")
    graph = helper.make_graph(nodes, "casts", ends[:1], ends[1:], [factor])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10)
    body = str(import_model(prepare(model))["main"].script())
    values = re.findall(r"^\s+(\w+): R.Tensor.* = ", body, re.MULTILINE)
    assert len(values) == 40 + 1, "five for two casts and a product, and the result"
    assert all(len(re.findall(rf"\b{value}\b", body)) == 2 for value in values[:-1]), "each is used once"
    x = np.linspace(-300, 300, 512, dtype=np.float32)
    (found,) = Engine(build(model, HOST, OPTIONS).to_bytes(), threads=1)(x)
    for _ in range(8):
        x = x.astype(np.int32).astype(np.int8).astype(np.float32) * np.float32(1.25)
    np.testing.assert_array_equal(found, x)


def test_an_output_has_the_shape_that_operators_give_where_another_is_stated() -> None:
    model = parser.parse_model(
        '<ir_version: 10, opset_import: ["": 21]> main (float[N, 6] x) => (float[N, M] y, float[N, 7] z, float[K, 6] w)'
        "{ shape = Constant<value_ints = [0, 2, 3]>() y = Reshape(x, shape) z = Relu(x) w = Abs(x) }"
    )
    assert [row["shape"][1:] for row in interface(outputs_of(model))] == [[2, 3], [6], [6]]
    assert interface(outputs_of(model))[2]["shape"][0] == "K"
    x = np.ones((2, 6), np.float32)
    y, z, _ = Engine(build(model, HOST, OPTIONS).to_bytes(), threads=1)(x)
    assert (y.shape, z.shape) == ((2, 2, 3), (2, 6))
