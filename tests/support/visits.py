"""What a scheduled kernel computes, block by block, for given sizes."""

from __future__ import annotations

import operator
from collections.abc import Iterator
from typing import Any

OPERATORS = {
    **{"Add": operator.add, "Sub": operator.sub, "Mul": operator.mul, "FloorDiv": operator.floordiv},
    **{
        "Min": min,
        "Max": max,
        "FloorMod": operator.mod,
        "LT": operator.lt,
        "LE": operator.le,
        "GE": operator.ge,
        "NE": operator.ne,
        "And": operator.and_,
    },
}


def visited(statement: Any, known: dict[Any, int], axis: int) -> Iterator[tuple[str, int]]:
    """Yield each block that a scheduled kernel runs, and where along an axis, of vectors the first element."""
    from tvm import s_tir, tirx

    def value(expression: Any) -> int:
        if isinstance(expression, tirx.IntImm):
            return int(expression)
        if expression in known:
            return known[expression]
        if isinstance(expression, tirx.Cast):
            return value(expression.value)
        return int(OPERATORS[type(expression).__name__](value(expression.a), value(expression.b)))

    if isinstance(statement, tirx.For):
        first = value(statement.min)
        for index in range(1 if statement.kind == tirx.ForKind.VECTORIZED else value(statement.extent)):
            yield from visited(statement.body, known | {statement.loop_var: first + index}, axis)
    elif isinstance(statement, tirx.IfThenElse):
        taken = statement.then_case if value(statement.condition) else statement.else_case
        yield from visited(taken, known, axis)
    elif isinstance(statement, tirx.SeqStmt):
        for part in statement.seq:
            yield from visited(part, known, axis)
    elif isinstance(statement, s_tir.SBlockRealize):
        if not statement.iter_values:
            yield from visited(statement.block.body, known, axis)
        elif value(statement.predicate):
            yield statement.block.name_hint, value(statement.iter_values[axis])
