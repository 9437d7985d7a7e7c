"""Inputs that nobody gave: sizes and values that ONNX Runtime takes are found where there are any, in few attempts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from forge_pipeline.errors import DataError
from forge_pipeline.ir.reference.interpreter import Interpreter
from forge_pipeline.ir.values import fed
from forge_pipeline.passes.verification.candidate_sizes import TRIED, Preferred, candidates
from forge_pipeline.passes.verification.made_up import TOPS, Kinds, index_bounds, made_up

KINDS = Kinds(samples=2, seed=0, varied=False)
FLOAT, INT64 = TensorProto.FLOAT, TensorProto.INT64


def model_of(
    nodes: list[onnx.NodeProto], inputs: Mapping[str, tuple[int, list[Any]]], weights: Mapping[str, np.ndarray]
) -> onnx.ModelProto:
    graph = helper.make_graph(
        nodes,
        "graph",
        [helper.make_tensor_value_info(name, kind, shape) for name, (kind, shape) in inputs.items()],
        [helper.make_empty_tensor_value_info("y")],
        [numpy_helper.from_array(np.asarray(array), name) for name, array in weights.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=10)


class Counting(Interpreter):
    """A model that counts how often it is run."""

    def __init__(self, model: onnx.ModelProto) -> None:
        super().__init__(model)
        self.runs = 0

    def __call__(self, *arguments: Any, **named: Any) -> dict[str, Any]:
        self.runs += 1
        return super().__call__(*arguments, **named)


def decoder(total: str) -> onnx.ModelProto:
    """Return a step with a cache: the mask is as long as what was said and what is said now."""
    nodes = [
        helper.make_node("Concat", ["past", "now"], ["all"], axis=1),
        helper.make_node("Unsqueeze", ["mask", "two"], ["m"]),
        helper.make_node("Mul", ["all", "m"], ["y"]),
    ]
    inputs: dict[str, tuple[int, list[Any]]] = {
        "past": (FLOAT, ["batch", "past_length", 4]),
        "now": (FLOAT, ["batch", "length", 4]),
        "mask": (FLOAT, ["batch", total]),
    }
    return model_of(nodes, inputs, {"two": np.array([2])})


def test_sizes_that_every_branch_takes_come_first() -> None:
    branches = []
    for kind in ("Add", "Sub"):  # frames, of which each has 384 samples of the mask
        nodes = [
            helper.make_node("Slice", ["mask", "zero", "far", "one", "step"], ["each"]),
            helper.make_node(kind, ["frames", "each"], ["r"]),
        ]
        branches.append(helper.make_graph(nodes, kind, [], [helper.make_empty_tensor_value_info("r")]))
    node = helper.make_node("If", ["flag"], ["y"], then_branch=branches[0], else_branch=branches[1])
    inputs: dict[str, tuple[int, list[Any]]] = {
        "frames": (FLOAT, ["batch", "length"]),
        "mask": (FLOAT, ["batch", "samples"]),
        "flag": (TensorProto.BOOL, [1]),
    }
    weights = {"zero": [0], "one": [1], "far": [1 << 62], "step": [384]}
    model = model_of([node], inputs, {name: np.int64(value) for name, value in weights.items()})
    run = Interpreter(model)
    assert made_up(model, run, Preferred(), KINDS).sizes["length"] == 3  # ONNX Runtime broadcasts one sample
    assert made_up(model, run, Preferred(), KINDS, suits=lambda _: True).sizes["length"] == 1


@pytest.mark.parametrize("total", ["total", "past_length + length"])
def test_an_extent_that_is_the_sum_of_others_is_found(total: str) -> None:
    model = decoder(total)
    found = made_up(model, Interpreter(model), Preferred(batch=2, extent=64), KINDS)
    assert found.sizes[total] == found.sizes["past_length"] + found.sizes["length"]
    assert found.sizes["past_length"] == 64


def test_the_preferred_sizes_come_first_and_given_ones_stay() -> None:
    inputs = fed(decoder("total").graph)
    first = next(candidates(inputs, Preferred(batch=5, extent=7)))
    assert first == {"batch": 5, "past_length": 7, "length": 7, "total": 7}
    given = list(candidates(inputs, Preferred(given={"batch": 3, "total": 9})))
    assert {(sizes["batch"], sizes["total"]) for sizes in given} == {(3, 9)}
    assert len(given) <= TRIED
    assert len(given) == len({tuple(sizes.items()) for sizes in given})


@pytest.mark.every(3)
@pytest.mark.parametrize("size", [80, 512, 9])
def test_a_size_that_the_weights_decide_is_found(size: int) -> None:
    """Unless it is none that anybody would try: then the data have to say it."""
    model = model_of(
        [helper.make_node("MatMul", ["x", "w"], ["y"])],
        {"x": (FLOAT, ["batch", "features"])},
        {"w": np.ones((size, 2), np.float32)},
    )
    if size == 9:
        with pytest.raises(DataError):
            made_up(model, Interpreter(model), Preferred(batch=2, extent=64), KINDS)
    else:
        assert made_up(model, Interpreter(model), Preferred(extent=64), KINDS).sizes["features"] == size


def test_indices_stay_within_the_rows_that_they_pick() -> None:
    nodes = [
        helper.make_node("Cast", ["ids"], ["i"], to=TensorProto.INT32),
        helper.make_node("Gather", ["table", "i"], ["a"]),
        helper.make_node("Gather", ["types", "ids"], ["b"]),
        helper.make_node("Add", ["a", "b"], ["y"]),
    ]
    weights = {"table": np.ones((500, 2), np.float32), "types": np.ones((40, 2), np.float32)}
    model = model_of(nodes, {"ids": (INT64, ["batch", 64])}, weights)
    assert index_bounds(model) == {"ids": 40}
    (first, _) = made_up(model, Interpreter(model), Preferred(), KINDS).feeds
    assert (first["ids"].min() >= 0, 30 < first["ids"].max() < 40) == (True, True)


def test_a_row_of_zeros_for_padding_is_passed_over_where_a_norm_divides_by_it() -> None:
    """As models of transformers are exported that add too small a number to a norm: the exporter drops it."""
    nodes = [
        helper.make_node("Gather", ["table", "ids"], ["rows"]),
        helper.make_node("ReduceL2", ["rows"], ["norm"], axes=[-1]),
        helper.make_node("Div", ["rows", "norm"], ["y"]),
    ]
    table = np.ones((3, 4), np.float32)
    table[0] = 0
    model = model_of(nodes, {"ids": (INT64, ["batch", 64])}, {"table": table})
    (first, _) = made_up(model, Interpreter(model), Preferred(), KINDS).feeds
    assert (first["ids"].min(), first["ids"].max()) == (1, 2)


def test_sizes_that_end_the_process_are_passed_over() -> None:
    """The least integer has no opposite: the processor stops who divides it by minus one, the extent less 65."""
    nodes = [
        helper.make_node("Shape", ["x"], ["length"]),
        helper.make_node("Sub", ["length", "less"], ["apart"]),
        helper.make_node("Div", ["least", "apart"], ["y"]),
    ]
    weights = {"less": np.array([65]), "least": np.array([-(2**63)])}
    model = model_of(nodes, {"x": (FLOAT, ["n"])}, weights)
    assert made_up(model, Interpreter(model), Preferred(extent=64), KINDS).sizes["n"] != 64
    with pytest.raises(DataError, match="ended by SIGFPE"):
        made_up(model, Interpreter(model), Preferred(given={"n": 64}), KINDS)


def test_values_are_tried_where_sizes_are_not_to_blame() -> None:
    """A count of at most one of what there is one of: 2 and 3 are refused."""
    nodes = [helper.make_node("Gather", ["x", "which"], ["y"], axis=1)]
    model = model_of(nodes, {"x": (FLOAT, [4, 1]), "which": (INT64, [3])}, {})
    (first, _) = made_up(model, Interpreter(model), Preferred(), KINDS).feeds
    assert first["which"].max() == 0


def test_results_that_are_numbers_are_preferred() -> None:
    """Where a mask hides everything, a mean of nothing says nothing about the code."""
    nodes = [
        helper.make_node("Cast", ["mask"], ["m"], to=FLOAT),
        helper.make_node("ReduceSum", ["m"], ["n"], keepdims=0),
        helper.make_node("Div", ["x", "n"], ["y"]),
    ]
    model = model_of(nodes, {"x": (FLOAT, [1]), "mask": (INT64, ["length"])}, {})
    for feed in made_up(model, Interpreter(model), Preferred(extent=1), KINDS).feeds:
        assert np.isfinite(Interpreter(model)(feed)["y"]).all()


def test_what_is_positive_is_tried_where_results_are_no_numbers() -> None:
    model = model_of([helper.make_node("Log", ["x"], ["y"])], {"x": (FLOAT, ["batch", 8])}, {})
    for feed in made_up(model, Interpreter(model), Preferred(), KINDS).feeds:
        assert np.isfinite(Interpreter(model)(feed)["y"]).all()


def test_lengths_of_nothing_are_passed_over_where_results_are_no_numbers() -> None:
    """A softmax over what a length leaves is none where it leaves nothing."""
    nodes = [
        helper.make_node("Less", ["places", "lengths"], ["kept"]),
        helper.make_node("Where", ["kept", "x", "never"], ["scores"]),
        helper.make_node("Softmax", ["scores"], ["y"]),
    ]
    inputs = {"x": (FLOAT, ["batch", 8]), "lengths": (INT64, ["batch", 1])}
    model = model_of(nodes, inputs, {"places": np.arange(8), "never": np.float32(-np.inf)})
    kinds = Kinds(samples=8, seed=0, varied=False)
    for feed in made_up(model, Interpreter(model), Preferred(), kinds).feeds:
        assert np.isfinite(Interpreter(model)(feed)["y"]).all()


def test_a_model_that_takes_nothing_is_given_up_on() -> None:
    node = helper.make_node("Reshape", ["x", "shape"], ["y"])
    model = model_of([node], {"x": (FLOAT, ["n", "m"])}, {"shape": np.array([7, 1009])})
    run = Counting(model)
    with pytest.raises(DataError):
        made_up(model, run, Preferred(), KINDS)
    assert 20 < run.runs <= TRIED * len(TOPS)
