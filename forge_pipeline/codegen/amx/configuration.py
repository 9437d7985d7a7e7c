"""What no schedule can do for products in tiles: configure them, and ask for weights ahead.

A thread says how large its tiles are, and forgets them, around all of its share of a kernel: LDTILECFG and TILERELEASE
took 55 ns on a Xeon with AMX, more than ten products of tiles.

The CPU's own prefetcher goes on where it is once on its way in a page of memory, but starts anew with each panel of
weights, which lies behind the second cache. So the last tile of a panel asks for two lines of each that the next one
begins with: 10 % of the time of products whose weights are cold (measured). To ask for all of them takes longer, as the
few lines that a core can wait for are not there for tiles then.
"""

from __future__ import annotations

from functools import partial
from typing import Any, Final

import tvm_ffi
from tvm import s_tir, tirx

from forge_pipeline.codegen.amx.tiles import CONFIGURATION, LDTILECFG, TILERELEASE
from forge_pipeline.codegen.tir import rewriting
from forge_pipeline.codegen.tir.prefetch import DATA, READ, SECOND_CACHE

TILES: Final = "forge.amx"
"""The annotation of the loop whose turns multiply in tiles."""
LAST: Final = "forge.amx_last"
"""The annotation of the loop over the tiles of rows that a panel is multiplied by."""
AHEAD: Final = 2
"""Lines of a pair of tiles of weights that are asked for."""


def configure(function: tirx.PrimFunc) -> tirx.PrimFunc:
    """Return a scheduled kernel whose threads configure their tiles before they multiply in them."""

    def wrap(loop: tirx.For, mutator: Any) -> Any:
        if TILES not in loop.annotations:
            return mutator.default_mutate(loop)
        notes = {name: note for name, note in loop.annotations.items() if name != TILES}
        is_shared = loop.kind == tirx.ForKind.PARALLEL
        body = _configured(loop.body) if is_shared else loop.body
        done = tirx.For(loop.loop_var, loop.min, loop.extent, loop.kind, body, annotations=notes)
        return done if is_shared else _configured(done)

    return function.with_body(tvm_ffi.structural_mutate(function.body, [(tirx.For, wrap)]))


def ask_for_next(function: tirx.PrimFunc) -> tirx.PrimFunc:
    """Return a scheduled kernel whose last tile of each panel asks for weights of the next one."""
    weights = set(function.params)

    def mark(loop: tirx.For, mutator: Any) -> Any:
        done = mutator.default_mutate(loop)
        if LAST not in loop.annotations:
            return done
        notes = {name: note for name, note in loop.annotations.items() if name != LAST}
        body = tvm_ffi.structural_mutate(done.body, [(s_tir.SBlockRealize, partial(_asking, loop, weights))])
        return tirx.For(loop.loop_var, loop.min, loop.extent, loop.kind, body, annotations=notes)

    return function.with_body(tvm_ffi.structural_mutate(function.body, [(tirx.For, mark)]))


def _asking(tiles: tirx.For, weights: set[Any], realize: s_tir.SBlockRealize, mutator: Any) -> Any:
    """Return a block that reads a panel, with prefetches of the next one before it in the last turn of ``tiles``."""
    found = next((part.source for part in realize.block.match_buffers if part.source.source in weights), None)
    if found is None:
        return mutator.default_mutate(realize)
    values = dict(zip((axis.var for axis in realize.block.iter_vars), realize.iter_values, strict=True))
    panel, step, *_ = (rewriting.substitute(part.min, values.get) for part in found.region)
    rest = [0] * (len(found.region) - 4)
    lines = (tirx.BufferLoad(found.source, [panel + 1, step, 0, line, *rest]) for line in range(AHEAD))
    calls = (
        tirx.call_llvm_intrin("void", "llvm.prefetch", tirx.address_of(line), READ, SECOND_CACHE, DATA)
        for line in lines
    )
    asked = tirx.SeqStmt([tirx.Evaluate(call) for call in calls])
    return tirx.SeqStmt([tirx.IfThenElse(tiles.loop_var == tiles.extent - 1, asked, None), realize])


def _configured(body: Any) -> Any:
    words = tirx.decl_buffer((len(CONFIGURATION),), "int64", "configuration", scope="local")
    stores = [tirx.BufferStore(words, tirx.const(word, "int64"), [at]) for at, word in enumerate(CONFIGURATION)]
    first = tirx.address_of(tirx.BufferLoad(words, [0]))
    calls = [tirx.call_llvm_intrin("void", LDTILECFG.llvm, first), tirx.call_llvm_intrin("void", TILERELEASE.llvm)]
    start, end = (tirx.Evaluate(call) for call in calls)
    block = s_tir.SBlock([], [], [], "tiles", tirx.SeqStmt([*stores, start, body, end]), alloc_buffers=[words])
    return s_tir.SBlockRealize([], True, block)
