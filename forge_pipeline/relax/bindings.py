"""A Relax function as a list of bindings, and back: what walking, hashing, exporting and editing start from.

Relax keeps a function in blocks of bindings in A-normal form, so that its list of bindings is in topological order.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import tvm
from tvm import ir, relax

Expr = Any
"""Any expression of Relax; its classes share no useful base in TVM's Python."""


@dataclass(frozen=True, slots=True)
class Bound:
    """One binding: ``variable`` takes the value of ``value``. ``cast`` is the type that a match_cast asserts."""

    variable: Expr
    value: Expr
    cast: Any = None


def is_variable(expr: Expr) -> bool:
    """Return whether ``expr`` is a variable of Relax, rather than a symbolic dimension."""
    return isinstance(expr, relax.Var) and not isinstance(expr.ty, ir.PrimType)


def bindings(function: relax.Function) -> list[Bound]:
    """Return all bindings of a function, of all its blocks, in order."""
    return list(_bindings(function.body))


def _bindings(body: Expr) -> Iterator[Bound]:
    if not isinstance(body, relax.SeqExpr):
        return
    for block in body.blocks:
        for binding in block.bindings:
            if isinstance(binding, relax.MatchCast):
                yield Bound(binding.var, binding.value, binding.ty)
            else:
                yield Bound(binding.var, binding.value)


def result(function: relax.Function) -> Expr:
    """Return the expression that a function returns, in terms of its bindings."""
    return function.body.body if isinstance(function.body, relax.SeqExpr) else function.body


def results(function: relax.Function) -> list[Expr]:
    """Return what a function returns, one expression an output: the fields of the tuple, where it returns one."""
    value = result(function)
    known = {bound.variable: bound.value for bound in bindings(function)}
    while is_variable(value) and is_variable(known.get(value)):
        value = known[value]
    made = known.get(value, value) if is_variable(value) else value
    if isinstance(made, relax.Tuple):
        return list(made.fields)
    if isinstance(value.ty, ir.TupleType):
        normalize = relax.BlockBuilder().normalize
        return [normalize(relax.TupleGetItem(value, index)) for index in range(len(value.ty.fields))]
    return [value]


def operands(expr: Expr) -> Iterator[Expr]:
    """Yield the variables and constants that an expression reads, in order, those within tuples included."""
    if is_variable(expr) or isinstance(expr, ir.GenericConst):
        yield expr
    elif isinstance(expr, relax.Tuple):
        for field in expr.fields:
            yield from operands(field)
    elif isinstance(expr, relax.TupleGetItem):
        yield from operands(expr.tuple_value)
    elif isinstance(expr, relax.Call):
        if is_variable(expr.op):
            yield expr.op
        for argument in expr.args:
            yield from operands(argument)
    elif isinstance(expr, relax.If):
        yield from operands(expr.cond)
        inner = [*_free(expr.true_branch), *_free(expr.false_branch)]
        yield from dict.fromkeys(inner)
    elif isinstance(expr, relax.Function):
        yield from _free(expr)


def _free(expr: Expr) -> list[Expr]:
    return [variable for variable in relax.analysis.free_vars(expr) if is_variable(variable)]


def substituted(expr: Expr, change: Callable[[Expr], Expr]) -> Expr:
    """Return ``expr`` with ``change`` applied to each of ``operands(expr)``, in that order."""
    if is_variable(expr) or isinstance(expr, ir.GenericConst):
        return change(expr)
    if isinstance(expr, relax.Tuple):
        return relax.Tuple([substituted(field, change) for field in expr.fields])
    if isinstance(expr, relax.TupleGetItem):
        return relax.TupleGetItem(substituted(expr.tuple_value, change), expr.index)
    if isinstance(expr, relax.Call):
        op = change(expr.op) if is_variable(expr.op) else expr.op
        arguments = [substituted(argument, change) for argument in expr.args]
        return relax.Call(op, arguments, expr.attrs, expr.ty_args)
    if isinstance(expr, relax.If):
        condition = substituted(expr.cond, change)
        captured = {variable: change(variable) for variable in list(operands(expr))[1:]}
        return relax.If(condition, _within(expr.true_branch, captured), _within(expr.false_branch, captured))
    if isinstance(expr, relax.Function):
        captured = {variable: change(variable) for variable in _free(expr)}
        return expr if all(new is old for old, new in captured.items()) else _function_within(expr, captured)
    return expr


def _function_within(function: relax.Function, captured: Mapping[Expr, Expr]) -> relax.Function:
    body = _within(function.body, captured)
    return relax.Function(function.params, body, function.ret_ty, function.is_pure, function.attrs)


def _within(body: Expr, captured: Mapping[Expr, Expr]) -> Expr:
    """Substitute variables inside a branch: its own bindings keep their variables."""

    def change(expr: Expr) -> Expr:
        return captured.get(expr, expr) if is_variable(expr) else expr

    if not isinstance(body, relax.SeqExpr):
        return substituted(body, change)
    blocks = []
    for block in body.blocks:
        made = [
            relax.MatchCast(item.var, substituted(item.value, change), item.ty)
            if isinstance(item, relax.MatchCast)
            else relax.VarBinding(item.var, substituted(item.value, change))
            for item in block.bindings
        ]
        blocks.append(type(block)(made))
    return relax.SeqExpr(blocks, substituted(body.body, change))


def rebuilt(
    module: tvm.IRModule,
    name: str,
    steps: Sequence[Bound],
    outputs: Expr,
    *,
    parameters: Sequence[Expr] | None = None,
) -> tvm.IRModule:
    """Return ``module`` with function ``name`` made of ``steps``, which read each other's variables.

    ``steps`` may be in any order that is topological. Types are deduced anew; a binding whose operands do not fit
    raises what TVM raises. Copies of variables are left out. ``parameters`` take the place of the function's own.
    """
    function = module[name]
    pure = bool(function.is_pure) and not any(isinstance(step.value, relax.If) for step in steps)
    normalize = relax.BlockBuilder(module).normalize
    parameters = list(function.params) if parameters is None else list(parameters)
    known: dict[Expr, Expr] = dict(zip(function.params, parameters, strict=True))
    made: list[Any] = []

    def renewed(expr: Expr) -> Expr:
        return known[expr] if is_variable(expr) else expr

    def bind(wanted: str, value: Expr, *, inner: bool, cast: Any = None) -> Expr:
        variable = (relax.DataflowVar if inner and pure else relax.Var)(wanted, cast or value.ty)
        made.append(relax.VarBinding(variable, value) if cast is None else relax.MatchCast(variable, value, cast))
        return variable

    for step in steps:
        value = substituted(step.value, renewed)
        if is_variable(value) and step.cast is None:
            known[step.variable] = value
            continue
        inner = not step.variable.same_as(outputs)
        known[step.variable] = bind(str(step.variable.name), normalize(value), inner=inner, cast=step.cast)
    last = substituted(outputs, renewed)
    if not is_variable(last) or last in parameters or (pure and isinstance(last, relax.DataflowVar)):
        last = bind("output", normalize(last), inner=False)
    block = (relax.DataflowBlock if pure else relax.BindingBlock)(made)
    body = relax.SeqExpr([block], last)
    relax.expr._update_type(body, last.ty)
    new = relax.Function(parameters, body, last.ty, function.is_pure, function.attrs)
    copy = tvm.IRModule(dict(module.functions), attrs=module.attrs)
    copy.update_func(copy.get_global_var(name), new)
    return copy


def attributes(call: Expr) -> dict[str, Any]:
    """Return the attributes of a call, by name, as plain Python; numbers that are symbolic stay TVM's."""
    if not isinstance(call, relax.Call) or call.attrs is None:
        return {}
    info = getattr(type(call.attrs), "__tvm_ffi_type_info__", None)
    fields = [field.name for field in info.fields] if info is not None else []
    return {name: plain(getattr(call.attrs, name)) for name in fields}


def plain(value: Any) -> Any:
    """Return an attribute or a dimension as Python knows it."""
    if isinstance(value, tvm.DataType | ir.PrimType):
        return str(value)
    if isinstance(value, bool | int | float | str) or value is None:
        return value
    if isinstance(value, tvm.tirx.IntImm):
        return int(value.value)
    if isinstance(value, tvm.tirx.FloatImm):
        return float(value.value)
    if isinstance(value, ir.StringImm):
        return str(value.value)
    if isinstance(value, relax.ShapeExpr):
        return [plain(item) for item in value.values]
    if isinstance(value, ir.Array | list | tuple):
        return [plain(item) for item in value]
    if isinstance(value, ir.Map | dict):
        return {str(key): plain(item) for key, item in value.items()}
    return value


def operator(expr: Expr) -> str:
    """Return what an expression does: an operator's name without ``relax.``, or what kind of expression it is."""
    if isinstance(expr, relax.Call):
        if isinstance(expr.op, ir.Op):
            return str(expr.op.name).removeprefix("relax.")
        return "call"
    kinds = {
        relax.Tuple: "tuple",
        relax.TupleGetItem: "tuple_get_item",
        relax.If: "if",
        relax.Function: "function",
        relax.ShapeExpr: "shape",
        ir.GenericConst: "constant",
    }
    if is_variable(expr):
        return "copy"
    return kinds.get(type(expr), type(expr).__name__.lower())
