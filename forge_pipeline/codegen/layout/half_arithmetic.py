"""Float32 models that compute in half precision: which operators do, and casts at their borders.

Products by constant weights and convolutions are computed in halves; so is what reads their results and loses nothing
by it: sums and products of elements, bounds, maxima of windows, and whatever moves numbers. All else stays in float32:
softmax, normalization, means, exponentials and what is made of them, products of two activations, kernels of the
importer's own. A constant that a half cannot hold keeps the operator that reads it in float32.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import tvm
from tvm import relax
from tvm.ir import GenericConst

from forge_pipeline.codegen.layout.builder import Array, has_known_shape
from forge_pipeline.codegen.layout.constants import FOLDED_SHAPES, array_view, constant, reshaped
from forge_pipeline.codegen.layout.origins import Emitter, Origins

HALF, SINGLE = "float16", "float32"
LARGEST = float(np.finfo(np.float16).max)

SUMS = frozenset({"relax.nn.conv1d", "relax.nn.conv2d", "relax.matmul"})
"""What is computed in halves wherever its second operand is a constant."""

FOLLOW = frozenset(
    f"relax.{name}"
    for name in (
        *("add", "subtract", "multiply", "maximum", "minimum", "abs", "negative", "clip"),
        *("nn.relu", "nn.leakyrelu", "nn.prelu", "nn.batch_norm", "nn.max_pool2d", "nn.pad"),
        *("reshape", "permute_dims", "expand_dims", "squeeze", "flatten", "strided_slice", "broadcast_to"),
        *("concat", "split"),
    )
)
"""What is computed in halves wherever it reads one."""


def in_halves(module: tvm.IRModule, origins: Origins) -> tvm.IRModule:
    """Return ``module`` with `main` computed in half precision where that is accurate; its interface stays."""
    main = module["main"]
    others = {key: function for key, function in module.functions_items() if key.name_hint != "main"}
    builder = Emitter(origins, tvm.IRModule(others))
    parameters = [relax.Var(parameter.name, parameter.ty) for parameter in main.params]
    values = _Values(builder=builder, known=dict(zip(main.params, parameters, strict=True)))
    with builder.function("main", parameters, attrs=dict(main.attrs or {})):
        with builder.dataflow():
            for block in main.body.blocks:
                for binding in block.bindings:
                    values.bind(binding)
            output = builder.emit_output(values.as_it_was(main.body.body))
        builder.emit_func_output(output)
    return builder.finalize()


@dataclass(slots=True, kw_only=True)
class _Values:
    """The variables of the old function as those of the new: ``known`` with the type they come in, casts of these."""

    builder: Any
    known: dict[Any, Any]
    casts: dict[tuple[Any, str], Any] = field(default_factory=dict)

    def bind(self, binding: Any) -> None:
        """Emit what a binding says, in the precision that suits it."""
        value, variable = binding.value, binding.var
        self.builder.nodes = self.builder.origins.of(variable)
        if isinstance(binding, relax.MatchCast):
            inner = self.as_it_is(value)
            shape, kind = binding.ty, _kind(inner)
            cast = relax.TensorType(shape.shape, kind) if kind == HALF else shape
            self.known[variable] = self.builder.match_cast(inner, cast)
        elif isinstance(value, relax.Var):
            self.known[variable] = self.as_it_is(value)
        elif (array := _reshaped(value)) is not None:
            self.known[variable] = constant(array)
        elif isinstance(value, relax.TupleGetItem):
            self.known[variable] = self.builder.emit(relax.TupleGetItem(self.as_it_is(value.tuple_value), value.index))
        else:
            self.known[variable] = self.builder.emit(self._computed(value))

    def _computed(self, value: relax.Expr) -> relax.Expr:
        if isinstance(value, relax.Call) and self._is_half(value):
            arguments = [self.in_kind(argument, HALF) for argument in value.args]
            if value.op.name == "relax.matmul":
                return relax.op.matmul(*arguments)
            return relax.Call(value.op, arguments, value.attrs, value.ty_args)
        return self.as_it_was(value)

    def _is_half(self, call: relax.Call) -> bool:
        name = getattr(call.op, "name", "")
        if str(getattr(call.attrs, "out_dtype", None) or SINGLE) not in (SINGLE, "void"):
            return False
        if name not in SUMS and name not in FOLLOW:
            return False
        parts = [self.known.get(part, part) for part in _parts(call.args)]
        if any(_kind(part) == "other" or not _fits(part) for part in parts):
            return False
        return isinstance(parts[1], GenericConst) if name in SUMS else any(_kind(part) == HALF for part in parts)

    def in_kind(self, expression: relax.Expr, kind: str) -> relax.Expr:
        """Return an operand with its floats of a type."""
        if isinstance(expression, relax.Tuple):
            return relax.Tuple([self.in_kind(item, kind) for item in expression.fields])
        if not isinstance(expression, relax.Var | GenericConst):
            return self.as_it_was(expression)
        value = self.known.get(expression, expression)
        if _kind(value) in (kind, ""):
            return value
        if isinstance(value, GenericConst):
            return constant(array_view(value.value).astype(kind))
        key = (value, kind)
        if key not in self.casts:
            self.casts[key] = self.builder.emit(relax.op.astype(value, kind))
        return self.casts[key]

    def as_it_is(self, expression: relax.Expr) -> relax.Expr:
        """Return a variable of the new function for one of the old, of whatever type it has."""
        return (
            self.known.get(expression, expression) if isinstance(expression, relax.Var) else self.as_it_was(expression)
        )

    def as_it_was(self, expression: relax.Expr) -> relax.Expr:
        """Return an expression of the old function in the types that it had there."""
        if isinstance(expression, relax.Var):
            return self._widened(self.known.get(expression, expression), expression.ty)
        if isinstance(expression, relax.Tuple):
            return relax.Tuple([self.as_it_was(item) for item in expression.fields])
        if isinstance(expression, relax.TupleGetItem):
            return relax.TupleGetItem(self.as_it_was(expression.tuple_value), expression.index)
        if isinstance(expression, relax.Call):
            arguments = [self.as_it_was(argument) for argument in expression.args]
            return relax.Call(expression.op, arguments, expression.attrs, expression.ty_args)
        return expression

    def _widened(self, value: Any, kind: Any) -> Any:
        """Return a variable of the new function with the type that it had in the old one."""
        if isinstance(kind, relax.TupleType) and isinstance(value.ty, relax.TupleType):
            if all(_same(own, old) for own, old in zip(value.ty.fields, kind.fields, strict=True)):
                return value
            items = [self.builder.emit(relax.TupleGetItem(value, index)) for index in range(len(kind.fields))]
            return relax.Tuple([self._widened(item, old) for item, old in zip(items, kind.fields, strict=True)])
        if isinstance(kind, relax.TensorType) and not _same(value.ty, kind):
            key = (value, SINGLE)
            if key not in self.casts:
                self.casts[key] = self.builder.emit(relax.op.astype(value, SINGLE))
            return self.casts[key]
        return value


def _reshaped(call: relax.Expr) -> Array | None:
    """Return what an operator makes of a constant whose shape it changes; None for other operators."""
    if not isinstance(call, relax.Call) or getattr(call.op, "name", "") not in FOLDED_SHAPES:
        return None
    operand = call.args[0]
    if not isinstance(operand, GenericConst) or not has_known_shape(call, symbolic_axes=()):
        return None
    return reshaped(array_view(operand.value), call)


def _parts(arguments: Iterable[Any]) -> list[Any]:
    """Return the operands of a call that are values, those of tuples one by one."""
    found: list[Any] = []
    for argument in arguments:
        if isinstance(argument, relax.Tuple):
            found += _parts(argument.fields)
        elif isinstance(argument, relax.Var | GenericConst):
            found.append(argument)
    return found


def _kind(value: Any) -> str:
    """Return float16 or float32; "other" for tensors of other types, "" for what is no tensor (an extent, a tuple)."""
    kind = getattr(value, "ty", None)
    if isinstance(kind, relax.TupleType):
        kinds = {_kind_of(item) for item in kind.fields}
        return kinds.pop() if len(kinds) == 1 else "other"
    return _kind_of(kind)


def _kind_of(kind: Any) -> str:
    if not isinstance(kind, relax.TensorType):
        return ""
    return str(kind.dtype) if str(kind.dtype) in (HALF, SINGLE) else "other"


def _same(own: Any, old: Any) -> bool:
    return str(getattr(own, "dtype", "")) == str(getattr(old, "dtype", ""))


def _fits(value: Any) -> bool:
    """Return whether a half holds each number of a constant, rounded."""
    if not isinstance(value, GenericConst) or _kind(value) != SINGLE:
        return True
    array = array_view(value.value)
    return bool(array.size == 0 or np.abs(array).max() <= LARGEST)
