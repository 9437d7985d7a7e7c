"""Computed extents: one variable for each expression, worked out at the start of a call, the same in every process."""

from __future__ import annotations

import hashlib
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper

from forge_pipeline.codegen.build import build
from forge_pipeline.codegen.onnx_import.importer import imported, prepare
from forge_pipeline.codegen.options import Options
from forge_pipeline.runtime.unpacked import loaded
from forge_pipeline.target import Target
from tests.support.sums import assert_same_sums
from tests.support.tiled import Shape, assert_same
from tests.support.tiled import model as model_of_nodes

OPTIONS = Options(generator="auto", opt_level=3, float16=False, channel_layout=None)


def model() -> onnx.ModelProto:
    """Return halves of an image joined along two open axes, seen in another shape, with their numbers of pixels."""
    constants = {
        "zero": np.array([0], np.int64),
        "one": np.array([1], np.int64),
        "minus": np.array([-1], np.int64),
        "far": np.array([2**31], np.int64),
        "first": np.array([1], np.int64),
    }
    nodes = [
        helper.make_node("Slice", ["x", "one", "far", "first"], ["tail"]),
        helper.make_node("Concat", ["tail", "x"], ["both"], axis=1),
        helper.make_node("Shape", ["both"], ["shape"]),
        helper.make_node("Gather", ["shape", "zero"], ["rows"]),
        helper.make_node("Concat", ["rows", "minus"], ["wanted"], axis=0),
        helper.make_node("Reshape", ["both", "wanted"], ["flat"]),
        helper.make_node("Size", ["flat"], ["size"]),
        helper.make_node("Cast", ["size"], ["pixels"], to=TensorProto.FLOAT),
        helper.make_node("Div", ["flat", "pixels"], ["y"]),
    ]
    graph = helper.make_graph(
        nodes,
        "joined",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", "h", "w"])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["n", "p"])],
        [numpy_helper.from_array(array, name) for name, array in constants.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10)


def test_equal_sizes_are_one_variable() -> None:
    found = imported(prepare(model()))
    assert sorted(str(size) for _, size in found.extents) == sorted({str(size) for _, size in found.extents})


def test_one_library_computes_what_onnx_runtime_does_at_any_size() -> None:
    source = model()
    engine = loaded(build(source, Target.from_tag("host"), OPTIONS), threads=1)
    session = onnxruntime.InferenceSession(source.SerializeToString(), providers=["CPUExecutionProvider"])
    for shape in ((1, 3, 2), (2, 7, 5), (5, 1, 1)):
        x = np.random.default_rng(0).standard_normal(shape).astype(np.float32)
        (wanted,), (found,) = session.run(None, {"x": x}), engine(x)
        np.testing.assert_array_equal(found, wanted)


@pytest.mark.every(4)
@pytest.mark.parametrize("seed", [0, 1])
def test_bytes_do_not_hang_on_addresses(seed: int, tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    onnx.save(model(), path)
    script = (
        "import sys, hashlib, onnx; waste = [object() for _ in range(int(sys.argv[2]) * 12345)]\n"
        "from forge_pipeline.codegen.build import build\n"
        "from forge_pipeline.codegen.options import Options\n"
        "from forge_pipeline.target import Target\n"
        "options = Options(generator='auto', opt_level=3, float16=False, channel_layout=None)\n"
        "print(hashlib.sha256(build(onnx.load(sys.argv[1]), Target.from_tag('x86-64/v3'), options).elf).hexdigest())\n"
    )
    command = [sys.executable, "-c", script, str(path), str(seed + 1)]
    found = subprocess.run(command, check=True, capture_output=True, text=True).stdout.split()[-1]
    here = build(model(), Target.from_tag("x86-64/v3"), OPTIONS).elf
    assert found == hashlib.sha256(here).hexdigest()


SHIFTED = """
<ir_version: 10, opset_import: ["" : 18]>
shifted (float[batch, sequence, 8] x) => (float[batch, sequence, sequence] y)
<int64[1] zero = {0}, int64[1] one = {1}, int64[1] end = {-1}, int64[1] far = {9999},
 int64[6] after = {0, 0, 0, 0, 1, 0}, int64[6] before = {0, 1, 0, 0, 0, 0}>
{
    length = Shape<start = 1, end = 2>(x)
    rows = Slice(table, zero, length, one)
    placed = Add(x, rows)
    tail = Slice(placed, one, far, one)
    next = Pad(tail, after)
    head = Slice(placed, zero, end, one)
    last = Pad(head, before)
    joined = Concat<axis = 2>(next, placed, last)
    turned = Transpose<perm = [0, 2, 1]>(joined)
    y = MatMul(joined, turned)
}
"""

IN_FOURS = """
<ir_version: 10, opset_import: ["" : 18]>
in_fours (float[batch, sequence, 8] x) => (float[batch, sequence, sequence] y)
<int64[1] four = {4}, int64[1] zero = {0}, int64[1] one = {1}, int64[1] eight = {8}>
{
    length = Shape<start = 1, end = 2>(x)
    quarters = Div(length, four)
    shape = Concat<axis = 0>(zero, quarters, four, eight)
    fours = Reshape(x, shape)
    most = ReduceMax<keepdims = 0>(fours)
    total = Mul(quarters, four)
    flat = Concat<axis = 0>(zero, total, eight)
    again = Reshape(fours, flat)
    less = Sub(again, most)
    rows = Slice(table, zero, length, one)
    placed = Add(x, rows)
    sum = Add(placed, less)
    turned = Transpose<perm = [0, 2, 1]>(sum)
    y = MatMul(sum, turned)
}
"""


@pytest.mark.every(2)
@pytest.mark.parametrize(("text", "sizes"), [(SHIFTED, (1, 2, 9)), (IN_FOURS, (4, 12))])
def test_a_size_that_comes_back_to_an_inputs_is_that_inputs(text: str, sizes: tuple[int, ...]) -> None:
    model = onnx.parser.parse_model(text)
    table = np.random.default_rng(0).standard_normal((1, 16, 8)).astype(np.float32)
    model.graph.initializer.append(numpy_helper.from_array(table, "table"))
    assert "match_cast" not in imported(prepare(model)).module["main"].script()  # it would be put in the extent's place
    engine = loaded(build(model, Target.from_tag("host"), OPTIONS), threads=1)
    session = onnxruntime.InferenceSession(model.SerializeToString())
    for size in sizes:
        x = np.random.default_rng(size).standard_normal((2, size, 8)).astype(np.float32)
        assert_same_sums(engine(x)[0], session.run(None, {"x": x})[0], terms=24)


THERE_AND_BACK = """
<ir_version: 10, opset_import: ["" : 18]>
there_and_back (float[1, 1, samples] x) => (float[1, 1, padded] y)
<int64[1] eight = {8}, int64[2] before = {0, 0}, int64[1] two = {2}>
{
    length = Shape<start = 2, end = 3>(x)
    over = Mod(length, eight)
    missing = Sub(eight, over)
    none = ConstantOfShape<value = int64[1] {0}>(five)
    pads = Concat<axis = 0>(none, missing)
    padded = Pad(x, pads)
    frames = Conv<kernel_shape = [16], strides = [8]>(padded, w)
    loud = Relu(frames)
    y = ConvTranspose<kernel_shape = [16], strides = [8]>(loud, w)
}
"""


def test_sizes_that_are_made_of_each_other_are_not_put_in_each_others_place() -> None:
    """Frames are counted from samples, and samples from frames: TVM went from one to the other without an end."""
    model = onnx.parser.parse_model(THERE_AND_BACK)
    weights = np.random.default_rng(0).standard_normal((4, 1, 16)).astype(np.float32)
    model.graph.initializer.extend(
        [numpy_helper.from_array(weights, "w"), numpy_helper.from_array(np.array([5]), "five")]
    )
    engine = loaded(build(model, Target.from_tag("host"), OPTIONS), threads=1)
    session = onnxruntime.InferenceSession(model.SerializeToString())
    for size in (20, 64):
        x = np.random.default_rng(size).standard_normal((1, 1, size)).astype(np.float32)
        assert_same_sums(engine(x)[0], session.run(None, {"x": x})[0], terms=64)


AT_MOST_ONE = """
<ir_version: 10, opset_import: ["" : 18]>
at_most_one (float[batch, points] x) => (float[batch, kept] y)
<int64[1] zero = {0}, int64[1] one = {1}, int64[1] most = {6}>
{
    kept = Slice(x, zero, most, one)
    first = Slice(kept, zero, one, one)
    shape = Shape(kept)
    filled = Expand(first, shape)
    y = Sub(kept, filled)
}
"""


def test_an_axis_of_at_most_one_is_expanded_as_one() -> None:
    model = onnx.parser.parse_model(AT_MOST_ONE)
    engine = loaded(build(model, Target.from_tag("host"), OPTIONS), threads=1)
    session = onnxruntime.InferenceSession(model.SerializeToString())
    for size in (1, 4, 9):
        x = np.random.default_rng(size).standard_normal((2, size)).astype(np.float32)
        np.testing.assert_array_equal(engine(x)[0], session.run(None, {"x": x})[0])


WINDOWED = """
<ir_version: 10, opset_import: ["" : 18]>
windowed (float[batch, target, 8] x) => (float[rows, 8] y)
<int64[1] from = {-63}, int64[1] one = {1}, int64[1] far = {9999}, int64[2] flat = {-1, 8}>
{
    last = Slice(x, from, far, one)
    rows = Reshape(last, flat)
    size = Shape(rows)
    lowest = ConstantOfShape(size)
    y = Max(rows, lowest)
}
"""


def test_a_product_of_a_window_and_a_batch_is_a_size_and_infinity_fills_one() -> None:
    model = onnx.parser.parse_model(WINDOWED)
    lowest = numpy_helper.from_array(np.array([-np.inf], np.float32))
    model.graph.node[3].attribute.append(helper.make_attribute("value", lowest))
    engine = loaded(build(model, Target.from_tag("host"), OPTIONS), threads=1)
    session = onnxruntime.InferenceSession(model.SerializeToString())
    for size in (1, 63, 70):
        x = np.random.default_rng(size).standard_normal((2, size, 8)).astype(np.float32)
        np.testing.assert_array_equal(engine(x)[0], session.run(None, {"x": x})[0])


BIAS = """
<ir_version: 10, opset_import: ["" : 18]>
biased (float[batch, 4, steps, steps] x) => (float[batch, 4, steps, steps] y)
<int64[1] zero = {0}, int64[1] one = {1}, int64[1] two = {2}, int64[1] most = {16}, int64[1] far = {99}>
{
    steps = Shape<start = 2, end = 3>(x)
    less = Sub(one, steps)
    row = Max(less, zero)
    rows = Slice(bias, row, far, one, one)
    missing = Sub(most, steps)
    column = Max(missing, zero)
    columns = Slice(rows, column, far, two, one)
    y = Add(x, columns)
}
"""
"""The last columns of a table, as an exporter writes it: the last ``steps`` rows, too, of the one that there is."""


def test_a_slice_of_at_most_one_row_is_one_row_for_all() -> None:
    made = onnx.parser.parse_model(BIAS)
    bias = np.random.default_rng(1).standard_normal((4, 1, 16)).astype(np.float32)
    made.graph.initializer.append(numpy_helper.from_array(bias, "bias"))
    engine = loaded(build(made, Target.from_tag("host"), OPTIONS), threads=1)
    session = onnxruntime.InferenceSession(made.SerializeToString())
    for batch, steps in ((1, 1), (2, 5), (3, 16)):
        x = np.random.default_rng(2).standard_normal((batch, 4, steps, steps)).astype(np.float32)
        np.testing.assert_array_equal(engine(x)[0], session.run(None, {"x": x})[0])


@pytest.mark.long
def test_many_parts_of_open_extents_are_joined() -> None:
    """A detector joins what is left of each of 90 classes."""
    inputs: dict[str, Shape] = {f"x{part}": (f"n{part}", 2) for part in range(90)}
    source = model_of_nodes([helper.make_node("Concat", list(inputs), ["y"], axis=0)], inputs)
    assert_same(source, [{f"n{part}": part % 3 + first for part in range(90)} for first in (1, 2)], terms=1)
