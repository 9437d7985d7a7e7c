"""Softmax over any axis, of extents that are open or not: as ONNX Runtime has it, and in vectors."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import onnxruntime
import pytest
from onnx import helper

from forge_pipeline.codegen.build import build
from forge_pipeline.codegen.options import Options
from forge_pipeline.target import Target
from tests.support.sums import assert_close
from tests.support.tiled import Shape, assert_same, compiled, model

LENGTHS = (0, 1, 2, 5, 17, 64, 100)
"""None, one, less than any vector, and such as vectors divide or do not."""

SHAPES: list[tuple[Shape, int]] = [
    ((2, "rows", "columns"), -1),
    ((3, "rows", 17), -1),
    ((3, "rows", 1000), -1),
    (("rows", 4, 128), 2),
    (("rows", 16, 4, 96), 1),
    ((1, 16, 4, "columns"), 1),
    (("rows", 21, "columns", 5), 1),
]


@pytest.mark.every(8)
@pytest.mark.parametrize(("shape", "axis"), SHAPES)
def test_softmax_over_any_axis(shape: Shape, axis: int) -> None:
    source = model([helper.make_node("Softmax", ["x"], ["y"], axis=axis)], {"x": shape})
    assert_same(source, [{"rows": 3, "columns": length} for length in LENGTHS if length or axis == -1], terms=100)


@pytest.mark.parametrize("axis", [0, 1])
def test_softmax_leaves_out_what_is_masked_and_is_nan_where_all_is(axis: int) -> None:
    source = model([helper.make_node("Softmax", ["x"], ["y"], axis=axis)], {"x": ("rows", "columns")})
    engine = compiled(source)
    session = onnxruntime.InferenceSession(source.SerializeToString())
    x = np.random.default_rng(1).standard_normal((4, 21)).astype(np.float32) * 30
    x[0, 3:], x[1, ::2], x[2] = -np.inf, -np.inf, -1e38
    x = x if axis else np.ascontiguousarray(x.T)
    (expected,), (found,) = session.run(None, {"x": x}), engine(x)
    assert_close(found, expected, within=1e-5)
    nothing = np.full((1, 5), -np.inf, np.float32)
    assert np.isnan(engine(nothing if axis else nothing.T.copy())[0]).all()


def test_the_logarithm_of_softmax_is_that_of_onnx_runtime_and_finite_where_a_share_is_none() -> None:
    source = model([helper.make_node("LogSoftmax", ["x"], ["y"], axis=-1)], {"x": ("rows", "columns")})
    engine, session = compiled(source), onnxruntime.InferenceSession(source.SerializeToString())
    for columns in LENGTHS[1:]:
        x = np.random.default_rng(2).standard_normal((3, columns)).astype(np.float32) * 60
        (expected,), (found,) = session.run(None, {"x": x}), engine(x)
        assert np.isfinite(found).all()
        assert_close(found, expected, within=1e-5)


@pytest.mark.every(8)
@pytest.mark.parametrize("operator", ["Softmax", "LogSoftmax"])
@pytest.mark.parametrize("shape", [(1, 12, 128, 128), (1, 12, 128, 100), ("n", 12, "t", "t")])
def test_every_power_of_a_row_that_fills_a_vector_is_in_one(shape: Shape, operator: str, tmp_path: Path) -> None:
    source = model([helper.make_node(operator, ["x"], ["y"], axis=-1)], {"x": shape})
    options = Options(generator="auto", opt_level=3, float16=False, channel_layout=None)
    library = build(source, Target.from_tag("x86-64/v3"), options, dump=tmp_path)
    assert library.metadata["compile"]["fallbacks"] == []
    (scheduled,) = tmp_path.glob("*-schedule.txt")
    lines = scheduled.read_text("utf-8").partition("else:")[0].splitlines()
    places = [place for place, line in enumerate(lines) if "T.exp(" in line]
    assert places
    assert all("T.vectorized(" in lines[place - 1] for place in places)


@pytest.mark.parametrize(("shape", "axis"), [((1, 16, 4, 2100), 1)])
def test_powers_maxima_and_sums_are_vectors(shape: Shape, axis: int, tmp_path: Path) -> None:
    source = model([helper.make_node("Softmax", ["x"], ["y"], axis=axis)], {"x": shape})
    options = Options(generator="auto", opt_level=3, float16=False, channel_layout=None)
    library = build(source, Target.from_tag("x86-64/v3"), options, dump=tmp_path)
    assert library.metadata["compile"]["fallbacks"] == []
    (scheduled,) = tmp_path.glob("*-schedule.txt")
    lines = scheduled.read_text("utf-8").splitlines()
    for part in ("exp|powers", "maxelem|maxima", "expsum|sums"):
        block = re.compile(rf'T.sblock."(T_softmax_)?({part})(_update)?".')
        places = [place for place, line in enumerate(lines) if block.search(line)]
        assert places, part
        assert all("T.vectorized(" in lines[place - 1] for place in places), part
