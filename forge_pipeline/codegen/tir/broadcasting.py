"""Extents that are one, and what is read at them: ONNX's and numpy's broadcasting of shapes that TVM has."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tvm import tirx


def is_one(extent: Any) -> bool:
    """Return whether an extent is known to be one."""
    return isinstance(extent, tirx.IntImm | int) and int(extent) == 1


def broadcast(left: Sequence[Any], right: Sequence[Any]) -> list[Any]:
    """Return the shape of a result of two operands with these shapes."""
    count = max(len(left), len(right))
    padded = [[1] * (count - len(shape)) + list(shape) for shape in (left, right)]
    return [second if is_one(first) else first for first, second in zip(*padded, strict=True)]


def places(index: Sequence[Any], shape: Sequence[Any]) -> list[Any]:
    """Return where an operand with ``shape`` is read for the result at ``index``."""
    own = index[len(index) - len(shape) :]
    return [0 if is_one(extent) else place for place, extent in zip(own, shape, strict=True)]
