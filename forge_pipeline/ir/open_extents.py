"""Open extents as files write them: a symbol, nothing at all, or a number that is no size.

ONNX has two spellings: ``dim_param``, and a dimension with neither. Exporters have more: -1 (Paddle, older Keras),
0, or the symbol `?`. All of them mean that the size is not known before a call, and `?` on two axes does not say that
these are equal. So an open extent of an input has a name of its own here, and what is open in an output is left for
shape inference to say.
"""

from __future__ import annotations

from collections.abc import Iterable

from onnx import TensorShapeProto, TypeProto, ValueInfoProto

NAMELESS = frozenset({"", "?", "-1"})
"""Symbols that say no more than that a size is open."""


def name_open(inputs: Iterable[ValueInfoProto], outputs: Iterable[ValueInfoProto]) -> None:
    """Name every nameless open extent of ``inputs`` after the input and its axis, in place.

    A name that is in use in an input or an output already gets underscores until it is not.
    """
    inputs = list(inputs)
    taken = {dim.dim_param for value in (*inputs, *outputs) for dim in _dims(value)}
    for value in inputs:
        for axis, dim in enumerate(_dims(value)):
            if is_nameless(dim):
                dim.dim_param = unlike(f"{value.name}_{axis}", taken)
                taken.add(dim.dim_param)


def clear_impossible(kind: TypeProto) -> None:
    """Leave open, in place, the extents of a tensor type that are no sizes: numbers below 1, symbols without a name."""
    if kind.HasField("tensor_type"):
        for dim in kind.tensor_type.shape.dim:
            if (dim.HasField("dim_value") and dim.dim_value < 1) or (
                dim.HasField("dim_param") and dim.dim_param in NAMELESS
            ):
                dim.Clear()


def is_nameless(dim: TensorShapeProto.Dimension) -> bool:
    """Return whether an extent is neither a number nor has a name."""
    return not dim.HasField("dim_value") and not dim.dim_param


def unlike(name: str, taken: Iterable[str]) -> str:
    """Return ``name``, with underscores behind it where it is one of ``taken``."""
    taken = set(taken)
    while name in taken:
        name += "_"
    return name


def _dims(value: ValueInfoProto) -> Iterable[TensorShapeProto.Dimension]:
    return value.type.tensor_type.shape.dim if value.type.HasField("tensor_type") else ()
