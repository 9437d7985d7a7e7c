"""Blocks of a program: their words, and what no device takes."""

from __future__ import annotations

import pytest

from forge_pipeline.codegen.program.steps import words
from forge_pipeline.codegen.regions import program as p
from forge_pipeline.errors import CompileError


def nested(depth: int) -> p.Program:
    """Return branches within each other, in whose innermost block nothing is done."""
    block = p.Block((), (), ())
    for _ in range(depth):
        block = p.Block((), (p.Branch(0, block, p.Block((), (), ()), ()),), ())
    return p.Program((), 1, p.Block((0,), block.steps, ()))


def test_blocks_are_numbered_as_they_are_found_those_within_each_other_last() -> None:
    found = words(nested(2), lambda _: 0)
    values, count, *rows = found
    assert (values, count) == (1, 5)
    assert rows == [1, 0, 0, 1, 4, 0, 1, 4, 0, 0, 0, 1, 4, 0, 2, 3, 0, *[0, 0, 0] * 3]


def test_a_loop_has_the_dtype_and_the_shape_of_what_it_stacks() -> None:
    body = p.Block((1, 2, 3), (), (2, 3, 3))
    loop = p.Loop(-1, -1, (0,), body, (p.Stacked("float32", (0, 7)),), (4, 5))
    found = words(p.Program((), 6, p.Block((0,), (loop,), (5,))), {"float32": 77}.__getitem__)
    assert found == [6, 2, 1, 0, 1, 5, 1, 5, -1, -1, 1, 1, 0, 1, 77, 2, 0, 7, 2, 4, 5, 3, 1, 2, 3, 3, 2, 3, 3, 0]


def test_blocks_too_deep_within_each_other_are_refused() -> None:
    words(nested(p.DEEPEST), lambda _: 0)
    with pytest.raises(CompileError, match="found 33 and 33"):
        words(nested(p.DEEPEST + 1), lambda _: 0)
