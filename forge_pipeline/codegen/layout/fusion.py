"""Where TVM's fusion is told to stop: for the sake of memory, and of an expression's size.

TVM gives an elementwise operator on the results of two kernels to the first of them; the other's result waits in
memory. In a residual block with a projection that would be floats, waiting for bytes: the kernel whose result would be
larger in memory goes on instead.

The few results of a product that scale a whole image, as those of a squeeze-and-excitation block do, would be computed
in the loops over the image: what spreads them is a kernel of its own.

Elementwise operators in a row become one expression. Where each names its operand twice, or is a function that is
written out (`tir.vector_math`), the expression that TVM simplifies doubles with each of them, or is forty times as
large: eight sigmoids in a row were not done in a minute. A chain is cut before that.
"""

from __future__ import annotations

from collections import Counter
from math import prod
from typing import Any

import tvm
import tvm_ffi
from tvm import relax, tirx
from tvm.ir import Call, GlobalVar, TensorLoad
from tvm.sym.analyzer import Analyzer

from forge_pipeline.codegen.tir import rewriting

PATTERN, BROADCAST, INJECTIVE, FUSABLE_OUTPUT, OPAQUE = "op_pattern", 1, 2, 4, 8
"""TVM's attribute of a kernel that says what may be fused with it, and its values kBroadcast (up to it, elements are
computed by themselves), kInjective (each is one of the operand's, at another place), kOutEWiseFusable (elementwise
operators are fused into what computes their operand) and kOpaque (nothing is)."""

ALONE = "_alone"
"""The end of the name of a kernel that only stores its result, where another one like it may go on."""

TENSORS = 2
"""Arguments of a call of a kernel without extents: the kernel, and what it reads."""

PARTED = "_parted"
"""The end of the name of a kernel that spreads what another one computes."""

WRITTEN_OUT = {
    **{f"tirx.{name}": 40 for name in ("exp", "log", "tanh", "erf", "sigmoid")},
    **{f"tirx.{name}": 100 for name in ("sin", "cos", "pow", "fmod")},
}
"""Functions that are written out, and how often each names its operand, about."""

MOST_NAMED = 2000
"""How often the expression of a fused kernel may name an element that it reads: two functions as exp in a row."""


def know_other_sizes(module: tvm.IRModule, *, smaller: bool = False) -> tvm.IRModule:
    """Return ``module`` in which no kernel counts as elementwise whose result goes on where its operand ends.

    One that puts something behind an axis reads each element at the place where it writes it, which is all that TVM
    looks at; fused into the kernel that computes the operand, it would have only the loops over that. ``smaller``:
    nor one that takes what is in front, which TVM's schedules for a GPU write beyond its end.
    """
    others = {
        variable: function.with_attr(PATTERN, INJECTIVE)
        for variable, function in module.functions_items()
        if int((getattr(function, "attrs", None) or {}).get(PATTERN, OPAQUE)) <= BROADCAST
        and _has_other_sizes(function, smaller=smaller)
    }
    return rewriting.with_functions(module, others)


def _has_other_sizes(function: tirx.PrimFunc, *, smaller: bool) -> bool:
    """Return whether an axis of a result is longer than that of an operand which is read along it, or ``smaller``."""
    analyzer = Analyzer()
    for realize in rewriting.realizes(function.body):
        extents = {axis.var: axis.dom.extent for axis in realize.block.iter_vars}
        loads = rewriting.loads(realize.block.body)
        for load in loads:
            for index, extent in zip(load.indices, load.source.ty.shape, strict=True):
                if isinstance(index, tirx.Var) and index in extents:
                    own = extents[index]
                    if not (analyzer.can_prove_equal(own, extent) if smaller else analyzer.can_prove(own <= extent)):
                        return True
    return False


def close_open_kernels(module: tvm.IRModule) -> tvm.IRModule:
    """Return ``module`` in which nothing is fused with a kernel that has an extent that none of its operands has.

    TVM tells the variables of kernels that it fuses by their operands alone, and what else is given to one must be a
    variable.
    """
    closed = {}
    for block in module["main"].body.blocks:
        for binding in block.bindings:
            if _kernel(binding.value) is not None:
                variable, operands = binding.value.args[0], len(binding.value.args[1].fields)
                sizes = (size for shape in binding.value.args[2:] for size in getattr(shape, "values", ()))
                is_computed = not all(isinstance(size, tirx.Var) for size in sizes)
                if variable not in closed and (is_computed or _is_open(module[variable], operands)):
                    closed[variable] = module[variable].with_attr(PATTERN, OPAQUE)
    return rewriting.with_functions(module, closed)


def _is_open(function: tirx.PrimFunc, operands: int) -> bool:
    """Return whether a kernel has results with extents that none of its first ``operands`` has, or is."""

    def variables(parameter: Any) -> set[Any]:
        extents = parameter.ty.shape if hasattr(parameter.ty, "shape") else [parameter]
        return {variable for extent in extents for variable in rewriting.variables(extent)}

    given, results = function.params[:operands], function.params[operands:]
    known, own = (set[Any]().union(*map(variables, parameters)) for parameters in (given, results))
    return not own <= known


def grouped(module: tvm.IRModule) -> tvm.IRModule:
    """Return ``module`` with kernels in groups, each of which becomes one.

    No group is given extents by themselves, those that no tensor of it has as an axis (where axes are computed from
    them): TVM refuses such groups ("All shape inputs are expected to be single tirx var"). What takes such an extent is
    left alone, or what reads an axis that is computed from it, and the others are grouped again.
    """
    while True:
        made = relax.transform.FuseOps()(module)
        groups = [function for variable, function in made.functions_items() if variable.name_hint != "main"]
        taking = {name for group in groups if _is_given_extents(group) for name in _taking(group)}
        closed = {
            variable: function.with_attr(PATTERN, OPAQUE)
            for variable, function in module.functions_items()
            if variable.name_hint in taking and int((function.attrs or {}).get(PATTERN, OPAQUE)) != OPAQUE
        }
        if not closed:
            return made
        module = rewriting.with_functions(module, closed)


def _is_given_extents(function: Any) -> bool:
    """Return whether a function of kernels has a parameter that is no tensor, but extents."""
    return isinstance(function, relax.Function) and any(
        isinstance(parameter.ty, relax.ShapeType) for parameter in function.params
    )


def _taking(group: relax.Function) -> set[str]:
    """Return the kernels of a group that are given extents, or else those that read axes which are computed."""
    bindings = (binding for block in group.body.blocks for binding in block.bindings)
    calls = [binding.value for binding in bindings if _kernel(binding.value) is not None]
    given = [call for call in calls if len(call.args) > TENSORS or not all(map(_is_tensor, call.args[1].fields))]
    computed = [call for call in calls if any(map(_has_computed_axis, call.args[1].fields))]
    return {str(call.args[0].name_hint) for call in given or computed}


def _has_computed_axis(operand: Any) -> bool:
    extents = operand.ty.shape.values if isinstance(operand.ty, relax.TensorType) else []
    return any(not isinstance(extent, tirx.Var | tirx.IntImm) for extent in extents)


def _is_tensor(operand: Any) -> bool:
    return isinstance(operand.ty, relax.TensorType | relax.TupleType)


def part_broadcasts(module: tvm.IRModule) -> tvm.IRModule:
    """Return ``module``, where a kernel that spreads sums over a larger result is not fused with what computes them.

    One that alone reads other sums, as many as it gives, goes on with those where nothing keeps them in memory: a
    reader that cannot be fused. ``module`` is a sequence of calls of kernels whose patterns of fusion are known.
    """
    patterns = {
        variable.name_hint: int((function.attrs or {}).get(PATTERN, OPAQUE))
        for variable, function in module.functions_items()
        if variable.name_hint != "main"
    }
    bindings = [binding for block in module["main"].body.blocks for binding in block.bindings]
    uses = Counter(variable for binding in bindings for variable in _reads(binding.value))
    by_element = {
        binding.var for binding in bindings if patterns.get(_kernel(binding.value) or "", OPAQUE) <= BROADCAST
    }
    kept = {variable for binding in bindings if binding.var not in by_element for variable in _reads(binding.value)}
    sums, parted, stored = set[Any](), set[Any](), set[Any]()
    for binding in bindings:
        read = sums.intersection(_reads(binding.value)) if binding.var in by_element else set()
        spread = {variable for variable in read if _spreads(variable, binding.var)}
        if spread and not any(uses[variable] == 1 and variable not in stored for variable in read - spread):
            parted.add(binding.var)
        elif read or patterns.get(_kernel(binding.value) or "", OPAQUE) == FUSABLE_OUTPUT:
            sums.add(binding.var)
            if read and all(variable in kept or variable in stored for variable in read):
                stored.add(binding.var)
    return _with_pattern(module, parted, FUSABLE_OUTPUT, PARTED)


def _spreads(operand: Any, result: Any) -> bool:
    """Return whether a result has many elements where its operand has one."""

    def extents(variable: Any) -> list[int | None]:
        return [int(item) if isinstance(item, tirx.IntImm) else None for item in variable.ty.shape.values]

    own, result_own = extents(operand), extents(result)
    if len(own) != len(result_own):
        return len(own) < len(result_own)
    return any(a == 1 != b for a, b in zip(own, result_own, strict=True))


def cut_chains(module: tvm.IRModule) -> tvm.IRModule:
    """Return ``module``, where a kernel stores its result if the kernels fused with it would name it too often.

    ``module`` is a sequence of calls of kernels whose patterns of fusion are known.
    """
    times = {
        variable.name_hint: _times_named(function)
        for variable, function in module.functions_items()
        if isinstance(function, tirx.PrimFunc) and int((function.attrs or {}).get(PATTERN, OPAQUE)) < FUSABLE_OUTPUT
    }
    named: dict[Any, int] = {}
    stored = set()
    for block in module["main"].body.blocks:
        for binding in block.bindings:
            factor = times.get(_kernel(binding.value) or "")
            if factor is None:
                continue
            named[binding.var] = factor * sum(named.get(variable, 1) for variable in _reads(binding.value))
            if named[binding.var] > MOST_NAMED:
                stored.add(binding.var)
                del named[binding.var]
    return _stored(module, stored)


def _times_named(function: Any) -> int:
    """Return how often one element of the operand that a kernel reads most is named, once all of it is written out."""
    reads: list[Any] = []
    calls: list[Any] = []
    tvm_ffi.structural_walk(function.body, [(TensorLoad, reads.append), (Call, calls.append)])
    most = max(Counter(read.source.name for read in reads).values(), default=1)
    return int(most * prod(WRITTEN_OUT.get(getattr(call.op, "name", ""), 1) for call in calls))


def store_bytes(module: tvm.IRModule, anchors: frozenset[str]) -> tvm.IRModule:
    """Return ``module``, where a kernel stores the bytes that it computes if their reader also reads another's floats.

    ``anchors`` names the kernels that elementwise operators are fused into. Results with several readers are stored in
    any case.
    """
    main = module["main"]
    bindings = [binding for block in main.body.blocks for binding in block.bindings]
    reads = {binding.var: _reads(binding.value) for binding in bindings}
    uses = Counter(variable for variables in reads.values() for variable in variables)
    made = {binding.var for binding in bindings if _kernel(binding.value) in anchors}
    stored: set[Any] = set()
    for reader, variables in reads.items():
        kinds = {variable: str(variable.ty.dtype) for variable in variables if variable in made and uses[variable] == 1}
        if reader not in made and "float32" in kinds.values():
            stored |= {variable for variable, kind in kinds.items() if kind == "uint8"}
    return _stored(module, stored)


def _stored(module: tvm.IRModule, stored: set[Any]) -> tvm.IRModule:
    """Return ``module``, where the kernels that compute the variables ``stored`` are fused with nothing."""
    return _with_pattern(module, stored, OPAQUE, ALONE)


def _with_pattern(module: tvm.IRModule, chosen: set[Any], pattern: int, suffix: str) -> tvm.IRModule:
    """Return ``module``, where the kernels of ``chosen`` variables have another pattern of fusion, and another name."""
    if not chosen:
        return module
    main, builder = module["main"], relax.BlockBuilder(module)

    def renamed(binding: relax.Binding) -> relax.Binding:
        if binding.var not in chosen:
            return binding
        call = binding.value
        kernel = call.args[0]
        other = builder.add_func(module[kernel].with_attr(PATTERN, pattern), f"{kernel.name_hint}{suffix}")
        return relax.VarBinding(binding.var, relax.Call(call.op, [other, *call.args[1:]], call.attrs, call.ty_args))

    blocks = [type(block)([renamed(binding) for binding in block.bindings]) for block in main.body.blocks]
    body = relax.SeqExpr(blocks, main.body.body)
    changed = relax.Function(main.params, body, main.ret_ty, main.is_pure).with_attrs(dict(main.attrs or {}))
    builder.update_func(module.get_global_var("main"), changed)
    return relax.transform.Normalize()(builder.finalize())  # calls have their types again


def _kernel(value: relax.Expr) -> str | None:
    """Return the name of the kernel that a binding calls."""
    called = value.args[0] if isinstance(value, Call) and value.args else None
    return str(called.name_hint) if isinstance(called, GlobalVar) else None


def _reads(value: relax.Expr) -> list[Any]:
    """Return the values that a binding reads, each as often as it does; extents are variables too, and left out."""
    found: list[Any] = []

    def look(item: Any) -> None:
        if isinstance(item, relax.Var) and isinstance(item.ty, relax.TensorType | relax.TupleType):
            found.append(item)

    relax.analysis.post_order_visit(value, look)
    return found
