"""Kernels over tensors as they come: pools, pads, joins, transpositions and sums of any extents, open or known."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import helper

from forge_pipeline.codegen.build import build
from forge_pipeline.codegen.lowering import lower
from forge_pipeline.codegen.onnx_import.importer import import_model, prepare
from forge_pipeline.target import Target
from tests.support.emulated.aarch64 import QEMU
from tests.support.emulated.choice import emulated, load
from tests.support.sums import assert_same_sums
from tests.support.tiled import TILED, Shape, assert_same, compiled, kernels_of, model

SIZES = [(1, 1), (3, 5), (16, 16), (17, 63), (40, 100)]
"""Heights and widths less than a vector, of whole vectors, and with some left over."""

IMAGE = (2, 5, "h", "w")


def one(operator: str, constants: dict[str, np.ndarray] | None = None, **attributes: Any) -> onnx.ModelProto:
    """Return the model of one operator over an image of open size."""
    node = helper.make_node(operator, ["x", *(constants or {})], ["y"], **attributes)
    return model([node], {"x": IMAGE}, constants)


def at_all(source: onnx.ModelProto, *, terms: int, least: tuple[int, int] = (1, 1)) -> None:
    """Compare at open sizes, and with each of two sizes known when it is compiled."""
    sizes = [{"h": h, "w": w} for h, w in SIZES if h >= least[0] and w >= least[1]]
    assert_same(source, sizes, terms=terms)
    for size in sizes[-2:]:
        known = onnx.ModelProto()
        known.CopyFrom(source)
        for value in known.graph.input:
            for axis in value.type.tensor_type.shape.dim:
                if axis.dim_param:
                    axis.dim_value = size[axis.dim_param]
        assert_same(known, [size], terms=terms)


@pytest.mark.every(8)
@pytest.mark.parametrize(
    ("operator", "attributes"),
    [
        ("MaxPool", {"kernel_shape": [3, 3], "pads": [1, 1, 1, 1]}),
        ("MaxPool", {"kernel_shape": [3, 3], "pads": [1, 1, 1, 1], "strides": [2, 2]}),
        ("MaxPool", {"kernel_shape": [1, 4], "pads": [0, 2, 0, 1], "strides": [1, 3]}),
        ("MaxPool", {"kernel_shape": [11, 9], "pads": [5, 4, 5, 4]}),
        ("MaxPool", {"kernel_shape": [3, 2], "pads": [2, 1, 2, 1], "dilations": [2, 1]}),
        ("MaxPool", {"kernel_shape": [2, 1], "pads": [1, 0, 1, 0]}),
        ("AveragePool", {"kernel_shape": [3, 3], "pads": [1, 1, 1, 1]}),
        ("AveragePool", {"kernel_shape": [3, 5], "pads": [1, 2, 1, 2], "count_include_pad": 1}),
        ("AveragePool", {"kernel_shape": [3, 3], "pads": [1, 1, 1, 1], "strides": [2, 2], "ceil_mode": 1}),
        ("AveragePool", {"kernel_shape": [2, 40], "pads": [0, 20, 1, 19]}),
    ],
)
def test_windows_of_images_that_no_convolution_made(operator: str, attributes: dict[str, Any]) -> None:
    at_all(one(operator, **attributes), terms=90)


def test_a_window_that_stands_in_padding_alone_has_no_number() -> None:
    source = one("MaxPool", kernel_shape=[2, 2], pads=[1, 1, 1, 1])
    (found,) = compiled(source)(np.full((2, 5, 1, 1), -3.0, np.float32))
    np.testing.assert_array_equal(found, np.full((2, 5, 2, 2), -3.0, np.float32))


@pytest.mark.every(2)
@pytest.mark.parametrize(
    ("operator", "filling"), [("Sigmoid", 0.0), ("Exp", 0.0), ("Log", 1.0), ("Tanh", -1.0), ("Erf", 0.5)]
)
def test_functions_of_what_fills_padding(operator: str, filling: float) -> None:
    nodes = [
        helper.make_node("Abs", ["x"], ["a"]),
        helper.make_node("Pad", ["a", "p", "v"], ["b"]),
        helper.make_node(operator, ["b"], ["y"]),
    ]
    pads = {"p": np.array([0, 0, 2, 3, 0, 0, 1, 2]), "v": np.float32(filling)}
    at_all(model(nodes, {"x": IMAGE}, pads), terms=20, least=(3, 5))


@pytest.mark.every(10)
@pytest.mark.parametrize("mode", ["constant", "edge", "reflect", "wrap"])
@pytest.mark.parametrize("pads", [[0, 0, 2, 3, 0, 0, 1, 2], [0, 1, 0, 0, 0, 2, 0, 4], [1, 0, 2, 0, 0, 0, 0, 0]])
def test_pads(mode: str, pads: list[int]) -> None:
    source = model(
        [helper.make_node("Relu", ["x"], ["a"]), helper.make_node("Pad", ["a", "p"], ["b"], mode=mode),
         helper.make_node("Sigmoid", ["b"], ["y"])],
        {"x": IMAGE}, {"p": np.array(pads)},
    )  # fmt: skip
    source.opset_import[0].version = 19
    at_all(source, terms=4, least=(5, 5) if mode == "reflect" else (3, 5))


@pytest.mark.every(2)
@pytest.mark.parametrize("axis", [0, 1, 2, 3])
def test_joins_along_any_axis_and_what_is_computed_of_them(axis: int) -> None:
    nodes = [
        helper.make_node("Concat", ["x", "a", "x", "b"], ["j"], axis=axis),
        helper.make_node("Sigmoid", ["j"], ["y"]),
    ]
    before = [helper.make_node("Neg", ["x"], ["a"]), helper.make_node("Abs", ["x"], ["b"])]
    at_all(model([*before, *nodes], {"x": IMAGE}), terms=4)


@pytest.mark.every(2)
@pytest.mark.parametrize("order", [[0, 2, 3, 1], [0, 1, 3, 2], [3, 2, 1, 0], [1, 0, 2, 3], [2, 3, 0, 1]])
def test_transpositions(order: list[int]) -> None:
    nodes = [helper.make_node("Transpose", ["x"], ["t"], perm=order), helper.make_node("Relu", ["t"], ["y"])]
    at_all(model(nodes, {"x": (2, 20, "h", "w")}), terms=1)


@pytest.mark.every(3)
@pytest.mark.parametrize("shape", [(2, 33, 19, 40), (1, 32, 16, 48), (1, 3, 17, 16), (1, 5, 4, 9)])
@pytest.mark.parametrize("order", [(0, 2, 3, 1), (0, 3, 1, 2), (0, 1, 3, 2)])
def test_transpositions_of_bytes_and_of_floats_move_each_number_once(
    shape: tuple[int, ...], order: tuple[int, ...]
) -> None:
    for dtype in (np.uint8, np.float32):
        x = np.arange(np.prod(shape)).reshape(shape).astype(dtype)
        kind = helper.np_dtype_to_tensor_dtype(x.dtype)
        ends = [helper.make_tensor_value_info("x", kind, shape), helper.make_tensor_value_info("y", kind, None)]
        graph = helper.make_graph([helper.make_node("Transpose", ["x"], ["y"], perm=order)], "t", ends[:1], ends[1:])
        source = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=10)
        np.testing.assert_array_equal(compiled(source)(x)[0], x.transpose(order))


@pytest.mark.every(10)
@pytest.mark.parametrize("operator", ["ReduceSum", "ReduceMax", "ReduceMin", "ReduceProd", "ReduceMean", "ReduceL2"])
@pytest.mark.parametrize("axes", [[3], [2, 3], [1, 3], [2], [0, 1, 2, 3]])
def test_reductions(operator: str, axes: list[int]) -> None:
    attributes: dict[str, Any] = {"keepdims": 0}
    constants = {"axes": np.array(axes)} if operator == "ReduceSum" else None
    if constants is None:
        attributes["axes"] = axes
    source = one(operator, constants, **attributes)
    sizes = [{"h": 3, "w": 5}, {"h": 1, "w": 100}] if operator == "ReduceProd" else [{"h": h, "w": w} for h, w in SIZES]
    assert_same(source, sizes, terms=40_000)


@pytest.mark.parametrize("operator", ["ReduceMax", "ReduceMin"])
@pytest.mark.parametrize("shape", [("n", 40), (3, 40), ("n", 3)])
def test_the_greatest_is_nan_where_one_is_and_infinite_where_all_are(
    operator: str, shape: tuple[int | str, int]
) -> None:
    nodes = [helper.make_node(operator, ["x"], ["y"], axes=[1], keepdims=0)]
    x = np.random.default_rng(4).standard_normal((3, int(shape[1]))).astype(np.float32)
    x[0, 1], x[1] = np.nan, -np.inf if operator == "ReduceMax" else np.inf
    (found,) = compiled(model(nodes, {"x": shape}))(x)
    np.testing.assert_array_equal(found, x.max(1) if operator == "ReduceMax" else x.min(1))


def test_normalization_of_images_of_any_size() -> None:
    weights = {"s": np.linspace(0.5, 2, 5, dtype=np.float32), "b": np.linspace(-1, 1, 5, dtype=np.float32)}
    at_all(one("InstanceNormalization", weights), terms=500, least=(3, 5))


@pytest.mark.every(8)
@pytest.mark.parametrize("width", [3, 7, 12, 17, 30, 60, 63, 100, 197])
def test_rows_of_every_width(width: int) -> None:
    row = {"r": np.linspace(-1, 1, width, dtype=np.float32), "c": np.linspace(1, 2, 8, dtype=np.float32).reshape(8, 1)}
    nodes = [
        helper.make_node("Mul", ["x", "r"], ["a"]),
        helper.make_node("Add", ["a", "c"], ["b"]),
        helper.make_node("Tanh", ["b"], ["y"]),
    ]
    assert_same(model(nodes, {"x": (2, 8, width)}, row), [{}], terms=4)
    assert_same(model(nodes, {"x": ("n", 8, width)}, row), [{"n": 2}, {"n": 5}], terms=4)


def test_a_large_image_is_packed_and_unpacked_around_a_convolution() -> None:
    weight = np.random.default_rng(2).standard_normal((48, 32, 1, 1)).astype(np.float32)
    source = model([helper.make_node("Conv", ["x", "w"], ["y"])], {"x": (1, 32, "h", "w")}, {"w": weight})
    assert_same(source, [{"h": h, "w": w} for h, w in SIZES], terms=33)
    assert {"pack", "unpack"} <= set(kernels_of(compiled(source)))


CHAINS: dict[str, list[tuple[str, list[str], dict[str, Any]]]] = {
    "windows": [
        ("MaxPool", ["x"], {"kernel_shape": [3, 3], "pads": [1] * 4}),
        ("AveragePool", ["v0"], {"kernel_shape": [3, 5], "pads": [1, 2, 1, 2], "strides": [2, 1]}),
        ("MaxPool", ["v1"], {"kernel_shape": [9, 1], "pads": [4, 0, 4, 0]}),
    ],
    "rows": [
        ("Pad", ["x", "pads"], {"mode": "reflect"}),
        ("Concat", ["v0", "v0"], {"axis": 3}),
        ("Sigmoid", ["v1"], {}),
        ("Transpose", ["v2"], {"perm": [0, 2, 3, 1]}),
        ("Relu", ["v3"], {}),
    ],
    "sums": [
        ("InstanceNormalization", ["x", "scale", "shift"], {}),
        ("Mul", ["v0", "v0"], {}),
        ("ReduceMax", ["v1"], {"axes": [3], "keepdims": 1}),
        ("Sub", ["v1", "v2"], {}),
        ("ReduceMean", ["v3"], {"axes": [2, 3], "keepdims": 1}),
        ("Add", ["v4", "v0"], {}),
    ],
}  # fmt: skip


@pytest.mark.every(10)
@pytest.mark.parametrize("chain", list(CHAINS))
@pytest.mark.parametrize("shape", [IMAGE, (2, 5, 21, 38)])
@pytest.mark.parametrize("tag", ["x86-64/v2", "x86-64/v3", "raspberry-pi/5"])
def test_other_instructions(tag: str, shape: Shape, chain: str) -> None:
    target = Target.from_tag(tag)
    if target.arch == "aarch64" and QEMU is None:
        pytest.skip("qemu-aarch64 is not installed: apt-get install qemu-user")
    steps = CHAINS[chain]
    nodes = [
        helper.make_node(operator, inputs, ["y" if number == len(steps) - 1 else f"v{number}"], **attributes)
        for number, (operator, inputs, attributes) in enumerate(steps)
    ]
    scale, shift = np.linspace(0.5, 2, 5, dtype=np.float32), np.linspace(-1, 1, 5, dtype=np.float32)
    source = model(nodes, {"x": shape}, {"pads": np.array([0, 0, 2, 3, 0, 0, 1, 2]), "scale": scale, "shift": shift})
    library, x = build(source, target, TILED).to_bytes(), np.random.default_rng(6).standard_normal((2, 5, 21, 38))
    feeds = {"x": x.astype(np.float32)}
    (expected,) = onnxruntime.InferenceSession(source.SerializeToString()).run(None, feeds)
    if target.arch == "aarch64":
        ((found,),) = emulated(target).run(library, ((), feeds)).outputs
    else:
        (found,) = load(library, target)(**feeds)
    assert_same_sums(found, expected, terms=1000)


@pytest.mark.parametrize("perm", [[0, 2, 3, 1], [0, 2, 1, 3], [0, 3, 2, 1]])
def test_axes_are_exchanged_in_registers_where_a_shape_was_changed_before(perm: list[int]) -> None:
    """As those of attention's keys are: a row of all heads becomes a row of each, and then columns."""
    nodes = [
        helper.make_node("Reshape", ["x", "shape"], ["heads"]),
        helper.make_node("Transpose", ["heads"], ["y"], perm=perm),
    ]
    source = model(nodes, {"x": (1, 37, 96)}, {"shape": np.array([1, 37, 3, 32])})
    kernels = lower(import_model(prepare(source)), Target.from_tag("x86-64/v3"), TILED).module
    moves = [kernel.script() for name, kernel in kernels.functions_items() if "transp" in name.name_hint]
    assert ["tile0" in script for script in moves] == [perm[-1] != 3]
    assert_same(source, [{}], terms=1)


def test_normalized_rows_of_any_number_become_columns_in_registers_and_threads_share_them() -> None:
    """A mean and a scale for each row are read beside what is exchanged."""
    nodes = [
        helper.make_node("LayerNormalization", ["x", "scale", "shift"], ["n"]),
        helper.make_node("Transpose", ["n"], ["y"], perm=[0, 2, 1]),
    ]
    scale, shift = np.linspace(0.5, 2, 512, dtype=np.float32), np.linspace(-1, 1, 512, dtype=np.float32)
    source = model(nodes, {"x": ("batch", "rows", 512)}, {"scale": scale, "shift": shift})
    kernels = lower(import_model(prepare(source)), Target.from_tag("x86-64/v3"), TILED).module
    (move,) = (kernel.script() for name, kernel in kernels.functions_items() if name.name_hint.endswith("transpose"))
    assert "tile0" in move
    assert "T.parallel" in move
    sizes = [{"batch": batch, "rows": rows} for batch, rows in ((1, 3), (1, 16), (2, 77), (3, 400))]
    assert_same(source, sizes, terms=2000)


@pytest.mark.parametrize("size", [("h", "w"), (6, 10)])
def test_images_that_become_tokens_and_back_are_moved_once_each(size: tuple[int | str, int | str]) -> None:
    """As a SegFormer's do between its convolutions: to rows of channels, and back, whatever the image's size."""
    node = helper.make_node
    nodes = [
        node("Conv", ["x", "first"], ["c"], pads=[1] * 4),
        node("Shape", ["c"], ["shape"]),
        node("Slice", ["shape", "two", "four"], ["pixels"]),
        node("Reshape", ["c", "flat"], ["f"]),
        node("Transpose", ["f"], ["t"], perm=[0, 2, 1]),
        node("LayerNormalization", ["t", "scale"], ["n"]),
        node("Transpose", ["n"], ["u"], perm=[0, 2, 1]),
        node("Concat", ["rows", "pixels"], ["image"], axis=0),
        node("Reshape", ["u", "image"], ["i"]),
        node("Conv", ["i", "second"], ["y"], pads=[1] * 4),
    ]
    rng = np.random.default_rng(0)
    weights = {"first": rng.normal(size=(32, 8, 3, 3)) / 8, "second": rng.normal(size=(16, 32, 3, 3)) / 16}
    weights = {name: array.astype(np.float32) for name, array in weights.items()}
    weights |= {"scale": np.linspace(0.5, 2, 32, dtype=np.float32), "flat": np.array([0, 32, -1])}
    weights |= {"two": np.array([2]), "four": np.array([4]), "rows": np.array([2, 32])}
    source = model(nodes, {"x": (2, 8, *size)}, weights)
    assert_same(source, [{"h": h, "w": w} for h, w in ((6, 10), (1, 1), (17, 5))], terms=2000)
    moves = [name for name in kernels_of(compiled(source)) if "transpose" in name]
    assert moves
    assert all("pack" in name for name in moves), moves
