"""Pixels asked for ahead: a tile asks for those of a later block of channels, which lie far from its own."""

from __future__ import annotations

from typing import Any

import tvm_ffi
from tvm import tirx
from tvm.s_tir import Schedule
from tvm.s_tir.schedule import LoopRV

from forge_pipeline.codegen.tir import rewriting
from forge_pipeline.codegen.tir.machine import LINE, Machine
from forge_pipeline.codegen.tir.prefetch.reads import FIRST_CACHE, Read, ask, reads_of, steps_of

PIXELS = "forge.asks_pixels"
"""The annotation of a loop over blocks of channels: a tile's pixels of a later block are asked for."""

BLOCKS_AHEAD = 2
"""Blocks of channels between a tile's steps and those whose pixels it asks for: one block's steps are shorter than the
way from the third cache (0.74 of the peak instead of 0.90, Zen 5)."""


def ask_for_pixels(sch: Schedule, blocks: LoopRV, machine: Machine) -> None:
    """Mark a loop over blocks of channels, from each of which a tile reads pixels; they lie far from the next block's.

    The first steps of a block would wait for all pixels at once, where they come from behind the second cache: no
    prefetcher of the CPU knows where the next block begins. 2176 channels of 28 x 56 pixels to 64 took twice as long
    (Zen 5). On x86 only, as above, and where a pixel is a line: by AVX2, fewer lines gained nothing.
    """
    if machine.arch == "x86_64" and machine.lanes * machine.item >= LINE:
        sch.annotate(blocks, PIXELS, True)


def prefetch_pixels(function: tirx.PrimFunc) -> tirx.PrimFunc:
    """Return ``function`` with prefetches in the marked loops over blocks of channels."""

    def mutate(loop: tirx.For, mutator: Any) -> Any:
        if PIXELS not in loop.annotations:
            return mutator.default_mutate(loop)
        notes = {name: note for name, note in loop.annotations.items() if name != PIXELS}
        body = tirx.SeqStmt([*_asked_pixels(loop), loop.body])
        return tirx.For(loop.loop_var, loop.min, loop.extent, loop.kind, body, annotations=notes)

    return function.with_body(tvm_ffi.structural_mutate(function.body, [(tirx.For, mutate)]))


def _asked_pixels(blocks: tirx.For) -> list[tirx.Evaluate]:
    """Return prefetches of the pixels that a later turn of a loop over blocks of channels begins with."""
    inside = rewriting.loops(blocks.body)
    loops = frozenset({blocks.loop_var, *(loop.loop_var for loop in inside)})
    for realize in rewriting.realizes(blocks.body):
        values = dict(zip((axis.var for axis in realize.block.iter_vars), realize.iter_values, strict=True))
        steps = [loop.loop_var for loop in steps_of(realize, inside)]
        for buffer, indices, _ in reads_of(realize.block):
            read = Read(buffer=buffer, indices=[rewriting.substitute(at, values.get) for at in indices], loops=loops)
            moved = [loop for loop in inside if read.moved_by(loop.loop_var) != 0 and loop.loop_var not in steps]
            if read.moved_by(blocks.loop_var) == 0 or [loop.kind for loop in moved] != [tirx.ForKind.UNROLLED]:
                continue  # weights, whose vectors are moved along by lanes, or sums
            (pixels,) = moved
            start = {loop.loop_var: 0 for loop in inside} | {blocks.loop_var: blocks.loop_var + BLOCKS_AHEAD}
            places = [start | {pixels.loop_var: pixel} for pixel in range(int(pixels.extent))]
            return [
                ask(buffer, [rewriting.substitute(at, place.get) for at in read.indices], FIRST_CACHE)
                for place in places
            ]
    return []
