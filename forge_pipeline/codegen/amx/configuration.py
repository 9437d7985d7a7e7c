"""What no schedule can do for products in tiles: configure them, and ask for weights ahead.

A thread says how large its tiles are, and forgets them, around all of its share of a kernel: LDTILECFG and TILERELEASE
took 55 ns on a Xeon with AMX, more than ten products of tiles.

Weights lie behind the second cache, most often. While a panel multiplies tiles of rows, each of these asks for a share
of the next panel, beside every step, so that bytes come all the time: ResNet-50 in int8 takes 0.92 of what it takes
where the last tile alone asks for two lines of each step (measured). All at once takes longer: a core waits for few
lines, and loads of tiles then find no place.
"""

from __future__ import annotations

from functools import partial
from typing import Any, Final

import tvm_ffi
from tvm import s_tir, tirx

from forge_pipeline.codegen.amx.tiles import CONFIGURATION, LDTILECFG, TILERELEASE
from forge_pipeline.codegen.tir import rewriting
from forge_pipeline.codegen.tir.prefetch.reads import DATA, READ, SECOND_CACHE
from forge_pipeline.codegen.tir.prefetch.weights import TYPICAL

TILES: Final = "forge.amx"
"""The annotation of the loop whose turns multiply in tiles."""
PANEL: Final = "forge.amx_panel"
"""The annotation of the loop over the tiles of rows that a panel is multiplied by."""
MOST: Final = 7
"""Lines that are asked for beside a step's products, at most."""


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
    """Return a scheduled kernel whose tiles ask for the weights of the next panel."""
    weights = set(function.params)

    def mark(loop: tirx.For, mutator: Any) -> Any:
        done = mutator.default_mutate(loop)
        if PANEL not in loop.annotations:
            return done
        notes = {name: note for name, note in loop.annotations.items() if name != PANEL}
        body = tvm_ffi.structural_mutate(done.body, [(s_tir.SBlockRealize, partial(_asking, loop, weights))])
        return tirx.For(loop.loop_var, loop.min, loop.extent, loop.kind, body, annotations=notes)

    return function.with_body(tvm_ffi.structural_mutate(function.body, [(tirx.For, mark)]))


def _asking(tiles: tirx.For, weights: set[Any], realize: s_tir.SBlockRealize, mutator: Any) -> Any:
    """Return a block that reads a panel, with prefetches of a share of the next one, for each turn of ``tiles``."""
    found = next((part.source for part in realize.block.match_buffers if part.source.source in weights), None)
    if found is None:
        return mutator.default_mutate(realize)
    values = dict(zip((axis.var for axis in realize.block.iter_vars), realize.iter_values, strict=True))
    panel, step, *_ = (rewriting.substitute(part.min, values.get) for part in found.region)
    width, words, *rest = (int(part.extent) for part in found.region[2:])
    turns = int(tiles.extent) if isinstance(tiles.extent, tirx.IntImm) else TYPICAL
    share = min(-(-width * words // turns), MOST)
    first = tiles.loop_var * share
    places = (
        [panel + 1, step, (first + line) // words, (first + line) % words, *([0] * len(rest))] for line in range(share)
    )
    calls = (
        tirx.call_llvm_intrin("void", "llvm.prefetch", tirx.address_of(line), READ, SECOND_CACHE, DATA)
        for line in (tirx.BufferLoad(found.source, place) for place in places)
    )
    asked: list[Any] = [tirx.Evaluate(call) for call in calls]
    if turns * share > width * words:
        together = tirx.SeqStmt(asked) if share > 1 else asked[0]
        asked = [tirx.IfThenElse(first < width * words, together, None)]
    return tirx.SeqStmt([*asked, realize])


def _configured(body: Any) -> Any:
    words = tirx.decl_buffer((len(CONFIGURATION),), "int64", "configuration", scope="local")
    stores = [tirx.BufferStore(words, tirx.const(word, "int64"), [at]) for at, word in enumerate(CONFIGURATION)]
    first = tirx.address_of(tirx.BufferLoad(words, [0]))
    calls = [tirx.call_llvm_intrin("void", LDTILECFG.llvm, first), tirx.call_llvm_intrin("void", TILERELEASE.llvm)]
    start, end = (tirx.Evaluate(call) for call in calls)
    block = s_tir.SBlock([], [], [], "tiles", tirx.SeqStmt([*stores, start, body, end]), alloc_buffers=[words])
    return s_tir.SBlockRealize([], True, block)
