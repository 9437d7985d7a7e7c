"""Folding in a Relax module: weights bound, constant branches computed, batch normalisations taken into weights."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any, Final

import numpy as np
import tvm
from tvm import ir, relax

from forge_pipeline.errors import ModelError
from forge_pipeline.relax.bindings import Bound, Expr, attributes, bindings, operands, operator, rebuilt, result

CONVOLUTIONS: Final = frozenset({"nn.conv1d", "nn.conv2d", "nn.conv3d"})


def bound_parameters(module: tvm.IRModule, params: Mapping[str, Any]) -> tvm.IRModule:
    """Return ``module`` with the parameters of `main` that ``params`` names as constants."""
    values = {name: tvm.runtime.tensor(np.asarray(array, order="C")) for name, array in params.items()}
    return relax.transform.BindParams("main", values)(module) if values else module


def checked_parameters(module: tvm.IRModule, params: Mapping[str, Any]) -> dict[str, np.ndarray]:
    """Return ``params`` as numpy arrays by name, once they are parameters of `main` of that shape and type.

    ``relax.frontend.detach_params`` gives lists by function name; that of `main` stands for its last parameters.
    Raises ModelError.
    """
    variables = {str(variable.name): variable for variable in module["main"].params}
    listed = params.get("main")
    if listed is not None and not hasattr(listed, "shape") and "main" not in variables:
        names = list(variables)[len(variables) - len(listed) :]
        params = dict(zip(names, listed, strict=True))
    found: dict[str, np.ndarray] = {}
    for name, value in params.items():
        array = value.numpy() if hasattr(value, "numpy") else np.asarray(value)
        if name not in variables:
            raise _refused(f"params[{name!r}]", f"a parameter of `main`: {', '.join(variables)}", "no such parameter")
        kind = variables[name].ty
        wanted = [int(extent) for extent in kind.shape.values] if all(_fixed(kind)) else list(array.shape)
        if list(array.shape) != wanted or str(array.dtype) != str(kind.dtype):
            raise _refused(f"params[{name!r}]", f"an array {kind}", f"{array.dtype}{list(array.shape)}")
        found[name] = array
    return found


def _fixed(kind: Any) -> Iterator[bool]:
    return (isinstance(extent, tvm.tirx.IntImm) for extent in kind.shape.values)


def _refused(where: str, expected: str, found: str) -> ModelError:
    return ModelError(where=where, expected=expected, found=found, fix="give the weights that belong to this module")


def folded_constants(module: tvm.IRModule) -> tvm.IRModule:
    """Return ``module`` with what depends on constants alone computed."""
    for variable in _plain_functions(module):
        if any(_is_constant(bound.value) for bound in bindings(module[variable])):
            return relax.transform.DeadCodeElimination()(relax.transform.FoldConstant()(module))
    return module


def _is_constant(expr: Expr) -> bool:
    reads = list(operands(expr))
    return isinstance(expr, relax.Call) and bool(reads) and all(isinstance(x, ir.GenericConst) for x in reads)


def folded_batch_norms(module: tvm.IRModule) -> tvm.IRModule:
    """Return ``module`` without the batch normalisations whose statistics are constants and whose result alone is read.

    Behind a convolution with constant weights that nothing else reads, the scale goes into the weights and a bias is
    added; elsewhere a multiplication and an addition take its place.
    """
    for name in _plain_functions(module):
        steps = bindings(module[name])
        changed = _without_norms(steps, result(module[name]))
        if changed is not None:
            module = rebuilt(module, name, changed, result(module[name]))
    return module


def _plain_functions(module: tvm.IRModule) -> list[str]:
    """Return the names of the functions in Relax that no other code generator is meant for."""
    return [
        str(variable.name_hint)
        for variable, function in module.functions.items()
        if isinstance(function, relax.Function) and not (function.attrs and "Codegen" in function.attrs)
    ]


def _without_norms(steps: list[Bound], output: Expr) -> list[Bound] | None:
    made = {step.variable: step for step in steps}
    readers = Counter(expr for step in steps for expr in operands(step.value))
    readers.update(operands(output))
    items = {
        step.variable: step.value.tuple_value
        for step in steps
        if isinstance(step.value, relax.TupleGetItem) and step.value.index == 0
    }
    used_otherwise = {
        step.value.tuple_value
        for step in steps
        if isinstance(step.value, relax.TupleGetItem) and step.value.index != 0 and readers[step.variable]
    }
    replaced: dict[Expr, list[Bound]] = {}
    dropped: set[Expr] = set()
    for item, norm in items.items():
        call = made[norm].value if norm in made else None
        if call is None or operator(call) != "nn.batch_norm" or norm in used_otherwise:
            continue
        known = attributes(call)
        if known.get("training") or not all(isinstance(x, ir.GenericConst) for x in call.args[1:5]):
            continue
        replaced[item] = _scaled(call, known, made, readers, item)
        dropped.add(norm)
        if operands(replaced[item][0].value) and call.args[0] not in list(operands(replaced[item][0].value)):
            dropped.add(call.args[0])  # the convolution whose weights took the scale
    if not replaced:
        return None
    unread = {s.variable for s in steps if isinstance(s.value, relax.TupleGetItem) and s.value.tuple_value in dropped}
    kept: list[Bound] = []
    for step in steps:
        if step.variable in replaced:
            kept += replaced[step.variable]
        elif step.variable not in dropped and step.variable not in unread:
            kept.append(step)
    return kept


def _scaled(
    call: Expr, known: dict[str, Any], made: dict[Expr, Bound], readers: Counter[Expr], item: Expr
) -> list[Bound]:
    gamma, beta, mean, variance = (x.value.numpy().astype(np.float64) for x in call.args[1:5])
    dtype, axis = str(call.args[0].ty.dtype), int(known["axis"])
    scale = (gamma if known.get("scale", True) else np.ones_like(gamma)) / np.sqrt(variance + known["epsilon"])
    shift = (beta if known.get("center", True) else 0.0) - mean * scale
    rank = int(call.args[0].ty.ndim)
    along = [1] * rank
    along[axis] = -1
    source = made.get(call.args[0])
    if source is not None and readers[call.args[0]] == 1 and _takes_scale(source.value, axis):
        convolution = source.value
        weight = convolution.args[1].value.numpy()
        scaled = weight.astype(np.float64) * scale.reshape([-1] + [1] * (weight.ndim - 1))
        arguments = [convolution.args[0], relax.const(scaled.astype(weight.dtype))]
        first = Bound(
            relax.Var(f"{item.name}_scaled", item.ty), relax.Call(convolution.op, arguments, convolution.attrs)
        )
    else:
        factor = relax.const(scale.reshape(along).astype(dtype))
        first = Bound(relax.Var(f"{item.name}_scaled", item.ty), relax.op.multiply(call.args[0], factor))
    shifted = relax.op.add(first.variable, relax.const(shift.reshape(along).astype(dtype)))
    return [first, Bound(item, shifted)]


def _takes_scale(value: Expr, axis: int) -> bool:
    if operator(value) not in CONVOLUTIONS or not isinstance(value.args[1], ir.GenericConst):
        return False
    known = attributes(value)
    plain = known["data_layout"].startswith("NC") and known["kernel_layout"].startswith("OI")
    return plain and known["out_layout"] in ("", known["data_layout"]) and axis == 1
