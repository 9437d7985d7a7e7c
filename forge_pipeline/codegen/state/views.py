"""What a chain of nodes that only move data, and multiply by a number, does to a cache, as exactly as sizes are known.

A tensor is followed as its axes, each of which is a list of *atoms*, the outermost first: axes of the cache, or copies.
Reshape cuts the list anew, Transpose moves axes, Expand turns an axis of one into copies.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from onnx import NodeProto

from forge_pipeline.ir.sizes import expression as e
from forge_pipeline.ir.sizes.analysis import Sizes
from forge_pipeline.ir.sizes.expression import Whole

COPIES = -1
"""The atom along which a cache repeats."""

Atom = tuple[int, Whole]
"""An axis of the cache, or COPIES, and its extent."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """A value as it was made of the cache ``source``: its axes, without atoms of extent one, times ``factor``."""

    source: str
    axes: tuple[tuple[Atom, ...], ...]
    factor: float = 1.0

    @property
    def order(self) -> list[list[int]]:
        """The atoms of each axis."""
        return [[atom for atom, _ in axis] for axis in self.axes]


def seen(name: str, caches: Mapping[str, str], producers: Mapping[str, NodeProto], sizes: Sizes) -> Seen | None:
    """Return what ``name`` is of one of ``caches``, values of a graph; None where it is something else."""
    if name in caches:
        shape = sizes.shape(name)
        if shape is None:
            return None
        whole = tuple(() if extent == 1 else ((axis, extent),) for axis, extent in enumerate(shape))
        return Seen(source=caches[name], axes=whole)
    node = producers.get(name)
    if node is None or node.domain not in ("", "ai.onnx"):
        return None
    if node.op_type in ("Mul", "Div"):
        return _scaled(node, caches, producers, sizes)
    if node.op_type not in ("Transpose", "Reshape", "Unsqueeze", "Squeeze", "Expand", "Identity"):
        return None
    before, shape = seen(node.input[0], caches, producers, sizes), sizes.shape(name)
    if before is None or shape is None:
        return None
    axes: tuple[tuple[Atom, ...], ...] | None
    if node.op_type == "Transpose":
        order = next((list(item.ints) for item in node.attribute if item.name == "perm"), None)
        order = list(range(len(before.axes)))[::-1] if order is None else order
        axes = tuple(before.axes[axis] for axis in order)
    elif node.op_type == "Expand":
        axes = _expanded(before.axes, shape)
    else:
        axes = _cut([atom for axis in before.axes for atom in axis], shape)
    return None if axes is None else Seen(source=before.source, axes=axes, factor=before.factor)


def number_of(name: str, sizes: Sizes, producers: Mapping[str, NodeProto]) -> float | None:
    """Return the one number that a value is, None where it is none that is known."""
    known = sizes.values.get(name)
    constant = None if known is None else known.constant
    if constant is not None:
        return float(constant.reshape(())) if constant.size == 1 else None
    node = producers.get(name)  # sizes are exact alone: roots of them are no sizes
    if node is not None and node.op_type == "Sqrt":
        inner = number_of(node.input[0], sizes, producers)
        return None if inner is None else float(np.sqrt(np.float32(inner)))
    if node is not None and node.op_type in ("Div", "Mul"):
        sides = [number_of(side, sizes, producers) for side in node.input]
        if None not in sides:
            a, b = (np.float32(side) for side in sides if side is not None)
            return float(a * b if node.op_type == "Mul" else a / b)
    if node is not None and node.op_type in ("Cast", "Identity", "Squeeze", "Unsqueeze", "Reshape"):
        return number_of(node.input[0], sizes, producers)
    return None


def _scaled(
    node: NodeProto, caches: Mapping[str, str], producers: Mapping[str, NodeProto], sizes: Sizes
) -> Seen | None:
    for place in (0, 1) if node.op_type == "Mul" else (0,):
        number = number_of(node.input[1 - place], sizes, producers)
        other, shape = sizes.shape(node.input[1 - place]), sizes.shape(node.output[0])
        if number is None or other is None or shape is None:
            continue
        found = seen(node.input[place], caches, producers, sizes)
        if found is not None and len(found.axes) == len(shape) and np.isfinite(number) and number:
            factor = found.factor * (number if node.op_type == "Mul" else 1 / number)
            return Seen(source=found.source, axes=found.axes, factor=factor)
    return None


def _expanded(axes: Sequence[tuple[Atom, ...]], shape: Sequence[Whole]) -> tuple[tuple[Atom, ...], ...] | None:
    """Return the axes of a value that was broadcast."""
    padded = [()] * (len(shape) - len(axes)) + list(axes)
    result: list[tuple[Atom, ...]] = []
    for axis, extent in zip(padded, shape, strict=True):
        own: Whole = e.product(tuple(size for _, size in axis))
        if own == extent:
            result.append(tuple(axis))
        elif not axis:
            result.append(((COPIES, extent),))
        else:
            return None
    return tuple(result)


def _cut(atoms: list[Atom], shape: Sequence[Whole]) -> tuple[tuple[Atom, ...], ...] | None:
    """Return atoms cut into axes of these extents."""
    left, axes = list(atoms), []
    for extent in shape:
        axis: list[Atom] = []
        size: Whole = 1
        while size != extent:
            if not left:
                return None
            axis.append(left.pop(0))
            size = e.product((size, axis[-1][1]))
            if isinstance(size, int) and isinstance(extent, int) and size > extent:
                return None
        axes.append(tuple(axis))
    return None if left else tuple(axes)


def whole(node: NodeProto, name: str, default: int = 0) -> int:
    """Return an attribute of a node that is a whole number."""
    return next((int(item.i) for item in node.attribute if item.name == name), default)
