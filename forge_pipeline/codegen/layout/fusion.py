"""Which of two kernels goes on with what follows both: the one whose result would be larger in memory.

TVM's fusion gives an elementwise operator on the results of two kernels to the first of them; the other's result waits
in memory. In a residual block with a projection that would be floats, waiting for bytes.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import tvm
    from tvm import relax

PATTERN, OPAQUE = "op_pattern", 8
"""TVM's attribute of a kernel that says what may be fused with it, and its value kOpaque: nothing."""

ALONE = "_alone"
"""The end of the name of a kernel that only stores its result, where another one like it may go on."""


def store_bytes(module: tvm.IRModule, anchors: frozenset[str]) -> tvm.IRModule:
    """Return ``module``, where a kernel stores the bytes that it computes if their reader also reads another's floats.

    ``anchors`` names the kernels that elementwise operators are fused into. Results with several readers are stored in
    any case.
    """
    from tvm import relax

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
    if not stored:
        return module
    builder = relax.BlockBuilder(module)

    def renamed(binding: relax.Binding) -> relax.Binding:
        if binding.var not in stored:
            return binding
        call = binding.value
        kernel = call.args[0]
        alone = builder.add_func(module[kernel].with_attr(PATTERN, OPAQUE), f"{kernel.name_hint}{ALONE}")
        return relax.VarBinding(binding.var, relax.Call(call.op, [alone, *call.args[1:]], call.attrs, call.ty_args))

    blocks = [type(block)([renamed(binding) for binding in block.bindings]) for block in main.body.blocks]
    body = relax.SeqExpr(blocks, main.body.body)
    changed = relax.Function(main.params, body, main.ret_ty, main.is_pure).with_attrs(dict(main.attrs or {}))
    builder.update_func(module.get_global_var("main"), changed)
    return builder.finalize()


def _kernel(value: relax.Expr) -> str | None:
    """Return the name of the kernel that a binding calls."""
    from tvm.ir import Call, GlobalVar

    called = value.args[0] if isinstance(value, Call) and value.args else None
    return str(called.name_hint) if isinstance(called, GlobalVar) else None


def _reads(value: relax.Expr) -> list[Any]:
    """Return the variables that a binding reads, each as often as it does."""
    from tvm import relax

    found: list[Any] = []
    relax.analysis.post_order_visit(value, lambda item: found.append(item) if isinstance(item, relax.Var) else None)
    return found
