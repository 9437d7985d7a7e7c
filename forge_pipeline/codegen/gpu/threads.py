"""Kernels with loops of their own, on a GPU: a row a thread, and what follows no row in a single one.

Their loops are written for a CPU's cores and vectors. TVM's schedules for GPUs leave them as they are, and would run
them on the host, which reads none of the GPU's memory. Correct, and as slow as one thread is: rows are short or many.
"""

from __future__ import annotations

from typing import Any

import tvm
import tvm_ffi
from tvm import s_tir, tirx

from forge_pipeline.codegen.tir.rewriting import loops, substitute

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
    if isinstance(body, s_tir.SBlockRealize) and not (body.block.iter_vars or body.block.alloc_buffers):
        block = body.block
        if isinstance(block.body, tirx.For | tirx.SeqStmt | s_tir.SBlockRealize):
            inner = s_tir.SBlock([], block.reads, block.writes, block.name_hint, _of(block.body))
            return s_tir.SBlockRealize([], True, inner)
    if isinstance(body, tirx.For) and body.kind == tirx.ForKind.PARALLEL:
        return _rows(body)
    return _bound("blockIdx.x", 1, lambda _: _bound("threadIdx.x", 1, lambda _: _serial(body)))


def _rows(loop: tirx.For) -> Any:
    """Return a parallel loop whose turns are threads, in blocks of ``THREADS``."""
    kind = str(loop.loop_var.ty.dtype)

    def row(block: Any, thread: Any) -> Any:
        number = block * tirx.const(THREADS, kind) + thread
        body = substitute(_serial(loop.body), lambda seen: loop.min + number if seen.same_as(loop.loop_var) else None)
        return tirx.IfThenElse(number < loop.extent, body, None)

    blocks = tirx.max((loop.extent + (THREADS - 1)) // THREADS, tirx.const(1, kind))  # a launch of none is an error

    def rows(block: Any) -> Any:
        return _bound("threadIdx.x", THREADS, lambda thread: row(block, thread), kind)

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
