"""ONNX's own node tests through the code generators: every result is right, or the model was refused; none is wrong."""

from __future__ import annotations

import pytest

from benchmarks import onnx_nodes

LEAST_RIGHT = 1310
"""At least so many of some 1,400 compile and are right; fewer would be a loss."""


@pytest.mark.long
@pytest.mark.filterwarnings("ignore")  # onnx's generators of expected values divide by zero on purpose
@pytest.mark.parametrize("generator", ["tiled", "stock"])
def test_no_node_test_gives_a_wrong_result(generator: str) -> None:
    onnx_nodes.ready()
    through = onnx_nodes.THROUGH[generator]
    outcomes = {case.name: onnx_nodes.outcome_apart(case, through) for case in onnx_nodes.cases()}
    assert {name: found.said for name, found in outcomes.items() if found.kind == "wrong"} == {}
    assert sum(found.kind == "pass" for found in outcomes.values()) >= LEAST_RIGHT
