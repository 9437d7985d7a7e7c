"""A program is checked before it runs, and runs as it says; the regions here are functions of Python."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from forge_pipeline.errors import ArtifactError, DataError
from forge_pipeline.runtime.execution import Demands, Execution
from forge_pipeline.runtime.program import Program

PROGRAM: dict[str, Any] = {
    "version": 1,
    "values": 12,
    "regions": [
        {"function": "double", "inputs": 1, "outputs": 1, "weights": []},
        {"function": "turn", "inputs": 3, "outputs": 3, "weights": [0, 2]},
    ],
    "main": {
        "inputs": [0, 1],
        "steps": [
            {"do": "call", "region": 0, "inputs": [0], "outputs": [2]},
            {
                "do": "loop",
                "count": 1,
                "condition": -1,
                "inputs": [2],
                "body": {
                    "inputs": [3, 4, 5],
                    "steps": [{"do": "call", "region": 1, "inputs": [3, 4, 5], "outputs": [6, 7, 8]}],
                    "outputs": [6, 7, 8],
                },
                "stacked": [{"dtype": "float32", "shape": [0]}],
                "outputs": [9, 10],
            },
            {"do": "list", "inputs": [9, 2], "output": 11},
        ],
        "outputs": [9, 10],
    },
}


def of(table: object) -> Program:
    return Program.of(table, where="the library")


def run(table: object, regions: list[Callable[..., Any]], *inputs: np.ndarray) -> list[np.ndarray]:
    program = of(table)
    return [np.asarray(found) for found in Execution(program, regions, lambda array: array)(*inputs)]


def double(x: np.ndarray) -> np.ndarray:
    return 2 * x


def turn(number: np.ndarray, goes_on: np.ndarray, x: np.ndarray) -> tuple[np.ndarray, ...]:
    return goes_on, x + np.float32(1), x


X = np.arange(3, dtype=np.float32)


@pytest.mark.parametrize("turns", [0, 1, 4])
def test_a_loop_carries_and_stacks(turns: int) -> None:
    last, stack = run(PROGRAM, [double, turn], X, np.array(turns))
    np.testing.assert_array_equal(last, 2 * X + turns)
    assert stack.shape == (turns, 3 if turns else 0)


def test_a_program_survives_its_own_json() -> None:
    assert of(json.loads(json.dumps(of(PROGRAM).to_json()))) == of(PROGRAM)


def changed(path: list[Any], value: Any) -> dict[str, Any]:
    table = copy.deepcopy(PROGRAM)
    item: Any = table
    for key in path[:-1]:
        item = item[key]
    item[path[-1]] = value
    return table


STEPS = ["main", "steps"]


@pytest.mark.parametrize(
    ("path", "value", "found"),
    [
        (["version"], 2, "version 1"),
        (["values"], 3, "value 3"),
        (["values"], "12", "where int belongs"),
        (["regions"], [], "region 0 of 0"),
        (["regions", 0, "inputs"], 2, "a call of 'double'"),
        (["regions", 0, "outputs"], 0, "0 outputs"),
        (["regions", 1, "weights"], [-1], "a region of"),
        (["regions", 1, "weights"], [0.5], "where int belongs"),
        ([*STEPS, 0, "do"], "exec", "an unknown step 'exec'"),
        ([*STEPS, 0, "do"], ["call"], "an unknown step"),
        ([*STEPS, 0, "inputs"], [7], "value 7, which is not defined"),
        ([*STEPS, 0, "inputs"], [-1], "value -1"),
        ([*STEPS, 0, "outputs"], [0], "value 0, which is none or is defined twice"),
        ([*STEPS, 0, "region"], True, "True where int belongs"),
        ([*STEPS, 0, "more"], 1, "more"),
        ([*STEPS, 1, "count"], 8, "value 8, which is not defined"),
        ([*STEPS, 1, "body", "inputs"], [3, 4], "2 inputs of a block"),
        ([*STEPS, 1, "body", "outputs"], [6, 7], "does not give what it takes"),
        ([*STEPS, 1, "body"], [], "where an object belongs"),
        ([*STEPS, 1, "outputs"], [9], "1 outputs of 2"),
        ([*STEPS, 2, "inputs"], [8], "value 8, which is not defined"),
        (["main", "outputs"], [11], "a list among the outputs"),
    ],
)
def test_what_is_no_program_is_refused_before_it_runs(path: list[Any], value: Any, found: str) -> None:
    with pytest.raises(ArtifactError) as refusal:
        of(changed(path, value))
    assert found in refusal.value.found
    assert refusal.value.where == "program of the library"


def test_blocks_within_blocks_have_an_end() -> None:
    block: dict[str, Any] = {"inputs": [], "steps": [], "outputs": []}
    for _ in range(200):
        inner = {"do": "branch", "condition": 0, "then": block, "otherwise": block, "outputs": []}
        block = {"inputs": [], "steps": [inner], "outputs": []}
    with pytest.raises(ArtifactError, match="too many within each other"):
        of({"version": 1, "values": 1, "regions": [], "main": {**block, "inputs": [0]}})


@settings(max_examples=200)
@given(data=st.data())
def test_a_program_that_was_tampered_with_is_refused_or_runs_as_one(data: st.DataObject) -> None:
    table = copy.deepcopy(PROGRAM)
    item: Any = table
    while isinstance(item, dict | list) and item:
        holder, key = item, data.draw(st.sampled_from(sorted(item) if isinstance(item, dict) else range(len(item))))
        item = holder[key]
    holder[key] = data.draw(st.one_of(st.integers(-3, 14), st.none(), st.text(max_size=3), st.lists(st.integers(0, 9))))
    try:
        program = of(table)
    except ArtifactError:
        return
    assert of(program.to_json()) == program


def one(*steps: dict[str, Any], inputs: int, outputs: list[int]) -> dict[str, Any]:
    return {
        "version": 1,
        "values": 9,
        "regions": [],
        "main": {"inputs": list(range(inputs)), "steps": list(steps), "outputs": outputs},
    }


def test_a_prefix_is_as_long_as_data_says_and_no_longer_than_what_there_is() -> None:
    table = one(
        {"do": "extents", "input": 1, "output": 2},
        {"do": "prefix", "input": 0, "extents": 2, "output": 3},
        inputs=2,
        outputs=[3],
    )
    assert run(table, [], X, np.array(2))[0].tolist() == [0, 1]
    for count in (4, -1, 1 << 50):
        with pytest.raises(DataError):
            run(table, [], X, np.array(count))


@pytest.mark.parametrize("position", [3, -4])
def test_a_place_outside_of_a_list_is_refused(position: int) -> None:
    table = one(
        {"do": "list", "inputs": [0, 0, 0], "output": 2},
        {"do": "pick", "list": 2, "position": 1, "output": 3},
        inputs=2,
        outputs=[3],
    )
    with pytest.raises(DataError, match="a place in a list of 3"):
        run(table, [], X, np.array(position))


def test_a_list_is_cut_edited_and_joined() -> None:
    table = one(
        {"do": "split", "input": 0, "sizes": 1, "axis": 0, "drops_axis": False, "output": 2},
        {"do": "erase", "list": 2, "position": -1, "output": 3},
        {"do": "insert", "list": 3, "input": 0, "position": -1, "output": 4},
        {"do": "join", "list": 4, "axis": 0, "is_new": False, "output": 5},
        {"do": "length", "list": 2, "output": 6},
        inputs=2,
        outputs=[5, 6],
    )
    joined, count = run(table, [], X, np.array(2))
    assert joined.tolist() == [0, 1, 0, 1, 2]
    assert count == 2
    with pytest.raises(DataError, match="parts that are 3 long together"):
        run(table, [], X, np.array([2, 2]))


@pytest.mark.parametrize(
    "rows",
    [None, [], [{}, {}], [{"extents": {"n": [3, 0]}, "constraints": []}, {"extents": {}, "constraints": []}]],
)
def test_demands_that_are_none_of_the_regions_are_refused(rows: object) -> None:
    with pytest.raises(ArtifactError):
        Demands.of(rows, of(PROGRAM), where="the library")


def test_a_region_runs_only_on_sizes_that_keep_what_it_demands() -> None:
    three = {"size": [[1, ["extent", "n"]], [-3]], "at_least": False, "text": "three of them"}
    rows = [{"extents": {"n": [0, 0]}, "constraints": [three]}, {"extents": {}, "constraints": []}]
    demands = Demands.of(rows, of(PROGRAM), where="the library")
    run = Execution(of(PROGRAM), [double, turn], lambda array: array, demands)
    assert len(run(X, np.array(1))) == 2
    with pytest.raises(DataError, match="three of them"):
        run(X[:2], np.array(1))
