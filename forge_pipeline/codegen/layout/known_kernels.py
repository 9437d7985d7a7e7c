"""Kernels of sizes that became known: TVM binds an extent in the functions that call kernels, and not in the kernels.

What the importer emits as a kernel takes its extents from the tensors that it is called with. Where these are numbers,
it is made anew for them, so that the families and schedules see what they see of a model that was exported so.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import tvm
    from tvm import tirx


def with_known_kernels(module: tvm.IRModule) -> tvm.IRModule:
    """Return ``module`` with each kernel that is called with tensors of known sizes compiled for these sizes."""
    from tvm import relax, tirx

    builder = relax.BlockBuilder(module)

    @relax.expr_functor.mutator
    class Specialize(relax.PyExprMutator):  # type: ignore[misc]
        def visit_call_(self, op: Any) -> Any:
            op = super().visit_call_(op)
            if getattr(op.op, "name", "") != "relax.call_tir":
                return op
            kernel = module[op.args[0]]
            known = _specialized(kernel, op) if isinstance(kernel, tirx.PrimFunc) else None
            if known is None:
                return op
            name = builder.add_func(known, op.args[0].name_hint)
            return relax.Call(op.op, [name, op.args[1]], op.attrs, op.ty_args)

    changed = {
        variable: Specialize(module).visit_expr(function)
        for variable, function in module.functions_items()
        if isinstance(function, relax.Function)
    }
    for variable, function in changed.items():
        builder.update_func(variable, function)
    return relax.transform.DeadCodeElimination()(builder.finalize())


def _specialized(kernel: tirx.PrimFunc, call: Any) -> tirx.PrimFunc | None:
    """Return ``kernel`` for the sizes of a call's tensors; None where it has known ones, or the call has not."""
    from tvm import relax, tirx

    results = call.ty_args[0]
    types = [*(item.ty for item in call.args[1].fields), *getattr(results, "fields", [results])]
    if len(kernel.params) != len(types) or all(_is_known(parameter.shape) for parameter in kernel.params):
        return None  # sizes that are passed as such would come after the tensors
    buffers: dict[Any, Any] = {}
    for parameter, kind in zip(kernel.params, types, strict=True):
        shape = getattr(kind, "shape", None)
        if not isinstance(shape, relax.ShapeExpr) or not _is_known(shape.values):
            return None
        if all(isinstance(extent, tirx.Var | tirx.IntImm) for extent in parameter.shape):  # others follow from these
            pairs = zip(parameter.shape, shape.values, strict=True)
            sizes = [old if isinstance(old, tirx.IntImm) else tirx.IntImm("int64", int(new)) for old, new in pairs]
            buffers[parameter] = tirx.decl_buffer(sizes, parameter.dtype, parameter.name)
    known = kernel.specialize(buffers)
    return known if all(_is_known(parameter.shape) for parameter in known.params) else None


def _is_known(shape: Iterable[Any]) -> bool:
    from tvm import tirx

    return all(isinstance(extent, tirx.IntImm) for extent in shape)
