"""Tiles of sums that are held in registers need no memory: TVM would ask its runtime for a piece each time.

A small buffer of scope `local` is left to LLVM, which makes it variables, as many as the machine has registers for.
TVM has it otherwise allocated and freed by two calls around every tile or row of tiles, with its sums stored there.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import tvm_ffi
from tvm import DataType, tirx
from tvm.ir import Call, TensorLoad

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


def kept(function: Any, _module: Any, _context: Any) -> Any:
    """Return a kernel whose small buffers are left to LLVM; the others are asked for, and their bytes noted."""
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
    done = function.with_body(body)
    noted = _sizes.get()
    if noted is not None:
        noted.append(asked)
    return done


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
