"""Symbolic extents, each with a name: ``(height - 7) // 8 + 1`` becomes a variable that is bound when the model runs.

Kernels then index with variables instead of such expressions, whose simplification took minutes, and kernels for the
same layer at several resolutions become one.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import tvm
import tvm_ffi
from tvm import relax, tirx

from forge_pipeline.codegen.layout.origins import Emitter, Origins


@dataclass(slots=True, kw_only=True)
class _Names:
    """Variables, each with the expression that it stands for: two may read alike and mean other variables."""

    known: list[tuple[Any, Any]] = field(default_factory=list)

    def of(self, kind: Any) -> Any:
        """Return a tensor's type with variables for the extents that are expressions."""
        shape = getattr(kind, "shape", None)
        if not isinstance(kind, relax.TensorType) or not isinstance(shape, relax.ShapeExpr):
            return kind
        extents = [self._extent(extent) for extent in shape.values]
        if all(new is old for new, old in zip(extents, shape.values, strict=True)):
            return kind
        return relax.TensorType(extents, kind.dtype)

    def clone(self, extent: Any) -> Any:
        """Return an extent with the variables for the parts of it that have a name by now."""
        variable = self._known(extent)
        if variable is not None:
            return variable
        if hasattr(extent, "a") and hasattr(extent, "b"):
            return type(extent)(self.clone(extent.a), self.clone(extent.b))
        return extent

    def _extent(self, extent: Any) -> Any:
        if isinstance(extent, tirx.IntImm | tirx.Var):
            return extent
        variable = self._known(extent)
        if variable is None:
            variable = tirx.Var(f"extent{len(self.known)}", "int64")
            self.known.append((extent, variable))
        return variable

    def _known(self, extent: Any) -> Any:
        return next((made for found, made in self.known if tvm_ffi.structural_equal(found, extent)), None)


def name_extents(module: tvm.IRModule, origins: Origins) -> tvm.IRModule:
    """Return ``module`` with a variable for every extent of `main` that is computed from others."""
    main, names = module["main"], _Names()
    bindings = [binding for block in main.body.blocks for binding in block.bindings]
    seen = _Names()  # another: a name stands for its expression only from where it is bound
    if all(seen.of(binding.var.ty) is binding.var.ty for binding in bindings):
        return module
    builder = Emitter(origins, tvm.IRModule({k: v for k, v in module.functions_items() if k.name_hint != "main"}))
    parameters = [relax.Var(parameter.name, parameter.ty) for parameter in main.params]
    new = dict(zip(main.params, parameters, strict=True))
    with builder.function("main", parameters, attrs=dict(main.attrs or {})):
        with builder.dataflow():
            for binding in bindings:
                builder.nodes = origins.of(binding.var)
                value = builder.emit(cloned(binding.value, new, names))
                wanted = names.of(binding.ty if isinstance(binding, relax.MatchCast) else binding.var.ty)
                if isinstance(wanted, relax.TensorType) and not tvm_ffi.structural_equal(wanted, value.ty):
                    value = builder.match_cast(value, wanted)
                new[binding.var] = value
            output = builder.emit_output(cloned(main.body.body, new, names))
        builder.emit_func_output(output)
    return builder.finalize()


def cloned(expression: relax.Expr, new: dict[Any, Any], names: _Names | None = None) -> relax.Expr:
    """Return a binding's value with the variables of the new function, and ``names`` for extents that have one."""
    names = names or _Names()
    if isinstance(expression, relax.Var):  # an extent may be an argument of a kernel
        return new[expression] if expression in new else names.clone(expression)
    if isinstance(expression, relax.Tuple):
        return relax.Tuple([cloned(item, new, names) for item in expression.fields])
    if isinstance(expression, relax.TupleGetItem):
        return relax.TupleGetItem(cloned(expression.tuple_value, new, names), expression.index)
    if isinstance(expression, relax.ShapeExpr):
        return relax.ShapeExpr([names.clone(extent) for extent in expression.values])
    if isinstance(expression, relax.Call):
        arguments = [cloned(argument, new, names) for argument in expression.args]
        return relax.Call(expression.op, arguments, expression.attrs, expression.ty_args)
    return expression


def has_casts(module: tvm.IRModule) -> bool:
    """Return whether `main` gives extents names, which tidying would take away."""
    bindings = (binding for block in module["main"].body.blocks for binding in block.bindings)
    return any(isinstance(binding, relax.MatchCast) for binding in bindings)
