"""Functions of functions: the same numbers, of which the code generator knows nothing while it makes code."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tvm_ffi
from onnx import helper
from tvm import tirx
from tvm.ir import Call

from forge_pipeline.codegen.tir.math import nested_calls
from forge_pipeline.codegen.tir.math.vector_math import FUNCTIONS
from tests.support.tiled import assert_same, model


def nested(statement: Any) -> list[str]:
    """Return the functions of a statement that another one's result is given to as it is."""
    calls: list[Call] = []
    tvm_ffi.structural_walk(statement, [(Call, calls.append)])
    found = []
    for call in (each for each in calls if each.op.name in FUNCTIONS):
        within: list[Call] = []
        tvm_ffi.structural_walk(list(call.args), [(Call, within.append)])
        found += [call.op.name for each in within if each.op.name in FUNCTIONS]
    return found


def kernel(*, named: bool, lanes: int = 8) -> tirx.PrimFunc:
    """Return what stores log(1 + exp(x)) exp(x), with exp(x) twice, or once under a name."""
    x, y = (tirx.decl_buffer((lanes,), "float32", name) for name in "xy")
    zero = tirx.IntImm("int64", 0)
    at = [tirx.Ramp(zero, tirx.IntImm("int64", 1), lanes) if lanes > 1 else zero]
    power = tirx.exp(tirx.BufferLoad(x, at))
    name = tirx.Var("power", str(power.ty.dtype))
    used: Any = name if named else power
    value = tirx.log(used + tirx.const(1, str(used.ty.dtype))) * used
    stored = tirx.BufferStore(y, value, at)
    return tirx.PrimFunc([x, y], tirx.SeqStmt([tirx.Bind(name, power), stored]) if named else stored)


@pytest.mark.parametrize("named", [False, True])
@pytest.mark.parametrize("lanes", [1, 8])
def test_no_function_is_given_what_another_one_computes(named: bool, lanes: int) -> None:
    function = kernel(named=named, lanes=lanes)
    assert named or nested(function.body) == ["tirx.log"]
    changed = nested_calls.in_steps(function, None, None).body
    assert nested(changed) == []
    binds: list[tirx.Bind] = []
    tvm_ffi.structural_walk(changed, [(tirx.Bind, binds.append)])
    assert not binds
    (buffer,) = {str(store.buffer.name) for store in changed.seq if isinstance(store, tirx.BufferStore)} - {"y"}
    assert buffer == "inner"


def test_what_is_computed_under_a_condition_stays_there() -> None:
    x, y = (tirx.decl_buffer((1,), "float32", name) for name in "xy")
    zero = tirx.IntImm("int64", 0)
    read = tirx.BufferLoad(x, [zero])
    value = tirx.if_then_else(read > tirx.const(0.0, "float32"), tirx.log(tirx.log(read)), read)
    function = tirx.PrimFunc([x, y], tirx.BufferStore(y, value, [zero]))
    assert tvm_ffi.structural_equal(nested_calls.in_steps(function, None, None), function)


@pytest.mark.parametrize("rows", [5, "rows"])
@pytest.mark.parametrize("functions", [("Softplus",), ("Sigmoid", "Log"), ("Exp", "Tanh"), ("Tanh", "Sigmoid")])
def test_products_with_functions_of_functions_behind(rows: int | str, functions: tuple[str, ...]) -> None:
    """Each took minutes to be made code while rows were open, and twelve seconds where they were known."""
    steps = ["product", *map(str, range(len(functions)))]
    nodes = [helper.make_node("MatMul", ["x", "w"], ["product"])]
    nodes += [
        helper.make_node(*step)
        for step in zip(functions, ([each] for each in steps), ([each] for each in steps[1:]), strict=False)
    ]
    nodes += [
        helper.make_node("Greater", ["product", "half"], ["large"]),
        helper.make_node("Where", ["large", "product", steps[-1]], ["y"]),
    ]
    weights = {"w": np.random.default_rng(1).standard_normal((24, 32)).astype(np.float32) / 5, "half": np.float32(0.5)}
    source = model(nodes, {"x": (1, rows, 24)}, weights)
    assert_same(source, [{"rows": length} for length in (1, 5, 21)], terms=24)
