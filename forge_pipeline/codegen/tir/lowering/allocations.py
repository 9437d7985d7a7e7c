"""Where a scheduled kernel allocates its buffers: in the innermost loop that all that reads or writes them is in.

TVM moves them there, too, and then works out what each place reads and writes, which nothing asks for: a third of the
time that a kernel of open size takes to compile. It leaves those alone that are where they belong.
"""

from __future__ import annotations

from typing import Any

import tvm_ffi
from tvm import s_tir, tirx
from tvm.ir import Var


def in_place(function: Any, _module: Any, _context: Any) -> Any:
    """Return a kernel whose root block has handed its buffers to the loops that alone use them."""
    root = function.body
    if not isinstance(root, s_tir.SBlockRealize) or not root.block.alloc_buffers:
        return function
    block, buffers = root.block, list(root.block.alloc_buffers)
    homes: dict[int, list[Any]] = {}
    kept = []
    for buffer, path in zip(buffers, _paths(block.body, buffers), strict=True):
        if path:
            homes.setdefault(path[-1], []).append(buffer)
        else:
            kept.append(buffer)
    if not homes:
        return function
    placed = s_tir.SBlock(
        block.iter_vars, block.reads, block.writes, block.name_hint, _placed(block.body, homes), block.init, kept,
        block.match_buffers, block.annotations,
    )  # fmt: skip
    return function.with_body(s_tir.SBlockRealize(root.iter_values, root.predicate, placed))


def _paths(body: Any, buffers: list[Any]) -> list[tuple[int, ...]]:
    """Return, for each buffer, the loops that all its uses are in, outermost first, by number in program order."""
    found: list[tuple[int, ...] | None] = [None] * len(buffers)
    places = {buffer: place for place, buffer in enumerate(buffers)}
    open_loops: list[int] = []
    count = 0

    def enter(loop: tirx.For, mutator: Any) -> tirx.For:
        nonlocal count
        open_loops.append(count)
        count += 1
        done: tirx.For = mutator.default_mutate(loop)
        open_loops.pop()
        return done

    def use(variable: Var, _mutator: Any) -> Var:
        place = places.get(variable)
        if place is not None:
            before = found[place]
            both = open_loops if before is None else _common(before, open_loops)
            found[place] = tuple(both)
        return variable

    tvm_ffi.structural_mutate(body, [(tirx.For, enter), (Var, use)])
    return [path or () for path in found]


def _common(one: tuple[int, ...], other: list[int]) -> list[int]:
    return [a for a, b in zip(one, other, strict=False) if a == b]


def _placed(body: Any, homes: dict[int, list[Any]]) -> Any:
    """Return ``body`` with buffers allocated in its loops, by their number."""
    count = 0

    def enter(loop: tirx.For, mutator: Any) -> tirx.For:
        nonlocal count
        number = count
        count += 1
        done: tirx.For = mutator.default_mutate(loop)
        if number not in homes:
            return done
        block = s_tir.SBlock([], [], [], "", done.body, alloc_buffers=homes[number])
        inner = s_tir.SBlockRealize([], True, block)
        return tirx.For(done.loop_var, done.min, done.extent, done.kind, inner, annotations=dict(done.annotations))

    return tvm_ffi.structural_mutate(body, [(tirx.For, enter)])
