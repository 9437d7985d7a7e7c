"""A second entry for the batch that is asked for most, one: its extents are numbers, so its memory is planned, its
tiles fit, and no shape is computed at run time.

Both entries take the same weights. What the two pack alike is stored once (``weights``).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import tvm

ENTRY = "main_of_one"
"""The name of the function for a batch of one, beside `main` for any."""

SUFFIX = "_of_one"


def batch_of_one(module: tvm.IRModule) -> tvm.IRModule | None:
    """Return ``module`` with the first axis of every input fixed to one where it is symbolic; None where none is."""
    from tvm import relax, tirx

    first = {}
    for parameter in module["main"].params:
        shape = getattr(parameter.ty, "shape", None)
        extents = list(shape.values) if shape is not None else []
        if extents and isinstance(extents[0], tirx.Var):
            first[extents[0]] = 1
    return relax.transform.BindSymbolicVars(first)(module) if first else None


def join(module: tvm.IRModule, single: tvm.IRModule) -> tvm.IRModule:
    """Return ``module`` with the `main` of ``single`` as ENTRY, and with the kernels that it calls."""
    from tvm import relax

    builder = relax.BlockBuilder(module)
    renamed: dict[Any, Any] = {}
    for variable, function in single.functions_items():
        if variable.name_hint != "main":  # equal kernels stay one
            renamed[variable] = builder.add_func(function, f"{variable.name_hint}{SUFFIX}")

    @relax.expr_functor.mutator
    class Rename(relax.PyExprMutator):  # type: ignore[misc]
        def visit_call_(self, op: Any) -> Any:
            arguments = [renamed.get(item, item) for item in op.args]
            return super().visit_call_(relax.Call(op.op, arguments, op.attrs, op.ty_args))

    main = single["main"]
    body = Rename(single).visit_expr(main.body)
    entry = relax.Function(main.params, body, main.ret_ty, main.is_pure).with_attrs(
        {**dict(main.attrs or {}), "global_symbol": ENTRY}
    )
    builder.add_func(entry, ENTRY)
    return builder.finalize()
