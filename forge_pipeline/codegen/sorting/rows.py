"""A tensor of any rank as rows along one of its axes, and how a kernel of this package is called."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import wraps
from typing import Any

from tvm import relax, tirx

KERNEL = "forge.kernel"
"""The attribute of a kernel whose loops are as they shall be; its value is what it is called."""

TOGETHER = 16
"""Rows side by side that are computed together, a lane for each."""

Extents = Sequence[Any]
"""Extents of a tensor: numbers and expressions of TVM."""


@dataclass(frozen=True, slots=True)
class Rows:
    """Rows along one axis. A row has two numbers, ``outer`` of the axes before it and ``inner`` of those after it."""

    shape: tuple[Any, ...]
    axis: int

    @property
    def before(self) -> tuple[Any, ...]:
        """Extents of the axes before."""
        return self.shape[: self.axis]

    @property
    def after(self) -> tuple[Any, ...]:
        """Extents of the axes after."""
        return self.shape[self.axis + 1 :]

    @property
    def outer(self) -> Any:
        """How many places the axes before have."""
        return size(self.before)

    @property
    def inner(self) -> Any:
        """How many places the axes after have."""
        return size(self.after)

    @property
    def length(self) -> Any:
        """How many elements a row has."""
        return self.shape[self.axis]

    def at(self, outer: Any, place: Any, inner: Any) -> tuple[Any, ...]:
        """Return the index of an element, which flattens to ``(outer * length + place) * inner + inner``."""
        return (*unravelled(outer, self.before), place, *unravelled(inner, self.after))

    def split(self, row: Any) -> tuple[Any, Any]:
        """Return the two numbers of the row that is the ``row``-th of all."""
        return row // _divisor(self.inner), row % _divisor(self.inner)

    @property
    def groups(self) -> Any:
        """How many groups of ``TOGETHER`` rows that lie side by side cover ``inner``; where it is less, single rows."""
        return self.outer * self._in_inner

    @property
    def are_wide(self) -> Any:
        """Whether as many rows lie side by side as are computed together."""
        return self.inner >= TOGETHER

    def first(self, group: Any) -> tuple[Any, Any]:
        """Return the two numbers of the first row of a group; the last one is moved back to end with ``inner``."""
        count = _divisor(self._in_inner)
        moved = tirx.min(group % count * TOGETHER, self.inner - TOGETHER)
        return group // count, tirx.Select(self.are_wide, moved, group % count)

    @property
    def _in_inner(self) -> Any:
        return tirx.Select(self.are_wide, (self.inner + (TOGETHER - 1)) // TOGETHER, self.inner)

    def resized(self, length: Any) -> Rows:
        """Return rows of another length."""
        return Rows((*self.before, length, *self.after), self.axis)


def size(extents: Extents) -> Any:
    """Return the product of ``extents``, a 64-bit integer of TVM."""
    result = tirx.const(1, "int64")
    for extent in extents:
        result = result * extent
    return result


def unravelled(flat: Any, extents: Extents) -> tuple[Any, ...]:
    """Return the index of a flat place in row-major order; TVM sees that both are one once buffers are flattened."""
    index: list[Any] = []
    for axis in reversed(range(len(extents))):
        extent = _divisor(extents[axis])
        index.insert(0, flat % extent if axis else flat)
        flat = flat // extent
    return tuple(index)


def _divisor(extent: Any) -> Any:
    """Return what to divide by; of nothing, nothing is computed."""
    return tirx.const(1, "int64") if isinstance(extent, tirx.IntImm) and int(extent) == 0 else extent


def attributes(name: str) -> dict[str, Any]:
    """Return the attributes of a kernel of this package."""
    return {KERNEL: name, "tirx.noalias": True, "tirx.is_scheduled": True}


def own(*shapes: Extents) -> list[tuple[Any, ...]]:
    """Return ``shapes`` for a kernel: numbers as they are, and for equal variables one that is the kernel's own."""
    known: dict[Any, Any] = {}

    def renamed(extent: Any) -> Any:
        if isinstance(extent, int):
            return tirx.const(extent, "int64")
        if isinstance(extent, tirx.IntImm):
            return tirx.const(int(extent), "int64")
        if extent not in known:
            known[extent] = tirx.Var(f"n{len(known)}", "int64")
        return known[extent]

    return [tuple(renamed(extent) for extent in shape) for shape in shapes]


def made_once(kernel: Callable[..., tirx.PrimFunc]) -> Callable[..., tirx.PrimFunc]:
    """Return what makes each kernel once, for all extents that are its own alike (`own`), and all else equal.

    TVM's parser takes up to half a second for one, and a network has the same in all of its layers, or for each class.
    """
    made: dict[object, tirx.PrimFunc] = {}

    @wraps(kernel)
    def remembered(*arguments: Any, **options: Any) -> tirx.PrimFunc:
        known: dict[Any, str] = {}

        def own_name(argument: Any) -> object:
            if isinstance(argument, tirx.IntImm):
                return int(argument)
            if argument is None or isinstance(argument, int | float | str):
                return argument
            if isinstance(argument, Sequence):
                return tuple(map(own_name, argument))
            return known.setdefault(argument, f"n{len(known)}")

        key = own_name(arguments), tuple(sorted(options.items()))
        if key not in made:
            made[key] = kernel(*arguments, **options)
        return made[key]

    return remembered


def extents_of(value: relax.Expr) -> tuple[Any, ...]:
    """Return the extents of a tensor."""
    return tuple(value.ty.shape.values)


def called(
    builder: Any, kernel: tirx.PrimFunc, operands: Sequence[relax.Expr], results: Sequence[tuple[Extents, str]]
) -> list[relax.Expr]:
    """Call ``kernel`` on ``operands``; return its results, whose extents and dtypes the caller says."""
    name = str(kernel.attrs[KERNEL])
    kinds = [relax.TensorType(list(extents), dtype) for extents, dtype in results]
    variable = builder.add_func(kernel, name)
    call = builder.emit(relax.call_tir(variable, list(operands), out_ty=kinds if len(kinds) > 1 else kinds[0]))
    if len(kinds) == 1:
        return [call]
    return [builder.emit(relax.TupleGetItem(call, index)) for index in range(len(kinds))]
