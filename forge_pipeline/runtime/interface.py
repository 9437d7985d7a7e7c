"""What a compiled model takes and gives, from its metadata, and the check of what a caller passes to it."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, NamedTuple, cast

import numpy as np

from forge_pipeline.errors import ArtifactError, DataError, did_you_mean
from forge_pipeline.runtime.arguments import ALIGNMENT, Array
from forge_pipeline.runtime.bundle import VERSION
from forge_pipeline.runtime.constraints import FREE, Constraints
from forge_pipeline.runtime.execution import Demands
from forge_pipeline.runtime.program import Program
from forge_runtime.entries import NONE, Entries

SMALL = frozenset(
    (
        *("float8_e4m3fn", "float8_e4m3fnuz", "float8_e5m2", "float8_e5m2fnuz", "float8_e8m0fnu"),
        *("float4_e2m1fn", "float6_e2m3fn", "float6_e3m2fn", "int2", "int4", "uint2", "uint4"),
    )
)
"""What ml_dtypes adds to numpy: one byte for each element. Compiled code takes and gives these bytes."""
DTYPES = SMALL | {"bool", "float16", "float32", "float64"} | {f"{s}int{n}" for s in ("", "u") for n in (8, 16, 32, 64)}
"""What arrays can hold."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tensor:
    """One input or output. An extent is a number, or a name that stands for the same number everywhere."""

    name: str
    dtype: np.dtype[Any]
    shape: tuple[int | str, ...]

    def __str__(self) -> str:
        return f"{self.dtype}[{', '.join(map(str, self.shape))}]"


class Extent(NamedTuple):
    """The size of a named extent in a call, and the axis and the input that it was seen on first."""

    size: int
    axis: int
    input: str


class Call(NamedTuple):
    """Inputs that fit, in order, and the sizes of the named extents."""

    arrays: list[Array]
    extents: Mapping[str, Extent]

    @property
    def sizes(self) -> dict[str, int]:
        """The size of each named extent."""
        return {name: extent.size for name, extent in self.extents.items()}


@dataclass(frozen=True, slots=True, kw_only=True)
class Interface:
    """Inputs and outputs of a model, in order, its entries, and the arrays of its weights section."""

    inputs: tuple[Tensor, ...]
    outputs: tuple[Tensor, ...]
    weights: tuple[Array, ...]
    raw_weights: tuple[Array, ...] = ()
    """What the library's function `prepare` takes, whose results `main` takes after ``weights``."""
    entries: Entries = NONE
    constraints: Constraints = FREE
    program: Program | None = None
    demands: tuple[Demands, ...] = ()
    """What calls the library's functions, where that is more than one call of `main`."""
    accepted: dict[tuple[tuple[int, ...], ...], Mapping[str, Extent]] = field(
        default_factory=dict, compare=False, repr=False
    )
    """The shapes of the inputs that were checked last, and found right, and their named extents."""

    @classmethod
    def of(cls, metadata: Mapping[str, Any], weights: memoryview, *, where: str) -> Interface:
        """Read the interface; ``weights`` is the section that the metadata's table describes. ArtifactError if not.

        The arrays are windows onto ``weights``, in the order of the table: nothing is copied.
        """
        if metadata.get("format") != VERSION:
            raise ArtifactError(
                f"metadata of {where}",
                f"format {VERSION}",
                f"format {metadata.get('format')!r}",
                "use the release of forge-pipeline that built the library, or build it anew",
            )
        table = list(metadata.get("weights", ()))
        arrays = [_weight(row, weights, f"weight {index} of {where}") for index, row in enumerate(table)]
        is_raw = [row.get("prepare", False) is True for row in table]
        program = Program.of(metadata["program"], where=where) if "program" in metadata else None
        return cls(
            inputs=tuple(_tensor(row, f"input of {where}") for row in metadata["inputs"]),
            outputs=tuple(_tensor(row, f"output of {where}") for row in metadata["outputs"]),
            weights=tuple(array for array, raw in zip(arrays, is_raw, strict=True) if not raw),
            raw_weights=tuple(array for array, raw in zip(arrays, is_raw, strict=True) if raw),
            entries=Entries.of(metadata, where=where),
            constraints=Constraints.of(metadata, where=where),
            program=program,
            demands=() if program is None else Demands.of(metadata.get("demands"), program, where=where),
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

    def checked(self, values: Sequence[object]) -> Call:
        """Return the inputs once they are known to be what the model takes.

        Raises DataError, naming the input, for another type, dtype, rank or extent, or for two extents of one name.
        """
        shapes: list[tuple[int, ...]] = []
        for tensor, value in zip(self.inputs, values, strict=True):
            if type(value) is not np.ndarray or value.dtype != tensor.dtype:
                break
            shapes.append(value.shape)
        known = self.accepted.get(tuple(shapes)) if len(shapes) == len(self.inputs) else None
        if known is not None:
            return Call(cast(list[Array], list(values)), known)
        extents: dict[str, Extent] = {}
        arrays = [_checked(tensor, value, extents) for tensor, value in zip(self.inputs, values, strict=True)]
        call = Call(arrays, extents)
        self.constraints.check(call.sizes)
        self.accepted.clear()
        self.accepted[tuple(array.shape for array in arrays)] = extents
        return call

    def places(self) -> dict[str, tuple[int, int]]:
        """Return where each named extent is seen first: which input, and which axis."""
        found: dict[str, tuple[int, int]] = {}
        for index, tensor in enumerate(self.inputs):
            for axis, extent in enumerate(tensor.shape):
                if isinstance(extent, str):
                    found.setdefault(extent, (index, axis))
        return found


def _tensor(row: Mapping[str, Any], where: str) -> Tensor:
    name, dtype, shape = row["name"], row["dtype"], row["shape"]
    if dtype not in DTYPES:
        raise ArtifactError(
            f"{where} {name!r}", f"one of {', '.join(sorted(DTYPES))}", f"{dtype}", "cast it inside the model"
        )
    return Tensor(name=name, dtype=_small(dtype) if dtype in SMALL else np.dtype(dtype), shape=tuple(shape))


def _small(name: str) -> np.dtype[Any]:
    import ml_dtypes  # TVM needs it, too

    found: np.dtype[Any] = np.dtype(getattr(ml_dtypes, name))
    return found


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


def _checked(tensor: Tensor, value: object, extents: dict[str, Extent]) -> Array:
    if not isinstance(value, np.ndarray):
        if not isinstance(value, np.generic):
            raise _unfit(tensor, f"{type(value).__name__}, no numpy array", "convert it with numpy.asarray")
        value = np.asarray(value)  # numpy's own scalars are what it makes of arrays without an axis
    if value.dtype != tensor.dtype:
        fix = f"convert it: array.astype({str(tensor.dtype)!r}), if that loses nothing you need"
        raise _unfit(tensor, f"dtype {value.dtype}", fix)
    if value.shape != tensor.shape:  # always so where an extent has a name
        _check_shape(tensor, value.shape, extents)
    return value


def _check_shape(tensor: Tensor, shape: tuple[int, ...], extents: dict[str, Extent]) -> None:
    """Raise DataError where a shape does not fit; what an error would say is put together only then."""
    if len(shape) != len(tensor.shape):
        raise _unfit(tensor, shown(shape), "reshape it, or add the batch axis: array[None]")
    for axis, (expected, size) in enumerate(zip(tensor.shape, shape, strict=True)):
        if isinstance(expected, int):
            if expected != size:
                raise _unfit(tensor, shown(shape), "pass the shape that the model was compiled for")
            continue
        known = extents.setdefault(expected, Extent(size, axis, tensor.name))
        if known.size != size:
            origin = f"axis {known.axis} of {known.input!r}"
            raise _unfit(tensor, f"{shown(shape)}, while {expected} is {known.size} on {origin}", "make the two agree")


def shown(shape: tuple[int, ...]) -> str:
    """Return a shape as refusals show it."""
    return f"shape {list(shape)}"


def _unfit(tensor: Tensor, found: str, fix: str) -> DataError:
    return DataError(f"input {tensor.name!r}", str(tensor), found, fix)
