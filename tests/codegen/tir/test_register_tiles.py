"""Tiles of sums in registers are as large as a tile, wherever they are."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.support.kernels import allocated

HEAD = """
n = TypeVar("n")
@T.prim_func(s_tir=True)
def main(x: T.Buffer((n, T.int64(8)), "float32"), y: T.Buffer((n,), "float32")):
    T.func_attr({"global_symbol": "main"})
    with T.sblock("root"):
        tile = T.sblock_alloc_buffer((n,), scope="local")
"""

TILE = """
for row in range({turns}):
    for lane in range(T.int64({lanes})):
        with T.sblock("start"):
            v = T.axis.spatial(n, {first} + lane)
            tile[v] = T.float32(0)
    for k in range(T.int64(8)):
        for lane in range(T.int64({lanes})):
            with T.sblock("add"):
                v = T.axis.spatial(n, {first} + lane)
                w = T.axis.reduce(T.int64(8), k)
                tile[v] = tile[v] + x[v, w]
    for lane in range(T.int64({lanes})):
        with T.sblock("out"):
            v = T.axis.spatial(n, {first} + lane)
            y[v] = tile[v]
"""
"""Sums of rows of ``x``, some rows at once."""

FOURS = TILE.format(turns="(n + T.int64(3)) // T.int64(4)", lanes=4, first="T.min(row * T.int64(4), n - T.int64(4))")
ONES = TILE.format(turns="n % T.int64(4)", lanes=1, first="n // T.int64(4) * T.int64(4) + row")


def _kernel(body: str) -> Any:
    import tvm
    from tvm.script import from_source

    lines = "\n".join("        " + line for line in body.strip().splitlines())
    return tvm.IRModule({"main": from_source(HEAD + lines)})["main"]


def _tiles(function: Any) -> list[tuple[int, list[int] | str]]:
    """Return, for each tile, how many loops it is in and its shape."""
    from tvm import tirx

    from forge_pipeline.codegen.tir.lowering.register_tiles import TILES

    def shape(tile: Any) -> list[int] | str:
        is_known = all(isinstance(extent, tirx.IntImm) for extent in tile.shape)
        return [int(extent) for extent in tile.shape] if is_known else "open"

    return sorted(((depth, shape(tile)) for depth, tile in allocated(function, TILES)), key=str)


def _indented(body: str) -> str:
    return "\n".join("    " + line for line in body.strip().splitlines())


BOTH = f"if n >= T.int64(4):\n{_indented(FOURS)}\nelse:\n{_indented(ONES)}"


@pytest.mark.parametrize(
    ("body", "tiles"),
    [
        (FOURS, [(1, [4])]),
        (BOTH, [(1, [1]), (1, [4])]),  # one buffer in either case of a choice is two tiles
        (FOURS + ONES, [(0, "open")]),  # one in two loops might carry something from the one to the other
        (FOURS.replace("row *", "row * lane *"), [(0, "open")]),  # no sum
    ],
)
def test_a_tile_is_in_its_loop_and_as_large_as_what_changes_there(body: str, tiles: list[Any]) -> None:
    from forge_pipeline.codegen.tir.lowering.register_tiles import put, taken

    before = _kernel(body)
    assert _tiles(before) == [(0, "open")]
    after = taken(before, None, None)
    assert _tiles(after) == tiles
    assert _tiles(put(after, None, None)) == tiles
    assert after.same_as(before) == (tiles == [(0, "open")])


def test_a_tile_that_is_added_to_by_a_loop_is_outside_of_it() -> None:
    from forge_pipeline.codegen.tir.lowering.register_tiles import taken

    body = """
for row in range(n // T.int64(4)):
    for k in range(T.int64(8)):
        for lane in range(T.int64(4)):
            with T.sblock("add"):
                v = T.axis.spatial(n, row * T.int64(4) + lane)
                w = T.axis.reduce(T.int64(8), k)
                with T.init():
                    tile[v] = T.float32(0)
                tile[v] = tile[v] + x[v, w]
        for lane in range(T.int64(4)):
            with T.sblock("out"):
                v = T.axis.spatial(n, row * T.int64(4) + lane)
                y[v] = tile[v]
"""
    assert _tiles(taken(_kernel(body), None, None)) == [(1, [4])]


@pytest.mark.parametrize("rows", [1, 3, 4, 5, 8, 11])
def test_what_is_computed_stays(rows: int) -> None:
    import tvm

    from forge_pipeline.codegen.tir.lowering import local_buffers, pipeline
    from forge_pipeline.target import Target

    with local_buffers.workspaces() as asked:
        built = pipeline.build(tvm.IRModule({"main": _kernel(BOTH)}), Target.from_tag("host"))
    assert asked == [0]
    given = np.arange(rows * 8, dtype=np.float32).reshape(rows, 8)
    found = tvm.runtime.tensor(np.zeros(rows, np.float32))
    built["main"](tvm.runtime.tensor(given), found)
    assert np.array_equal(found.numpy(), given.sum(1))
