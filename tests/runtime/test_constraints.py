"""What the sizes of a call must keep: read from metadata as a stranger's, and checked before anything runs."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

from forge_pipeline.codegen.build import build
from forge_pipeline.codegen.options import Options
from forge_pipeline.errors import DataError
from forge_pipeline.ir.sizes import expression as e
from forge_pipeline.ir.sizes.encoding import to_json
from forge_pipeline.runtime.unpacked import loaded
from forge_pipeline.target import Target
from forge_runtime.engine import Engine
from tests.support.constraints import value

OPTIONS = Options(generator="auto", opt_level=3, float16=False, channel_layout=None)
FLOAT = TensorProto.FLOAT


@pytest.fixture(scope="module")
def engine() -> Engine:
    """A sum of two images whose extents have other names, and a pool with a window of four."""
    nodes = [
        helper.make_node("Add", ["a", "b"], ["c"]),
        helper.make_node("MaxPool", ["c"], ["d"], kernel_shape=[4, 4], strides=[2, 2]),
    ]
    inputs = [
        helper.make_tensor_value_info("a", FLOAT, ["n", 1, "h", "w"]),
        helper.make_tensor_value_info("b", FLOAT, ["m", 1, "h2", 5]),
    ]
    outputs = [helper.make_tensor_value_info("d", FLOAT, ["n", 1, "p", "q"])]
    model = helper.make_model(
        helper.make_graph(nodes, "g", inputs, outputs), opset_imports=[helper.make_opsetid("", 18)], ir_version=10
    )
    return loaded(build(model, Target.from_tag("host"), OPTIONS), threads=1)


def zeros(*shape: int) -> np.ndarray[Any, Any]:
    return np.zeros(shape, np.float32)


def test_sizes_that_go_together_run(engine: Engine) -> None:
    assert engine(zeros(2, 1, 7, 5), zeros(2, 1, 7, 5))[0].shape == (2, 1, 2, 1)


@pytest.mark.parametrize(
    ("a", "b", "said"),
    [
        ((2, 1, 7, 5), (3, 1, 7, 5), r"m=3.*Add.*\(n and m\)"),
        ((2, 1, 3, 5), (2, 1, 3, 5), r"MaxPool: axis 2 is smaller than the window"),
        ((2, 1, 7, 6), (2, 1, 7, 5), r"Add.*\(w and 5\)"),
    ],
)
def test_others_are_refused_with_the_operator_that_demands_it(
    engine: Engine, a: tuple[int, ...], b: tuple[int, ...], said: str
) -> None:
    with pytest.raises(DataError, match=said):
        engine(zeros(*a), zeros(*b))


def test_every_kind_of_expression_is_written_with_its_value() -> None:
    n, m = e.extent("n"), e.extent("m")
    sizes = [
        e.floordiv(n * 3 + m, 4),
        e.maximum(n - m, 0) - 7,
        e.select(e.equal(n, m), n * m, n + m),
        e.at_least(n, m + 2),
        e.minimum(n, m) * 5 - n,
    ]
    for size in sizes:
        for extents in ({"n": 3, "m": 3}, {"n": 9, "m": 2}, {"n": 1, "m": 8}):
            assert value(to_json(size), extents) == e.evaluate(size, extents)


def test_sizes_by_way_of_floats_are_checked_too() -> None:
    nodes = [
        helper.make_node("Shape", ["x"], ["sizes"]),
        helper.make_node("Cast", ["sizes"], ["floats"], to=FLOAT),
        helper.make_node("Div", ["floats", "shrunk"], ["fewer"]),
        helper.make_node("Floor", ["fewer"], ["floor"]),
        helper.make_node("Cast", ["floor"], ["target"], to=TensorProto.INT64),
        helper.make_node("Resize", ["x", "", "", "target"], ["small"], mode="linear"),
        helper.make_node("Conv", ["small", "w"], ["y"]),
    ]
    ports = [helper.make_tensor_value_info(name, FLOAT, [1, 1, *sizes]) for name, sizes in (("x", "hw"), ("y", "pq"))]
    held = {"shrunk": np.array([1, 1, 1.4, 1.4], np.float32), "w": np.ones((1, 1, 3, 3), np.float32)}
    model = helper.make_model(
        helper.make_graph(
            nodes, "g", ports[:1], ports[1:], [numpy_helper.from_array(held[name], name) for name in held]
        ),
        opset_imports=[helper.make_opsetid("", 18)],
        ir_version=10,
    )
    made = loaded(build(model, Target.from_tag("host"), OPTIONS), threads=1)
    (have,) = made(np.ones((1, 1, 7, 9), np.float32))
    np.testing.assert_allclose(have, np.full((1, 1, 3, 4), 9), rtol=1e-6)
    with pytest.raises(DataError, match="Conv: axis 2 is smaller than the window"):
        made(zeros(1, 1, 4, 9))
