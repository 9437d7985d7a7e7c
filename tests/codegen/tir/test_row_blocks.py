"""Tests of blocks of rows that threads share."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from tvm import te, tirx
from tvm.s_tir import Schedule

from forge_pipeline.codegen.tir import rewriting, row_blocks
from forge_pipeline.codegen.tir.machine import Machine
from forge_pipeline.codegen.tir.row_blocks import FEWEST
from forge_pipeline.target import Target
from tests.support.visits import visited

MOST = 8


def window_of_three(stride: int, cores: int) -> tuple[tirx.For, tirx.Var]:
    """Return the shared loop over blocks of rows that read three of a copy, and the number of rows of the image."""
    batch, height = tirx.Var("batch", "int64"), tirx.Var("height", "int64")
    image = te.placeholder((batch, height, 16), name="image")
    copy = te.compute((batch, height + 2, 16), lambda n, y, lane: image(n, tirx.max(y - 1, 0), lane), name="copy")
    tap = te.reduce_axis((0, 3), "tap")
    results = (height - 1) // stride + 1
    sums = te.compute((batch, results, 16), lambda n, y, lane: te.sum(copy(n, y * stride + tap, lane), [tap]), "sums")
    sch = Schedule(te.create_prim_func([image, sums]))
    block = sch.get_sblock("sums")
    _, rows, *_ = sch.get_loops(block)
    shared, _ = sch.split(rows, [None, MOST])
    sch.compute_at(sch.get_sblock("copy"), shared)
    machine = replace(Machine.of(Target.from_tag("x86-64/v3")), cores=cores)
    row_blocks.share(sch, shared, MOST, machine, work=1 << 20)
    function = row_blocks.even(sch.mod["main"])
    (loop,) = (each for each in rewriting.loops(function.body) if each.kind == tirx.ForKind.PARALLEL)
    return loop, height


def turns(loop: tirx.For, height: tirx.Var, rows: int, images: int) -> list[dict[str, set[int]]]:
    """Return, for each turn of a shared loop, the rows that its blocks visit, by the block's name."""
    found = []
    (batch,) = (seen for seen in rewriting.variables(loop.extent) if not seen.same_as(height))
    known: dict[Any, int] = {height: rows, batch: images}
    for turn in range(_value(loop.extent, known)):
        seen: dict[str, set[int]] = {}
        for name, row in visited(loop.body, known | {loop.loop_var: turn}, axis=1):
            seen.setdefault(name, set()).add(row)
        found.append(seen)
    return found


def _value(expression: Any, known: dict[Any, int]) -> int:
    from tvm.sym.analyzer import Analyzer

    return int(Analyzer().simplify(rewriting.substitute(expression, known.get)))


@pytest.mark.parametrize("stride", [1, 2])
@pytest.mark.parametrize("height", [1, 2, 3, 7, 9, 18, 36, 37, 72])
def test_two_threads_compute_as_many_rows_each(height: int, stride: int) -> None:
    loop, variable = window_of_three(stride, cores=2)
    blocks = turns(loop, variable, height, images=1)
    computed = [block["sums"] for block in blocks]
    results = (height - 1) // stride + 1
    assert sorted(row for rows in computed for row in rows) == list(range(results))
    assert all(len(rows) <= MOST for rows in computed)
    half = -(-len(blocks) // 2)
    first, second = (sum(map(len, part)) for part in (computed[:half], computed[half:]))
    assert abs(first - second) <= 1 or results <= FEWEST
    for block in blocks:
        needed = {row * stride + tap for row in block["sums"] for tap in range(3)}
        assert needed <= block["copy"]
        assert len(block["copy"]) <= (max(map(len, computed)) - 1) * stride + 3


def test_each_image_of_a_batch_has_the_same_blocks() -> None:
    loop, variable = window_of_three(1, cores=2)
    one, three = (turns(loop, variable, 20, images) for images in (1, 3))
    assert three == one * 3


def test_rows_are_not_cut_for_cores_that_share_something_else() -> None:
    loop, variable = window_of_three(1, cores=1)
    assert [len(block["sums"]) for block in turns(loop, variable, 9, images=1)] == [4, 5]
    assert [len(block["sums"]) for block in turns(loop, variable, 8, images=1)] == [8]
