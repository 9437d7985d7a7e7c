"""Two kernels that become one: a pointwise convolution that a depthwise one alone reads.

TVM fuses elementwise operators into what computes their operand, and never two convolutions. Which pairs are worth it
says `float32.expand_depthwise`.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Any

import tvm
from tvm import relax, s_tir, te, tirx
from tvm.ir import GlobalVar

from forge_pipeline.codegen.float32.conv import depthwise, direct, expand_depthwise
from forge_pipeline.codegen.layout.builder import dtype_of, shape_of
from forge_pipeline.codegen.layout.origins import Origins
from forge_pipeline.codegen.tir import primitives
from forge_pipeline.codegen.tir.machine import Machine


@dataclass(frozen=True, slots=True, kw_only=True)
class Pair:
    """The bindings of `main` that call the two, in order; which argument of the second is the first's result."""

    first: Any
    second: Any
    argument: int


def pair_convolutions(module: tvm.IRModule, machine: Machine, origins: Origins) -> tvm.IRModule:
    """Return ``module``, whose groups of kernels are decided but not yet made, with one for each pair that pays."""
    main = module["main"]
    bindings = [binding for block in main.body.blocks for binding in block.bindings]
    uses: Counter[Any] = Counter()
    for value in (*(binding.value for binding in bindings), main.body.body):
        relax.analysis.post_order_visit(value, lambda item: uses.update([item] if isinstance(item, relax.Var) else []))
    made = {binding.var: binding for binding in bindings}
    found = [pair for binding in bindings if (pair := _pair(module, machine, binding, made, uses)) is not None]
    if not found:
        return module
    builder = relax.BlockBuilder(module)
    calls, gone = {}, set()
    for pair in found:
        calls[pair.second.var], first = _joined(builder, module, pair), pair.first.var
        gone.add(first)
        origins.note(pair.second.var, origins.of(first))
    blocks = [
        type(block)([
            relax.VarBinding(binding.var, calls[binding.var]) if binding.var in calls else binding
            for binding in block.bindings
            if binding.var not in gone
        ])
        for block in main.body.blocks
    ]  # fmt: skip
    body = relax.SeqExpr(blocks, main.body.body)
    changed = relax.Function(main.params, body, main.ret_ty, main.is_pure).with_attrs(dict(main.attrs or {}))
    builder.update_func(module.get_global_var("main"), changed)
    return relax.transform.DeadCodeElimination()(relax.transform.Normalize()(builder.finalize()))


def _pair(
    module: tvm.IRModule, machine: Machine, binding: Any, made: dict[Any, Any], uses: Counter[Any]
) -> Pair | None:
    """Return the pair that ends with a binding."""
    group = _group(module, binding)
    anchor = _anchor(module, group, depthwise.NAME) if group is not None else None
    if group is None or anchor is None or depthwise.WINDOWS not in anchor[1]:
        return None
    image = anchor[0].args[1].fields[0]
    argument = next((index for index, parameter in enumerate(group.params) if parameter.same_as(image)), None)
    if argument is None or sum(image.same_as(item) for item in _operands(group)) != 1:
        return None
    middle = binding.value.args[argument]
    first = made.get(middle)
    before = _group(module, first) if first is not None and uses[middle] == 1 else None
    source = _anchor(module, before, direct.NAME) if before is not None else None
    if source is None or direct.FLAT not in source[1]:
        return None
    read, weight = (shape_of(item) for item in source[0].args[1].fields)
    batch, blocks = shape_of(middle)[:2]
    rows, columns = depthwise.windows_of(anchor[1])
    height, width = shape_of(anchor[0])[2:4]
    if depthwise.OPEN in (rows.size, columns.size) or 1 in (height, width):
        return None
    numbers = 2 if dtype_of(source[0].args[1].fields[1]) == "int32" else 1  # of bfloat16, in one weight
    is_of_all = len(read) == 5 and -(-weight[1] * weight[4] * numbers // read[4]) == read[1]  # without groups
    if not isinstance(batch, int) or not is_of_all or dtype_of(middle) != "float32":
        return None
    worth = expand_depthwise.pays(machine, batch=batch, blocks=blocks, steps=weight[1] * weight[4], rows=rows,
                                  columns=columns, results=height)  # fmt: skip
    return Pair(first=first, second=binding, argument=argument) if worth else None


def _group(module: tvm.IRModule, binding: Any) -> relax.Function | None:
    """Return the function that a binding calls, if it is one of calls of kernels that are to be fused."""
    called = getattr(binding.value, "op", None)
    function = module[called] if isinstance(called, GlobalVar) else None
    if not isinstance(function, relax.Function) or "Primitive" not in (function.attrs or {}):
        return None
    return function if all(_is_kernel(item.value) for item in _bindings(function)) else None


def _is_kernel(value: Any) -> bool:
    return (
        isinstance(value, relax.Call)
        and len(value.args) > 1
        and isinstance(value.args[0], GlobalVar)
        and isinstance(value.args[1], relax.Tuple)
    )


def _bindings(group: relax.Function) -> list[Any]:
    return [binding for block in group.body.blocks for binding in block.bindings]


def _operands(group: relax.Function) -> list[Any]:
    return [item for binding in _bindings(group) for item in binding.value.args[1].fields]


def _anchor(module: tvm.IRModule, group: relax.Function, family: str) -> tuple[Any, dict[str, Any]] | None:
    """Return the call of a group's kernel of a family, and the annotations of the block that the family schedules."""
    for binding in _bindings(group):
        kernel = module[binding.value.args[0]]
        if not isinstance(kernel, tirx.PrimFunc):
            return None
        sch = s_tir.Schedule(kernel)
        for block in primitives.blocks(sch):
            if primitives.family_of(sch, block) == family:
                return binding.value, dict(sch.get(block).annotations)
    return None


def _joined(builder: Any, module: tvm.IRModule, pair: Pair) -> relax.Call:
    """Return the call of both groups as one, in which the pointwise convolution has rows."""
    names = [pair.first.value.op.name_hint, pair.second.value.op.name_hint]
    first, second = (relax.utils.copy_with_new_vars(module[name]) for name in names)
    image = second.params[pair.argument]
    anchor, _ = _anchor(module, first, direct.NAME) or (None, None)
    bindings = []
    for binding in (*_bindings(first), *_bindings(second)):
        call = binding.value
        operands = [first.body.body if item.same_as(image) else item for item in call.args[1].fields]
        kernel = call.args[0]
        if call.same_as(anchor):
            kernel = builder.add_func(_rows(call), expand_depthwise.NAME)
        arguments = [kernel, relax.Tuple(operands), *call.args[2:]]
        bindings.append(relax.VarBinding(binding.var, relax.Call(call.op, arguments, call.attrs, call.ty_args)))
    parameters = [*first.params, *(item for item in second.params if not item.same_as(image))]
    body = relax.SeqExpr([relax.DataflowBlock(bindings)], second.body.body)
    joined = relax.Function(parameters, body, second.ret_ty, second.is_pure).with_attrs(dict(second.attrs or {}))
    variable = builder.add_func(joined, f"{names[0]}_{names[1].removeprefix('fused_')}")
    given = [item for index, item in enumerate(pair.second.value.args) if index != pair.argument]
    return relax.Call(variable, [*pair.first.value.args, *given])


def _rows(call: relax.Call) -> tirx.PrimFunc:
    """Return the kernel of a pointwise convolution whose results have rows and columns."""
    image, weight = (
        te.placeholder(item.ty.shape.values, dtype_of(item), name="operand") for item in call.args[1].fields
    )
    rows = expand_depthwise.expand(image, weight, blocks=call.ty.shape.values[1])
    return te.create_prim_func([image, weight, rows]).without_attr("global_symbol")
