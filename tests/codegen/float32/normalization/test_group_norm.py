"""Instance, group and layer normalization: exact wherever the mean lies, in blocks of channels and in plain form."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import helper, numpy_helper

from forge_pipeline.codegen.build import build
from forge_pipeline.target import Target
from forge_runtime.engine import Engine
from tests.support.sums import assert_close
from tests.support.tiled import TILED, Shape, compiled, kernels_of, model

RNG = np.random.default_rng(0)
EPSILON = 1e-5


def reference(x: np.ndarray, groups: int, scale: np.ndarray, bias: np.ndarray) -> np.ndarray:
    """Return the normalized image, computed in float64."""
    wide = x.astype(np.float64).reshape(len(x), groups, -1)
    away = wide - wide.mean(axis=2, keepdims=True)
    found = (away / np.sqrt((away**2).mean(axis=2, keepdims=True) + EPSILON)).reshape(x.shape)
    each = (1, -1, *(1,) * (x.ndim - 2))
    return found * scale.reshape(each) + bias.reshape(each)


def normalization(shape: Shape, groups: int, opset: int = 21) -> tuple[onnx.ModelProto, np.ndarray, np.ndarray]:
    """Return a model that normalizes an image, with a scale and a bias for each channel, and these."""
    channels = int(shape[1])
    per = channels if opset >= 21 or groups == channels else groups
    scale, bias = (RNG.standard_normal(per).astype(np.float32) for _ in range(2))
    kind, more = ("InstanceNormalization", {}) if groups == channels else ("GroupNormalization", {"num_groups": groups})
    node = helper.make_node(kind, ["x", "scale", "bias"], ["y"], epsilon=EPSILON, **more)
    found = model([node], {"x": shape}, {"scale": scale, "bias": bias})
    found.opset_import[0].version = opset
    return found, np.repeat(scale, channels // per), np.repeat(bias, channels // per)


@pytest.mark.parametrize(
    ("shape", "groups", "opset"),
    [
        ((2, 12, "height", "width"), 12, 17),
        ((2, 12, "height", "width"), 3, 21),
        ((1, 16, 24, 33), 4, 18),
        ((1, 20, "length"), 20, 17),
        ((1, 6, 3, 5, 7), 2, 21),
    ],
)
def test_images_of_any_size_are_normalized_wherever_their_mean_lies(shape: Shape, groups: int, opset: int) -> None:
    source, scale, bias = normalization(shape, groups, opset)
    engine = compiled(source, threads=2)
    for size in (1, 3, 200) if "height" in shape or "length" in shape else (1,):
        x = RNG.standard_normal([extent if isinstance(extent, int) else size for extent in shape]).astype(np.float32)
        x += 1000 * RNG.standard_normal((1, x.shape[1], *(1,) * (x.ndim - 2))).astype(np.float32)
        x[:, :, :1] -= 300  # a border that is unlike the rest
        (found,) = engine(x)
        assert_close(found, reference(x, groups, scale, bias), within=5e-5)


def network(norm: list[onnx.NodeProto], channels: int, weights: dict[str, np.ndarray]) -> onnx.ModelProto:
    """Return a model that normalizes ``h`` as ``n`` between two convolutions of 19 x 21 pixels."""
    first, last = (RNG.standard_normal((n, m, 3, 3)).astype(np.float32) for n, m in ((channels, 3), (8, channels)))
    nodes = [
        helper.make_node("Conv", ["x", "first"], ["h"], pads=[1] * 4),
        *norm,
        helper.make_node("Relu", ["n"], ["r"]),
        helper.make_node("Conv", ["r", "last"], ["y"], pads=[1] * 4),
    ]
    return model(nodes, {"x": (1, 3, 19, 21)}, {"first": first, "last": last, **weights})


def assert_in_blocks(source: onnx.ModelProto) -> None:
    """Compare with ONNX Runtime, and see that no image changes its form but the result."""
    engine, session = compiled(source), onnxruntime.InferenceSession(source.SerializeToString())
    x = RNG.standard_normal((1, 3, 19, 21)).astype(np.float32)
    (expected,), (found,) = session.run(None, {"x": x}), engine(x)
    assert_close(found, expected, within=1e-5)
    names = kernels_of(engine)
    assert "moments" in names
    (result,) = (name for name in names if "pack" in name or "transpose" in name)
    assert result.startswith("unpack")


@pytest.mark.parametrize(("channels", "groups"), [(24, 24), (12, 3), (40, 2)])
def test_between_convolutions_images_stay_in_blocks(channels: int, groups: int) -> None:
    inner, scale, bias = normalization((1, channels, 19, 21), groups)
    norm = inner.graph.node[0]
    norm.input[0], norm.output[0] = "h", "n"
    source = network([norm], channels, {"scale": scale, "bias": bias})
    source.opset_import[0].version = 21
    assert_in_blocks(source)


def test_groups_as_exporters_write_them_are_normalized_where_they_lie() -> None:
    weights = {
        "rows": np.array([0, 8, -1]), "back": np.array([1, 24, 19, 21]),
        "one": np.ones(8, np.float32), "none": np.zeros(8, np.float32),
        "scale": RNG.standard_normal((24, 1, 1)).astype(np.float32),
        "bias": RNG.standard_normal((24, 1, 1)).astype(np.float32),
    }  # fmt: skip
    norm = [
        helper.make_node("Reshape", ["h", "rows"], ["a"]),
        helper.make_node("InstanceNormalization", ["a", "one", "none"], ["b"]),
        helper.make_node("Reshape", ["b", "back"], ["c"]),
        helper.make_node("Mul", ["c", "scale"], ["d"]),
        helper.make_node("Add", ["d", "bias"], ["n"]),
    ]
    assert_in_blocks(network(norm, 24, weights))


def test_channels_that_are_none_make_no_nan_where_nothing_is_added_to_the_variance() -> None:
    norm = helper.make_node("InstanceNormalization", ["h", "one", "none"], ["n"], epsilon=0.0)
    weights = {"one": np.ones(9, np.float32), "none": np.zeros(9, np.float32)}
    assert_in_blocks(network([norm], 9, weights))


@pytest.mark.parametrize("length", [9, 96, 100])
def test_rows_are_normalized_wherever_their_mean_lies(length: int) -> None:
    scale, bias = (RNG.standard_normal(length).astype(np.float32) for _ in range(2))
    node = helper.make_node("LayerNormalization", ["x", "scale", "bias"], ["y"], epsilon=EPSILON)
    engine = compiled(model([node], {"x": (2, "rows", length)}, {"scale": scale, "bias": bias}), threads=2)
    for rows in (1, 7, 300):
        x = (RNG.standard_normal((2, rows, length)) + 100 * RNG.standard_normal((2, rows, 1))).astype(np.float32)
        away = x.astype(np.float64) - x.astype(np.float64).mean(axis=2, keepdims=True)
        expected = away / np.sqrt((away**2).mean(axis=2, keepdims=True) + EPSILON) * scale + bias
        assert_close(engine(x)[0], expected, within=1e-4)


@pytest.mark.parametrize("options", [{"generator": "stock"}, {"opt_level": 1}])
def test_generators_without_a_kernel_of_their_own_spell_it_out(options: dict[str, object]) -> None:
    source, scale, bias = normalization((1, 12, 8, 9), 4)
    engine = Engine(build(source, Target.from_tag("host"), replace(TILED, **options)).to_bytes())
    x = RNG.standard_normal((1, 12, 8, 9)).astype(np.float32) + 1000
    assert_close(engine(x)[0], reference(x, 4, scale, bias), within=2e-4)


@pytest.mark.parametrize(
    ("shape", "kind"), [((2, 12, 5, 7), "float16"), ((2, 12, "height", 7), "float64"), ((2, 12), "float32")]
)
def test_other_types_and_values_without_pixels_are_normalized_too(shape: Shape, kind: str) -> None:
    source, scale, bias = normalization(shape, 3)
    number = helper.np_dtype_to_tensor_dtype(np.dtype(kind))
    for value in (*source.graph.input, *source.graph.output):
        value.type.tensor_type.elem_type = number
    for tensor in source.graph.initializer:
        tensor.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(tensor).astype(kind), tensor.name))
    engine = Engine(build(source, Target.from_tag("host"), TILED).to_bytes())
    x = RNG.standard_normal([5 if extent == "height" else extent for extent in shape]).astype(kind)
    (found,) = engine(x)
    assert found.dtype == np.dtype(kind)
    assert_close(found, reference(x, 3, scale, bias), within={"float16": 4e-3, "float32": 1e-6, "float64": 1e-7}[kind])
