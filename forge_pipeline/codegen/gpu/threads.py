"""Kernels that no schedule takes, on a GPU: a thread for each result, or for each row; else a single one.

Loops that this package writes itself are for a CPU's cores and vectors. TVM's schedules for GPUs leave them as they
are, and would run them on the host, which reads none of the GPU's memory. Here each turn of a parallel loop has a
thread. Where extents are computed from open sizes, TVM cannot fuse loops by its own schedule: each result has a thread.
"""

from __future__ import annotations

from typing import Any

import tvm
import tvm_ffi
from tvm import s_tir, tirx

from forge_pipeline.codegen.tir.rewriting import loops, substitute, variables

THREADS = 32
"""Of a block: a warp, since what rows do differs."""


def in_threads(module: tvm.IRModule) -> tvm.IRModule:
    """Return ``module`` with threads in each kernel that has none."""
    changed = module.clone()
    for variable, function in module.functions_items():
        if isinstance(function, tirx.PrimFunc) and not _has_threads(function):
            changed[variable] = function.with_body(_whole(_of(function.body)))
    return changed


def _has_threads(function: tirx.PrimFunc) -> bool:
    return any(loop.kind == tirx.ForKind.THREAD_BINDING for loop in loops(function.body))


def _whole(body: Any) -> s_tir.SBlockRealize:
    """Return ``body`` in the block that TVM expects around a kernel."""
    if isinstance(body, s_tir.SBlockRealize):
        return body
    return s_tir.SBlockRealize([], True, s_tir.SBlock([], [], [], "root", body))


def _of(body: Any) -> Any:
    """Return what a kernel does, each of its statements in threads."""
    if isinstance(body, tirx.SeqStmt):
        return tirx.SeqStmt([_of(part) for part in body.seq])
    if isinstance(body, s_tir.SBlockRealize) and not body.block.iter_vars:
        block = body.block
        parts = block.body.seq if isinstance(block.body, tirx.SeqStmt) else [block.body]
        is_whole = not block.alloc_buffers and isinstance(block.body, tirx.For | tirx.SeqStmt | s_tir.SBlockRealize)
        if is_whole or all(_nest(part) for part in parts):
            allocated = block.alloc_buffers
            inner = s_tir.SBlock([], block.reads, block.writes, block.name_hint, _of(block.body), None, allocated)
            return s_tir.SBlockRealize([], True, inner)
    if isinstance(body, tirx.For) and body.kind == tirx.ForKind.PARALLEL:
        return _in_blocks([body], _serial(body.body))
    if isinstance(body, tirx.For) and (nest := _nest(body)):
        return _in_blocks(*nest)
    return _bound("blockIdx.x", 1, lambda _: _bound("threadIdx.x", 1, lambda _: _serial(body)))


def _nest(body: Any) -> tuple[list[tirx.For], Any] | None:
    """Return the loops over results around a block of TVM's operators, and the loops over what each of them adds up.

    None where it is no such nest.
    """
    around: list[tirx.For] = []
    while isinstance(body, tirx.For) and body.kind == tirx.ForKind.SERIAL:
        around.append(body)
        body = body.body
    if not around or not isinstance(body, s_tir.SBlockRealize) or not body.block.iter_vars:
        return None
    used: dict[int, set[Any]] = {}
    for axis, value in zip(body.block.iter_vars, body.iter_values, strict=True):
        used.setdefault(axis.iter_type, set()).update(variables(value))
    if not used.keys() <= {tirx.IterVar.DataPar, tirx.IterVar.CommReduce}:
        return None
    summed = [loop for loop in around if loop.loop_var in used.get(tirx.IterVar.CommReduce, ())]
    inner: Any = body
    for loop in reversed(summed):
        inner = tirx.For(loop.loop_var, loop.min, loop.extent, loop.kind, inner)
    return [loop for loop in around if loop not in summed], inner


def _in_blocks(around: list[tirx.For], body: Any) -> Any:
    """Return loops whose turns are threads, in blocks of ``THREADS``."""
    kind = str(around[0].loop_var.ty.dtype) if around else "int64"
    count = tirx.const(1, kind)
    for loop in around:
        count = count * loop.extent

    def turn(block: Any, thread: Any) -> Any:
        number = rest = block * tirx.const(THREADS, kind) + thread
        turns = {}
        for loop in reversed(around[1:]):
            turns[loop.loop_var], rest = loop.min + rest % loop.extent, rest // loop.extent
        turns.update({loop.loop_var: loop.min + rest for loop in around[:1]})
        return tirx.IfThenElse(number < count, substitute(body, turns.get), None)

    blocks = tirx.max((count + (THREADS - 1)) // THREADS, tirx.const(1, kind))  # a launch of none is an error

    def rows(block: Any) -> Any:
        return _bound("threadIdx.x", THREADS, lambda thread: turn(block, thread), kind)

    return _bound("blockIdx.x", blocks, rows, kind)


def _bound(tag: str, extent: Any, body: Any, kind: str = "int64") -> tirx.For:
    """Return a loop over ``extent`` blocks or threads, as ``tag`` says, around what ``body`` makes of its variable."""
    variable = tirx.Var(tag.replace(".", "_").lower(), kind)
    extent = tirx.const(extent, kind) if isinstance(extent, int) else extent
    axis = tirx.IterVar(None, tirx.Var(tag, kind), tirx.IterVar.ThreadIndex, tag)
    return tirx.For(variable, tirx.const(0, kind), extent, tirx.ForKind.THREAD_BINDING, body(variable), axis)


def _serial(body: Any) -> Any:
    """Return ``body`` without parallel loops and vectors."""

    def changed(loop: tirx.For, mutator: Any) -> tirx.For:
        inner = mutator.default_mutate(loop)
        if inner.kind not in (tirx.ForKind.PARALLEL, tirx.ForKind.VECTORIZED):
            return inner
        return tirx.For(inner.loop_var, inner.min, inner.extent, tirx.ForKind.SERIAL, inner.body)

    return tvm_ffi.structural_mutate(body, [(tirx.For, changed)])
