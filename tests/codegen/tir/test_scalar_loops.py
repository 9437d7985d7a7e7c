"""Loops that LLVM gets wrong are not left to it."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

WIDE = {"kind": "llvm", "mtriple": "x86_64-linux-gnu", "mcpu": "x86-64-v4", "mattr": ["-prefer-256-bit"]}
"""Vectors of 16 floats: LLVM prefers 8 on most CPUs that have them, and so made no mistake there."""


def _rotary(heads: int, size: int) -> tuple[onnx.ModelProto, list[np.ndarray], np.ndarray]:
    """Return ONNX's rotary embedding of two batches of three tokens, its inputs, and its result by definition."""
    rng = np.random.default_rng(0)
    cosine, sine = (rng.normal(size=(50, size // 2)).astype(np.float32) for _ in range(2))
    x = rng.normal(size=(2, 3, heads * size)).astype(np.float32)
    places = rng.integers(0, 50, size=(2, 3))
    info = helper.make_tensor_value_info
    graph = helper.make_graph(
        [helper.make_node("RotaryEmbedding", ["x", "cosine", "sine", "places"], ["y"], num_heads=heads)],
        "rotary",
        [info("x", TensorProto.FLOAT, x.shape), info("places", TensorProto.INT64, places.shape)],
        [info("y", TensorProto.FLOAT, x.shape)],
        [numpy_helper.from_array(cosine, "cosine"), numpy_helper.from_array(sine, "sine")],
    )
    halves = x.reshape(2, 3, heads, 2, size // 2)
    c, s = (table[places][:, :, None] for table in (cosine, sine))
    first, second = halves[..., 0, :], halves[..., 1, :]
    expected = np.stack([first * c - second * s, second * c + first * s], axis=3).reshape(x.shape)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 23)]), [x, places], expected


@pytest.mark.parametrize(("heads", "size"), [(4, 4), (4, 8), (2, 16)])
def test_heads_smaller_than_a_vector_are_turned_each_by_itself(heads: int, size: int) -> None:
    from forge_pipeline.codegen.build import build
    from forge_pipeline.codegen.options import Options
    from forge_pipeline.target.host import this_machine
    from forge_pipeline.target.spec import resolved
    from forge_runtime.engine import Engine

    target = resolved(WIDE)
    if not set(target.cpu_flags) <= this_machine().flags:
        pytest.skip("this CPU has no vectors of 16 floats")
    model, inputs, expected = _rotary(heads, size)
    options = Options(generator="tiled", opt_level=3, float16=False, channel_layout=None)
    found = Engine(build(model, target, options).to_bytes(), threads=1)(*inputs)
    assert np.abs(found - expected).max() < 1e-6


@pytest.mark.parametrize(
    ("extent", "vector", "period", "loops", "marks"),
    [(64, False, 8, 1, 1), (16, False, 8, 0, 0), (16, True, 8, 1, 0), (64, False, 6, 1, 0)],
    ids=["long", "short", "vectors", "no power of two"],
)
def test_a_loop_that_reads_at_remainders_is_marked_or_written_out(
    monkeypatch: pytest.MonkeyPatch, extent: int, vector: bool, period: int, loops: int, marks: int
) -> None:
    import tvm
    from tvm import te

    from forge_pipeline.codegen.tir import rewriting
    from forge_pipeline.codegen.tir.lowering import pipeline, scalar_loops
    from forge_pipeline.target.spec import resolved

    x = te.placeholder((extent, 4), name="x")
    kernel = te.create_prim_func([x, te.compute((extent, 4), lambda i, j: x[i % period, j] * x[i, j], name="y")])
    schedule = tvm.s_tir.Schedule(kernel.with_attr("global_symbol", "main"))
    inner = schedule.get_loops(schedule.get_sblock("y"))[1]
    (schedule.vectorize if vector else schedule.unroll)(inner)
    kept: list[Any] = []
    change = scalar_loops.kept_scalar

    def noted(function: Any, module: Any, context: Any) -> Any:
        kept.append(change(function, module, context))
        return kept[-1]

    monkeypatch.setattr(scalar_loops, "kept_scalar", noted)
    pipeline.build(schedule.mod, resolved(WIDE))
    assert len(rewriting.loops(kept[0].body)) == loops
    assert kept[0].script().count(f'"{scalar_loops.SYMBOL}"') == marks
