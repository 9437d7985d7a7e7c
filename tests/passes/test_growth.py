"""Work grows as the graph does: function calls are counted, so that no clock and no other process has a say."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
import pytest
import yaml
from onnx import NodeProto, TensorProto, helper, numpy_helper

from forge_pipeline.ir import ONNXModule
from forge_pipeline.locate import conf_dir
from forge_pipeline.passes.pipeline import apply, plan
from forge_pipeline.passes.table import table

SMALL, LARGE = 50, 800
MOST = 1.3
"""How many times the calls for each node may grow from a small graph to a large one; a square would make it 16."""


def chain(size: int) -> tuple[list[NodeProto], list[str], list[str], int]:
    operators = ("Relu", "Neg", "Abs", "Sigmoid")
    nodes = [helper.make_node(operators[i % 4], [f"v{i}" if i else "x0"], [f"v{i + 1}"]) for i in range(size)]
    return nodes, ["x0"], [f"v{size}"], 0


def constants(size: int) -> tuple[list[NodeProto], list[str], list[str], int]:
    nodes = [helper.make_node("Add", [f"v{i}" if i else "x0", f"w{i}"], [f"v{i + 1}"]) for i in range(size)]
    return nodes, ["x0"], [f"v{size}"], size


def one_operator(size: int) -> tuple[list[NodeProto], list[str], list[str], int]:
    return [helper.make_node("Sum", ["x0", *(f"w{i}" for i in range(size))], ["y"])], ["x0"], ["y"], size


def outputs(size: int) -> tuple[list[NodeProto], list[str], list[str], int]:
    names = [f"y{i}" for i in range(size)]
    return [helper.make_node("Relu", ["x0"], [name]) for name in names], ["x0"], names, 0


def inputs(size: int) -> tuple[list[NodeProto], list[str], list[str], int]:
    names = [f"x{i}" for i in range(size)]
    nodes = [helper.make_node("Add", [f"v{i}" if i else "x0", f"w{i}"], [f"u{i}"]) for i in range(size)]
    nodes += [helper.make_node("Mul", [f"u{i}", name], [f"v{i + 1}"]) for i, name in enumerate(names)]
    return nodes, names, [f"v{size}"], size


def calls(work: Callable[[], Any]) -> int:
    """Return how often a function was called, or a generator resumed, C functions included."""
    count = 0

    def note(_frame: Any, event: str, _argument: Any) -> None:
        nonlocal count
        count += event in ("call", "c_call")

    sys.setprofile(note)
    try:
        work()
    finally:
        sys.setprofile(None)
    return count


def work(of: Callable[[int], Any], size: int) -> int:
    nodes, read, written, weights = of(size)
    graph = helper.make_graph(
        nodes,
        "graph",
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, [4]) for name in read],
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, [4]) for name in written],
        [numpy_helper.from_array(np.full(4, i + 2, np.float32), f"w{i}") for i in range(weights)],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=10)
    steps = plan(yaml.safe_load((conf_dir() / "fold/full.yaml").read_text())["passes"], table([]), where="test")

    def whole() -> None:
        module = ONNXModule(onnx.ModelProto.FromString(model.SerializeToString()))
        assert module.fingerprint
        apply(module.light, steps, None)

    return calls(whole)


@pytest.mark.every(3)
@pytest.mark.parametrize("of", [chain, constants, one_operator, outputs, inputs], ids=lambda of: of.__name__)
def test_taking_a_model_over_and_folding_it_take_work_that_grows_with_it(of: Callable[[int], Any]) -> None:
    work(of, 1)  # what is imported and cached once
    assert work(of, LARGE) / LARGE <= MOST * work(of, SMALL) / SMALL
