"""Rows of open length in vectors: what LLVM leaves to single numbers, of every length."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from onnx import helper

from forge_pipeline.codegen.build import build
from forge_pipeline.codegen.options import Options
from forge_pipeline.target import Target
from tests.support.tiled import assert_same, model

WIDTHS = (1, 3, 7, 8, 9, 31, 64)
"""Less than a vector, one, and such as vectors divide or do not."""

SLOPES = np.linspace(0.1, 0.5, 4, dtype=np.float32).reshape(4, 1, 1)


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
