"""Where values between kernels lie: in one piece of memory for a run (``offsets``), allocated once.

TVM's own plan gives every value a block that other values may take later, whole and only for the same type. Values of
unknown size are left to it. What is put side by side (``float32/concat.py``) is written there in the first place.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import tvm
from tvm import DataType, relax, tirx

from forge_pipeline.codegen.float32.concat import IS_CONCAT
from forge_pipeline.codegen.memory import prepack
from forge_pipeline.codegen.memory.offsets import Concat, Life, nest, plan


def plan_memory(module: tvm.IRModule, *, own_results: frozenset[str] = frozenset()) -> tvm.IRModule:
    """Return ``module``, whose functions call kernels on tensors that they allocate, with one allocation in each.

    What a function returns lies there too, and holds it as long as somebody holds the result: an ``Engine`` copies.
    Only what is prepared once, and stays, has memory of its own, and what functions named in ``own_results`` return.
    A function with branches, or with tensors of unknown size, is returned as it is.
    """
    builder = relax.BlockBuilder(module)
    for variable, function in sorted(module.functions_items(), key=lambda item: str(item[0].name_hint)):
        if isinstance(function, relax.Function):
            keeps_results = variable.name_hint == prepack.NAME or variable.name_hint in own_results
            _plan_function(builder, module, variable, function, keeps_results=keeps_results)
    return builder.finalize()


def allocated(function: relax.Function) -> int:
    """Return the bytes that a function allocates when it is called; sizes must be known."""
    total = 0

    def visit(item: object) -> None:
        nonlocal total
        name = getattr(getattr(item, "op", None), "name", "")
        if isinstance(item, relax.Call) and name == "relax.memory.alloc_storage":
            total += int(item.args[0].values[0])
        elif isinstance(item, relax.Call) and name == "relax.builtin.alloc_tensor":
            total += _size(item)

    relax.analysis.post_order_visit(function.body, visit)
    return total


def _size(allocation: relax.Call) -> int:
    shape, dtype = allocation.args[0], DataType(str(allocation.args[1].value))
    return math.prod(int(extent) for extent in shape.values) * int(dtype.itemsize)


def _plan_function(
    builder: Any, module: tvm.IRModule, variable: Any, function: relax.Function, *, keeps_results: bool
) -> None:
    bindings = [binding for block in function.body.blocks for binding in block.bindings]
    lives = _lives(module, bindings, function.body.body, keeps_results=keeps_results)
    if not lives:
        return
    nested, saved = nest(lives, _concats(module, bindings, lives))
    outer = nested.lives(lives)
    found = plan(list(outer.values()))
    places = dict(zip(outer, found.offsets, strict=True))
    storage = relax.Var("memory", relax.ObjectType())
    made = relax.op.memory.alloc_storage(relax.ShapeExpr([found.size]), 0, "global", "uint8")
    start = [relax.VarBinding(storage, made)]
    for binding in bindings:
        if binding.var in lives:
            whole, within = nested.place(binding.var)
            offset = places[whole] + within
            shape, kind = binding.value.args[0], str(binding.value.args[1].value)
            tensor = relax.op.memory.alloc_tensor(storage, offset, shape, kind)
            start.append(relax.VarBinding(binding.var, tensor))
    rest = [binding for at, binding in enumerate(bindings) if binding.var not in lives and at not in saved]
    body = relax.SeqExpr([relax.BindingBlock([*start, *rest])], function.body.body)
    planned = relax.Function(function.params, body, function.ret_ty, function.is_pure).with_attrs(
        dict(function.attrs or {})
    )
    builder.update_func(variable, planned)


def _concats(module: tvm.IRModule, bindings: Sequence[Any], lives: Mapping[Any, Life]) -> Iterator[Concat]:
    """Yield the concatenations whose parts and whole are planned, and whose parts are whole tensors."""
    names = {binding.var: binding.value for binding in bindings if isinstance(binding.value, relax.Var)}
    for index, binding in enumerate(bindings):
        call = binding.value
        function = module.functions.get(call.op) if isinstance(call, relax.Call) else None
        if function is None or not function.attrs or IS_CONCAT not in function.attrs:
            continue
        tensors = []
        for argument in call.args:
            tensor = argument
            while tensor in names:
                tensor = names[tensor]
            tensors.append(tensor)
        *parts, whole = tensors
        if all(tensor in lives for tensor in tensors) and sum(lives[part].size for part in parts) == lives[whole].size:
            yield Concat(binding=index, parts=tuple(parts), whole=whole)


def _lives(
    module: tvm.IRModule, bindings: Sequence[Any], result: relax.Expr, *, keeps_results: bool = False
) -> dict[Any, Life]:
    """Return the lives of all tensors that a function allocates for itself; none where one has no known size."""
    roots: dict[Any, frozenset[Any]] = {}  # what a variable may be a view of
    sizes: dict[Any, int] = {}
    last: dict[Any, int] = {}
    first: dict[Any, int] = {}
    for index, binding in enumerate(bindings):
        value = binding.value
        if isinstance(value, relax.If | relax.Function):
            return {}
        name = getattr(getattr(value, "op", None), "name", "")
        if name == "relax.builtin.alloc_tensor":
            extents = value.args[0].values
            if not all(isinstance(extent, tirx.IntImm | int) for extent in extents):
                return {}
            if _size(value):
                roots[binding.var] = frozenset([binding.var])
                sizes[binding.var] = _size(value)
            continue
        touched = _touched(value, roots)
        for root in touched:
            first.setdefault(root, index)
            last[root] = index
        is_kernel = isinstance(value, relax.Call) and isinstance(module.functions.get(value.op), tirx.PrimFunc)
        if touched and not is_kernel:
            roots[binding.var] = touched
    returned = _touched(result, roots)
    end = len(bindings)
    return {
        root: Life(size=size, first=first.get(root, 0), last=end if root in returned else last.get(root, 0))
        for root, size in sizes.items()
        if not (keeps_results and root in returned)
    }


def _touched(expression: relax.Expr, roots: dict[Any, frozenset[Any]]) -> frozenset[Any]:
    """Return the tensors that an expression may read or write."""
    found: set[Any] = set()

    def visit(item: object) -> None:
        if isinstance(item, relax.Var):
            found.update(roots.get(item, ()))

    relax.analysis.post_order_visit(expression, visit)
    return frozenset(found)
