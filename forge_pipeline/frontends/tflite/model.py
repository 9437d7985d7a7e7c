"""A TensorFlow Lite file as plain values: graphs, tensors, operators and their options."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np

DTYPES: Final = {  # of schema.fbs, TensorType
    0: "float32", 1: "float16", 2: "int32", 3: "uint8", 4: "int64", 6: "bool", 7: "int16", 8: "complex64", 9: "int8",
    10: "float64", 12: "uint64", 13: "resource", 15: "uint32", 16: "uint16", 17: "int4",
}  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Quantization:
    """real = scale * (integer - zero_point), per tensor, or per slice along ``axis``."""

    scale: np.ndarray
    zero_point: np.ndarray
    axis: int

    @property
    def per_axis(self) -> bool:
        """True when there is a scale for each slice."""
        return self.scale.size > 1

    def same(self, other: Quantization | None) -> bool:
        """Tell whether the same integers mean the same numbers."""
        return (
            other is not None
            and np.array_equal(self.scale, other.scale)
            and np.array_equal(self.zero_point, other.zero_point)
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Tensor:
    """A value: ``shape`` has None for an open size, ``data`` is None unless it is a constant.

    ``static`` is the shape that the interpreter has where nobody sets another: an open size is 1 there. A ``variable``
    keeps what an operator leaves in it until the next call.
    """

    name: str
    shape: tuple[int | None, ...]
    static: tuple[int, ...]
    dtype: str
    data: np.ndarray | None
    quantization: Quantization | None
    variable: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Operator:
    """A call; an absent operand is -1. ``options`` reads a field of the operator's options table.

    The name of an operator that is not of TensorFlow Lite's own is ``custom NAME``; its options are ``custom``, bytes
    of a form of its own. ``intermediates`` are tensors that only tell the scales of what is computed inside, and
    ``graphs`` the subgraphs that it runs, in the order of its options.
    """

    name: str
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    options: Any
    custom: bytes = b""
    version: int = 1
    intermediates: tuple[int, ...] = ()
    graphs: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Graph:
    """A subgraph. ``inputs`` and ``outputs`` map the names of the interface to tensors, in order."""

    tensors: tuple[Tensor, ...]
    operators: tuple[Operator, ...]
    inputs: dict[str, int] = field(default_factory=dict)
    outputs: dict[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Model:
    """The subgraphs of a file; ``main`` is the one that a call runs, the others are what its operators run."""

    graphs: tuple[Graph, ...]
    main: int = 0
