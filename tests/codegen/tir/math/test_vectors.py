"""Functions of a row stay vectors: none is taken apart, as TVM does with what it has no vectors of."""

from __future__ import annotations

from pathlib import Path

import pytest
from onnx import helper

from forge_pipeline.codegen.build import build
from forge_pipeline.target import Target
from tests.support.tiled import TILED, model


@pytest.mark.parametrize(("operator", "instruction"), [("Round", "vrndscaleps"), ("Floor", "vrndscaleps")])
def test_a_function_with_an_instruction_of_vectors_is_that(operator: str, instruction: str, tmp_path: Path) -> None:
    source = model([helper.make_node(operator, ["x"], ["y"])], {"x": (1, 8, 64, 64)})
    build(source, Target.from_tag("x86-64/v4"), TILED, dump=tmp_path)
    code = next(tmp_path.glob("*-code.txt")).read_text()
    lines = [line for line in code.splitlines() if instruction in line]
    assert lines and all("zmm" in line for line in lines)
    assert "gather" not in code
