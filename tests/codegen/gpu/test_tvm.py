"""What TVM's own schedules and code for GPUs got wrong."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper

from forge_pipeline.codegen.build import build
from forge_pipeline.codegen.options import Options
from forge_pipeline.errors import CompileError
from forge_pipeline.target import Target
from tests.support.cuda import Gpu

OPTIONS = Options(generator="auto", opt_level=3, float16=False, channel_layout=None)
RANDOM = np.random.default_rng(0)


def masked() -> onnx.ModelProto:
    """Return a product whose results are kept where two masks, one of which is given, say so."""
    fixed = {"lower": np.tril(np.ones((8, 8), bool)), "none": np.float32(-np.inf)}
    graph = helper.make_graph(
        [
            helper.make_node("MatMul", ["a", "b"], ["product"]),
            helper.make_node("And", ["given", "lower"], ["kept"]),
            helper.make_node("Where", ["kept", "product", "none"], ["y"]),
        ],
        "masked",
        [
            helper.make_tensor_value_info("a", TensorProto.FLOAT, [2, 8, 4]),
            helper.make_tensor_value_info("b", TensorProto.FLOAT, [2, 4, 8]),
            helper.make_tensor_value_info("given", TensorProto.BOOL, [2, 8, 8]),
        ],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [2, 8, 8])],
        [numpy_helper.from_array(np.asarray(value), name) for name, value in fixed.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=9)


def test_masks_are_read_a_boolean_at_a_time(gpu: Gpu, tmp_path: Path) -> None:
    a, b = (RANDOM.standard_normal(shape).astype(np.float32) for shape in ((2, 8, 4), (2, 4, 8)))
    given = {"a": a, "b": b, "given": RANDOM.random((2, 8, 8)) < 0.7}
    (want,) = onnxruntime.InferenceSession(masked().SerializeToString()).run(None, given)
    (have,) = gpu.results(masked(), given, tmp_path)
    np.testing.assert_allclose(have, want, rtol=1e-5)


def test_sums_stay_with_the_thread_that_adds_them_up(gpu: Gpu, tmp_path: Path) -> None:
    ports = [
        helper.make_tensor_value_info(name, TensorProto.FLOAT, shape)
        for name, shape in (("x", [2, 4, 4]), ("w", [4, 1, 4]), ("y", [2, 4, 1]))
    ]
    graph = helper.make_graph([helper.make_node("Conv", ["x", "w"], ["y"], group=4)], "step", ports[:2], ports[2:])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=9)
    given = {
        name: RANDOM.standard_normal(shape).astype(np.float32) for name, shape in (("x", (2, 4, 4)), ("w", (4, 1, 4)))
    }
    (have,) = gpu.results(model, given, tmp_path)
    np.testing.assert_allclose(have, np.einsum("nck,cuk->ncu", given["x"], given["w"]), rtol=1e-5)


def test_what_computes_nothing_links() -> None:
    port = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [2, 3]) for name in "xy"]
    graph = helper.make_graph([helper.make_node("Identity", ["x"], ["y"])], "graph", port[:1], port[1:])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=9)
    assert build(model, Target.from_tag("cuda/sm_90"), OPTIONS).elf.startswith(b"\x7fELF")


def test_a_result_without_elements_is_refused() -> None:
    ports = [
        helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name, shape in (("x", [2, 4]), ("y", [0, 4]))
    ]
    zero = numpy_helper.from_array(np.array([0]), "zero")
    graph = helper.make_graph(
        [helper.make_node("Slice", ["x", "zero", "zero"], ["y"])], "graph", ports[:1], ports[1:], [zero]
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=9)
    with pytest.raises(CompileError, match="without any"):
        build(model, Target.from_tag("cuda/sm_90"), OPTIONS)


def test_what_is_cut_off_is_not_written(gpu: Gpu, tmp_path: Path) -> None:
    """A convolution of what went before, as in Mamba and WaveNet, has more results than are kept: rows overlapped."""
    ports = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [1, 6, 12]) for name in ("x", "y")]
    held = {
        "w": RANDOM.standard_normal((6, 1, 4)).astype(np.float32),
        **{name: np.array([number]) for name, number in (("start", 0), ("end", 12), ("axis", 2))},
    }
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["more"], group=6, pads=[3, 3]),
        helper.make_node("Slice", ["more", "start", "end", "axis"], ["kept"]),
        helper.make_node("Relu", ["kept"], ["y"]),
    ]
    graph = helper.make_graph(
        nodes, "causal", ports[:1], ports[1:], [numpy_helper.from_array(held[name], name) for name in held]
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=9)
    x = RANDOM.standard_normal((1, 6, 12)).astype(np.float32)
    (want,) = onnxruntime.InferenceSession(model.SerializeToString()).run(None, {"x": x})
    (have,) = gpu.results(model, {"x": x}, tmp_path)
    np.testing.assert_allclose(have, want, atol=1e-6)


def test_halves_are_multiplied_by_tensor_cores(gpu: Gpu, tmp_path: Path) -> None:
    ports = [
        helper.make_tensor_value_info(name, TensorProto.FLOAT, shape)
        for name, shape in (("x", [128, 128]), ("y", [128, 128]))
    ]
    weight = numpy_helper.from_array(RANDOM.standard_normal((128, 128)).astype(np.float32) / 10, "w")
    graph = helper.make_graph([helper.make_node("MatMul", ["x", "w"], ["y"])], "halves", ports[:1], ports[1:], [weight])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=9)
    x = RANDOM.standard_normal((128, 128)).astype(np.float32)
    (have,) = gpu.results(model, {"x": x}, tmp_path, "float16")
    np.testing.assert_allclose(have, x @ numpy_helper.to_array(weight), atol=0.01)
