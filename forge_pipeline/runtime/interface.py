"""What a compiled model takes and gives, from its metadata, and the check of what a caller passes to it."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, cast

import numpy as np

from forge_pipeline.errors import ArtifactError, DataError, did_you_mean
from forge_pipeline.runtime.arguments import ALIGNMENT, Array

DTYPES = frozenset(
    ("bool", "float16", "float32", "float64", *(f"{s}int{n}" for s in ("", "u") for n in (8, 16, 32, 64)))
)
"""What numpy can hold."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tensor:
    """One input or output. An extent is a number, or a name that stands for the same number everywhere."""

    name: str
    dtype: np.dtype[Any]
    shape: tuple[int | str, ...]

    @property
    def has_named_batch(self) -> bool:
        """Whether the first extent is a name."""
        return bool(self.shape) and isinstance(self.shape[0], str)

    def __str__(self) -> str:
        return f"{self.dtype}[{', '.join(map(str, self.shape))}]"


@dataclass(frozen=True, slots=True, kw_only=True)
class Interface:
    """Inputs and outputs of a model, in order, and the arrays of its weights section.

    ``single`` names the function for first extents of one wherever they have a name, if there is one beside `main`.
    """

    inputs: tuple[Tensor, ...]
    outputs: tuple[Tensor, ...]
    weights: tuple[Array, ...]
    raw_weights: tuple[Array, ...] = ()
    """What the library's function `prepare` takes, whose results `main` takes after ``weights``."""
    single: str | None = None
    accepted: list[tuple[int, ...]] = field(default_factory=list, compare=False, repr=False)
    """The shapes of the inputs that were checked last, and found right."""

    @classmethod
    def of(cls, metadata: Mapping[str, Any], weights: memoryview, *, where: str) -> Interface:
        """Read the interface; ``weights`` is the section that the metadata's table describes. ArtifactError if not.

        The arrays are windows onto ``weights``, in the order of the table: nothing is copied.
        """
        if metadata.get("format") != 1:
            raise ArtifactError(
                f"metadata of {where}",
                "format 1",
                f"format {metadata.get('format')!r}",
                "use the release of forge-pipeline that built the library, or build it anew",
            )
        table = list(metadata.get("weights", ()))
        arrays = [_weight(row, weights, f"weight {index} of {where}") for index, row in enumerate(table)]
        is_raw = [row.get("prepare", False) is True for row in table]
        return cls(
            inputs=tuple(_tensor(row, f"input of {where}") for row in metadata["inputs"]),
            outputs=tuple(_tensor(row, f"output of {where}") for row in metadata["outputs"]),
            weights=tuple(array for array, raw in zip(arrays, is_raw, strict=True) if not raw),
            raw_weights=tuple(array for array, raw in zip(arrays, is_raw, strict=True) if raw),
            single=metadata.get("single"),
        )

    def positional(self, args: Sequence[object], named: Mapping[str, object]) -> list[object]:
        """Put a call's arguments into the model's order; DataError where one is missing, twice there or unknown."""
        if args and not named and len(args) == len(self.inputs) and type(args[0]) is np.ndarray:
            return list(args)
        if not args and len(named) == len(self.inputs):
            with suppress(KeyError):  # what follows says which name is wrong
                return [named[tensor.name] for tensor in self.inputs]
        if len(args) == 1 and not named:
            (only,) = args
            if isinstance(only, Mapping):
                args, named = (), only
            elif isinstance(only, list | tuple):
                args = only
        if len(args) == len(self.inputs) and not named:
            return list(args)
        names = [tensor.name for tensor in self.inputs]
        if len(args) > len(names):
            raise self._refused(f"{len(args)} arrays", "pass one array for each input")
        values = dict(zip(names, args, strict=False))
        for name, value in named.items():
            if name not in names or name in values:
                found = f"{name!r} twice" if name in names else f"unknown input {name!r}"
                raise self._refused(found, f"{did_you_mean(name, names)}pass each input once")
            values[name] = value
        missing = [name for name in names if name not in values]
        if missing:
            raise self._refused(f"no {', '.join(missing)}", "pass one array for each input")
        return [values[name] for name in names]

    def _refused(self, found: str, fix: str) -> DataError:
        expected = ", ".join(f"{tensor.name} {tensor}" for tensor in self.inputs)
        return DataError("inputs", expected, found, fix)

    def checked(self, values: Sequence[object]) -> list[Array]:
        """Return the inputs once they are known to be what the model takes.

        Raises DataError, naming the input, for another type, dtype, rank or extent, or for two extents of one name.
        """
        shapes: list[tuple[int, ...]] = []
        for tensor, value in zip(self.inputs, values, strict=True):
            if type(value) is not np.ndarray or value.dtype != tensor.dtype:
                break
            shapes.append(value.shape)
        else:
            if shapes and shapes == self.accepted:
                return cast(list[Array], values)
        extents: dict[str, tuple[int, int, str]] = {}
        found = [_checked(tensor, value, extents) for tensor, value in zip(self.inputs, values, strict=True)]
        self.accepted[:] = [array.shape for array in found]
        return found


def _tensor(row: Mapping[str, Any], where: str) -> Tensor:
    name, dtype, shape = row["name"], row["dtype"], row["shape"]
    if dtype not in DTYPES:
        raise ArtifactError(
            f"{where} {name!r}", f"one of {', '.join(sorted(DTYPES))}", f"{dtype}", "cast it inside the model"
        )
    return Tensor(name=name, dtype=np.dtype(dtype), shape=tuple(shape))


def _weight(row: Mapping[str, Any], section: memoryview, where: str) -> Array:
    shape, offset = tuple(row["shape"]), row["offset"]
    dtype = np.dtype(row["dtype"])
    size = math.prod(shape) * dtype.itemsize
    if offset % ALIGNMENT or not 0 <= offset <= offset + size <= len(section):
        raise ArtifactError(
            where,
            f"{size} bytes at a multiple of {ALIGNMENT} within {len(section)}",
            f"offset {offset}",
            "build the library anew",
        )
    return np.frombuffer(section[offset : offset + size], dtype).reshape(shape)


def _checked(tensor: Tensor, value: object, extents: dict[str, tuple[int, int, str]]) -> Array:
    if not isinstance(value, np.ndarray):
        raise _unfit(tensor, f"{type(value).__name__}, no numpy array", "convert it with numpy.asarray")
    if value.dtype != tensor.dtype:
        fix = f"convert it: array.astype({str(tensor.dtype)!r}), if that loses nothing you need"
        raise _unfit(tensor, f"dtype {value.dtype}", fix)
    if value.shape != tensor.shape:  # always so where an extent has a name
        _check_shape(tensor, value.shape, extents)
    return value


def _check_shape(tensor: Tensor, shape: tuple[int, ...], extents: dict[str, tuple[int, int, str]]) -> None:
    """Raise DataError where a shape does not fit; what an error would say is put together only then."""
    if len(shape) != len(tensor.shape):
        raise _unfit(tensor, _found(shape), "reshape it, or add the batch axis: array[None]")
    for axis, (expected, extent) in enumerate(zip(tensor.shape, shape, strict=True)):
        if isinstance(expected, int):
            if expected != extent:
                raise _unfit(tensor, _found(shape), "pass the shape that the model was compiled for")
            continue
        if extent == 0:
            raise _unfit(tensor, f"{_found(shape)}, which is empty", "pass something to compute on")
        known, place, name = extents.setdefault(expected, (extent, axis, tensor.name))
        if known != extent:
            origin = f"axis {place} of {name!r}"
            raise _unfit(tensor, f"{_found(shape)}, while {expected} is {known} on {origin}", "make the two agree")


def _found(shape: tuple[int, ...]) -> str:
    return f"shape {list(shape)}"


def _unfit(tensor: Tensor, found: str, fix: str) -> DataError:
    return DataError(f"input {tensor.name!r}", str(tensor), found, fix)
