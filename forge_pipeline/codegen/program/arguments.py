"""Which kernels a program always calls with what they take: those need not look at each call.

Types, axes and known extents are compared here. Extents that only a call knows are equal where they are in one slot,
or where the shape function computes the slot as the kernel's extent follows from its others. A reader takes no other
inputs than the program declares.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import tvm
import tvm_ffi
from tvm import tirx
from tvm.ir import GlobalVar, TensorLoad, Var
from tvm.sym.analyzer import Analyzer
from tvm.tirx.buffer import BufferType

from forge_pipeline.codegen.program.encoding import Program
from forge_pipeline.codegen.program.operations import Argument, Call, Heap, Number, Tensor
from forge_pipeline.codegen.program.translation import SYMBOL
from forge_pipeline.codegen.tir.lowering.argument_checks import CALLER, NEEDLESS
from forge_pipeline.codegen.tir.rewriting import substitute
from forge_runtime.interface import SMALL


def marked(module: tvm.IRModule, program: Program, *, named: bool) -> tvm.IRModule:
    """Return ``module``, the kernels that ``program`` calls, marked where it always gives them what they take.

    ``named``: the code gets the digest of the program, as nothing else may call it then. It is with a kernel that does
    nothing, and that nothing calls: the others are the same for every program.
    """
    variables = {SYMBOL + variable.name_hint: variable for variable in module.functions}
    called = [variables[symbol] for symbol in program.kernels]
    needing: set[GlobalVar] = set()
    for function in program.functions:
        calls = [(called[call.kernel], call) for call in function.calls]
        sizes = Sizes.of([module[variable] for variable, call in calls if _is_of_sizes(call)])
        needing |= {variable for variable, call in calls if not fits(module[variable], call, sizes)}
    kernels = {
        variable: kernel if variable in needing else kernel.with_attr(NEEDLESS, True)
        for variable, kernel in module.functions_items()
    }
    if named and called:
        digest = hashlib.sha256(program.to_bytes()).hexdigest()
        kernels[GlobalVar(CALLER)] = tirx.PrimFunc([], tirx.Evaluate(0)).with_attr(CALLER, digest)
    return tvm.IRModule(kernels, attrs=module.attrs)


@dataclass(frozen=True, slots=True)
class Sizes:
    """What the slots of a function hold: ``computed`` are those that its shape functions fill, from others."""

    given: dict[int, Var] = field(default_factory=dict)
    computed: dict[int, Any] = field(default_factory=dict)

    @classmethod
    def of(cls, shape_functions: Sequence[tirx.PrimFunc]) -> Sizes:
        """Return what is known once these have run; each of their stores fills a slot of its own (``shape_func``)."""
        sizes = cls()
        for function in shape_functions:
            stores = function.body.seq if isinstance(function.body, tirx.SeqStmt) else [function.body]
            for store in stores:
                if isinstance(store, tirx.BufferStore):
                    value = tvm_ffi.structural_map(store.value, [(TensorLoad, sizes._read)])
                    sizes.computed[int(store.indices[0])] = value
        return sizes

    def of_number(self, number: Number) -> Any:
        """Return a number of the program as an expression."""
        return tirx.const(number, "int64") if isinstance(number, int) else self._slot(number.index)

    def _read(self, load: TensorLoad) -> Any:
        return self._slot(int(load.indices[0]))

    def _slot(self, index: int) -> Any:
        known = self.computed.get(index)
        return self.given.setdefault(index, Var(f"s{index}", "int64")) if known is None else known


def fits(kernel: tirx.PrimFunc, call: Call, sizes: Sizes | None = None) -> bool:
    """Whether ``call`` is known to give ``kernel`` tensors of the types and extents that it takes, and its numbers.

    ``sizes`` are what slots hold, as far as the function that calls knows.
    """
    if len(kernel.params) != len(call.arguments):
        return False
    sizes = sizes or Sizes()
    pairs: list[tuple[Any, Any]] = []
    for parameter, argument in zip(kernel.params, call.arguments, strict=True):
        if not isinstance(parameter.ty, BufferType):
            if isinstance(argument, Tensor | Heap) or str(parameter.ty.dtype) != "int64":
                return False
            pairs.append((parameter, sizes.of_number(argument)))
            continue
        taken, given = parameter.ty.shape, _extents(argument)
        if given is None or str(parameter.dtype) != _type(argument) or len(taken) != len(given):
            return False
        if parameter.ty.strides:
            return False
        pairs += ((extent, sizes.of_number(number)) for extent, number in zip(taken, given, strict=True))
    known: dict[Var, Any] = {}
    for extent, size in pairs:
        if isinstance(extent, Var):
            known.setdefault(extent, size)
    return all(_are_equal(extent, size, known) for extent, size in pairs)


def _are_equal(extent: Any, size: Any, known: Mapping[Var, Any]) -> bool:
    if isinstance(extent, tirx.IntImm) and isinstance(size, tirx.IntImm):
        return int(extent) == int(size)
    found = known.get(extent) if isinstance(extent, Var) else substitute(extent, known.get)
    if found is None or found.ty.dtype != size.ty.dtype:
        return False
    difference = Analyzer().simplify(found - size)
    return isinstance(difference, tirx.IntImm) and int(difference) == 0


def _is_of_sizes(call: Call) -> bool:
    """Whether it is one of a shape function."""
    return len(call.arguments) == 1 and isinstance(call.arguments[0], Heap)


def _extents(argument: Argument) -> tuple[Number, ...] | None:
    """Return the extents of a tensor; None where not all are told, and for a number."""
    if isinstance(argument, Heap):
        return (argument.size,)
    if not isinstance(argument, Tensor):
        return None
    told = tuple(extent for extent in argument.shape if extent is not None)
    return told if len(told) == len(argument.shape) else None


def _type(argument: Argument) -> str:
    """Return the type as kernels have it: bytes, where it is one of the small types."""
    kind = argument.dtype if isinstance(argument, Tensor) else "int64"
    return "uint8" if kind in SMALL else kind
