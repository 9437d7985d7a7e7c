"""Partitions of a Relax module for TensorRT: made, recognised, and taken back."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import numpy as np
import tvm
from tvm import ir, relax
from tvm.relax.backend.contrib.tensorrt import partition_for_tensorrt

from forge_pipeline.relax.bindings import (
    Bound,
    Expr,
    attributes,
    bindings,
    operands,
    operator,
    plain,
    rebuilt,
    result,
    substituted,
)

MULTIPLY_ACCUMULATE: Final = frozenset(
    {
        *("nn.conv1d", "nn.conv2d", "nn.conv3d", "nn.conv1d_transpose", "nn.conv2d_transpose", "nn.conv3d_transpose"),
        *("matmul", "nn.attention", "nn.attention_bias", "einsum"),
    }
)

Rewrite = Callable[[Bound], list[Bound] | None]


def partitioned(
    module: tvm.IRModule,
    *,
    remove_stacks: bool,
    simplify_batch_matmul: bool,
    simplify_scalar_add: bool,
    remove_no_mac_subgraphs: bool,
) -> tvm.IRModule:
    """Return ``module`` with what TensorRT can compute moved into functions of their own, marked for it.

    The flags are those of ``RelaxModule.partition_for_tensorrt``.
    """
    rewrites: list[tuple[bool, Rewrite]] = [
        (remove_stacks, _without_stack),
        (simplify_batch_matmul, _without_batch),
        (simplify_scalar_add, _without_scalar),
    ]
    for wanted, rewrite in rewrites:
        if wanted:
            module = _rewritten(module, rewrite)
    module = partition_for_tensorrt(module)
    if remove_no_mac_subgraphs:
        module = inlined(module, lambda function: not _accumulates(function))
    return module


def tensorrt_is_built_in() -> bool:
    """Return whether this TVM can generate code for TensorRT."""
    return tvm.get_global_func("relax.ext.tensorrt", allow_missing=True) is not None


def partitions(module: tvm.IRModule) -> list[str]:
    """Return the names of the functions that another code generator is to compile, sorted."""
    return sorted(
        str(variable.name_hint)
        for variable, function in module.functions.items()
        if isinstance(function, relax.Function) and function.attrs and "Codegen" in function.attrs
    )


def inlined(module: tvm.IRModule, choose: Callable[[relax.Function], bool] = lambda function: True) -> tvm.IRModule:
    """Return ``module`` with the chosen partitions put back into the functions that call them, and removed."""
    names = [name for name in partitions(module) if choose(module[name])]
    if not names:
        return module
    flat = {name: _without_composites(module[name]) for name in names}
    functions: dict[Any, Any] = {}
    for variable, function in module.functions.items():
        if str(variable.name_hint) in flat:
            continue
        plain_function = isinstance(function, relax.Function) and str(variable.name_hint) not in partitions(module)
        functions[variable] = function.inline_functions(flat) if plain_function else function
    joined = relax.transform.Normalize()(tvm.IRModule(functions, attrs=module.attrs))
    for variable, function in joined.functions.items():
        if isinstance(function, relax.Function) and str(variable.name_hint) not in partitions(joined):
            name = str(variable.name_hint)
            joined = rebuilt(joined, name, bindings(joined[name]), result(joined[name]))
    return relax.transform.ConvertToDataflow(min_size=1)(joined)


def _without_composites(function: relax.Function) -> relax.Function:
    """Return a partition with the functions that stand for single operators expanded, and its marks removed."""
    inner = {bound.variable: bound.value for bound in bindings(function) if isinstance(bound.value, relax.Function)}
    steps: list[Bound] = []
    known: dict[Expr, Expr] = {}

    def renewed(expr: Expr) -> Expr:
        return known.get(expr, expr)

    for bound in bindings(function):
        if bound.variable in inner:
            continue
        value = bound.value
        if isinstance(value, relax.Call) and value.op in inner:
            body = relax.utils.copy_with_new_vars(inner[value.op])
            for parameter, argument in zip(body.params, value.args, strict=True):
                known[parameter] = substituted(argument, renewed) if not _is_shape(argument) else argument
            for step in bindings(body):
                steps.append(Bound(step.variable, _expanded(step.value, known), step.cast))
            known[bound.variable] = substituted(result(body), renewed)
        else:
            steps.append(Bound(bound.variable, substituted(value, renewed), bound.cast))
    block = relax.BindingBlock([relax.VarBinding(step.variable, step.value) for step in steps])
    body = relax.SeqExpr([block], substituted(result(function), renewed))
    relax.expr._update_type(body, function.ret_ty)
    return relax.Function(function.params, body, function.ret_ty, function.is_pure)


def _is_shape(expr: Expr) -> bool:
    return isinstance(expr, relax.ShapeExpr)


def _expanded(expr: Expr, known: dict[Expr, Expr]) -> Expr:
    """Substitute parameters, those that stand for shapes included."""
    return substituted(expr, lambda item: known.get(item, item))


def _accumulates(function: relax.Function) -> bool:
    for bound in bindings(function):
        if isinstance(bound.value, relax.Function) and _accumulates(bound.value):
            return True
        if operator(bound.value) in MULTIPLY_ACCUMULATE:
            return True
    return False


def _rewritten(module: tvm.IRModule, rewrite: Rewrite) -> tvm.IRModule:
    function = module["main"]
    steps: list[Bound] = []
    changed = False
    for bound in bindings(function):
        made = rewrite(bound)
        changed = changed or made is not None
        steps += [bound] if made is None else made
    return rebuilt(module, "main", steps, result(function)) if changed else module


def _without_stack(bound: Bound) -> list[Bound] | None:
    """stack -> each operand with a new axis, then concat: TensorRT's bridge has no stack."""
    if operator(bound.value) != "stack":
        return None
    axis = attributes(bound.value)["axis"]
    axis = 0 if axis is None else int(axis)
    made: list[Bound] = []
    for index, field in enumerate(operands(bound.value)):
        value = relax.op.expand_dims(field, axis)
        made.append(Bound(relax.Var(f"{bound.variable.name}_{index}", _type(value)), value))
    return [*made, Bound(bound.variable, relax.op.concat([item.variable for item in made], axis))]


def _without_batch(bound: Bound) -> list[Bound] | None:
    """A batched product whose right side is one constant matrix for the whole batch -> a product of two matrices."""
    if operator(bound.value) != "matmul":
        return None
    left, right = bound.value.args
    rank = int(left.ty.ndim)
    if rank < 3 or not isinstance(right, ir.GenericConst) or left.ty.shape is None:
        return None
    weight = right.value.numpy()
    extents = [plain(extent) for extent in left.ty.shape.values]
    single = weight.ndim == 2 or (weight.ndim == rank and all(extent == 1 for extent in weight.shape[:-2]))
    if not single or not all(isinstance(extent, int) for extent in extents):
        return None
    rows = int(np.prod(extents[:-1]))
    flat = relax.op.reshape(left, (rows, extents[-1]))
    first = Bound(relax.Var(f"{bound.variable.name}_rows", _type(flat)), flat)
    product = relax.op.matmul(first.variable, relax.const(weight.reshape(weight.shape[-2:])))
    second = Bound(relax.Var(f"{bound.variable.name}_product", _type(product)), product)
    return [first, second, Bound(bound.variable, relax.op.reshape(second.variable, (*extents[:-1], weight.shape[-1])))]


def _without_scalar(bound: Bound) -> list[Bound] | None:
    """add of a scalar -> add of a tensor with as many dimensions as the other operand: the bridge takes no scalars."""
    if operator(bound.value) != "add":
        return None
    first, second = bound.value.args
    changed = [_spread(first, second), _spread(second, first)]
    if changed[0] is first and changed[1] is second:
        return None
    return [Bound(bound.variable, relax.op.add(*changed))]


def _spread(operand: Expr, other: Expr) -> Expr:
    if not isinstance(operand, ir.GenericConst) or int(operand.ty.ndim) != 0 or int(other.ty.ndim) == 0:
        return operand
    return relax.const(operand.value.numpy().reshape((1,) * int(other.ty.ndim)))


def _type(value: Expr) -> Any:
    return relax.BlockBuilder().normalize(value).ty
