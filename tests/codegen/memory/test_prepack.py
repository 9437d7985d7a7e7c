"""Weights are stored in their small form and worked out when a library is loaded; halves are computed in float32."""

from __future__ import annotations

import dataclasses

import numpy as np
import onnx
import onnxruntime
import pytest
from hypothesis import given
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper

from forge_pipeline.codegen.build import build
from forge_pipeline.codegen.onnx_import.float16 import widened
from forge_pipeline.codegen.options import Options
from forge_pipeline.runtime.bundle import Library
from forge_pipeline.target import Target
from forge_runtime.engine import Engine
from tests.support.paths import SHARED

TILED = Options(generator="tiled", opt_level=3, float16=False, channel_layout=None)
HALF_MODEL = SHARED / "models/squeezenet/squeezenet_fp16.onnx"


def normal(*shape: int, seed: int = 1) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def convolution(weight: np.ndarray, dtype: int = TensorProto.FLOAT) -> onnx.ModelProto:
    """Return a padded 3x3 convolution of a 28x28 image, for which Winograd's algorithm is chosen."""
    graph = helper.make_graph(
        [helper.make_node("Conv", ["x", "w"], ["y"], pads=[1] * 4)],
        "graph",
        [helper.make_tensor_value_info("x", dtype, [1, 64, 28, 28])],
        [helper.make_tensor_value_info("y", dtype, None)],
        [numpy_helper.from_array(weight, "w")],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=10)


def errors(library: Library, model: onnx.ModelProto, x: np.ndarray) -> float:
    (expected,) = onnxruntime.InferenceSession(model.SerializeToString()).run(None, {"x": x})
    (found,) = Engine(library.to_bytes(), threads=1)(x)
    assert found.dtype == expected.dtype
    return float(np.abs(found.astype(np.float64) - expected).max() / np.abs(expected).max())


def test_a_library_holds_the_kernels_of_winograds_convolutions_and_not_their_transform() -> None:
    model = convolution(normal(64, 64, 3, 3))
    library = build(model, Target.from_tag("host"), TILED)
    (row,) = library.metadata["weights"]
    assert row["prepare"] is True
    assert len(library.weights) == 4 * 64 * 64 * 9
    assert errors(library, model, normal(1, 64, 28, 28)) <= 2e-5


def test_the_transform_at_load_is_that_of_the_paper_to_the_last_bit_or_nearly() -> None:
    import tvm
    from tvm import s_tir, te

    from forge_pipeline.codegen.float32.conv import direct
    from forge_pipeline.codegen.float32.conv.winograd import fixed_size, tiles, weights
    from forge_pipeline.codegen.tir.machine import Machine

    target = Target.from_tag("host")
    machine, weight = Machine.of(target), normal(20, 12, 3, 3)
    lanes = machine.lanes
    stored = direct.pack_weight(weight, lanes, lanes)
    for transform in (tiles.SMALL, tiles.LARGE):
        placeholder = te.placeholder(stored.shape, name="weight")
        function = te.create_prim_func([placeholder, weights.transform(placeholder, transform.kernel)])
        sch = s_tir.Schedule(function)
        weights.schedule(sch, machine)
        exact = np.zeros((-(-20 // lanes) * lanes, -(-12 // lanes) * lanes, transform.size, transform.size), np.float32)
        exact[:20, :12] = fixed_size.transform_tiles(transform.kernel, weight.astype(np.float64))
        blocks = exact.reshape(-1, lanes, exact.shape[1] // lanes, lanes, transform.size, transform.size)
        expected = blocks.transpose(0, 4, 5, 2, 3, 1)  # (oc_blocks, i, j, ic_blocks, lanes, lanes)
        result = tvm.runtime.empty(expected.shape, "float32")
        tvm.compile(sch.mod, target=target.tvm())["main"](tvm.runtime.tensor(np.ascontiguousarray(stored)), result)
        np.testing.assert_allclose(result.numpy(), expected, rtol=3e-7, atol=1e-12)


@given(st.integers(0, 2**16 - 1))
def test_every_half_is_widened_exactly(bits: int) -> None:
    half = np.array([bits], np.uint16)
    found = widen(half)
    np.testing.assert_array_equal(found, half.view(np.float16).astype(np.float32))
    assert np.isnan(found[0]) or np.signbit(found[0]) == bool(bits & 0x8000)


def widen(halves: np.ndarray) -> np.ndarray:
    import tvm

    floats = tvm.runtime.empty(halves.shape, "float32")
    widening()(tvm.runtime.tensor(halves), floats)
    return floats.numpy()


def widening() -> object:
    import tvm

    from forge_pipeline.codegen.memory.prepack import widening_kernel

    if not _KERNELS:
        module = tvm.IRModule({"main": widening_kernel().with_attr("global_symbol", "main")})
        _KERNELS.append(tvm.compile(module, target=Target.from_tag("host").tvm()))
    return _KERNELS[0]["main"]


_KERNELS: list[object] = []


@pytest.mark.every(2)
@pytest.mark.parametrize("generator", ["tiled", "stock"])
def test_set_float16_halves_the_library_and_keeps_types_and_sums(generator: str) -> None:
    model = convolution(normal(64, 64, 3, 3))
    options = dataclasses.replace(TILED, generator=generator, float16=True)
    library = build(model, Target.from_tag("host"), options)
    assert len(library.weights) == 2 * 64 * 64 * 9
    rounding = 2.0**-11
    assert 0 < errors(library, model, normal(1, 64, 28, 28)) <= 2 * rounding


def test_a_model_in_half_precision_is_computed_in_float32_and_stays_as_small() -> None:
    weight = normal(64, 64, 3, 3).astype(np.float16)
    model = convolution(weight, TensorProto.FLOAT16)
    library = build(model, Target.from_tag("host"), TILED)
    assert len(library.weights) == weight.nbytes
    x = normal(1, 64, 28, 28)
    halves = Engine(library.to_bytes(), threads=1)(x.astype(np.float16))[0]
    exact = onnxruntime.InferenceSession(convolution(weight.astype(np.float32)).SerializeToString())
    (expected,) = exact.run(None, {"x": x.astype(np.float16).astype(np.float32)})
    assert halves.dtype == np.float16
    assert np.abs(halves - expected).max() <= 2.0**-11 * np.abs(expected).max()


def test_float32_weights_keep_every_bit_beside_halves() -> None:
    weight, x = normal(64, 64, 3, 3), normal(1, 64, 28, 28).astype(np.float16)
    model = convolution(weight)
    model.graph.input[0].type.tensor_type.elem_type = TensorProto.FLOAT16
    model.graph.initializer.append(numpy_helper.from_array(np.array(1.5, np.float16), "scale"))
    model.graph.node[0].input[0] = "wide"
    model.graph.node.insert(0, helper.make_node("Mul", ["x", "scale"], ["scaled"]))
    model.graph.node.insert(1, helper.make_node("Cast", ["scaled"], ["wide"], to=TensorProto.FLOAT))
    library = build(model, Target.from_tag("host"), TILED)
    (row,) = library.metadata["weights"]
    assert row["dtype"] == "float32"
    assert len(library.weights) == weight.nbytes
    exact = onnxruntime.InferenceSession(convolution(weight).SerializeToString())
    (expected,) = exact.run(None, {"x": x.astype(np.float32) * np.float32(1.5)})
    (found,) = Engine(library.to_bytes(), threads=1)(x)
    assert np.abs(found - expected).max() <= 2e-5 * np.abs(expected).max()


def test_a_real_half_precision_model_is_nearer_to_the_exact_result_than_onnx_runtime_is() -> None:
    if not HALF_MODEL.exists():
        pytest.skip(f"{HALF_MODEL} is not there")
    model = onnx.load(HALF_MODEL)
    names = {tensor.name for tensor in model.graph.initializer}
    inputs = [value for value in model.graph.input if value.name not in names]
    del model.graph.input[:]
    model.graph.input.extend(inputs)
    feeds = {inputs[0].name: np.random.default_rng(3).standard_normal((1, 3, 224, 224)).astype(np.float16)}
    (exact,) = onnxruntime.InferenceSession(widened(model).SerializeToString()).run(None, feeds)
    (rounded,) = onnxruntime.InferenceSession(model.SerializeToString()).run(None, feeds)
    library = build(model, Target.from_tag("host"), TILED)
    (found,) = Engine(library.to_bytes(), threads=1)(*feeds.values())
    ours, theirs = (np.abs(value.astype(np.float64) - exact).max() for value in (found, rounded))
    assert ours <= max(theirs, np.finfo(np.float16).eps * np.abs(exact).max())
