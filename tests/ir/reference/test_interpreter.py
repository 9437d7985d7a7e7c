"""The reference interpreter: any value by name, of any shape, from models of any size, and refusals that say why."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import numpy_helper, parser

from forge_pipeline.errors import DataError, ModelError
from forge_pipeline.ir import ONNXModule
from forge_pipeline.ir.external_data.mapped import mapped_files
from forge_pipeline.ir.reference import interpreter
from forge_pipeline.ir.reference.interpreter import Interpreter

WIDTH = 256


def model(text: str, **tensors: Any) -> onnx.ModelProto:
    made = parser.parse_model(f'<ir_version: 10, opset_import: ["": 21]> main {text}')
    made.graph.initializer.extend(numpy_helper.from_array(np.asarray(value), name) for name, value in tensors.items())
    return made


def wide() -> onnx.ModelProto:
    """Return a product with a weight of 256 KiB."""
    weight = np.random.default_rng(0).standard_normal((WIDTH, WIDTH)).astype(np.float32)
    return model(f"(float[N, {WIDTH}] x) => (float[N, {WIDTH}] y) {{ h = MatMul(x, w) y = Relu(h) }}", w=weight)


X = {"x": np.linspace(-1, 1, 2 * WIDTH, dtype=np.float32).reshape(2, WIDTH)}


def test_inner_values_are_given_beside_the_outputs_and_inputs_too() -> None:
    net = wide()
    before = net.SerializeToString(deterministic=True)
    run = Interpreter(net, taps=["h", "y", "x", "h"])
    assert (run.outputs, run.taps) == (("y",), ("h", "x"))
    found = run(X)
    assert list(found) == ["y", "h", "x"]
    np.testing.assert_array_equal(found["y"], np.maximum(found["h"], 0))
    np.testing.assert_array_equal(found["x"], X["x"])
    assert net.SerializeToString(deterministic=True) == before


def test_what_onnx_runtime_cannot_optimize_is_run_as_it_is_written() -> None:
    """A sum of two convolutions with its first term: ONNX Runtime 1.31 fuses that term away, and misses it."""
    random = np.random.default_rng(0)
    shapes = {"a": (32, 1, 3, 3), "b": (32, 1, 3, 3), "c": (32,), "d": (32,), "x": (1, 16, 8, 8)}
    arrays = {name: random.standard_normal(shape).astype(np.float32) for name, shape in shapes.items()}
    x = arrays.pop("x")
    net = model(
        "(float[1, 16, 8, 8] x) => (float[1, 32, 8, 8] y) { p = Conv<group = 16, pads = [1, 1, 1, 1]>(x, a, c)"
        " q = Conv<group = 16, pads = [1, 1, 1, 1]>(x, b, d) y = Add(p, q) }",
        **arrays,
    )
    found = Interpreter(net, taps=["p"], optimized=True)({"x": x})
    wanted = Interpreter(net, taps=["p"])({"x": x})
    for name in ("p", "y"):
        np.testing.assert_allclose(found[name], wanted[name], rtol=1e-5, atol=1e-5)


def test_only_what_is_named_is_given() -> None:
    run = Interpreter(wide(), taps=["h"])
    assert list(run(X, ["h"])) == ["h"]
    assert run(X, []) == {}


def test_values_without_dimensions_are_arrays_and_may_be_fed_as_numpys_scalars() -> None:
    net = model("(float s, float[N] x) => (float y) { t = ReduceSum<keepdims=0>(x) y = Add(s, t) }")
    run = Interpreter(net, taps=["t"])
    x = np.ones(3, np.float32)
    fed = run({"s": x.sum(), "x": x})
    assert isinstance(x.sum(), np.float32)
    assert {name: (type(value), value.shape, float(value)) for name, value in fed.items()} == {
        "y": (np.ndarray, (), 6.0),
        "t": (np.ndarray, (), 3.0),
    }


def test_values_without_elements_keep_their_shape() -> None:
    run = Interpreter(model("(float[N, 3] x) => (float[N, 3] y) { h = Relu(x) y = Neg(h) }"), taps=["h"])
    assert {name: value.shape for name, value in run({"x": np.zeros((0, 3), np.float32)}).items()} == {
        "y": (0, 3),
        "h": (0, 3),
    }


@pytest.mark.parametrize("mapped", [False, True])
def test_a_model_over_protobufs_limit_computes_the_same(mapped: bool, tmp_path: Path, monkeypatch: Any) -> None:
    net = wide()
    wanted = Interpreter(net, prepack=False)(X)["y"]
    if mapped:
        ONNXModule(net).save(tmp_path / "net.onnx", inline_bytes=0)
        module = ONNXModule.from_file(tmp_path / "net.onnx").kept_outside()
        net = module.light
        assert mapped_files(net)
    else:
        monkeypatch.setattr(interpreter, "LARGEST", WIDTH * WIDTH)
    np.testing.assert_array_equal(Interpreter(net)(X)["y"], wanted)


def test_a_refused_model_is_told_with_its_node() -> None:
    net = model("(float[N] x) => (float[N] y) { [the_node] y = Unheard(x) }")
    with pytest.raises(ModelError, match=r"^net: expected a model that ONNX Runtime can run, found .*the_node.*"):
        Interpreter(net, where="net", fix="mend it")


@pytest.mark.parametrize(
    ("feed", "found"),
    [
        ({"x": np.ones(3, np.float32)}, r"x float32\[3\]: .*the_node"),
        ({"x": np.ones(4)}, r"x float64\[4\]: .*Unexpected input data type"),
        ({"x": [1.0]}, r"x list: "),
        ({}, "Required inputs"),
        ({"x": np.ones(4, np.float32), "q": np.ones(1)}, "Invalid input name: q"),
    ],
)
def test_a_refused_feed_is_told_with_its_shapes_and_the_node(feed: dict[str, Any], found: str) -> None:
    net = model("(float[N] x) => (float[2, 2] y) { [the_node] y = Reshape(x, s) }", s=np.array([2, 2]))
    with pytest.raises(DataError, match=f"^net: expected arrays that the model computes with, found .*{found}"):
        Interpreter(net, where="net")(feed)


def test_several_feeds_at_once_give_what_they_give_one_after_the_other() -> None:
    run = Interpreter(wide(), taps=["h"])
    random = np.random.default_rng(1)
    feeds = [{"x": random.standard_normal((rows, WIDTH)).astype(np.float32)} for rows in (1, 3, 2, 7, 5)]
    for feed, found in zip(feeds, run.each(feeds), strict=True):
        want = run(feed)
        assert list(found) == list(want)
        for name, array in want.items():
            np.testing.assert_array_equal(found[name], array)
    assert run.each([]) == []


def test_one_feed_of_several_that_is_refused_is_told() -> None:
    run = Interpreter(wide())
    with pytest.raises(DataError, match="x"):
        run.each([X, {"x": np.zeros((2, 3), np.float32)}, X])
