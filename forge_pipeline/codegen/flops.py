"""How much of a model's arithmetic each kernel does."""

from __future__ import annotations

import tvm
from tvm import relax
from tvm.s_tir.analysis import estimate_tir_flops

from forge_pipeline.codegen.memory.prepack import PREPARES

Row = tuple[str, tuple[int | str, ...], float]


def share_by_kernel(module: tvm.IRModule) -> list[Row]:
    """Return name, output shape and share of the model's floating-point operations (0..1) of every kernel.

    A kernel counts once for each call of it in `main`. One whose extents are symbolic counts with the least that is
    known about them. Sorted by share, largest first, then by name.
    """
    calls: dict[str, int] = {}
    shapes: dict[str, tuple[int | str, ...]] = {}

    def visit(expression: object) -> None:
        if isinstance(expression, relax.Call) and expression.args and isinstance(expression.args[0], tvm.ir.GlobalVar):
            name = expression.args[0].name_hint
            calls[name] = calls.get(name, 0) + 1
            shapes[name] = _shape(expression.ty)

    relax.analysis.post_order_visit(module["main"].body, visit)
    rows = []
    for variable, function in module.functions.items():
        if isinstance(function, tvm.tirx.PrimFunc) and PREPARES not in (function.attrs or {}):
            name = variable.name_hint
            rows.append((name, shapes.get(name, ()), _flops(function) * calls.get(name, 0)))
    total = sum(flops for _, _, flops in rows) or 1.0
    return sorted(((name, shape, round(flops / total, 6)) for name, shape, flops in rows), key=lambda r: (-r[2], r[0]))


def _flops(function: tvm.tirx.PrimFunc) -> float:
    try:
        return max(0.0, float(estimate_tir_flops(tvm.IRModule({"kernel": function}))))
    except RuntimeError:
        return 0.0  # loops whose extents depend on data cannot be counted


def _shape(kind: object) -> tuple[int | str, ...]:
    """Return the shape of a kernel's result, of the first one where there are several."""
    if isinstance(kind, relax.TupleType):
        return _shape(kind.fields[0]) if kind.fields else ()
    if not isinstance(kind, relax.TensorType) or kind.shape is None:
        return ()
    return tuple(int(extent) if isinstance(extent, tvm.tirx.IntImm) else str(extent) for extent in kind.shape.values)
