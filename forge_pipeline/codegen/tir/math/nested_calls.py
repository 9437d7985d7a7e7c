"""Functions of functions: the inner one's result goes through a variable of memory, which LLVM makes a register.

Functions become arithmetic with names for what is used twice. TVM's code generator takes every name apart again, and
each name in it, to know what its value may be: softplus, a logarithm of an exponential, behind a product of open rows
took it more than five minutes. Of memory it knows nothing.
"""

from __future__ import annotations

from typing import Any

import tvm_ffi
from tvm import tirx
from tvm.ir import Call

from forge_pipeline.codegen.tir import rewriting
from forge_pipeline.codegen.tir.math.vector_math import FUNCTIONS

SCOPE = "local"


def in_steps(function: Any, _module: Any, _context: Any) -> Any:
    """Return a kernel in vectors in which no function is given what another one computes, but by memory."""
    kept = {name: _Place(name) for name in _given(function.body)}

    def store(statement: tirx.BufferStore, _mutator: Any) -> Any:
        steps, value = _stepped(statement.value)
        if not steps:
            return statement
        return tirx.SeqStmt([*steps, tirx.BufferStore(statement.buffer, value, statement.indices)])

    def bind(statement: tirx.Bind, _mutator: Any) -> Any:
        steps, value = _stepped(statement.value)
        if statement.var in kept:
            return tirx.SeqStmt([*steps, *kept[statement.var].filled(value)])
        return tirx.SeqStmt([*steps, tirx.Bind(statement.var, value)]) if steps else statement

    body = tvm_ffi.structural_mutate(function.body, [(tirx.BufferStore, store), (tirx.Bind, bind)])
    loads = {name: place.load for name, place in kept.items()}
    return function.with_body(rewriting.substitute(body, loads.get) if kept else body)


class _Place:
    """Memory for a number, or for a vector of them."""

    def __init__(self, of: Any) -> None:
        single, _, lanes = str(of.ty.dtype).partition("x")
        count, zero = int(lanes or 1), tirx.IntImm("int64", 0)
        self._buffer = tirx.decl_buffer((count,), single, "inner", scope=SCOPE)
        self._at = [tirx.Ramp(zero, tirx.IntImm("int64", 1), count) if lanes else zero]
        self.load = tirx.BufferLoad(self._buffer, self._at)

    def filled(self, value: Any) -> list[Any]:
        """Return the statements that make this memory and put a value there."""
        return [tirx.AllocBuffer(self._buffer), tirx.BufferStore(self._buffer, value, self._at)]


def _stepped(value: Any) -> tuple[list[Any], Any]:
    """Return the statements that come before, and a value in which no function is of another one.

    What is computed only where a condition holds stays there, and so does what an expression has names for.
    """
    steps: list[Any] = []

    def outer(call: Call, mutator: Any) -> Any:
        if not _is_function(call):
            return call if getattr(call.op, "name", "") == rewriting.CHOICE else mutator.default_mutate(call)
        given = [tvm_ffi.structural_mutate(each, [(Call, inner), (tirx.Let, _as_it_is)]) for each in call.args]
        return Call(call.op, given, call.attrs, ret_ty=call.ty)

    def inner(call: Call, mutator: Any) -> Any:
        made = outer(call, mutator)
        if not _is_function(call):
            return made
        place = _Place(call)
        steps.extend(place.filled(made))
        return place.load

    return steps, tvm_ffi.structural_mutate(value, [(Call, outer), (tirx.Let, _as_it_is)])


def _as_it_is(expression: Any, _mutator: Any) -> Any:
    return expression


def _given(body: Any) -> set[Any]:
    """Return the names of what functions compute, or of what is made of that, which functions are given."""
    binds: list[tirx.Bind] = []
    calls: list[Call] = []
    tvm_ffi.structural_walk(body, [(tirx.Bind, binds.append), (Call, calls.append)], order="pre")
    made: set[Any] = set()
    for bind in binds:
        if "float" in str(bind.var.ty) and (_has_function(bind.value) or made & set(rewriting.variables(bind.value))):
            made.add(bind.var)
    return {
        name for call in calls if _is_function(call) for each in call.args for name in rewriting.variables(each)
    } & made


def _has_function(expression: Any) -> bool:
    found: list[Call] = []
    tvm_ffi.structural_walk(expression, [(Call, found.append)])
    return any(map(_is_function, found))


def _is_function(call: Call) -> bool:
    return getattr(call.op, "name", "") in FUNCTIONS
