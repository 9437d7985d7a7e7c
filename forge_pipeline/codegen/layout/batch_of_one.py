"""An entry for the batch that is asked for most, one, beside each other: its extents are numbers, so its memory is
planned, its tiles fit, and no shape is computed at run time.

Where extents stay open all the same, since height and width or the length of a sequence are open too, there is no such
entry: its kernels would be those for any batch once more.

All entries take the same weights. What they pack alike is stored once (``weights``).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from math import prod
from typing import Any

import tvm
from tvm import relax, tirx

from forge_pipeline.codegen.layout.origins import Calls
from forge_pipeline.codegen.onnx_import.extents import PARAMETER, Sizes, fixed
from forge_runtime.entries import MAIN

SUFFIX = "_of_one"
"""What the name of a function for a batch of one, and of a kernel that it alone calls, ends in."""

LEAST_KNOWN = 0.1
"""How much of the work in open shapes has to be in known shapes where the batch is one."""
TYPICAL = 64
"""What an open extent counts as there: rows of an image, or words of a sentence."""


def batch_of_one(
    module: tvm.IRModule, extents: Sizes | None
) -> tuple[tvm.IRModule, Sizes | None, dict[str, int]] | None:
    """Return ``module`` and its computed ``extents`` with the first axis of every input fixed to one where it is
    symbolic, and these axes' names.

    An axis that is computed from others follows them. None where there is no axis to fix, where it cannot be one, and
    where shapes stay open all the same.
    """
    computed = {name for name, _ in extents or ()}
    first = {}
    for parameter in module["main"].params:
        shape = getattr(parameter.ty, "shape", None)
        axes = list(shape.values or ()) if shape is not None else []
        is_given = axes and isinstance(axes[0], tirx.Var) and axes[0].name not in computed
        if is_given and parameter.name != PARAMETER:
            first[axes[0]] = 1
    if not first or _is_claimed_to_be_a_number(module, first):
        return None
    names = {str(variable.name): 1 for variable in first}
    try:
        single, left = (
            (relax.transform.BindSymbolicVars(first)(module), None)
            if extents is None
            else fixed(module, extents, names)
        )
    except (ValueError, RuntimeError):  # of shapes that do not go together: the axis is no batch, and is never one
        return None
    return (single, left, names) if _is_worth_it(module, single) else None


def _is_worth_it(module: tvm.IRModule, single: tvm.IRModule) -> bool:
    """Return whether enough of what is open in ``module`` is known in ``single``."""
    _, known_before = _work(module)
    still_open, known = _work(single)
    found = known - known_before
    return found >= LEAST_KNOWN * (found + still_open)


def _work(module: tvm.IRModule) -> tuple[int, int]:
    """Return how many elements the calls in `main` read and write, those with an open extent and the others."""
    counts = {True: 0, False: 0}
    for block in module["main"].body.blocks:
        for binding in block.bindings:
            shapes = [list(shape) for shape in _shapes(binding)]
            known = all(isinstance(extent, tirx.IntImm) for shape in shapes for extent in shape)
            numbers = [[int(item) if isinstance(item, tirx.IntImm) else TYPICAL for item in shape] for shape in shapes]
            counts[known] += sum(map(prod, numbers))
    return counts[False], counts[True]


def _shapes(binding: Any) -> Iterator[Any]:
    """Yield the shapes of the tensors that a binding reads and writes."""
    operands = binding.value.args if isinstance(binding.value, relax.Call) else [binding.value]
    kinds = [binding.var.ty, *(operand.ty for operand in operands)]
    while kinds:
        kind = kinds.pop()
        if isinstance(kind, relax.TupleType):
            kinds.extend(kind.fields)
        elif isinstance(kind, relax.TensorType):
            yield kind.shape.values


def _is_claimed_to_be_a_number(module: tvm.IRModule, variables: Mapping[Any, int]) -> bool:
    """Return whether a cast says of one of ``variables`` that it is another number, so that it can never be one."""
    for block in module["main"].body.blocks:
        for binding in block.bindings:
            if not isinstance(binding, relax.MatchCast) or not isinstance(binding.ty, relax.TensorType):
                continue
            shapes = [getattr(kind, "shape", None) for kind in (binding.value.ty, binding.ty)]
            if not all(isinstance(shape, relax.ShapeExpr) for shape in shapes):
                continue
            for old, new in zip(*(shape.values for shape in shapes if shape is not None), strict=True):
                if old in variables and isinstance(new, tirx.IntImm) and int(new) != variables[old]:
                    return True
    return False


def join(modules: Mapping[str, tvm.IRModule], calls: Mapping[str, Calls]) -> tuple[tvm.IRModule, dict[str, Calls]]:
    """Return one module with the `main` of each under its name, and with the kernels that they call; and ``calls``,
    those of each function, by the names that kernels have there.

    Kernels whose names are taken by others get what the name has behind `main` at their end.
    """
    first = next(iter(modules), None)
    builder = relax.BlockBuilder(modules[first] if first == MAIN else tvm.IRModule({}))
    joined = dict(calls)
    for name, module in modules.items():
        if name != MAIN:
            named = {kernel.name_hint: called.name_hint for kernel, called in _add(builder, name, module).items()}
            joined[name] = [(named[kernel], nodes) for kernel, nodes in calls[name]]
    return builder.finalize(), joined


def _add(builder: Any, name: str, module: tvm.IRModule) -> dict[Any, Any]:
    """Add the `main` of ``module`` as ``name``, and its kernels; those that are there already stay one.

    Return what its kernels are called there.
    """
    suffix = name.removeprefix(MAIN) if name.startswith(MAIN) else ""
    renamed: dict[Any, Any] = {}
    for variable, function in module.functions_items():
        if variable.name_hint != MAIN:
            renamed[variable] = builder.add_func(function, f"{variable.name_hint}{suffix}")

    @relax.expr_functor.mutator
    class Rename(relax.PyExprMutator):  # type: ignore[misc]
        def visit_call_(self, op: Any) -> Any:
            arguments = [renamed.get(item, item) for item in op.args]
            return super().visit_call_(relax.Call(op.op, arguments, op.attrs, op.ty_args))

    main = module[MAIN]
    body = Rename(module).visit_expr(main.body)
    entry = relax.Function(main.params, body, main.ret_ty, main.is_pure).with_attrs(
        {**dict(main.attrs or {}), "global_symbol": name}
    )
    builder.add_func(entry, name)
    return renamed
