"""Products of bfloat16, two at a time, added to a sum in float32: `vdpbf16ps` of AVX-512 BF16, `bfdot` of AArch64.

Two numbers, rounded to bfloat16, are a pair in an int32, so a kernel of pairs has the loops of one of floats. Which two
make a pair does not matter to a sum as long as both operands agree: number k and the one half of a row behind it, since
these are read in whole vectors. TVM knows neither operator, and its code generator has no vectors of bfloat16; so both
operators stay as they are until the last pass before machine code, which calls functions in LLVM's language for them.

Sources: Intel 64 and IA-32 Architectures Software Developer's Manual, volume 2, VDPBF16PS and VCVTNEPS2BF16; Arm
Architecture Reference Manual for A-profile, BFDOT, BFCVTN.
"""

from __future__ import annotations

from typing import Any, Final

import ml_dtypes
import numpy as np
import tvm
import tvm_ffi
from tvm import DataType, tirx
from tvm.ir import Call, StringImm
from tvm.ir import _ffi_api as operators

PAIR: Final = "tirx.forge_pair_bfloat16"
DOT: Final = "tirx.forge_dot_bfloat16"
ROUND: Final = "tirx.forge_round_bfloat16"
WIDEN: Final = "tirx.forge_widen_bfloat16"
JOIN: Final = "tirx.forge_join_bfloat16"

PURE = 1
"""TVM's kind of a call that only computes."""

DOTS: Final = {
    ("x86_64", 4): "llvm.x86.avx512bf16.dpbf16ps.128",
    ("x86_64", 8): "llvm.x86.avx512bf16.dpbf16ps.256",
    ("x86_64", 16): "llvm.x86.avx512bf16.dpbf16ps.512",
    ("aarch64", 4): "llvm.aarch64.neon.bfdot.v4f32.v8bf16",
}
"""What LLVM calls the instruction, by how many sums a vector has."""


def register(name: str) -> None:
    """Make an operator of TVM that only computes, of numbers or of vectors; its name begins with `tirx.`."""
    operators.RegisterOp(name, "of bfloat16")
    for key, value in (("TVectorizable", True), ("TCallEffectKind", PURE), ("TScriptPrinterName", name[5:])):
        operators.RegisterOpAttr(name, key, value, 10)


for _name in (PAIR, DOT, ROUND, WIDEN, JOIN):
    register(_name)


def pair(low: Any, high: Any) -> Any:
    """Describe the int32 that holds two floats, rounded to the nearest bfloat16."""
    return tirx.call_intrin("int32", PAIR, low, high)


def rounded(number: Any) -> Any:
    """Describe the bits (uint16) of a float, rounded to the nearest bfloat16."""
    return tirx.call_intrin("uint16", ROUND, number)


def widened(bits: Any) -> Any:
    """Describe the float whose bfloat16 has these bits."""
    return tirx.call_intrin("float32", WIDEN, bits)


def joined(low: Any, high: Any) -> Any:
    """Describe the pair of two numbers whose bits these are; of neighbours in memory, one load."""
    return tirx.call_intrin("int32", JOIN, low, high)


def dot(left: Any, right: Any) -> Any:
    """Describe the sum of both products of two pairs, in float32, as a term of a sum."""
    return tirx.call_intrin("float32", DOT, left, right)


def paired(low: np.ndarray[Any, Any], high: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Return the pairs of two arrays of floats."""
    low, high = (half.astype(ml_dtypes.bfloat16).view(np.uint16).astype(np.uint32) for half in (low, high))
    pairs: np.ndarray[Any, Any] = (low | high << np.uint32(16)).view(np.int32)
    return pairs


def with_instructions(function: Any, _module: Any, _context: Any) -> Any:
    """Return a kernel, ready for LLVM but for the two operators, with functions in their place."""
    bodies: dict[str, str] = {}
    arch = str(function.attrs["target"].attrs["mtriple"]).split("-", 1)[0]

    def called(name: str, kind: Any, body: str, arguments: list[Any]) -> Any:
        lanes = DataType(str(kind)).lanes
        symbol = f"forge_{name}_{lanes}"
        bodies[symbol] = _function(symbol, body, lanes, DOTS.get((arch, lanes), ""))
        return tirx.call_pure_extern(str(kind), symbol, *arguments)

    def add(sum_: tirx.Add) -> Any:
        for total, term in ((sum_.a, sum_.b), (sum_.b, sum_.a)):
            if _is(term, DOT):
                body = _DOT if (arch, DataType(str(sum_.ty.dtype)).lanes) in DOTS else _DOT_OF_ANY
                return called("dot_bfloat16", sum_.ty.dtype, body, [total, *term.args])
        return sum_

    def rest(call: Call) -> Any:
        for operator, (name, body) in _FUNCTIONS.items():
            if _is(call, operator):
                return called(name, call.ty.dtype, body, list(call.args))
        if _is(call, DOT):  # the only term: nothing is added to it
            return add(tirx.Add(tirx.const(0.0, str(call.ty.dtype)), call))
        return call

    body = tvm_ffi.structural_map(function.body, [(tirx.Add, add)])
    body = tvm_ffi.structural_map(body, [(Call, rest)])
    for symbol in sorted(bodies):
        body = tirx.AttrStmt(tirx.const(0), "pragma_import_llvm", StringImm(bodies[symbol]), body)
    return function.with_body(body) if bodies else function


def _is(expression: Any, name: str) -> bool:
    return isinstance(expression, Call) and bool(expression.op.same_as(tvm.ir.Op.get(name)))


def _function(symbol: str, body: str, lanes: int, dot: str) -> str:
    """Return a function in LLVM's language whose types are vectors of ``lanes``; one is no vector."""
    names = {"symbol": symbol, "lanes": lanes, "twice": 2 * lanes, "dot": dot}
    for kind, item in (("F", "float"), ("I", "i32"), ("H", "i16"), ("B", "bfloat")):
        names[kind] = f"<{lanes} x {item}>" if lanes > 1 else item
    for key, value in (("shift", "16"), ("mask", "-65536")):
        names[key] = f"<{', '.join([f'i32 {value}'] * lanes)}>" if lanes > 1 else value
    return body.format(**names)


_PAIR = """
define internal {I} @{symbol}({F} %low, {F} %high) alwaysinline nounwind {{
  %a = fptrunc {F} %low to {B}
  %b = fptrunc {F} %high to {B}
  %c = bitcast {B} %a to {H}
  %d = bitcast {B} %b to {H}
  %e = zext {H} %c to {I}
  %f = zext {H} %d to {I}
  %g = shl {I} %f, {shift}
  %h = or {I} %e, %g
  ret {I} %h
}}
"""
_ROUND = """
define internal {H} @{symbol}({F} %number) alwaysinline nounwind {{
  %a = fptrunc {F} %number to {B}
  %b = bitcast {B} %a to {H}
  ret {H} %b
}}
"""
_WIDEN = """
define internal {F} @{symbol}({H} %bits) alwaysinline nounwind {{
  %a = zext {H} %bits to {I}
  %b = shl {I} %a, {shift}
  %c = bitcast {I} %b to {F}
  ret {F} %c
}}
"""
_JOIN = """
define internal {I} @{symbol}({H} %low, {H} %high) alwaysinline nounwind {{
  %a = zext {H} %low to {I}
  %b = zext {H} %high to {I}
  %c = shl {I} %b, {shift}
  %d = or {I} %a, %c
  ret {I} %d
}}
"""
_FUNCTIONS: Final = {
    PAIR: ("pair_bfloat16", _PAIR),
    ROUND: ("round_bfloat16", _ROUND),
    WIDEN: ("widen_bfloat16", _WIDEN),
    JOIN: ("join_bfloat16", _JOIN),
}
_DOT = """
define internal {F} @{symbol}({F} %sums, {I} %left, {I} %right) alwaysinline nounwind {{
  %a = bitcast {I} %left to <{twice} x bfloat>
  %b = bitcast {I} %right to <{twice} x bfloat>
  %c = call {F} @{dot}({F} %sums, <{twice} x bfloat> %a, <{twice} x bfloat> %b)
  ret {F} %c
}}
declare {F} @{dot}({F}, <{twice} x bfloat>, <{twice} x bfloat>)
"""
_DOT_OF_ANY = """
define internal {F} @{symbol}({F} %sums, {I} %left, {I} %right) alwaysinline nounwind {{
  %a = shl {I} %left, {shift}
  %b = shl {I} %right, {shift}
  %c = bitcast {I} %a to {F}
  %d = bitcast {I} %b to {F}
  %e = fmul {F} %c, %d
  %f = and {I} %left, {mask}
  %g = and {I} %right, {mask}
  %h = bitcast {I} %f to {F}
  %i = bitcast {I} %g to {F}
  %j = fmul {F} %h, %i
  %k = fadd {F} %e, %j
  %l = fadd {F} %sums, %k
  ret {F} %l
}}
"""
