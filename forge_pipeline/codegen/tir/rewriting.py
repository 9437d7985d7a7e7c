"""Rewriting kernels where TVM's schedules cannot: reading, substituting and cloning loops and blocks."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import tvm
import tvm_ffi
from tvm import s_tir, tirx
from tvm.ir import TensorLoad, Var
from tvm.s_tir import SBlockRealize

CHOICE = "prim.if_then_else"
"""The operator of a value that is the one or the other, of which only one is computed."""


def realizes(tree: Any) -> list[SBlockRealize]:
    """Return the blocks in ``tree`` that have axes, in program order."""
    found: list[SBlockRealize] = []
    tvm_ffi.structural_walk(tree, [(s_tir.SBlockRealize, found.append)], order="pre")
    return [realize for realize in found if realize.block.iter_vars]


def loops(tree: Any) -> list[tirx.For]:
    """Return the loops in ``tree``."""
    found: list[tirx.For] = []
    tvm_ffi.structural_walk(tree, [(tirx.For, found.append)])
    return found


def loads(tree: Any) -> list[TensorLoad]:
    """Return what ``tree`` reads of buffers, in program order."""
    found: list[TensorLoad] = []
    tvm_ffi.structural_walk(tree, [(TensorLoad, found.append)])
    return found


def address(places: Sequence[Any], buffer: Any) -> Any:
    """Return how many numbers lie in front of the one at these places of a buffer that is in one piece."""
    place: Any = tirx.const(0, "int64")
    for index, extent in zip(places, buffer.ty.shape, strict=True):
        place = place * extent + index
    return place


def variables(expression: Any) -> list[Any]:
    """Return the variables that occur in ``expression``, each once."""
    found: list[Any] = []

    def note(seen: Any) -> None:
        if not any(seen.same_as(other) for other in found):
            found.append(seen)

    tvm_ffi.structural_walk(expression, [(Var, note)])
    return found


def reads(expression: Any, variable: Any) -> bool:
    """Return whether ``variable`` occurs in ``expression``."""
    return any(seen.same_as(variable) for seen in variables(expression))


def conjuncts(condition: Any) -> list[Any]:
    """Return the conditions that are to hold together; none for a constant."""
    if isinstance(condition, tirx.And):
        return [*conjuncts(condition.a), *conjuncts(condition.b)]
    return [] if isinstance(condition, tirx.IntImm) else [condition]


def substitute(tree: Any, new: Callable[[Any], Any]) -> Any:
    """Return ``tree`` with ``new(variable)`` for each variable where that is not None but a number or more."""

    def replace(variable: Any) -> Any:
        other = new(variable)
        if other is None:
            return variable
        return tirx.const(other, variable.ty.dtype) if isinstance(other, int) else other

    return tvm_ffi.structural_map(tree, [(Var, replace)])


def at_zero(expression: Any, variables: Sequence[Any]) -> Any:
    """Return ``expression`` with zero for each of ``variables``."""
    return substitute(expression, lambda seen: 0 if any(seen.same_as(variable) for variable in variables) else None)


def clone(body: Any, buffers: Sequence[Any] = ()) -> Any:
    """Return ``body`` with loop variables and names of its own, and new buffers for ``buffers``.

    What an instruction sees of a buffer is new as well: it has a name for where that begins.
    """
    fresh: dict[Any, Any] = {
        buffer: tirx.decl_buffer(buffer.ty.shape, str(buffer.ty.dtype), buffer.name, scope=buffer.scope())
        for buffer in buffers
    }
    for realize in realizes(body):
        for seen in (matched.buffer for matched in realize.block.match_buffers):
            if isinstance(seen.elem_offset, tirx.Var):
                fresh[seen] = tirx.decl_buffer(
                    seen.shape, str(seen.dtype), seen.name, strides=seen.strides, scope=seen.scope(),
                    data_alignment=seen.data_alignment, offset_factor=seen.offset_factor,
                )  # fmt: skip

    def rename(variable: Any) -> None:
        fresh[variable] = tirx.Var(variable.name, variable.ty.dtype)

    tvm_ffi.structural_walk(
        body, [(tirx.For, lambda loop: rename(loop.loop_var)), (tirx.Bind, lambda bind: rename(bind.var))]
    )
    return substitute(body, fresh.get)


def with_extents(tree: Any, extents: Mapping[Any, int]) -> Any:
    """Return ``tree`` with other numbers of turns for the loops whose variables ``extents`` has."""

    def change(loop: tirx.For, mutator: Any) -> tirx.For:
        done = mutator.default_mutate(loop)
        extent = extents.get(loop.loop_var, loop.extent)
        return tirx.For(done.loop_var, done.min, extent, done.kind, done.body, annotations=dict(done.annotations))

    return tvm_ffi.structural_mutate(tree, [(tirx.For, change)])


def with_axes(tree: Any, extents: Mapping[Any, Any]) -> Any:
    """Return ``tree`` with other extents for the loops whose variables ``extents`` has, and for the axes of blocks."""

    def loop(old: tirx.For) -> tirx.For:
        extent = extents.get(old.loop_var, old.extent)
        return tirx.For(old.loop_var, old.min, extent, old.kind, old.body, annotations=old.annotations)

    def block(old: SBlockRealize) -> SBlockRealize:
        inner = old.block
        axes = [
            tirx.IterVar((0, extents.get(value, axis.dom.extent)), axis.var, axis.iter_type)
            for axis, value in zip(inner.iter_vars, old.iter_values, strict=True)
        ]
        changed = s_tir.SBlock(
            axes, inner.reads, inner.writes, inner.name_hint, inner.body, inner.init, annotations=inner.annotations
        )
        return s_tir.SBlockRealize(old.iter_values, old.predicate, changed)

    return map_realizes(tvm_ffi.structural_map(tree, [(tirx.For, loop)]), block)


def map_realizes(body: Any, change: Callable[[SBlockRealize], SBlockRealize]) -> Any:
    """Return ``body`` with ``change`` done to each of its blocks that have axes."""

    def changed(realize: SBlockRealize) -> SBlockRealize:
        return change(realize) if realize.block.iter_vars else realize

    return tvm_ffi.structural_map(body, [(s_tir.SBlockRealize, changed)])


def with_own_axes(body: Any) -> Any:
    """Return ``body`` with axes for each block that no other has, as TVM's schedules want them."""

    def own(realize: SBlockRealize) -> SBlockRealize:
        fresh = {axis.var: tirx.Var(axis.var.name, axis.var.ty.dtype) for axis in realize.block.iter_vars}
        return s_tir.SBlockRealize(realize.iter_values, realize.predicate, substitute(realize.block, fresh.get))

    return map_realizes(body, own)


def with_value(realize: SBlockRealize, axis: int, place: Any, content: Any) -> SBlockRealize:
    """Return a block of one store at another place along one axis, with another content, under no condition."""
    old = realize.block
    store = tirx.BufferStore(old.body.buffer, content, old.body.indices)
    block = s_tir.SBlock(old.iter_vars, old.reads, old.writes, old.name_hint, store, annotations=old.annotations)
    values = [place if index == axis else value for index, value in enumerate(realize.iter_values)]
    return s_tir.SBlockRealize(values, True, block)


def either(condition: Any, function: tirx.PrimFunc, otherwise: tirx.PrimFunc) -> tirx.PrimFunc:
    """Return a kernel that does what one does under a condition, and what the other does else."""
    first, second = function.body.block, clone(otherwise.body, otherwise.body.block.alloc_buffers).block
    body = tirx.IfThenElse(condition, first.body, second.body)
    buffers = [*first.alloc_buffers, *second.alloc_buffers]
    root = s_tir.SBlock([], [], [], "root", body, alloc_buffers=buffers, annotations=first.annotations)
    return function.with_body(SBlockRealize([], True, root))


def with_functions(module: tvm.IRModule, functions: Mapping[tvm.ir.GlobalVar, tirx.PrimFunc]) -> tvm.IRModule:
    """Return ``module`` with other functions for some of its variables."""
    module = module.clone()
    for variable, function in functions.items():
        module[variable] = function
    return module


def with_buffers(function: tirx.PrimFunc, buffers: Sequence[Any]) -> tirx.PrimFunc:
    """Return a kernel that allocates ``buffers`` too."""
    if not buffers:
        return function
    root = function.body.block
    block = s_tir.SBlock(
        root.iter_vars, root.reads, root.writes, root.name_hint, root.body,
        alloc_buffers=[*root.alloc_buffers, *buffers], annotations=root.annotations,
    )  # fmt: skip
    return function.with_body(s_tir.SBlockRealize(function.body.iter_values, function.body.predicate, block))
