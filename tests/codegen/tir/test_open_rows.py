"""Rows of open length in vectors: what LLVM leaves to single numbers, of every length."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnxruntime
import pytest
from onnx import TensorProto, helper

from forge_pipeline.codegen.build import build
from forge_pipeline.codegen.options import Options
from forge_pipeline.target import Target
from forge_runtime.engine import Engine
from tests.support.sums import assert_same_sums
from tests.support.tiled import assert_same, model

WIDTHS = (1, 3, 7, 8, 9, 31, 64)
"""Less than a vector, one, and such as vectors divide or do not."""

SLOPES = np.linspace(0.1, 0.5, 4, dtype=np.float32).reshape(4, 1, 1)


def test_what_is_over_is_not_computed_from_itself_where_buffers_share_their_memory() -> None:
    """A bias behind a layout change and before a split, which are one kernel: of 180 numbers 12 had it twice."""
    rng = np.random.default_rng(0)
    shapes = {"weight": (180, 60, 1, 1), "bias": (180,)}
    constants = {name: rng.standard_normal(shape).astype(np.float32) for name, shape in shapes.items()}
    parts = [f"part{index}" for index in range(3)]
    nodes = [
        helper.make_node("Conv", ["x", "weight"], ["image"], kernel_shape=[1, 1]),
        helper.make_node("Reshape", ["image", "shape"], ["rows"]),
        helper.make_node("Transpose", ["rows"], ["pixels"], perm=[0, 2, 1]),
        helper.make_node("Add", ["pixels", "bias"], ["biased"]),
        helper.make_node("Split", ["biased"], parts, axis=2),
        helper.make_node("Transpose", [parts[1]], ["y"], perm=[0, 2, 1]),
        helper.make_node("Transpose", [parts[2]], ["last"], perm=[0, 2, 1]),
    ]
    given = {**constants, "shape": np.array([1, 180, 16])}
    source = model(nodes, {"x": (1, 60, 4, 4)}, given)
    source.graph.output.append(helper.make_tensor_value_info("last", TensorProto.FLOAT, None))
    x = rng.standard_normal((1, 60, 4, 4)).astype(np.float32)
    wanted = onnxruntime.InferenceSession(source.SerializeToString()).run(None, {"x": x})
    options = Options(generator="tiled", opt_level=3, float16=False, channel_layout=None)
    engine = Engine(build(source, Target.from_tag("host"), options).to_bytes(), threads=1)
    for expected, found in zip(wanted, engine(x), strict=True):
        assert_same_sums(found, expected, terms=62)


@pytest.mark.every(2)
@pytest.mark.parametrize("operator", ["PRelu", "ThresholdedRelu", "Sigmoid", "Log"])
def test_a_row_of_any_length_is_computed_by_vectors(operator: str, tmp_path: Path) -> None:
    constants = {"slopes": SLOPES} if operator == "PRelu" else {}
    shape = {"Sigmoid": (2, 64, "h", "w"), "Log": ("h", "w")}.get(operator, (2, 4, "h", "w"))
    given = ["x", *constants] if operator != "Log" else ["exp"]
    before = [helper.make_node("Exp", ["x"], ["exp"])] if operator == "Log" else []
    source = model([*before, helper.make_node(operator, given, ["y"])], {"x": shape}, constants)
    assert_same(source, [{"h": 3, "w": width} for width in WIDTHS], terms=10)
    options = Options(generator="tiled", opt_level=3, float16=False, channel_layout=None)
    build(source, Target.from_tag("x86-64/v3"), options, dump=tmp_path)
    (rewritten,) = tmp_path.glob("*-rewrite.txt")
    assert "T.vectorized(" in rewritten.read_text("utf-8")
