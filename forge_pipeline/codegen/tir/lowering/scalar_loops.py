"""Loops of which LLVM must not make vectors, since it gets them wrong.

Where a loop reads at its variable and at a remainder of it by a power of two, LLVM 20 to 22 checks that the one does
not wrap and takes that for a check of the other: in a vector of 16, ``index % 8`` counts on past 7 (llvm/llvm-project
issue 191382). Short loops are written out here, long ones hold something of which there are no vectors. Vectors that a
schedule asks for are not concerned: TVM writes them out itself, and LLVM leaves a loop alone that has any.
"""

from __future__ import annotations

from typing import Any, Final

import tvm_ffi
from tvm import tirx
from tvm.ir import StringImm, Var

from forge_pipeline.codegen.tir.rewriting import clone, loops, substitute

MOST_WRITTEN_OUT: Final = 16
SYMBOL: Final = "forge_no_vectors"
_NOTHING: Final = f"""
define internal i32 @{SYMBOL}() alwaysinline nounwind {{
  call void asm sideeffect "", ""() memory(inaccessiblemem: readwrite)
  ret i32 0
}}
"""


def kept_scalar(function: Any, _module: Any, _context: Any) -> Any:
    """Return a kernel, ready for LLVM but for this, none of whose loops LLVM gets wrong."""
    wrapping = _in_remainders(function.body)
    if not wrapping:
        return function
    marked = False

    def rewrite(loop: tirx.For) -> Any:
        nonlocal marked
        if loop.loop_var not in wrapping or loop.kind == tirx.ForKind.THREAD_BINDING or _has_vectors(loop.body):
            return loop
        if _is_short(loop):
            return tirx.SeqStmt([_at(loop, index) for index in range(int(loop.extent))])
        marked = True
        body = tirx.SeqStmt([tirx.Evaluate(tirx.call_extern("int32", SYMBOL)), loop.body])
        return tirx.For(loop.loop_var, loop.min, loop.extent, loop.kind, body, None, loop.annotations, loop.step)

    body = tvm_ffi.structural_map(function.body, [(tirx.For, rewrite)])
    if marked:
        body = tirx.AttrStmt(tirx.const(0), "pragma_import_llvm", StringImm(_NOTHING), body)
    return function.with_body(body)


def _in_remainders(body: Any) -> set[Any]:
    """Return the variables of which some remainder by a power of two is made."""
    values: dict[Any, Any] = {}
    pending: list[Any] = []

    def divided(remainder: Any) -> None:
        if isinstance(remainder.b, tirx.IntImm) and int(remainder.b).bit_count() == 1:
            pending.append(remainder.a)

    def named(bind: tirx.Bind) -> None:
        values[bind.var] = bind.value

    tvm_ffi.structural_walk(body, [(tirx.Bind, named), (tirx.FloorMod, divided), (tirx.Mod, divided)])
    found: set[Any] = set()
    while pending:
        seen: list[Any] = []
        tvm_ffi.structural_walk(pending.pop(), [(Var, seen.append)])
        fresh = set(seen) - found
        found |= fresh
        pending += [values[variable] for variable in fresh & values.keys()]
    return found


def _has_vectors(body: Any) -> bool:
    found: list[Any] = []
    tvm_ffi.structural_walk(body, [(tirx.Ramp, found.append), (tirx.Broadcast, found.append)])
    return bool(found)


def _is_short(loop: tirx.For) -> bool:
    """Return whether nothing is repeated within a loop whose few turns are known."""
    if loop.kind != tirx.ForKind.SERIAL or not isinstance(loop.min, tirx.IntImm) or loops(loop.body):
        return False
    return loop.step is None and isinstance(loop.extent, tirx.IntImm) and int(loop.extent) <= MOST_WRITTEN_OUT


def _at(loop: tirx.For, index: int) -> Any:
    """Return one turn of a loop."""
    turn = int(loop.min) + index
    return substitute(clone(loop.body), lambda seen: turn if seen.same_as(loop.loop_var) else None)
