"""Another batch size for a Relax module: its symbol bound, or its parameters given another leading dimension."""

from __future__ import annotations

from typing import Any

import tvm
from tvm import relax

from forge_pipeline.errors import ModelError
from forge_pipeline.relax.bindings import Bound, Expr, bindings, operator, plain, rebuilt, result, results

_TARGET_SHAPE = {"reshape": 1, "broadcast_to": 1}  # operator -> which argument is a shape


def with_batch_size(module: tvm.IRModule, size: int, inputs: int) -> tvm.IRModule:
    """Return ``module`` with ``size`` leading the shapes of its inputs, the first ``inputs`` parameters of `main`.

    The batch is the leading dimension of the first, and of every one that has the same. Where it is a number, shapes of
    reshape and broadcast_to that start with it, as what they reshape does, follow. Raises ModelError where the module
    does not compute with another batch.
    """
    if size < 1:
        raise ModelError("set_batch_size", "a batch size of at least 1", str(size), "give a positive number")
    parameters = list(module["main"].params)[:inputs]
    if not parameters or not parameters[0].ty.shape.values:
        raise ModelError(
            where="set_batch_size",
            expected="a module whose first input has a leading dimension",
            found="a scalar" if parameters else "no inputs",
            fix="build the module with a batch dimension",
        )
    old = parameters[0].ty.shape.values[0]
    if not isinstance(plain(old), int):
        return relax.transform.BindSymbolicVars({str(old): size}, "main")(module)
    return _renumbered(module, plain(old), size, inputs)


def _renumbered(module: tvm.IRModule, old: int, size: int, inputs: int) -> tvm.IRModule:
    function = module["main"]
    outputs_before = [_leading(value) for value in results(function)]

    def renewed(index: int, variable: Expr) -> Expr:
        dims = list(variable.ty.shape.values)
        if index >= inputs or not dims or plain(dims[0]) != old:
            return variable
        return relax.Var(str(variable.name), relax.TensorType([size, *dims[1:]], str(variable.ty.dtype)))

    parameters = [renewed(index, variable) for index, variable in enumerate(function.params)]
    steps = [Bound(step.variable, _follow(step.value, old, size), step.cast) for step in bindings(function)]
    try:
        changed = rebuilt(module, "main", steps, result(function), parameters=parameters)
    except (TypeError, ValueError, RuntimeError) as error:
        raise _baked(size, str(error).strip().splitlines()[-1][:300]) from error
    for before, value in zip(outputs_before, results(changed["main"]), strict=True):
        if before == old and _leading(value) != size:
            raise _baked(size, f"an output of type {value.ty}")
    return changed


def _leading(value: Expr) -> Any:
    kind = value.ty
    dims = kind.shape.values if isinstance(kind, relax.TensorType) and kind.shape is not None else ()
    return plain(dims[0]) if dims else None


def _follow(value: Expr, old: int, size: int) -> Expr:
    place = _TARGET_SHAPE.get(operator(value))
    if place is None or not isinstance(value.args[place], relax.ShapeExpr) or _leading(value.args[0]) != old:
        return value
    dims = list(value.args[place].values)
    if not dims or plain(dims[0]) != old:
        return value
    arguments = list(value.args)
    arguments[place] = relax.ShapeExpr([size, *dims[1:]])
    return relax.Call(value.op, arguments, value.attrs, value.ty_args)


def _baked(size: int, found: str) -> ModelError:
    return ModelError(
        where="set_batch_size",
        expected=f"a module that computes a batch of {size}",
        found=found,
        fix="build the module with a symbolic batch dimension, then set its size",
    )
