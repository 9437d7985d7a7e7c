"""Tiles of sums that are held in registers need no memory: TVM would ask its runtime for a piece each time.

A small buffer of scope `local` is left to LLVM, which makes it variables, as many as the machine has registers for.
TVM has it otherwise allocated and freed by two calls around every tile or row of tiles, with its sums stored there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cache
from typing import Any

import tvm
import tvm_ffi
from tvm import DataType, tirx
from tvm.ir import Call, TensorLoad
from tvm.s_tir import transform as scheduled
from tvm.s_tir.pipeline import default_s_tir_pipeline
from tvm.tirx import transform as plain
from tvm.tirx.compilation_pipeline import PIPELINE_MAP

from forge_pipeline.codegen.tir import allocations, bfloat16_pairs, loop_guards, register_tiles, rewriting, scalar_loops
from forge_pipeline.codegen.tir.argument_checks import without_checks
from forge_pipeline.codegen.tir.divisions import towards_zero
from forge_pipeline.codegen.tir.math import nested_calls
from forge_pipeline.target import Target

PIPELINE = "forge"
"""The name of the pipeline from scheduled kernels to code: TVM's own, but for that."""

SCOPE = "local"
KEPT = "disable_lower_builtin"
"""TVM's annotation of an allocation that is no call."""

ALIGNMENT = 64
"""Of what the runtime gives."""

MOST_BYTES = 4096
"""The largest tile that is left to LLVM: twice what 32 registers of 64 bytes hold."""


_sizes: ContextVar[list[int] | None] = ContextVar("sizes", default=None)


@contextmanager
def workspaces() -> Iterator[list[int]]:
    """Note, for each kernel that becomes code meanwhile, the bytes that it asks its runtime for at most."""
    noted: list[int] = []
    token = _sizes.set(noted)
    try:
        yield noted
    finally:
        _sizes.reset(token)


@cache
def install() -> None:
    """Make the pipeline known to TVM, in this process, from now on."""
    PIPELINE_MAP[PIPELINE] = _pipeline


def build(module: tvm.IRModule, target: Target) -> Any:
    """Return the machine code of kernels alone."""
    install()
    return tvm.tirx.build(module, target=target.tvm(), pipeline=PIPELINE)


def _pipeline() -> tuple[Any, Callable[[], Any], Callable[[], Any]]:
    others, finalize_host, finalize_device = default_s_tir_pipeline()
    own = _functions(
        without_checks, bfloat16_pairs.with_instructions, scalar_loops.kept_scalar, towards_zero, nested_calls.in_steps,
        _keep, loop_guards.depending, _uncalled,
    )  # fmt: skip
    ours = _for_processors()

    def lower(module: tvm.IRModule, _context: Any) -> tvm.IRModule:
        is_bound = any(
            loop.kind == tirx.ForKind.THREAD_BINDING
            for function in module.functions.values()
            for loop in rewriting.loops(function.body)
        )
        return (others if is_bound else ours)(module)

    lowered = tvm.transform.module_pass(lower, opt_level=0, name="forge.lower")
    return lowered, lambda: tvm.transform.Sequential([*own, finalize_host()]), finalize_device


def _functions(*passes: Callable[[Any, Any, Any], Any]) -> list[Any]:
    return [tvm.tirx.transform.prim_func_pass(each, opt_level=0) for each in passes]


def _for_processors() -> Any:
    """Return TVM's passes from schedules to code, without those for GPUs and those that find nothing to do here."""
    return tvm.transform.Sequential([
        *_functions(register_tiles.taken, allocations.in_place),
        scheduled.CanonicalizeLoop(),
        scheduled.LowerInitBlock(),
        scheduled.PlanAndUpdateBufferAllocationLocation(),
        scheduled.ConvertBlocksToOpaque(),
        scheduled.CompactBufferAllocation(),
        *_functions(register_tiles.put),
        scheduled.LowerMatchBuffer(),
        scheduled.StmtSimplify(),
        scheduled.AnnotateIrregularLoop(),
        scheduled.LowerOpaqueBlock(),
        plain.FlattenBuffer(),
        plain.BF16ComputeLegalize(),
        plain.NarrowDataType(32),
        scheduled.LoopPartition(),
        plain.VectorizeLoop(True),
        plain.ConvertSSA(),  # blocks of clones share their variables
        plain.StorageRewrite(),
        plain.StmtSimplify(),  # of what loops were parted into
        plain.UnrollLoop(),
        scheduled.RenormalizeSplitPattern(),
        plain.StmtSimplify(),
        scheduled.RewriteUnsafeSelect(),
        plain.CommonSubexprElim(),
        plain.FP8ComputeLegalize(),
        plain.VerifyMemory(),
        plain.AnnotateEntryFunc(),
        plain.SplitHostDevice(),
        plain.MakePackedAPI(),
        plain.FP8StorageLegalize(),
        plain.BF16StorageLegalize(),
    ])  # fmt: skip


def _keep(function: Any, _module: Any, _context: Any) -> Any:
    asked, addressed = 0, _addressed(function.body)

    def keep(allocation: tirx.AllocBuffer, _mutator: Any) -> Any:
        nonlocal asked
        buffer = allocation.buffer
        if buffer.scope() != SCOPE or not 0 < _bytes(buffer) <= MOST_BYTES:
            asked += -(-_bytes(buffer) // ALIGNMENT) * ALIGNMENT
            return allocation
        notes = {**dict(allocation.annotations), KEPT: tirx.IntImm("bool", 1)}
        if not any(buffer.same_as(other) for other in addressed):
            return tirx.AllocBuffer(buffer, notes)
        room, start = _aligned(buffer)
        return tirx.SeqStmt([tirx.AllocBuffer(room, notes), tirx.DeclBuffer(buffer, data=start)])

    body = tvm_ffi.structural_mutate(function.body, [(tirx.AllocBuffer, keep), (tirx.Bind, _without_bounds)])
    kept = function.with_body(body)
    noted = _sizes.get()
    if noted is not None:
        noted.append(asked)
    return kept


def _uncalled(function: Any, _module: Any, _context: Any) -> Any:
    """Return a kernel that is alone in its module without what TVM marks such a one by: it would have a copy of it."""
    return function.without_attr("tirx.is_entry_func")


def _addressed(body: Any) -> list[Any]:
    """Return the buffers whose address an instruction is given, as those of AMX are."""
    found: list[Any] = []

    def note(call: Call) -> None:
        inner = call.args[0] if call.args else None
        if getattr(call.op, "name", "") == "tirx.address_of" and isinstance(inner, TensorLoad):
            found.append(inner.source)

    tvm_ffi.structural_walk(body, [(Call, note)])
    return found


def _aligned(buffer: Any) -> tuple[Any, Any]:
    """Return a buffer with room for one at a line of the cache, and where that begins: TVM aligns to 16 bytes."""
    item = DataType(str(buffer.dtype)).bits // 8
    room = tirx.decl_buffer((_bytes(buffer) // item + ALIGNMENT // item,), buffer.dtype, buffer.name, scope=SCOPE)
    at = tirx.reinterpret("int64", tirx.address_of(tirx.BufferLoad(room, [0])))
    place = (at + tirx.const(ALIGNMENT - 1, "int64")) & tirx.const(-ALIGNMENT, "int64")
    return room, tirx.call_intrin(buffer.data.ty, "tirx.reinterpret", place)


def _without_bounds(bind: tirx.Bind, _mutator: Any) -> tirx.Bind:
    """Return the name of a float so that TVM takes no bounds from it: it fails at those of a choice times a number.

    The value is reinterpreted as of its own type, for which LLVM has no instruction.
    """
    kind = str(bind.var.ty)
    return tirx.Bind(bind.var, tirx.call_intrin(kind, "tirx.reinterpret", bind.value)) if "float" in kind else bind


def _bytes(buffer: Any) -> int:
    """Return its size, 0 if that is symbolic."""
    kind = DataType(str(buffer.dtype))
    size: int = kind.bits * kind.lanes // 8
    for extent in buffer.shape:
        if not isinstance(extent, tirx.IntImm | int):
            return 0
        size *= int(extent)
    return size
