"""What a TensorFlow Lite model keeps from one call to the next, as inputs and outputs of the ONNX one.

The interpreter keeps variable tensors (of recurrent operators) and resource variables between its calls: what it
computes depends on the calls before. An ONNX model keeps nothing. So each of them that is read before it is written
becomes an input, and what the call leaves in it an output: whoever calls the model hands one on to the other, and
begins with what the interpreter begins with.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from typing import Any

import numpy as np

from forge_pipeline.frontends.tflite.model import Tensor


@dataclass(slots=True, kw_only=True)
class Kept:
    """One of them: its ONNX values before and after the call, and the numbers it holds before the first one.

    ``initial`` has the shape ``shape``, or no dimensions where all numbers are the same.
    """

    name: str
    tensor: Tensor
    shape: tuple[int, ...]
    before: str
    initial: np.ndarray
    after: str | None = None


class State:
    """What is kept, in the order in which it is first read."""

    def __init__(self) -> None:
        self._kept: dict[Hashable, Kept] = {}
        self._initial: dict[Hashable, np.ndarray] = {}
        self._local: dict[Hashable, str] = {}

    def begin(self, key: Hashable, initial: np.ndarray) -> None:
        """Say with what numbers ``key`` begins; 0, or what stands for it, unless this is said."""
        self._initial[key] = initial

    def read(self, key: Hashable, tensor: Tensor, name: str) -> str:
        """Return the ONNX value of ``key``, whose form ``tensor`` has. The last part of ``name`` is only a hint."""
        if key in self._local:
            return self._local[key]
        if key not in self._kept:
            given = self._initial.get(key)
            self._kept[key] = Kept(
                name=name or "state",
                tensor=tensor,
                shape=tensor.static if given is None else given.shape,
                before=f"state:{len(self._kept)}",
                initial=_zero(tensor) if given is None else _one_of(given),
            )
        kept = self._kept[key]
        return kept.after or kept.before

    def write(self, key: Hashable, value: str) -> None:
        """Say that ``key`` holds the ONNX value ``value`` from now on."""
        if key in self._kept:
            self._kept[key].after = value
        else:
            self._local[key] = value  # what it held before the call is never asked for

    def constants(self) -> list[Kept]:
        """Return what is read and never written."""
        return [kept for kept in self._kept.values() if kept.after is None]

    def carried(self, taken: set[str]) -> list[Kept]:
        """Return what is read and then written, under names that differ from each other and from ``taken``."""
        carried, names = [kept for kept in self._kept.values() if kept.after is not None], set(taken)
        for kept in carried:
            stem, number = kept.name, 1
            while {kept.name, following(kept.name)} & names:
                kept.name, number = f"{stem}_{number}", number + 1
            names |= {kept.name, following(kept.name)}
        return carried


def _zero(tensor: Tensor) -> np.ndarray:
    """Return what the interpreter sets a variable tensor to: 0, or the 8 bits that stand for it."""
    quantization = tensor.quantization if tensor.dtype == "int8" else None
    return np.array(0 if quantization is None else quantization.zero_point[0], tensor.dtype)


def _one_of(numbers: np.ndarray) -> np.ndarray:
    flat = numbers.reshape(-1)
    return np.asarray(flat[0]) if flat.size and np.all(flat == flat[0]) else numbers


def following(name: str) -> str:
    """Return the name of the output that has what the state ``name`` is after the call."""
    return f"{name}_next"


def notes(carried: list[Kept]) -> list[dict[str, Any]]:
    """Return, as plain JSON, which output goes into which input of the next call, and what the first call is given."""
    return [{"input": one.name, "output": following(one.name), "first": one.initial.tolist()} for one in carried]
