"""Signed activations as unsigned ones: v with the zero point z is v + 128 with z + 128, the same number.

Integer kernels read bytes without a sign. So what a QuantizeLinear stores as int8 is stored with 128 more, and whoever
dequantizes it takes 128 more away; what only moves integers moves these. Anybody else, such as an output of the model,
gets signed bytes, and signed inputs are changed where they are first dequantized.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import tvm
from tvm import relax, te
from tvm.ir import GenericConst

from forge_pipeline.codegen.layout.origins import Emitter, Origins

SHIFT = 128
MOVES = frozenset(
    f"relax.{name}"
    for name in (
        *("reshape", "permute_dims", "expand_dims", "squeeze", "strided_slice", "broadcast_to", "flatten", "take"),
        *("concat", "nn.max_pool2d"),
    )
)
"""Operators whose results are among the values that they read, whatever these mean."""


def without_signs(module: tvm.IRModule, origins: Origins) -> tvm.IRModule:
    """Return ``module`` with the int8 activations of `main` as uint8; itself where it has none."""
    main = module["main"]
    bindings = [binding for block in main.body.blocks for binding in block.bindings]
    if not any(_is_about_signed(binding.value) for binding in bindings):
        return module
    builder = Emitter(origins, tvm.IRModule({k: v for k, v in module.functions_items() if k.name_hint != "main"}))
    parameters = [relax.Var(parameter.name, parameter.ty) for parameter in main.params]
    values = _Values(builder=builder, known=dict(zip(main.params, parameters, strict=True)))
    with builder.function("main", parameters, attrs=dict(main.attrs or {})):
        with builder.dataflow():
            for binding in bindings:
                values.bind(binding)
            output = builder.emit_output(values.clone(main.body.body))
        builder.emit_func_output(output)
    return builder.finalize()


def _is_about_signed(value: relax.Expr) -> bool:
    if not isinstance(value, relax.Call):
        return False
    name = getattr(value.op, "name", "")
    if name == "relax.quantize":
        return str(value.attrs.out_dtype) == "int8" and _constant(value.args[2]) is not None
    return name in ("relax.dequantize", "relax.astype") and _is_signed(value.args[0])


def _is_signed(expression: relax.Expr) -> bool:
    """Return whether a variable holds int8."""
    return isinstance(expression, relax.Var) and str(getattr(expression.ty, "dtype", "")) == "int8"


def _constant(expression: relax.Expr) -> np.ndarray[Any, Any] | None:
    return expression.value.numpy() if isinstance(expression, GenericConst) else None


@dataclass(slots=True, kw_only=True)
class _Values:
    """The variables of the old function as those of the new: ``known`` as they were, ``bytes`` with 128 more."""

    builder: Any
    known: dict[Any, Any]
    bytes: dict[Any, Any] = field(default_factory=dict)

    def bind(self, binding: Any) -> None:
        """Emit what a binding says."""
        value, variable = binding.value, binding.var
        self.builder.nodes = self.builder.origins.of(variable)
        if isinstance(binding, relax.MatchCast):
            self.known[variable] = self.builder.match_cast(self.clone(value), binding.ty)
            return
        made = self._without_sign(value)
        if made is not None:
            self.bytes[variable] = self.builder.emit(made)
        else:
            self.known[variable] = self.builder.emit(self._read(value))

    def _without_sign(self, value: relax.Expr) -> relax.Expr | None:
        """Return a value with 128 more, if it is stored by a QuantizeLinear or moves what is."""
        if isinstance(value, relax.Var):
            return self.bytes.get(value)
        if not isinstance(value, relax.Call):
            return None
        name = getattr(value.op, "name", "")
        if name == "relax.quantize" and str(value.attrs.out_dtype) == "int8":
            zero = _constant(value.args[2])
            if zero is None:
                return None
            operands = [self.clone(argument) for argument in value.args[:2]]
            return relax.op.quantize(*operands, _moved(zero), axis=value.attrs.axis, out_dtype="uint8")
        if name not in MOVES:
            return None
        moved, *rest = value.args
        parts = list(moved.fields) if isinstance(moved, relax.Tuple) else [moved]
        if not all(part in self.bytes for part in parts):
            return None
        new = [self.bytes[part] for part in parts]
        first = relax.Tuple(new) if isinstance(moved, relax.Tuple) else new[0]
        return relax.Call(value.op, [first, *map(self.clone, rest)], value.attrs, value.ty_args)

    def _read(self, value: relax.Expr) -> relax.Expr:
        """Return a value whose operands, where it takes signed bytes as numbers, have 128 more."""
        if isinstance(value, relax.Call) and _is_about_signed(value):
            if value.op.name == "relax.dequantize":
                zero = _constant(value.args[2])
                if zero is not None:
                    operands = [self._unsigned(value.args[0]), self.clone(value.args[1]), _moved(zero)]
                    return relax.op.dequantize(*operands, axis=value.attrs.axis, out_dtype=value.attrs.out_dtype)
            elif str(value.attrs.dtype) == "int32":
                wide = self.builder.emit(relax.op.astype(self._unsigned(value.args[0]), "int32"))
                return relax.op.subtract(wide, relax.const(SHIFT, "int32"))
        return self.clone(value)

    def _unsigned(self, variable: Any) -> Any:
        if variable not in self.bytes:
            self.bytes[variable] = self.builder.emit_te(_with_more, self.known[variable], primfunc_name_hint="unsigned")
        return self.bytes[variable]

    def clone(self, expression: relax.Expr) -> relax.Expr:
        """Return an expression with the variables of the new function, signed as they were."""
        if isinstance(expression, relax.Var):
            if expression not in self.known and expression in self.bytes:
                bytes_ = self.bytes[expression]
                self.known[expression] = self.builder.emit_te(_with_less, bytes_, primfunc_name_hint="signed")
            return self.known.get(expression, expression)
        if isinstance(expression, relax.Tuple):
            return relax.Tuple([self.clone(item) for item in expression.fields])
        if isinstance(expression, relax.TupleGetItem):
            return relax.TupleGetItem(self.clone(expression.tuple_value), expression.index)
        if isinstance(expression, relax.Call):
            arguments = [self.clone(argument) for argument in expression.args]
            return relax.Call(expression.op, arguments, expression.attrs, expression.ty_args)
        return expression


def _moved(zero: np.ndarray[Any, Any]) -> relax.Expr:
    return relax.const((zero.astype(np.int16) + SHIFT).astype(np.uint8), "uint8")


def _with_more(image: te.Tensor) -> te.Tensor:
    return te.compute(image.shape, lambda *at: (image(*at).astype("int16") + SHIFT).astype("uint8"), name="unsigned")


def _with_less(image: te.Tensor) -> te.Tensor:
    return te.compute(image.shape, lambda *at: (image(*at).astype("int16") - SHIFT).astype("int8"), name="signed")
