"""Attention of any size, masked or not, as ONNX Runtime has it; and what only looks like it."""

from __future__ import annotations

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import helper

from forge_pipeline.codegen.build import build
from forge_pipeline.runtime.unpacked import loaded
from forge_pipeline.target import Target
from tests.support.tiled import TILED, Shape, assert_same, compiled, kernels_of, model

PLAIN = ("s = MatMul(q, k)", "p = Softmax <axis = -1> (s)", "y = MatMul(p, v)")
SCALED = ("r = MatMul(q, k)", "d = Constant <value = float {8}> ()", "s = Div(r, d)", *PLAIN[1:])
MASKED = (*SCALED[:2], "t = Div(r, d)", "s = Add(t, mask)", *PLAIN[1:])
GUARDED = (
    *MASKED[:4],
    "o = Softmax <axis = -1> (s)",
    "n = IsNaN(o)",
    "zero = Constant <value = float {0}> ()",
    "p = Where(n, zero, o)",
    PLAIN[2],
)


def attention(
    lines: tuple[str, ...], leading: Shape, rows: int | str, columns: int | str, width: int = 32, **more: Shape
) -> onnx.ModelProto:
    text = '<ir_version: 10, opset_import: ["" : 18]> g (float[1] unused) => (float[1] y) {' + " ".join(lines) + "}"
    nodes = list(onnx.parser.parse_model(text).graph.node)
    shapes = {"q": (*leading, rows, 24), "k": (*leading, 24, columns), "v": (*leading, columns, width), **more}
    return model(nodes, shapes)


def assert_is_attention(source: onnx.ModelProto) -> None:
    names = kernels_of(compiled(source))
    assert any("attention" in name for name in names)
    assert not any("softmax" in name for name in names)


@pytest.mark.every(6)
@pytest.mark.parametrize(
    ("leading", "rows", "columns"), [((1, 2), 197, 197), ((2, 3), 24, 50), ((3,), 7, 64), ((1, 1), 6, 33)]
)
def test_known_sizes(leading: Shape, rows: int, columns: int) -> None:
    source = attention(PLAIN if rows < columns else SCALED, leading, rows, columns)
    assert_same(source, [{}], terms=100)
    assert_is_attention(source)


@pytest.mark.parametrize("width", [8, 20, 40, 72])
def test_widths_that_fill_no_vectors(width: int) -> None:
    source = attention(MASKED, ("b", 2), "m", "n", width, mask=("b", 1, 1, "n"))
    assert_same(source, SIZES[::7], terms=100)
    assert_is_attention(source)


SIZES = [{"b": b, "m": m, "n": n} for b in (1, 2) for m in (1, 5, 12, 13, 40) for n in (1, 15, 32, 33, 100)]


@pytest.mark.every(6)
@pytest.mark.parametrize("mask", [("b", 1, "m", "n"), ("b", 1, 1, "n"), (1, 1, 1, 1), (1, 2, "m", 1)])
def test_open_sizes_with_masks(mask: Shape) -> None:
    source = attention(MASKED, ("b", 2), "m", "n", mask=mask)
    assert_same(source, SIZES, terms=100)
    assert_is_attention(source)


def test_open_sizes_without_a_mask() -> None:
    assert_same(attention(SCALED, ("b", 2), "m", "n"), [*SIZES, {"b": 1, "m": 0, "n": 3}], terms=100)


@pytest.mark.every(2)
@pytest.mark.parametrize("lines", [MASKED, GUARDED])
@pytest.mark.parametrize("tag", ["host", "x86-64/v3"])
def test_a_row_whose_mask_leaves_nothing(lines: tuple[str, ...], tag: str) -> None:
    source = attention(lines, (2,), 20, 40, mask=(2, 20, 40))
    engine = loaded(build(source, Target.from_tag(tag), TILED), threads=1)
    rng = np.random.default_rng(5)
    q, k, v = (rng.standard_normal(shape).astype(np.float32) for shape in ((2, 20, 24), (2, 24, 40), (2, 40, 32)))
    mask = np.where(rng.random((2, 20, 40)) < 0.3, -np.inf, 0).astype(np.float32)
    mask[0, 3], mask[1, 19] = -np.inf, -np.inf
    feed = {"q": q, "k": k, "v": v, "mask": mask}
    (wanted,) = onnxruntime.InferenceSession(source.SerializeToString()).run(None, feed)
    assert np.isnan(wanted).any() == (lines is MASKED)
    np.testing.assert_allclose(engine(**feed)[0], wanted, rtol=1e-5, atol=1e-5)
    if tag == "host":
        assert_is_attention(source)


def test_scores_that_something_else_reads_too_are_computed_as_they_are() -> None:
    nodes = [
        helper.make_node("MatMul", ["q", "k"], ["s"]),
        helper.make_node("Softmax", ["s"], ["p"], axis=-1),
        helper.make_node("MatMul", ["p", "v"], ["o"]),
        helper.make_node("ReduceMax", ["s"], ["t"], keepdims=0),
        helper.make_node("ReduceMax", ["p"], ["u"], keepdims=0),
        helper.make_node("Sum", ["o", "t", "u"], ["y"]),
    ]
    assert_same(model(nodes, {"q": (2, 20, 24), "k": (2, 24, 40), "v": (2, 40, 32)}), [{}], terms=100)


@pytest.mark.every(2)
@pytest.mark.parametrize("end", ["MatMul(v, p)", "MatMul(p, w)", "Add(p, p)", "Softmax <axis = 1> (p)"])
def test_what_only_begins_like_attention(end: str) -> None:
    lines = (*SCALED[:3], "p = Softmax <axis = -1> (s)", f"y = {end}")
    text = '<ir_version: 10, opset_import: ["" : 18]> g (float[1] unused) => (float[1] y) {' + " ".join(lines) + "}"
    shapes = {"q": (2, 20, 24), "k": (2, 24, 40), "v": (2, 32, 20), "w": (40, 5)}
    nodes = list(onnx.parser.parse_model(text).graph.node)
    used = {name for node in nodes for name in node.input}
    assert_same(model(nodes, {name: shape for name, shape in shapes.items() if name in used}), [{}], terms=100)
