"""What is fused: chains of elementwise operators up to a size of their expression; nothing larger than its operand."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
import tvm
from onnx import TensorProto, helper
from tvm import relax, te, tirx

from forge_pipeline.codegen.build import build
from forge_pipeline.codegen.layout.fusion import MOST_NAMED, OPAQUE, PATTERN, WRITTEN_OUT, grouped
from forge_pipeline.codegen.lowering import lower
from forge_pipeline.codegen.onnx_import.importer import import_model, prepare
from forge_pipeline.codegen.options import Options
from forge_pipeline.target import Target
from forge_runtime.engine import Engine
from tests.support.int8.net import OUT, Net, convolution, exact_scales
from tests.support.sums import assert_close
from tests.support.tiled import assert_same, model

OPTIONS = Options(generator="tiled", opt_level=3, float16=False, channel_layout=None)
AUTO = Options(generator="auto", opt_level=3, float16=False, channel_layout=None)
HOST = Target.from_tag("host")
FUNCTIONS = {"Sigmoid": "T.sigmoid(", "Exp": "T.exp(", "Tanh": "T.tanh(", "Erf": "T.erf(", "Log": "T.log("}


def chain(operator: str, length: int) -> onnx.ModelProto:
    nodes = [helper.make_node(operator, [f"v{i}"], [f"v{i + 1}"]) for i in range(length)]
    ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [1, 64]) for name in ("v0", f"v{length}")]
    graph = helper.make_graph(nodes, "chain", ends[:1], ends[1:])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=10)


@pytest.mark.parametrize("operator", FUNCTIONS)
def test_a_kernel_has_no_more_functions_in_a_row_than_can_be_written_out(operator: str) -> None:
    kernels = lower(import_model(prepare(chain(operator, 9))), HOST, OPTIONS).module
    counts = [
        function.script().count(FUNCTIONS[operator]) for name, function in kernels.functions_items() if name != "main"
    ]
    assert max(counts) == 2
    times = WRITTEN_OUT[f"tirx.{operator.lower()}"]
    assert times**2 <= MOST_NAMED < times**3


@pytest.mark.parametrize("rows", [7, "rows"])
def test_open_sizes_do_not_count_as_values_that_a_chain_names(rows: int | str) -> None:
    """GELU by tanh, spelt out as GPT-2's exporter does: one kernel with the product before it."""
    node = helper.make_node
    nodes = [
        node("MatMul", ["x", "w"], ["p"]),
        node("Mul", ["p", "p"], ["p2"]),
        node("Mul", ["p2", "p"], ["p3"]),
        node("Mul", ["p3", "a"], ["c"]),
        node("Add", ["p", "c"], ["s"]),
        node("Mul", ["s", "b"], ["u"]),
        node("Tanh", ["u"], ["t"]),
        node("Add", ["t", "one"], ["g"]),
        node("Mul", ["p", "half"], ["h"]),
        node("Mul", ["h", "g"], ["y"]),
    ]
    constants = {"a": 0.044715, "b": 0.7978846, "one": 1.0, "half": 0.5}
    arrays = {name: np.array(value, np.float32) for name, value in constants.items()}
    arrays["w"] = np.random.default_rng(0).normal(size=(32, 64)).astype(np.float32)
    source = model(nodes, {"x": ("batch", rows, 32)}, arrays)
    kernels = lower(import_model(prepare(source)), HOST, OPTIONS).module
    names = {name.name_hint.removesuffix("_of_one") for name, _ in kernels.functions_items()} - {"main"}
    assert names == {"fused_dense_multiply_multiply_multiply1_add_multiply2_tir_tanh_add1_multiply3_multiply"}


def test_a_long_chain_computes_what_its_operators_do() -> None:
    import onnxruntime as ort

    model, x = chain("HardSwish", 24), np.linspace(-1, 1, 64, dtype=np.float32)[None]
    session = ort.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    (wanted,) = session.run(None, {"v0": x})
    found = Engine(build(model, HOST, OPTIONS).to_bytes())(x)[0]
    np.testing.assert_allclose(found, wanted, rtol=0, atol=24 * 2.0**-23)  # slopes are below one: rounding adds up


def test_values_on_both_sides_of_a_cut_compute_what_their_operators_do() -> None:
    """A step of an iteration reads what the one before computed several times over."""
    import onnxruntime as ort

    steps = [
        node
        for i in range(12)
        for node in (
            helper.make_node("Mul", [f"v{i}", f"v{i}"], [f"s{i}"]),
            helper.make_node("Sub", [f"s{i}", f"v{i}"], [f"d{i}"]),
            helper.make_node("ReduceMax", [f"d{i}", "axes"], [f"m{i}"], keepdims=1),
            helper.make_node("Div", [f"d{i}", f"m{i}"], [f"v{i + 1}"]),
        )
    ]
    ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, ["n", 3]) for name in ("v0", "v12")]
    axes = helper.make_tensor("axes", TensorProto.INT64, [1], [1])
    graph = helper.make_graph(steps, "steps", ends[:1], ends[1:], [axes])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10)
    x = np.array([[2.0, 3.0, 4.0], [1.5, 2.5, 2.25]], np.float32)
    (wanted,) = ort.InferenceSession(model.SerializeToString()).run(None, {"v0": x})
    assert_close(Engine(build(model, HOST, OPTIONS).to_bytes())(x)[0], wanted, within=1e-4)


BEFORE: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "MaxPool": ({"kernel_shape": [2, 2], "strides": [2, 2]}, {}),
    "AveragePool": ({"kernel_shape": [3, 3]}, {}),
    "MatMul": ({}, {"w": np.random.default_rng(0).standard_normal((12, 20)).astype(np.float32)}),
    "Resize": ({"mode": "linear"}, {"": None, "scales": np.array([1, 1, 2, 2], np.float32)}),
}


def padded(operator: str, axis: int, height: int | str) -> onnx.ModelProto:
    """Return an operator, and what stands behind its results."""
    attributes, operands = BEFORE[operator]
    ends = np.zeros(8, np.int64)
    ends[4 + axis] = 3
    nodes = [
        helper.make_node(operator, ["x", *operands], ["results"], **attributes),
        helper.make_node("Pad", ["results", "ends", "half"], ["padded"]),
        helper.make_node("Relu", ["padded"], ["y"]),
    ]
    weights = {name: value for name, value in operands.items() if name} | {"ends": ends, "half": np.float32(0.5)}
    return model(nodes, {"x": (1, 16, height, 12)}, weights)


@pytest.mark.parametrize("height", [10, "height"])
@pytest.mark.parametrize("axis", [1, 2, 3])
@pytest.mark.parametrize("operator", BEFORE)
def test_what_is_put_behind_the_results_of_a_kernel_is_there(operator: str, axis: int, height: int | str) -> None:
    assert_same(padded(operator, axis, height), [{"height": 10}], terms=16)


@pytest.mark.parametrize("operator", ["MaxPool", "MatMul"])
def test_on_a_gpu_too_a_larger_result_has_loops_of_its_own(operator: str) -> None:
    lowered = lower(import_model(prepare(padded(operator, 2, 10))), Target.from_tag("cuda/sm_80"), AUTO).module
    names = {variable.name_hint for variable in lowered.get_global_vars()}
    assert "fused_pad_relu" in names


@pytest.mark.parametrize("tag", ["x86-64/v3", "x86-64/v4"])
def test_an_image_in_bytes_is_not_scaled_within_the_kernel_of_its_factors(tag: str) -> None:
    """Squeeze and excitation: else each of its results would be a line of code, as many as the image has pixels."""
    net = Net(1, 32, 24, 24)
    image = net.pair(net.node("Relu", convolution(net, 32, 32, 3, groups=32, pads=[1, 1, 1, 1])), OUT)
    pooled = net.pair(net.node("GlobalAveragePool", image), OUT)
    scale = exact_scales(32)
    factors = net.node("Conv", pooled, net.weight((32, 32, 1, 1), scale), net.bias(scale * OUT[0]))
    source = net.finish(net.pair(net.node("Mul", image, net.node("HardSigmoid", factors)), OUT))
    kernels = lower(import_model(prepare(source)), Target.from_tag(tag), OPTIONS).module
    sizes = {
        name.name_hint: function.script().count("T.unroll(T.int64(24))") for name, function in kernels.functions_items()
    }
    assert not any(sizes.values()), sizes
    assert any("_parted" in name for name in sizes), sizes


def test_what_needs_an_extent_that_no_tensor_of_its_group_has_is_left_alone() -> None:
    """Of axes of (n - 1) // 2 + 1 TVM's own grouping makes functions of n, some of which it then refuses."""
    builder = relax.BlockBuilder()
    given = relax.Var("x", relax.TensorType([tirx.Var("n", "int64"), tirx.Var("m", "int64")], "float32"))

    def every_second(tensor: te.Tensor) -> te.Tensor:
        shape = [(extent - 1) // 2 + 1 for extent in tensor.shape]
        return te.compute(shape, lambda i, j: tensor[2 * i, 2 * j], name="second")

    with builder.function("main", [given]):
        with builder.dataflow():
            half = builder.emit_te(every_second, given)
            doubled = builder.emit_te(lambda tensor: te.compute(tensor.shape, lambda *at: tensor[at] * 2.0), half)
            more = builder.emit_te(lambda tensor: te.compute(tensor.shape, lambda *at: tensor[at] + 1.0), doubled)
            result = builder.emit_output(more)
        builder.emit_func_output(result)
    module = relax.transform.AnnotateTIROpPattern()(builder.finalize())
    first = next(variable for variable in module.get_global_vars() if "second" in variable.name_hint)
    module[first] = module[first].with_attr(PATTERN, OPAQUE)

    def shapes(groups: tvm.IRModule) -> list[relax.Var]:
        functions = [function for name, function in groups.functions_items() if name.name_hint != "main"]
        parameters = [variable for function in functions for variable in function.params]
        return [variable for variable in parameters if isinstance(getattr(variable, "ty", None), relax.ShapeType)]

    assert shapes(relax.transform.FuseOps()(module))
    assert not shapes(grouped(module))
    assert len(relax.transform.FuseTIR()(grouped(module)).get_global_vars()) == 4  # three kernels
