"""Import: all that cannot be compiled is named at once; what fails later names its node."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from forge_pipeline.codegen.build import build
from forge_pipeline.codegen.onnx_import.importer import check_supported, import_model, interface, prepare
from forge_pipeline.codegen.options import Options
from forge_pipeline.errors import CompileError
from forge_pipeline.runtime.engine import Engine
from forge_pipeline.target import Target

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
        check_supported(chain("Celu", "Relu", "Det", "Celu"))
    assert refusal.value.found == (
        "3 node(s) that cannot (Celu, Det): Celu 'n0' (no converter); Det 'n2' (no converter); Celu 'n3' (no converter)"
    )


def test_nodes_of_subgraphs_are_looked_at_too() -> None:
    branch = chain("Celu").graph
    del branch.input[:]
    model = chain("Relu")
    condition = helper.make_tensor_value_info("flag", TensorProto.BOOL, [])
    model.graph.input.append(condition)
    node = helper.make_node("If", ["flag"], ["chosen"], then_branch=branch, else_branch=branch, name="choice")
    model.graph.node.append(node)
    with pytest.raises(CompileError, match=r"2 node\(s\) that cannot \(Celu\)"):
        check_supported(model)


def test_a_foreign_domain_is_refused() -> None:
    model = chain("Relu")
    model.graph.node[0].domain = "com.example"
    with pytest.raises(CompileError, match=r"com.example.Relu 'n0' \(not an ONNX operator\)"):
        check_supported(model)


@pytest.mark.parametrize("name", ["is_causal", "left_window_size"])
def test_attention_with_what_is_not_converted_is_refused(name: str) -> None:
    model = chain("Attention")
    model.graph.node[0].attribute.append(helper.make_attribute(name, 1))
    with pytest.raises(CompileError, match=rf"Attention 'n0' \({name} is set\)"):
        check_supported(model)


def test_text_is_refused_as_an_input() -> None:
    model = chain("Identity")
    model.graph.input[0].type.tensor_type.elem_type = TensorProto.STRING
    with pytest.raises(CompileError, match=r"input or output 'v0' \(no tensor of numbers or flags\)"):
        check_supported(model)


def test_a_node_that_fails_in_the_front_end_is_named(model_of: Callable[..., onnx.ModelProto]) -> None:
    model = model_of("TopK", {"x": ([4], FLOAT), "k": ([1], TensorProto.INT64)}, outputs=(FLOAT, TensorProto.INT64))
    with pytest.raises(CompileError) as refusal:
        import_model(prepare(model))
    assert refusal.value.where == "node 'the_node'"
    assert refusal.value.expected == "a TopK that can be compiled"
    assert "k must be a constant" in refusal.value.found


INTEGERS = ([2], TensorProto.INT64)
REFUSED: dict[str, tuple[str, dict[str, Any], dict[str, Any], str]] = {
    "powers of integers": ("Pow", {"x": INTEGERS, "e": INTEGERS}, {}, "powers of integers"),
    "depth": (
        "OneHot", {"x": INTEGERS, "d": ([], TensorProto.INT64), "v": np.array([0, 1], np.float32)}, {},
        "a depth that is computed",
    ),
    "expansion": (
        "Expand", {"x": (["n", 3], FLOAT), "s": np.array([4, 3])}, {},
        "an extent n to 4, not known to be 1 or the same",
    ),
    "rows before the first": (
        "ConvTranspose", {"x": ([1, 1, 3], FLOAT), "w": np.ones((1, 1, 2), np.float32)}, {"output_shape": [6]},
        "an output_shape that adds rows before the first",
    ),
    "padding": (
        "MaxPool", {"x": ([1, 1, "h", 4], FLOAT)},
        {"kernel_shape": [3, 3], "strides": [2, 2], "auto_pad": "SAME_UPPER"},
        "auto_pad with stride 2 of an extent that is not known",
    ),
    "scales": (
        "Resize", {"x": ([1, 1, 2, 2], FLOAT), "": None, "s": ([4], FLOAT)}, {},
        "scales or sizes that are computed from data",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED)
def test_a_form_that_our_converter_lacks_is_refused_with_its_node(
    case: str, model_of: Callable[..., onnx.ModelProto]
) -> None:
    operator, inputs, attributes, reason = REFUSED[case]
    with pytest.raises(CompileError) as refusal:
        import_model(prepare(model_of(operator, inputs, **attributes)))
    assert refusal.value.where == "node 'the_node'"
    assert refusal.value.found == reason


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


def test_an_output_that_is_a_shape_is_refused(model_of: Callable[..., onnx.ModelProto]) -> None:
    model = model_of("Shape", {"x": (["n", 4], FLOAT)}, outputs=(TensorProto.INT64,))
    with pytest.raises(CompileError, match="output 'out0': expected an array, found a shape"):
        import_model(prepare(model))


INTEGERS = ("INT8", "UINT8", "INT16", "UINT16", "INT32", "UINT32", "INT64")


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
    assert len(values) == 48, "six for two casts and a product"
    assert all(len(re.findall(rf"\b{value}\b", body)) == 2 for value in values[:-1]), "each is used once"
    x = np.linspace(-300, 300, 512, dtype=np.float32)
    (found,) = Engine(build(model, HOST, OPTIONS).to_bytes(), threads=1)(x)
    for _ in range(8):
        x = x.astype(np.int32).astype(np.int8).astype(np.float32) * np.float32(1.25)
    np.testing.assert_array_equal(found, x)
