"""What a compiled model takes and gives, from its metadata, and the check of what a caller passes to it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from forge_runtime.entries import NONE, Entries
from forge_runtime.errors import ArtifactError, DataError, did_you_mean
from forge_runtime.library import MAX_RANK

Array = np.ndarray[Any, np.dtype[Any]]

FORMAT = 2
"""The version of the library's format whose metadata this reads."""
SMALL = frozenset(
    (
        *("float8_e4m3fn", "float8_e4m3fnuz", "float8_e5m2", "float8_e5m2fnuz", "float8_e8m0fnu"),
        *("float4_e2m1fn", "float6_e2m3fn", "float6_e3m2fn", "int2", "int4", "uint2", "uint4"),
    )
)
"""What ml_dtypes adds to numpy: one byte for each element. Compiled code takes and gives these bytes."""
BFLOAT16 = "bfloat16"
"""ml_dtypes' too; of two bytes."""
DTYPES = (
    SMALL
    | {BFLOAT16, "bool", "float16", "float32", "float64"}
    | {f"{s}int{n}" for s in ("", "u") for n in (8, 16, 32, 64)}
)
"""What arrays can hold."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tensor:
    """One input or output. An extent is a number, or a name that stands for the same number everywhere.

    Where ml_dtypes is not installed, elements of its types are unsigned integers of their bits.
    """

    name: str
    dtype: np.dtype[Any]
    shape: tuple[int | str, ...]

    def __str__(self) -> str:
        return f"{self.dtype}[{', '.join(map(str, self.shape))}]"


@dataclass(frozen=True, slots=True, kw_only=True)
class State:
    """What a session keeps: the input that reads it, and the output that is the input of the next call.

    A cache has its tokens along the first axis, at most ``most``; another state, of 0, is of one shape.
    """

    input: Tensor
    output: Tensor
    most: int


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
    """Inputs and outputs of a model, in order, and its entries."""

    inputs: tuple[Tensor, ...]
    outputs: tuple[Tensor, ...]
    entries: Entries = NONE
    states: tuple[State, ...] = ()

    @classmethod
    def of(cls, metadata: Any, *, where: str) -> Interface:
        """Read the interface from a library's metadata. Raises ArtifactError where they have none."""
        version = metadata.get("format") if isinstance(metadata, dict) else None
        if version != FORMAT:
            fix = "use the release of forge-pipeline that built the library, or build it anew"
            raise ArtifactError(f"metadata of {where}", f"format {FORMAT}", f"format {version!r}", fix)
        try:
            return cls(
                inputs=tuple(_tensor(row, f"input of {where}") for row in metadata["inputs"]),
                outputs=tuple(_tensor(row, f"output of {where}") for row in metadata["outputs"]),
                entries=Entries.of(metadata, where=where),
                states=tuple(_state(row, f"state of {where}") for row in metadata.get("states", ())),
            )
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise ArtifactError(
                f"metadata of {where}",
                "target, inputs, outputs and entries as docs/format.md describes them",
                f"{type(error).__name__}: {error}",
                "build the library anew with this release of forge-pipeline",
            ) from error

    def positional(self, args: Sequence[object], named: Mapping[str, object]) -> list[object]:
        """Put a call's arguments into the model's order; DataError where one is missing, twice there or unknown."""
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
        extents: dict[str, Extent] = {}
        arrays = [_checked(tensor, value, extents) for tensor, value in zip(self.inputs, values, strict=True)]
        return Call(arrays, extents)


def _tensor(row: Mapping[str, Any], where: str) -> Tensor:
    name, dtype, shape = row["name"], row["dtype"], tuple(row["shape"])
    if dtype not in DTYPES:
        raise ArtifactError(
            f"{where} {name!r}", f"one of {', '.join(sorted(DTYPES))}", f"{dtype}", "cast it inside the model"
        )
    if len(shape) > MAX_RANK or not all(
        type(extent) is str or (type(extent) is int and extent >= 0) for extent in shape
    ):
        raise ArtifactError(f"{where} {name!r}", f"at most {MAX_RANK} numbers and names", f"{shape}", "build it anew")
    return Tensor(name=str(name), dtype=_dtype(dtype), shape=shape)


def _state(row: Mapping[str, Any], where: str) -> State:
    return State(input=_tensor(row["input"], where), output=_tensor(row["output"], where), most=int(row["max"]))


def _dtype(name: str) -> np.dtype[Any]:
    if name not in SMALL and name != BFLOAT16:
        return np.dtype(name)
    try:
        import ml_dtypes
    except ImportError:
        return np.dtype(np.uint16 if name == BFLOAT16 else np.uint8)
    found: np.dtype[Any] = np.dtype(getattr(ml_dtypes, name))
    return found


def _checked(tensor: Tensor, value: object, extents: dict[str, Extent]) -> Array:
    if type(value) is not np.ndarray:
        if not isinstance(value, np.ndarray | np.generic):
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
