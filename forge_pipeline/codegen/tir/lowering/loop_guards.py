"""Loops of unknown length in other loops: LLVM is not to write the outer one twice, with and without the inner.

What LLVM makes of a loop begins with a test of whether there is a turn at all. Where that is the same for all turns of
the loop around, LLVM takes the test out of it and writes that loop twice, once for each answer (loop unswitching), and
so on for each loop in it. A convolution that copies rows between zeros was 97 KB of code, of which 37 are needed, and
took 2.6 s to compile for 1.2. A test that depends on the turn stays where it is.
"""

from __future__ import annotations

from typing import Any

import tvm_ffi
from tvm import tirx

FAR = 1 << 40
"""More turns than any loop takes."""


def depending(function: Any, _module: Any, _context: Any) -> Any:
    """Return a kernel whose loops of unknown length, in others, take at most ``FAR`` turns and as many as those did."""
    around: list[tirx.For] = []

    def limit(loop: tirx.For, mutator: Any) -> tirx.For:
        is_open = not isinstance(loop.extent, tirx.IntImm) and all(map(_is_counted, [loop, *around[-1:]]))
        most = around[-1].loop_var + tirx.const(FAR, "int64") if is_open and around else None
        around.append(loop)
        done: tirx.For = mutator.default_mutate(loop)
        around.pop()
        extent = done.extent if most is None else tirx.min(done.extent, most)
        return tirx.For(done.loop_var, done.min, extent, done.kind, done.body, annotations=dict(done.annotations))

    return function.with_body(tvm_ffi.structural_mutate(function.body, [(tirx.For, limit)]))


def _is_counted(loop: tirx.For) -> bool:
    return loop.kind == tirx.ForKind.SERIAL and str(loop.loop_var.ty.dtype) == "int64"
