"""Functions of one byte, as tables of 256 bytes worked out when the model is built.

A quantized activation is a function of its integers, however many operators it is made of: x sigmoid(x) needs no
exponential at run time. Tables are looked up a vector at a time where an instruction looks up sixteen bytes.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from tvm import relax, tirx
from tvm.s_tir import Schedule
from tvm.script import tirx as T

from forge_pipeline.codegen.float32 import elementwise
from forge_pipeline.codegen.int8.ops.byte_functions import (
    BYTES,
    FUNCTIONS,
    ByteFunction,
    Lookup,
    byte_function_of,
    steps_of,
)
from forge_pipeline.codegen.layout.affine import LEVELS, Affine
from forge_pipeline.codegen.layout.builder import Array, Graph, Value, shape_of
from forge_pipeline.codegen.tir import primitives, script
from forge_pipeline.codegen.tir.machine import Machine

NAME = "int8_lookup_table"
ROW = 16
"""Bytes that one instruction looks up in."""

OPAQUE = 8
"""TVM's kOpaque: nothing is fused with it."""

X86_SHUFFLES = {16: "llvm.x86.ssse3.pshuf.b.128", 32: "llvm.x86.avx2.pshuf.b", 64: "llvm.x86.avx512.pshuf.b.512"}
SERIAL_BYTES = 1 << 17
"""Bytes below which waking another thread costs more than it saves."""


@dataclass(frozen=True, slots=True, kw_only=True)
class InFloat:
    """Emits an elementwise operator in float, for who reads its result so."""

    call: relax.Call

    def emit(self, graph: Graph) -> Value:
        """Emit it, in the form that its operand has."""
        handler = elementwise.HANDLERS.get(self.call.op.name)
        value = None if handler is None else handler(graph, self.call)
        return graph.unchanged(self.call) if value is None else value


@dataclass(frozen=True, slots=True, kw_only=True)
class LookedUp:
    """Emits the bytes that a table has for those of ``source``, in their form."""

    source: Value
    table: Array

    def emit(self, graph: Graph) -> Value:
        """Emit it."""
        in_blocks = graph.is_blocked(self.source)
        integers = self.source.blocked if in_blocks else graph.plain(self.source)
        result = emit(graph, integers, self.table)
        return Value(blocked=result, channels=self.source.channels) if in_blocks else Value(plain=result)


def function(graph: Graph, call: relax.Call) -> Value | None:
    """Follow an elementwise operator whose operands are all functions of the same bytes, or single numbers."""
    operands: list[Any] = []
    source: Value | None = None
    for argument in call.args:
        number = _number(graph, argument)
        if number is not None:
            operands.append(number)
            continue
        function = byte_function_of(graph.look(argument))
        if function is None or (source is not None and function.source is not source):
            return None
        if str(argument.ty.shape) != str(call.ty.shape):
            return None  # a number with more axes gives the result more
        source = function.source
        operands.append(function.values)
    if source is None:
        return None
    with np.errstate(all="ignore"):
        values = FUNCTIONS[call.op.name](call.attrs, *operands)
    return ByteFunction(source=source, values=np.broadcast_to(values, LEVELS + 1), deferred=InFloat(call=call))


def _number(graph: Graph, argument: relax.Expr) -> Any:
    """Return an operand that is one number, without axes; None if it is none."""
    if isinstance(argument, tirx.IntImm | tirx.FloatImm):
        return np.float32(argument.value)
    constant = graph.look(argument).constant
    return constant.reshape(()) if constant is not None and constant.size == 1 else None


def stored(function: ByteFunction, affine: Affine) -> Value | None:
    """Return a function's results as bytes; None where one is no number."""
    source, values = function.source, function.values
    if values.dtype != np.float32 or np.isnan(values).any():
        return None
    table = steps_of(values, affine)
    return source if np.array_equal(table, BYTES) else look_up(source, table)


def look_up(source: Value, table: Array) -> Lookup:
    """Return the bytes that ``table`` has for those of ``source``."""
    return Lookup(source=source, table=table, channels=source.channels, deferred=LookedUp(source=source, table=table))


def emit(graph: Graph, integers: relax.Expr, table: Array) -> relax.Expr:
    """Emit a table's bytes for a tensor of any form."""
    shape = shape_of(integers)
    size = math.prod(shape)
    flat = integers if len(shape) == 1 else graph.emit(relax.op.reshape(integers, (size,)))
    threads = 4 * graph.machine.cores if isinstance(size, int) and size >= SERIAL_BYTES else 1
    variable = graph.builder.add_func(_kernel(graph.machine, threads), "lookup_u8")
    kind = relax.TensorType((size,), "uint8")
    result = graph.emit(relax.call_tir(variable, [flat, graph.constant(table)], kind))
    return result if len(shape) == 1 else graph.emit(relax.op.reshape(result, shape))


def _kernel(machine: Machine, threads: int) -> Any:
    """Return ``(bytes, table) -> bytes`` for tensors of one axis, in as many parts as ``threads`` says."""
    by_vectors = LOOKUPS.get(machine.arch)
    width = 1 if by_vectors is None else min(64, max(ROW, 4 * machine.lanes))
    look = _by_element if by_vectors is None else partial(by_vectors, width=width)

    def first(part: Any, count: Any) -> Any:
        return count // width * part // threads

    @script.prim_func(s_tir=True, private=True)
    def lookup(a: T.handle, t: T.handle, b: T.handle):  # type: ignore[no-untyped-def]
        T.func_attr({"tirx.noalias": True, "op_pattern": OPAQUE})
        count = T.int64()
        source = T.match_buffer(a, (count,), "uint8")
        table = T.match_buffer(t, (LEVELS + 1,), "uint8")
        result = T.match_buffer(b, (count,), "uint8")
        for part in T.parallel(threads):
            with T.sblock("lookup"):
                T.sblock_attr({primitives.FAMILY: NAME})
                p = T.axis.opaque(threads, part)
                T.reads()
                T.writes()
                for vector in T.serial(first(p + 1, count) - first(p, count)):
                    result.vstore(
                        [(first(p, count) + vector) * width],
                        look(source.vload([(first(p, count) + vector) * width], f"uint8x{width}"), table),
                    )
        for byte in T.serial(count % width):
            with T.sblock("rest"):
                v = T.axis.opaque(count % width, byte)
                T.reads()
                T.writes()
                result[count // width * width + v] = table[source[count // width * width + v].astype("int32")]

    return lookup


def _by_shuffles(bytes_: Any, table: Any, width: int) -> Any:
    """Look up a row of 16 at a time; a shuffle gives zero for a byte with its highest bit, which a sum sets that
    saturates for bytes of other rows."""
    kind = f"uint8x{width}"
    variable, total = tirx.Var("bytes", kind), None
    for first in range(0, LEVELS + 1, ROW):
        row = table.vload([first], f"uint8x{ROW}")
        rows = tirx.Shuffle([row] * (width // ROW), list(range(width))) if width > ROW else row
        own = variable - tirx.const(first, kind) if first else variable
        place = tirx.call_llvm_pure_intrin(kind, "llvm.uadd.sat", own, tirx.const(128 - ROW, kind))
        found = tirx.call_llvm_pure_intrin(kind, X86_SHUFFLES[width], rows, place)
        total = found if total is None else total | found
    return tirx.Let(variable, bytes_, total)


def _by_tbl(bytes_: Any, table: Any, width: int) -> Any:
    """Look up four rows at a time; a byte that is in none of them gives zero."""
    kind = f"uint8x{width}"
    variable, total = tirx.Var("bytes", kind), None
    for first in range(0, LEVELS + 1, 4 * ROW):
        rows = [table.vload([first + ROW * index], kind) for index in range(4)]
        own = variable - tirx.const(first, kind) if first else variable
        found = tirx.call_llvm_pure_intrin(kind, "llvm.aarch64.neon.tbl4", *rows, own)
        total = found if total is None else total | found
    return tirx.Let(variable, bytes_, total)


def _by_element(byte: Any, table: Any) -> Any:
    return table.vload([byte.astype("int32")], "uint8")


LOOKUPS = {"x86_64": _by_shuffles, "aarch64": _by_tbl, "arm64": _by_tbl}
"""How a vector of bytes is looked up, by the architecture; elsewhere one byte after the other."""


def schedule(sch: Schedule, machine: Machine) -> None:
    """Leave the kernel as it is written."""


HANDLERS = dict.fromkeys(FUNCTIONS, function)
