"""Which kernels a program always calls with what they take: those need not look at each call.

Types, axes and known extents are compared here. Extents that only a call knows are equal where they are in one slot;
a reader takes no other inputs than the program declares.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from itertools import chain
from typing import Any

import tvm
from tvm import tirx
from tvm.ir import GlobalVar, Var
from tvm.sym.analyzer import Analyzer
from tvm.tirx.buffer import BufferType

from forge_pipeline.codegen.program.encoding import Program
from forge_pipeline.codegen.program.operations import Argument, Call, Heap, Number, Tensor
from forge_pipeline.codegen.program.translation import SYMBOL
from forge_pipeline.codegen.tir.argument_checks import CALLER, NEEDLESS
from forge_pipeline.codegen.tir.rewriting import substitute


def unchecked(module: tvm.IRModule, program: Program, *, named: bool) -> tvm.IRModule:
    """Return the kernels that ``program`` calls, those that it always calls with what they take without checks of that.

    ``named``: the code has the digest of the program, without which nobody may call it then.
    """
    symbols = list(program.kernels)
    functions = {SYMBOL + variable.name_hint: (variable, kernel) for variable, kernel in module.functions_items()}
    calls: dict[str, list[Call]] = {symbol: [] for symbol in symbols}
    for call in chain.from_iterable(function.calls for function in program.functions):
        calls[symbols[call.kernel]].append(call)
    kernels: dict[GlobalVar, tirx.PrimFunc] = {}
    for symbol, own in calls.items():
        variable, kernel = functions[symbol]
        if all(fits(kernel, call) for call in own):
            kernel = kernel.with_attr(NEEDLESS, True)
        if named and not kernels:
            kernel = kernel.with_attr(CALLER, hashlib.sha256(program.to_bytes()).hexdigest())
        kernels[variable] = kernel
    return tvm.IRModule(kernels, attrs=module.attrs)


def fits(kernel: tirx.PrimFunc, call: Call) -> bool:
    """Whether ``call`` is known to give ``kernel`` tensors of the types and extents that it takes, and its numbers."""
    if len(kernel.params) != len(call.arguments):
        return False
    known: dict[Var, Number] = {}
    pairs: list[tuple[Any, Number | None]] = []
    for parameter, argument in zip(kernel.params, call.arguments, strict=True):
        if not isinstance(parameter.ty, BufferType):
            if isinstance(argument, Tensor | Heap):
                return False
            pairs.append((parameter, argument))
            continue
        taken, given = parameter.ty.shape, _extents(argument)
        if given is None or str(parameter.dtype) != _type(argument) or len(taken) != len(given):
            return False
        pairs += zip(taken, given, strict=True)
    for extent, number in pairs:
        if isinstance(extent, Var) and number is not None:
            known.setdefault(extent, number)
    return all(number is not None and _value(extent, known) == number for extent, number in pairs)


def _extents(argument: Argument) -> tuple[Number | None, ...] | None:
    if isinstance(argument, Heap):
        return (argument.size,)
    return argument.shape if isinstance(argument, Tensor) else None


def _type(argument: Argument) -> str:
    return argument.dtype if isinstance(argument, Tensor) else "int64"


def _value(extent: Any, known: Mapping[Var, Number]) -> Number | None:
    """Return what an extent is in a call, None where that is not known."""
    if isinstance(extent, tirx.IntImm | int):
        return int(extent)
    if isinstance(extent, Var):
        return known.get(extent)
    found = Analyzer().simplify(substitute(extent, lambda variable: _number(known.get(variable))))
    return int(found) if isinstance(found, tirx.IntImm | int) else None


def _number(known: Number | None) -> int | None:
    return known if isinstance(known, int) else None
