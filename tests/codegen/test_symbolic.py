"""Images of any height and width: one library, right for all, with no kernel left to plain loops."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import onnx
import onnx.parser
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper

from forge_pipeline.codegen.build import build
from forge_pipeline.codegen.options import Options
from forge_pipeline.errors import CompileError, DataError
from forge_pipeline.target import Target
from forge_runtime.engine import Engine
from tests.support.sums import assert_same_sums

TILED = Options(generator="tiled", opt_level=3, float16=False, channel_layout=None)


def pyramid() -> onnx.ModelProto:
    """Return convolutions at three resolutions, the smallest enlarged and added to the middle one, and flat scores."""
    rng = np.random.default_rng(1)
    weights = {
        name: (rng.standard_normal(shape) / 6).astype(np.float32)
        for name, shape in {
            "w1": (16, 3, 3, 3), "b1": (16,), "w2": (16, 1, 3, 3), "w3": (20, 16, 1, 1), "w4": (20, 20, 3, 3),
            "w5": (4, 20, 1, 1),
        }.items()
    }  # fmt: skip
    weights |= {"scales": np.array([1, 1, 2, 2], np.float32), "flat": np.array([0, 4, -1])}
    pads = {"pads": [1, 1, 1, 1]}
    nodes = [
        helper.make_node("Conv", ["x", "w1", "b1"], ["a"], strides=[2, 2], **pads),
        helper.make_node("Relu", ["a"], ["b"]),
        helper.make_node("Conv", ["b", "w2"], ["c"], group=16, **pads),
        helper.make_node("MaxPool", ["c"], ["d"], kernel_shape=[2, 2], strides=[2, 2]),
        helper.make_node("Conv", ["d", "w3"], ["e"]),
        helper.make_node("Conv", ["e", "w4"], ["f"], strides=[2, 2], **pads),
        helper.make_node("Resize", ["f", "", "scales"], ["g"], mode="nearest", nearest_mode="floor",
                         coordinate_transformation_mode="asymmetric"),
        helper.make_node("Add", ["e", "g"], ["h"]),
        helper.make_node("Conv", ["h", "w5"], ["i"]),
        helper.make_node("Reshape", ["i", "flat"], ["y"]),
    ]  # fmt: skip
    graph = helper.make_graph(
        nodes,
        "pyramid",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 3, "height", "width"])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
        [numpy_helper.from_array(value, name) for name, value in weights.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=10)


def test_one_library_serves_images_of_any_size() -> None:
    model = pyramid()
    library = build(model, Target.from_tag("host"), TILED)
    assert library.metadata["compile"]["fallbacks"] == []
    engine = Engine(library.to_bytes(), threads=2)
    session = onnxruntime.InferenceSession(model.SerializeToString())
    for shape in ((1, 3, 32, 32), (2, 3, 72, 40), (1, 3, 8, 104)):
        x = np.random.default_rng(2).standard_normal(shape).astype(np.float32)
        (expected,), (found,) = session.run(None, {"x": x}), engine(x)
        assert found.shape == expected.shape
        assert np.abs(found - expected).max() <= 1e-5 * np.abs(expected).max()


@pytest.mark.long
def test_a_convolution_that_halves_an_open_image_is_one_kernel_with_its_bias_and_activation() -> None:
    engine = Engine(build(pyramid(), Target.from_tag("host"), TILED).to_bytes(), threads=1)
    names = {kernel.name for kernel in engine.profile(np.zeros((1, 3, 16, 16), np.float32), runs=1)}
    assert any("conv2d_planar_add_relu" in name for name in names), names


@pytest.mark.parametrize("names", [(None, None, None), ("batch-size", "w/2", "w/4")])
def test_extents_without_a_name_or_with_any_name_are_each_their_own(names: tuple[str | None, ...]) -> None:
    weight = np.random.default_rng(1).standard_normal((8, 3, 3, 3)).astype(np.float32)
    batch, *sizes = names
    graph = helper.make_graph(
        [helper.make_node("Conv", ["x", "w"], ["y"], strides=[2, 2])],
        "graph",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [batch, 3, *sizes])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
        [numpy_helper.from_array(weight, "w")],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=10)
    engine = Engine(build(model, Target.from_tag("host"), TILED).to_bytes(), threads=1)
    session = onnxruntime.InferenceSession(model.SerializeToString())
    for shape in ((1, 3, 9, 7), (2, 3, 8, 19)):
        x = np.random.default_rng(2).standard_normal(shape).astype(np.float32)
        (expected,), (found,) = session.run(None, {"x": x}), engine(x)
        assert_same_sums(found, expected, terms=27)


def test_two_extents_that_read_alike_are_still_two() -> None:
    weight = np.random.default_rng(1).standard_normal((8, 3, 3, 3)).astype(np.float32)
    shapes: dict[str, list[Any]] = {"x": [1, 3, None, 8], "y": [1, 3, "x_2", 8]}  # x_2: how a nameless one is called
    graph = helper.make_graph(
        [helper.make_node("Conv", [name, "w"], [f"{name}_out"], strides=[2, 2]) for name in shapes],
        "graph",
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name, shape in shapes.items()],
        [helper.make_tensor_value_info(f"{name}_out", TensorProto.FLOAT, None) for name in shapes],
        [numpy_helper.from_array(weight, "w")],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=10)
    x, y = (np.random.default_rng(size).standard_normal((1, 3, size, 8)).astype(np.float32) for size in (9, 15))
    expected = onnxruntime.InferenceSession(model.SerializeToString()).run(None, {"x": x, "y": y})
    found = Engine(build(model, Target.from_tag("host"), TILED).to_bytes(), threads=1)(x, y)
    for want, have in zip(expected, found, strict=True):
        assert_same_sums(have, want, terms=27)


@pytest.mark.every(2)
@pytest.mark.parametrize("size", [(3, 9), (1, 1)])
def test_an_image_smaller_than_the_kernels_is_refused_and_the_engine_goes_on(size: tuple[int, int]) -> None:
    random = np.random.default_rng(6)
    weights = {
        name: random.normal(size=shape).astype(np.float32)
        for name, shape in {"a": (8, 3, 5, 5), "b": (8, 8, 3, 3)}.items()
    }
    nodes = [helper.make_node("Conv", ["x", "a"], ["h"], strides=[2, 2]), helper.make_node("Conv", ["h", "b"], ["y"])]
    graph = helper.make_graph(
        nodes,
        "narrow",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 3, "height", "width"])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
        [numpy_helper.from_array(value, name) for name, value in weights.items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=10)
    engine = Engine(build(model, Target.from_tag("host"), TILED).to_bytes(), threads=1)
    with pytest.raises(DataError, match=r"expected sizes that (go together|the model can compute with)"):
        engine(np.zeros((1, 3, *size), np.float32))
    x = random.normal(size=(1, 3, 20, 24)).astype(np.float32)
    (expected,) = onnxruntime.InferenceSession(model.SerializeToString()).run(None, {"x": x})
    assert np.abs(engine(x)[0] - expected).max() <= 5e-5 * np.abs(expected).max()


def _pools(*kinds: tuple[str, dict[str, Any]]) -> tuple[Engine, onnxruntime.InferenceSession]:
    """Return an engine and a session of pools that read the same convolution."""
    weight = np.random.default_rng(8).standard_normal((16, 3, 1, 1)).astype(np.float32)
    nodes = [helper.make_node("Conv", ["x", "w"], ["c"])]
    nodes += [helper.make_node(name, ["c"], [f"y{at}"], **given) for at, (name, given) in enumerate(kinds)]
    graph = helper.make_graph(
        nodes,
        "pools",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 3, "height", "width"])],
        [helper.make_tensor_value_info(f"y{at}", TensorProto.FLOAT, None) for at in range(len(kinds))],
        [numpy_helper.from_array(weight, "w")],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=10)
    library = build(model, Target.from_tag("host"), TILED)
    assert library.metadata["compile"]["fallbacks"] == []
    return Engine(library.to_bytes(), threads=1), onnxruntime.InferenceSession(model.SerializeToString())


def test_pools_have_as_many_results_as_onnx_runtime_has_when_it_rounds_their_number_up() -> None:
    engine, session = _pools(
        ("MaxPool", {"kernel_shape": [3, 3], "strides": [2, 2], "ceil_mode": 1}),
        ("MaxPool", {"kernel_shape": [2, 2], "strides": [2, 3], "pads": [0, 1, 1, 0], "ceil_mode": 1}),
        ("MaxPool", {"kernel_shape": [2, 2], "dilations": [2, 1], "pads": [1, 0, 1, 1]}),
        ("AveragePool", {"kernel_shape": [2, 3], "strides": [2, 3], "pads": [1, 1, 0, 1], "ceil_mode": 1}),
        ("AveragePool", {"kernel_shape": [3, 3], "strides": [2, 2], "count_include_pad": 1, "ceil_mode": 1}),
    )
    for size in ((17, 9), (2, 2), (3, 5), (8, 8), (6, 7)):
        x = np.random.default_rng(2).standard_normal((1, 3, *size)).astype(np.float32)
        for found, wanted in zip(engine(x), session.run(None, {"x": x}), strict=True):
            assert found.shape == wanted.shape
            assert_same_sums(found, wanted, terms=3 + 9)


@pytest.mark.every(3)
@pytest.mark.parametrize(
    ("kernel", "strides", "dilations", "mode"),
    [([2, 2], [2, 2], [1, 1], "UPPER"), ([5, 3], [2, 3], [1, 1], "LOWER"), ([3, 3], [2, 1], [2, 3], "UPPER")],
)
def test_a_mean_leaves_out_padding_that_hangs_on_the_extents(
    kernel: list[int], strides: list[int], dilations: list[int], mode: str
) -> None:
    """As ONNX says: ONNX Runtime forgets results of dilated windows, ONNX's own reference computes them as zeros."""
    model = onnx.parser.parse_model(
        f"""<ir_version: 10, opset_import: ["" : 19]>
        means (float[n, 5, height, width] x) => (float[n, 5, rows, columns] y) {{
            y = AveragePool<kernel_shape = {kernel}, strides = {strides}, dilations = {dilations},
                            auto_pad = "SAME_{mode}">(x)
        }}"""
    )
    engine = Engine(build(model, Target.from_tag("host"), TILED).to_bytes(), threads=1)
    for shape in ((1, 5, 7, 7), (2, 5, 8, 9), (1, 5, 13, 10)):
        x = np.random.default_rng(2).standard_normal(shape).astype(np.float32)
        (found,) = engine(x)
        assert_same_sums(found, _means_of_pixels(x, kernel, strides, dilations, mode), terms=15)


def _means_of_pixels(
    x: np.ndarray, kernel: list[int], strides: list[int], dilations: list[int], mode: str
) -> np.ndarray:
    """Return the means over windows of ceil(extent / stride) places, whose padding is no number."""
    for axis, (width, stride, step) in enumerate(zip(kernel, strides, dilations, strict=True), 2):
        reach, extent = (width - 1) * step + 1, x.shape[axis]
        total = max((-(-extent // stride) - 1) * stride + reach - extent, 0)
        sides = (total // 2, total - total // 2)
        pads = [(0, 0)] * axis + [sides if mode == "UPPER" else sides[::-1]] + [(0, 0)] * (x.ndim - axis - 1)
        x = np.lib.stride_tricks.sliding_window_view(np.pad(x, pads, constant_values=np.nan), reach, axis)
        x = np.moveaxis(np.moveaxis(x, axis, 0)[::stride], 0, axis)[..., ::step]
    return np.asarray(np.nanmean(x, (-2, -1)), np.float32)


def test_windows_larger_than_the_image_are_refused_and_the_engine_goes_on() -> None:
    engine, session = _pools(("MaxPool", {"kernel_shape": [3, 2], "strides": [2, 2]}))
    with pytest.raises(DataError, match=r"expected sizes that (go together|the model can compute with)"):
        engine(np.ones((1, 3, 2, 9), np.float32))
    x = np.random.default_rng(2).standard_normal((1, 3, 3, 9)).astype(np.float32)
    assert_same_sums(engine(x)[0], session.run(None, {"x": x})[0], terms=3)


def test_a_window_larger_than_an_image_of_known_size_is_refused_by_its_node() -> None:
    node = helper.make_node("MaxPool", ["x"], ["y"], kernel_shape=[3, 2], strides=[2, 2], pads=[1, 0, 0, 0])
    ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [1, 3, *size])
            for name, size in (("x", (1, 9)), ("y", (None, None)))]  # fmt: skip
    graph = helper.make_graph([node], "small", ends[:1], ends[1:])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=10)
    with pytest.raises(CompileError, match="a window of 3 pixels on 2"):
        build(model, Target.from_tag("host"), TILED)


def test_a_mean_that_counts_padding_behind_which_a_window_might_start_is_refused() -> None:
    kind = {"kernel_shape": [3, 3], "strides": [3, 3], "pads": [1] * 4, "count_include_pad": 1, "ceil_mode": 1}
    with pytest.raises(CompileError, match="a window might start behind the image"):
        _pools(("AveragePool", kind))


def _convolutions(channels: int) -> onnx.ModelProto:
    """Return one convolution of each kind that reads the same image, and a residual sum behind two of them."""
    random = np.random.default_rng(7)
    kinds = {  # filters, channels of a group, kernel, stride, padding (top, left, bottom, right), groups
        "pointwise": (24, channels, (1, 1), 1, (0, 0, 0, 0), 1),
        "one_filter": (1, channels, (1, 1), 1, (0, 0, 0, 0), 1),
        "grouped": (2 * channels, channels // 2, (1, 1), 1, (0, 0, 0, 0), 2),
        "strided": (8, channels, (3, 3), 2, (1, 1, 1, 1), 1),
        "lopsided": (8, channels, (3, 2), 1, (0, 1, 2, 0), 1),
        "depthwise": (channels, 1, (3, 3), 1, (1, 1, 1, 1), channels),
        "depthwise_strided": (channels, 1, (5, 5), 2, (2, 2, 2, 2), channels),
    }
    weights = {
        name: (random.standard_normal((filters, inputs, *kernel)) / 5).astype(np.float32)
        for name, (filters, inputs, kernel, _, _, _) in kinds.items()
    }
    nodes = [
        helper.make_node("Conv", ["x", name], [f"{name}_y"], strides=[stride] * 2, pads=list(pads), group=groups)
        for name, (_, _, _, stride, pads, groups) in kinds.items()
    ]
    weights["mixing"] = (random.standard_normal((channels, 24, 1, 1)) / 5).astype(np.float32)
    nodes += [
        helper.make_node("Relu", ["pointwise_y"], ["positive"]),
        helper.make_node("Conv", ["positive", "mixing"], ["mixed"]),
        helper.make_node("Add", ["mixed", "depthwise_y"], ["sum"]),
    ]
    graph = helper.make_graph(
        nodes,
        "convolutions",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, channels, "height", "width"])],
        [
            helper.make_tensor_value_info(name, TensorProto.FLOAT, None)
            for name in (*(f"{kind}_y" for kind in kinds), "sum")
        ],
        [numpy_helper.from_array(value, name) for name, value in weights.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=10)


def test_every_kind_of_convolution_is_right_at_every_width_also_less_than_a_tile() -> None:
    model = _convolutions(16)
    library = build(model, Target.from_tag("host"), TILED)
    assert library.metadata["compile"]["fallbacks"] == []
    engine = Engine(library.to_bytes(), threads=2)
    session = onnxruntime.InferenceSession(model.SerializeToString())
    random = np.random.default_rng(3)
    for height, width in [(3, width) for width in range(2, 30)] + [(17, 9), (9, 17), (8, 8), (41, 47)]:
        x = random.standard_normal((1, 16, height, width)).astype(np.float32)
        for name, expected, found in zip(
            (output.name for output in engine.outputs), session.run(None, {"x": x}), engine(x), strict=True
        ):
            assert np.abs(found - expected).max() <= 1e-5 * np.abs(expected).max(), (name, x.shape)


def _binary(operator: str, left: list[int | str], right: list[int | str]) -> onnx.ModelProto:
    graph = helper.make_graph(
        [helper.make_node(operator, ["a", "b"], ["y"])],
        "binary",
        [helper.make_tensor_value_info(n, TensorProto.FLOAT, s) for n, s in (("a", left), ("b", right))],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=10)


@pytest.mark.parametrize(
    ("left", "right", "fitting", "unfit"),
    [
        (["n", 3], ["m", 3], ((2, 3), (2, 3)), ((4, 3), (2, 3))),
        (["n", 3], ["m", 1], ((2, 3), (2, 1)), ((2, 3), (1, 1))),
        ([3, "n"], ["m"], ((3, 2), (2,)), ((3, 2), (1,))),
        (["n", 3], [5, 3], ((5, 3), (5, 3)), ((1, 3), (5, 3))),
        ([5, 3], ["n", 3], ((5, 3), (5, 3)), ((5, 3), (4, 3))),
        ([0, 3], [1, 3], ((0, 3), (1, 3)), None),
    ],
)
def test_extents_of_two_names_are_taken_to_agree_and_refused_when_they_do_not(
    left: list[int | str],
    right: list[int | str],
    fitting: tuple[tuple[int, ...], tuple[int, ...]],
    unfit: tuple[tuple[int, ...], tuple[int, ...]] | None,
) -> None:
    engine = Engine(build(_binary("Sub", left, right), Target.from_tag("host"), TILED).to_bytes(), threads=1)
    random = np.random.default_rng(1)
    a, b = (random.standard_normal(size).astype(np.float32) for size in fitting)
    np.testing.assert_array_equal(engine(a, b)[0], a - b)
    if unfit is not None:
        with pytest.raises(DataError, match=r"expected sizes that (go together|the model can compute with)"):
            engine(*(np.zeros(size, np.float32) for size in unfit))


def test_powers_of_extents_of_two_names_are_taken_to_agree() -> None:
    engine = Engine(build(_binary("Pow", ["n", 3], ["m", 3]), Target.from_tag("host"), TILED).to_bytes(), threads=1)
    base, exponent = np.full((2, 3), 3, np.float32), np.full((2, 3), 2, np.float32)
    np.testing.assert_allclose(engine(base, exponent)[0], 9, rtol=1e-6)
    with pytest.raises(DataError, match=r"Pow: operands differ in an extent \(n and m\)"):
        engine(base, np.ones((4, 3), np.float32))


@pytest.mark.parametrize("other", ["another shape", "a number"])
def test_shapes_are_called_equal_or_not_only_where_that_holds_for_every_size(other: str) -> None:
    nodes = [
        helper.make_node("Shape", ["a"], ["own"]),
        helper.make_node("Shape", ["b"], ["shape"]),
        helper.make_node("Equal", ["own", "shape" if other == "another shape" else "three"], ["same"]),
        helper.make_node("Not", ["same"], ["different"]),
        helper.make_node("Where", ["different", "own", "minus"], ["which"]),
        helper.make_node("Cast", ["which"], ["number"], to=TensorProto.FLOAT),
        helper.make_node("Add", ["a", "number"], ["y"]),
    ]
    graph = helper.make_graph(
        nodes,
        "shapes",
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, [size]) for name, size in (("a", "n"), ("b", "m"))],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["n"])],
        [numpy_helper.from_array(np.array([value]), name) for value, name in ((3, "three"), (-1, "minus"))],
    )
    model = onnx.shape_inference.infer_shapes(
        helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=10)
    )
    engine = Engine(build(model, Target.from_tag("host"), TILED).to_bytes(), threads=1)
    session = onnxruntime.InferenceSession(model.SerializeToString())
    for n, m in ((3, 3), (3, 5), (5, 3), (5, 5), (1, 1)):
        feeds = {"a": np.zeros(n, np.float32), "b": np.zeros(m, np.float32)}
        np.testing.assert_array_equal(engine(*feeds.values())[0], session.run(None, feeds)[0])


def test_an_extent_that_cannot_be_minus_one_is_known_not_to_be_when_the_model_is_built() -> None:
    """As exporters write Expand: the entries of a shape that are -1 become 1."""
    nodes = [
        helper.make_node("Shape", ["a"], ["own"]),
        helper.make_node("Equal", ["own", "minus"], ["open"]),
        helper.make_node("Where", ["open", "one", "own"], ["wanted"]),
        helper.make_node("Expand", ["b", "wanted"], ["y"]),
    ]
    graph = helper.make_graph(
        nodes,
        "expand",
        [
            helper.make_tensor_value_info(name, TensorProto.FLOAT, shape)
            for name, shape in (("a", ["n", 4]), ("b", [4]))
        ],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["n", 4])],
        [numpy_helper.from_array(np.array([value, value]), name) for value, name in ((-1, "minus"), (1, "one"))],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=10)
    engine = Engine(build(model, Target.from_tag("host"), TILED).to_bytes(), threads=1)
    b = np.arange(4, dtype=np.float32)
    np.testing.assert_array_equal(engine(np.zeros((3, 4), np.float32), b)[0], np.broadcast_to(b, (3, 4)))


@pytest.mark.every(3)
@pytest.mark.parametrize("generator", ["tiled", "stock"])
@pytest.mark.parametrize("level", [0, 1, 3])
def test_a_sum_over_nothing_is_zero_and_a_product_one(generator: str, level: int) -> None:
    model = onnx.parser.parse_model("""<ir_version: 10, opset_import: ["": 18]>
        none (float[n, 5] x) => (float[5] sum, float[5] product, float[5, 5] matrix)
        {
            axis = Constant<value_ints=[0]>()  turned = Transpose<perm=[1, 0]>(x)  matrix = MatMul(turned, x)
            sum = ReduceSum<keepdims=0>(x, axis)  product = ReduceProd<keepdims=0>(x, axis)
        }""")
    options = dataclasses.replace(TILED, generator=generator, opt_level=level)
    engine = Engine(build(model, Target.from_tag("host"), options).to_bytes(), threads=1)
    for rows in (3, 0, 3):
        x = np.full((rows, 5), 2, np.float32)
        expected = (x.sum(0), x.prod(0), x.T @ x)
        for found, wanted in zip(engine(x), expected, strict=True):
            np.testing.assert_array_equal(found, wanted)
