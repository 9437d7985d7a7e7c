"""A model may differ from its compiled form by what rounding decides, and by no more."""

from __future__ import annotations

from contextlib import nullcontext

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from forge_pipeline.codegen.verification.judge import BEYOND, DRAWS, MOST_DRAWS, Judge
from forge_pipeline.codegen.verification.rounding import dithered, nudged, with_nudged_weights
from forge_pipeline.errors import VerificationError
from forge_pipeline.ir.reference.interpreter import Interpreter

LAYERS, WIDTH = 12, 32
OUTPUT = f"y{LAYERS - 1}"


def chain(*, dynamic: bool = False, altered: bool = False) -> onnx.ModelProto:
    """Return layers that each quantize what they read; ``altered``: with one weight of a wrong sign."""
    random = np.random.default_rng(5)
    nodes, weights = (
        [],
        [
            numpy_helper.from_array(np.float32(0.05), "step"),
            numpy_helper.from_array(np.uint8(128), "zero"),
        ],
    )
    value = "x"
    for layer in range(LAYERS):
        matrix = random.normal(scale=1.2 / np.sqrt(WIDTH), size=(WIDTH, WIDTH)).astype(np.float32)
        if altered and layer == 0:
            matrix[np.unravel_index(np.abs(matrix).argmax(), matrix.shape)] *= -1
        weights.append(numpy_helper.from_array(matrix, f"w{layer}"))
        scale, zero = ("step", "zero") if not dynamic else (f"s{layer}", f"z{layer}")
        if dynamic:
            nodes.append(helper.make_node("DynamicQuantizeLinear", [value], [f"q{layer}", scale, zero]))
        else:
            nodes.append(helper.make_node("QuantizeLinear", [value, scale, zero], [f"q{layer}"]))
        nodes.append(helper.make_node("DequantizeLinear", [f"q{layer}", scale, zero], [f"d{layer}"]))
        nodes.append(helper.make_node("MatMul", [f"d{layer}", f"w{layer}"], [f"m{layer}"]))
        nodes.append(helper.make_node("Tanh" if layer % 2 else "Identity", [f"m{layer}"], [f"y{layer}"]))
        value = f"y{layer}"
    graph = helper.make_graph(
        nodes,
        "graph",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [4, WIDTH])],
        [helper.make_tensor_value_info(value, TensorProto.FLOAT, [4, WIDTH])],
        weights,
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=10)


X = {"x": np.random.default_rng(9).standard_normal((4, WIDTH)).astype(np.float32)}


def run(model: onnx.ModelProto) -> list[np.ndarray]:
    return list(Interpreter(model)(X).values())


def judge(model: onnx.ModelProto) -> Judge:
    return Judge(model=model, limit=1e-3, limit_name="quantized")


@pytest.mark.parametrize("dynamic", [False, True])
def test_what_rounding_decides_is_forgiven(dynamic: bool) -> None:
    """Inputs are moved by a twentieth of a step: a few roundings fall otherwise, and all that follows from them."""
    model = chain(dynamic=dynamic)
    moved = {"x": X["x"] + np.float32(2.5e-3)}
    found = list(Interpreter(model)(moved).values())
    told = judge(model)
    told.compare(X, [OUTPUT], run(model), found)
    assert told.worst[OUTPUT] > 1e-3
    assert told.worst[OUTPUT] <= told.rounding[OUTPUT] < 0.5


@pytest.mark.parametrize("dynamic", [False, True])
def test_wrong_code_is_not(dynamic: bool) -> None:
    model = chain(dynamic=dynamic)
    with pytest.raises(VerificationError, match="where rounding alone moves it by 0"):
        judge(model).compare(X, [OUTPUT], run(model), run(chain(dynamic=dynamic, altered=True)))


def test_roundings_are_drawn_more_often_before_an_output_is_refused() -> None:
    model = chain(dynamic=True)
    (want,) = run(model)
    moves = [float(np.abs(run(dithered(model, seed))[0] - want).max()) for seed in range(MOST_DRAWS)]
    few, many = max(moves[:DRAWS]), max(moves)
    assert few < many
    place = np.unravel_index(np.abs(want).argmin(), want.shape)
    for by, is_forgiven in ((BEYOND * (few + many) / 2, True), (BEYOND * many * 1.01, False)):
        found = want.copy()
        found[place] += by
        told = judge(model)
        with nullcontext() if is_forgiven else pytest.raises(VerificationError, match="rounding alone"):
            told.compare(X, [OUTPUT], [want], [found])


DISTANCES = """
<ir_version: 10, opset_import: ["" : 18]>
distances (float[24, 64] x) => (float[24, 24] y)
<int64[1] last = {1}, float two = {2}, float zero = {0}>
{
    square = Mul(x, x)
    lengths = ReduceSum(square, last)
    turned = Transpose(x)
    columns = Transpose(lengths)
    product = MatMul(x, turned)
    twice = Mul(two, product)
    both = Add(lengths, columns)
    apart = Sub(both, twice)
    positive = Max(apart, zero)
    y = Sqrt(positive)
}
"""


def test_a_float_model_is_forgiven_what_the_last_bits_of_its_inputs_decide() -> None:
    """The distance of a point to itself is the root of what sums in one order leave of those in another."""
    model = onnx.parser.parse_model(DISTANCES)
    x = np.random.default_rng(2).standard_normal((24, 64)).astype(np.float32)
    run_it = Interpreter(model)
    (want,), (found,) = (list(run_it({"x": values}).values()) for values in (x, np.ascontiguousarray(x[:, ::-1])))
    told = Judge(model=model, limit=1e-5, limit_name="float32")
    told.compare({"x": x}, ["y"], [want], [found])
    assert 1e-5 < told.worst["y"] <= told.rounding["y"] < 1e-2
    with pytest.raises(VerificationError, match="where rounding alone moves it by 0"):
        told.compare({"x": x}, ["y"], [want], [want * np.float32(1.01)])


SPECTRUM = """
<ir_version: 10, opset_import: ["" : 18]>
spectrum (float[1, 4000] x, float[400, 201] real, float[400, 201] imaginary) => (float[1, 9, 201] y)
<int64 rows = {9}, int64[3] shape = {1, 9, 400}, int64[1] starts = {0}, int64[1] ends = {3600}, int64[1] ones = {1},
 float least = {1e-8}>
{
    part = Slice(x, starts, ends, ones)
    frames = Reshape(part, shape)
    a = MatMul(frames, real)
    b = MatMul(frames, imaginary)
    aa = Mul(a, a)
    bb = Mul(b, b)
    power = Add(aa, bb)
    heard = Add(power, least)
    y = Log(heard)
}
"""


def test_a_float_model_is_forgiven_what_its_sums_lose_where_they_cancel() -> None:
    """Of a pure tone every other frequency is silent: the logarithm shows how the sums were rounded, no more."""
    model = onnx.parser.parse_model(SPECTRUM)
    turns = np.outer(np.arange(400), np.arange(201)) * (2 * np.pi / 400)
    feed = {
        "x": np.round(np.sin(np.arange(4000) * (2 * np.pi / 8)), 4).astype(np.float32)[None],
        "real": np.cos(turns).astype(np.float32),
        "imaginary": np.sin(turns).astype(np.float32),
    }
    (want,) = Interpreter(model)(feed).values()
    order = np.random.default_rng(1).permutation(400)
    frames = feed["x"][:, :3600].reshape(1, 9, 400)[..., order]
    power = sum((frames @ feed[part][order]) ** 2 for part in ("real", "imaginary"))
    told = Judge(model=model, limit=1e-5, limit_name="float32")
    told.compare(feed, ["y"], [want], [np.log(power + np.float32(1e-8))])
    assert 1e-5 < told.worst["y"] <= told.rounding["y"] < 1e-2
    with pytest.raises(VerificationError, match="where rounding alone moves it by"):
        told.compare(feed, ["y"], [want], [want * np.float32(1.1)])


def test_of_a_model_that_reads_whole_numbers_the_weights_show_what_rounding_does() -> None:
    random = np.random.default_rng(0)
    weights = [np.linalg.qr(random.standard_normal((64, 64)))[0].astype(np.float32) for _ in range(24)]
    lines = [f"x{layer + 1} = MatMul(x{layer}, w{layer})" for layer in range(24)]
    model = onnx.parser.parse_model(
        '<ir_version: 9, opset_import: ["" : 17]> g (int64[1, 64] tokens) => (float[1, 64] x24) {'
        f" x0 = Cast <to = 1> (tokens) {' '.join(lines)} }}"
    )
    model.graph.initializer.extend(onnx.numpy_helper.from_array(each, f"w{at}") for at, each in enumerate(weights))
    feed = {"tokens": np.arange(64)[None]}
    (want,) = Interpreter(model)(feed).values()
    np.testing.assert_array_equal(Interpreter(model)(nudged(feed, 0))["x24"], want)
    exact = feed["tokens"].astype(np.float64)
    for weight in weights:
        exact = exact @ weight.astype(np.float64)
    moved = [Interpreter(with_nudged_weights(model, seed))(feed)["x24"] for seed in range(3)]
    assert abs(exact - want).max() < 2 * max(abs(each - want).max() for each in moved) < 1e-5 * abs(want).max()
    kept = onnx.numpy_helper.to_array(with_nudged_weights(model, 0).graph.initializer[0])
    assert (kept != weights[0]).any()
    np.testing.assert_allclose(kept, weights[0], rtol=2e-7)


def test_the_least_number_stays_finite() -> None:
    least = np.full(64, np.finfo(np.float32).min)
    np.testing.assert_array_equal(nudged({"mask": least}, 0)["mask"], least)


def test_noise_is_the_same_each_time_and_different_by_seed() -> None:
    model = chain()
    (first,), (again,), (other,) = (run(dithered(model, seed)) for seed in (0, 0, 1))
    np.testing.assert_array_equal(first, again)
    assert np.abs(first - other).max() > 0
