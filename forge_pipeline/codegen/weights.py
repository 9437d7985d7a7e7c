"""Weights beside the code: large constants become arguments of `main`, stored once, page-aligned, never parsed.

A constant inside TVM's executable is copied when the library is loaded. As an argument it is a window onto the file:
the runtime maps the weights section and passes each array at its offset, in the order in which they are listed.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import tvm

ALIGNMENT = 64
"""TVM's kernels are compiled for arrays that start at a cache line."""

SMALLEST = 4096
"""Bytes below which a constant stays in the code: a page of file for less would not pay."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Separated:
    """A module whose `main` takes ``table``'s arrays after its inputs, and the section that holds them.

    A row of ``table`` has ``dtype``, ``shape`` and ``offset``, in bytes from the start of ``section``.
    """

    module: tvm.IRModule
    section: bytes
    table: list[dict[str, Any]]


def separate(module: tvm.IRModule) -> Separated:
    """Move every constant of `main` of at least SMALLEST bytes into a section of its own; equal ones share a place."""
    import tvm
    from tvm import relax

    found: dict[tuple[str, tuple[int, ...], bytes], Any] = {}

    @relax.expr_functor.mutator
    class Lift(relax.PyExprMutator):  # type: ignore[misc]
        def visit_generic_const_(self, op: Any) -> Any:
            if not isinstance(op.value, tvm.runtime.Tensor):
                return op
            array = op.value.numpy()
            if array.nbytes < SMALLEST:
                return op
            key = (str(op.value.dtype), tuple(int(extent) for extent in array.shape), array.tobytes())
            if key not in found:
                found[key] = relax.Var(f"weight{len(found)}", op.ty)
            return found[key]

    main = module["main"]
    body = Lift(module).visit_expr(main.body)
    attributes = {**dict(main.attrs or {}), "num_input": len(main.params)}
    lifted = relax.Function([*main.params, *found.values()], body, main.ret_ty, main.is_pure).with_attrs(attributes)
    module = tvm.IRModule({**dict(module.functions), module.get_global_var("main"): lifted}, attrs=module.attrs)
    section = bytearray()
    table = []
    for dtype, shape, data in found:
        section += bytes(-len(section) % ALIGNMENT)
        table.append({"dtype": dtype, "shape": list(shape), "offset": len(section)})
        section += data
    return Separated(module=relax.transform.Normalize()(module), section=bytes(section), table=table)
