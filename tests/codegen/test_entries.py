"""One library with code for the sizes that its user listed, and for any other where that is wanted."""

from __future__ import annotations

import dataclasses

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper

from forge_pipeline.codegen.build import build
from forge_pipeline.codegen.options import Options
from forge_pipeline.errors import ConfigError, DataError
from forge_pipeline.runtime.bundle import Library
from forge_pipeline.target import Target
from forge_runtime.engine import Engine

TILED = Options(generator="tiled", opt_level=3, float16=False, channel_layout=None)
LISTED = {"sequence": (4, 8)}
ROWS = np.random.default_rng(3).standard_normal((40, 48)).astype(np.float32)
HOST = Target.from_tag("host")


def encoder() -> onnx.ModelProto:
    """Return rows of a table by token, times their own transposition, with a mask: two named extents."""
    nodes = [
        helper.make_node("Gather", ["rows", "tokens"], ["x"]),
        helper.make_node("Transpose", ["x"], ["t"], perm=[0, 2, 1]),
        helper.make_node("MatMul", ["x", "t"], ["p"]),
        helper.make_node("Unsqueeze", ["mask", "one"], ["m"]),
        helper.make_node("Mul", ["p", "m"], ["q"]),
        helper.make_node("MatMul", ["q", "x"], ["r"]),
        helper.make_node("MatMul", ["r", "w"], ["y"]),
    ]
    inputs = [
        helper.make_tensor_value_info("tokens", TensorProto.INT64, ["batch", "sequence"]),
        helper.make_tensor_value_info("mask", TensorProto.FLOAT, ["batch", "sequence"]),
    ]
    outputs = [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["batch", "sequence", 48])]
    weights = [
        numpy_helper.from_array(ROWS, "rows"),
        numpy_helper.from_array(np.array([1]), "one"),
        numpy_helper.from_array(ROWS[:48].T @ ROWS[:48] / 40, "w"),
    ]
    graph = helper.make_graph(nodes, "graph", inputs, outputs, weights)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=10)


def feeds(batch: int, sequence: int) -> dict[str, np.ndarray]:
    random = np.random.default_rng(batch * 100 + sequence)
    return {
        "tokens": random.integers(0, 40, (batch, sequence)),
        "mask": np.ones((batch, sequence), np.float32),
    }


def assert_computes(engine: Engine, batch: int, sequence: int) -> None:
    fed = feeds(batch, sequence)
    (want,) = onnxruntime.InferenceSession(encoder().SerializeToString()).run(None, fed)
    (have,) = engine(fed)
    assert have.shape == want.shape
    assert np.abs(have - want).max() <= 1e-5 * np.abs(want).max()


@pytest.fixture(scope="module")
def plain() -> Library:
    return build(encoder(), HOST, TILED)


@pytest.fixture(scope="module")
def library() -> Library:
    return build(encoder(), HOST, dataclasses.replace(TILED, dims=LISTED))


@pytest.fixture(scope="module")
def closed() -> Library:
    return build(encoder(), HOST, dataclasses.replace(TILED, dims=LISTED, open_form=False))


def test_each_listed_size_has_an_entry_and_one_for_a_batch_of_one_that_makes_its_shapes_known(library: Library) -> None:
    assert library.metadata["entries"] == [
        {"function": "main_1", "extents": {"sequence": 4}},
        {"function": "main_2", "extents": {"sequence": 8}},
        {"function": "main_1_of_one", "extents": {"sequence": 4, "batch": 1}},
        {"function": "main_2_of_one", "extents": {"sequence": 8, "batch": 1}},
    ]


def test_all_entries_share_their_weights(library: Library, plain: Library) -> None:
    assert bytes(library.weights) == bytes(plain.weights)


def test_every_size_is_computed_right_by_whichever_entry(library: Library) -> None:
    engine = Engine(library.to_bytes(), threads=1)
    for batch, sequence in ((1, 4), (1, 8), (3, 4), (2, 8), (1, 5), (3, 7)):
        assert_computes(engine, batch, sequence)


@pytest.mark.parametrize(("sequence", "computes_shapes"), [(8, False), (5, True)])
def test_a_call_takes_the_code_for_its_size(library: Library, sequence: int, computes_shapes: bool) -> None:
    """Where every size is known, no shape is computed while the model runs."""
    called = Engine(library.to_bytes(), threads=1).profile(feeds(1, sequence), runs=1)
    assert any("shape_func" in kernel.name for kernel in called) == computes_shapes


def test_without_an_open_form_other_sizes_are_refused_by_name(closed: Library) -> None:
    engine = Engine(closed.to_bytes(), threads=1)
    for batch, sequence in ((1, 4), (3, 8)):
        assert_computes(engine, batch, sequence)
    with pytest.raises(DataError, match=r"compiled for: batch=1, sequence=4; .*found batch=2, sequence=5"):
        engine(feeds(2, 5))


@pytest.mark.parametrize(("batch", "sequence"), [(1, 3), (2, 5), (3, 8)])
def test_a_padded_call_gives_what_a_call_of_its_size_gives(closed: Library, batch: int, sequence: int) -> None:
    assert_computes(Engine(closed.to_bytes(), threads=1, pad=True), batch, sequence)


def test_an_extent_that_the_model_does_not_have_is_refused_with_those_that_it_has() -> None:
    with pytest.raises(ConfigError) as refusal:
        build(encoder(), HOST, dataclasses.replace(TILED, dims={"sequenze": (4,)}))
    assert str(refusal.value) == (
        "model.dims.sequenze: expected an open extent of the model: batch, sequence, found 'sequenze'\n"
        "fix: did you mean 'sequence'? `forge-pipeline inspect` shows the names of all extents"
    )


def test_tvms_own_pipeline_makes_entries_too() -> None:
    options = dataclasses.replace(TILED, generator="stock", dims=LISTED)
    library = build(encoder(), HOST, options)
    assert [row["function"] for row in library.metadata["entries"]] == ["main_1", "main_2"]
    engine = Engine(library.to_bytes(), threads=1)
    for sequence in (4, 8, 5):
        assert_computes(engine, 2, sequence)


def test_a_library_of_listed_sizes_alone_takes_each_of_them_where_two_inputs_must_agree() -> None:
    graph = helper.make_graph(
        [helper.make_node("Add", ["a", "b"], ["y"])],
        "sum",
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, [3, size]) for name, size in (("a", "n"), ("b", "m"))],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [3, "n"])],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=10)
    options = dataclasses.replace(TILED, dims={"n": (4, 8)}, open_form=False)
    engine = Engine(build(model, HOST, options).to_bytes(), threads=1)
    for size in (4, 8):
        a = np.arange(3 * size, dtype=np.float32).reshape(3, size)
        np.testing.assert_array_equal(engine(a, a)[0], a + a)
    with pytest.raises(DataError, match="sizes that go together"):
        engine(np.zeros((3, 8), np.float32), np.zeros((3, 4), np.float32))


def test_a_batch_that_follows_another_is_no_extent_of_the_entry_for_a_batch_of_one() -> None:
    """Two rows of `y` for each of `x`: its first axis is worked out from that of `x`."""
    nodes = [
        helper.make_node("Concat", ["x", "x"], ["twice"], axis=0),
        helper.make_node("Concat", ["twice", "y"], ["z"], axis=1),
        helper.make_node("MatMul", ["z", "w"], ["product"]),
    ]
    inputs = [helper.make_tensor_value_info(*row) for row in (("x", 1, ["n", 4]), ("y", 1, ["m", 4]))]
    outputs = [helper.make_tensor_value_info("product", TensorProto.FLOAT, None)]
    weights = [numpy_helper.from_array(ROWS[:8, :8], "w")]
    graph = helper.make_graph(nodes, "graph", inputs, outputs, weights)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    library = build(model, HOST, TILED)
    assert library.metadata["entries"] == [{"function": "main_of_one", "extents": {"n": 1}}]
    engine = Engine(library.to_bytes(), threads=1)
    for n in (1, 3):
        x, y = ROWS[:n, :4], ROWS[: 2 * n, 4:8]
        (have,) = engine(x, y)
        np.testing.assert_allclose(have, np.hstack([np.vstack([x, x]), y]) @ ROWS[:8, :8], rtol=1e-4, atol=1e-5)
    with pytest.raises(DataError, match="m"):
        engine(ROWS[:2, :4], ROWS[:3, :4])
