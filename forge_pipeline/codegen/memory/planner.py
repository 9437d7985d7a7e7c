"""Where values between kernels lie: in one piece of memory for a run (``offsets``), allocated once.

TVM's own plan gives every value a block that other values may take later, whole and only for the same type, and of
unknown sizes only for the same size. What is put side by side (``float32/concat.py``) is written there in the first
place. Values whose sizes a call decides share blocks (``blocks``): what is written next finds the caches that the last
value left. By TVM's plan a Swin2SR took 59 MB for 41, and the scores of its attention twice as long to write.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import reduce
from typing import Any, Final

import tvm
from tvm import DataType, relax, tirx
from tvm.sym.analyzer import Analyzer

from forge_pipeline.codegen.float32.concat import IS_CONCAT
from forge_pipeline.codegen.memory import prepack
from forge_pipeline.codegen.memory.blocks import shared
from forge_pipeline.codegen.memory.offsets import Concat, Life, nest, plan
from forge_pipeline.codegen.tir import rewriting

TYPICAL: Final = 64
"""What extents that a call brings are taken for where values are compared by size."""


def plan_memory(module: tvm.IRModule, *, own_results: frozenset[str] = frozenset()) -> tvm.IRModule:
    """Return ``module``, whose functions call kernels on tensors that they allocate, with one allocation in each.

    What a function returns lies there too, and holds it as long as somebody holds the result: an ``Engine`` copies.
    Only what is prepared once, and stays, has memory of its own, and what functions named in ``own_results`` return.
    A function with branches is returned as it is, and so are tensors whose sizes its inputs do not decide.
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


def _is_allocation(value: Any) -> bool:
    return getattr(getattr(value, "op", None), "name", "") == "relax.builtin.alloc_tensor"


def _size(allocation: relax.Call) -> Any:
    """Return the bytes of a tensor: a number where it is known."""
    extents = [extent if not isinstance(extent, tirx.IntImm) else int(extent) for extent in allocation.args[0].values]
    return math.prod(extents) * int(DataType(str(allocation.args[1].value)).itemsize)


def _plan_function(
    builder: Any, module: tvm.IRModule, variable: Any, function: relax.Function, *, keeps_results: bool
) -> None:
    bindings = [binding for block in function.body.blocks for binding in block.bindings]
    lives = _lives(module, bindings, function.body.body, keeps_results=keeps_results)
    known = {variable: life for variable, life in lives.items() if isinstance(life.size, int)}
    first, decided = _decided(function, bindings)
    open_ = {
        variable: life
        for variable, life in lives.items()
        if variable not in known and decided.issuperset(rewriting.variables(life.size))
    }
    if not known and not open_:
        return
    allocations, saved = _in_one_piece(module, bindings, known)
    blocks = _in_blocks(bindings, open_)
    rest = [
        (at, binding)
        for at, binding in enumerate(bindings)
        if binding.var not in known and binding.var not in open_ and at not in saved
    ]
    before, behind = ([binding for at, binding in rest if (at < first) == is_before] for is_before in (True, False))
    body = relax.SeqExpr([relax.BindingBlock([*before, *allocations, *blocks, *behind])], function.body.body)
    planned = relax.Function(function.params, body, function.ret_ty, function.is_pure).with_attrs(
        dict(function.attrs or {})
    )
    builder.update_func(variable, planned)


def _decided(function: relax.Function, bindings: Sequence[Any]) -> tuple[int, set[Any]]:
    """Return the place of the first allocation, and the extents that are known there."""
    first = next((at for at, binding in enumerate(bindings) if _is_allocation(binding.value)), len(bindings))
    shapes = [*function.params, *(binding.var for binding in bindings[:first])]
    extents = {
        extent for each in shapes for extent in getattr(getattr(each.ty, "shape", each.ty), "values", None) or ()
    }
    return first, {extent for extent in extents if isinstance(extent, tirx.Var)}


def _in_one_piece(
    module: tvm.IRModule, bindings: Sequence[Any], lives: Mapping[Any, Life]
) -> tuple[list[relax.VarBinding], set[int]]:
    """Return the allocations of values of known size, and which bindings of copies they save."""
    if not lives:
        return [], set()
    nested, saved = nest(lives, _concats(module, bindings, lives))
    outer = nested.lives(lives)
    found = plan(list(outer.values()))
    places = dict(zip(outer, found.offsets, strict=True))
    storage, reserve = _reserved("memory", found.size)
    allocations = [reserve]
    for binding in bindings:
        if binding.var in lives:
            whole, within = nested.place(binding.var)
            allocations.append(_placed(binding, storage, places[whole] + within))
    return allocations, saved


def _in_blocks(bindings: Sequence[Any], lives: Mapping[Any, Life]) -> list[relax.VarBinding]:
    """Return the allocations of values of unknown size, which share blocks of the largest that each holds."""
    values = list(lives)
    held: dict[Any, relax.Var] = {}
    allocations: list[relax.VarBinding] = []
    for number, members in enumerate(shared([_typical(lives[value]) for value in values])):
        sizes = {str(lives[values[at]].size): lives[values[at]].size for at in members}
        storage, reserve = _reserved(f"block{number}", reduce(tirx.max, sizes.values()))
        allocations.append(reserve)
        held.update(dict.fromkeys((values[at] for at in members), storage))
    return [*allocations, *(_placed(binding, held[binding.var], 0) for binding in bindings if binding.var in held)]


def _reserved(name: str, size: Any) -> tuple[relax.Var, relax.VarBinding]:
    storage = relax.Var(name, relax.ObjectType())
    made = relax.op.memory.alloc_storage(relax.ShapeExpr([size]), 0, "global", "uint8")
    return storage, relax.VarBinding(storage, made)


def _placed(binding: Any, storage: relax.Var, offset: int) -> relax.VarBinding:
    shape, kind = binding.value.args[0], str(binding.value.args[1].value)
    return relax.VarBinding(binding.var, relax.op.memory.alloc_tensor(storage, offset, shape, kind))


def _typical(life: Life) -> Life:
    """Return a life with a size that is a number, by which values of unknown size are compared."""
    size = rewriting.substitute(
        life.size, lambda seen: tirx.IntImm("int64", TYPICAL) if isinstance(seen, tirx.Var) else None
    )
    return replace(life, size=int(Analyzer().simplify(size)))


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
    """Return the lives of all tensors that a function allocates for itself; none where it has branches."""
    roots: dict[Any, frozenset[Any]] = {}  # what a variable may be a view of
    sizes: dict[Any, Any] = {}
    last: dict[Any, int] = {}
    first: dict[Any, int] = {}
    for index, binding in enumerate(bindings):
        value = binding.value
        if isinstance(value, relax.If | relax.Function):
            return {}
        if _is_allocation(value):
            size = _size(value)
            if not isinstance(size, int) or size:
                roots[binding.var] = frozenset([binding.var])
                sizes[binding.var] = size
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
