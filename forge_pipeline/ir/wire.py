"""Reading ONNX's protobuf without protobuf: where the references to other files are.

A fully cached run must know every file that a model consists of, and must be quick, so it imports neither onnx nor
protobuf. Encoding: https://protobuf.dev/programming-guides/encoding; field numbers: onnx.proto.
"""

from __future__ import annotations

import mmap
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

Buffer = bytes | mmap.mmap

VARINT: Final = 0
FIXED64: Final = 1
BYTES: Final = 2
FIXED32: Final = 5

MODEL_IR_VERSION: Final = 1
MODEL_VERSION: Final = 5
MODEL_GRAPH: Final = 7
_MODEL_FIELDS: Final = frozenset({1, 2, 3, 4, 5, 6, 7, 8, 14, 20, 25, 26})
_MAX_DEPTH: Final = 100  # protobuf's own limit

# message -> field number -> message, for the fields on the way to a tensor's reference to a file
_TENSORS_BELOW: Final[dict[str, dict[int, str]]] = {
    "model": {7: "graph", 20: "training", 25: "function"},
    "training": {1: "graph", 2: "graph"},
    "function": {7: "node", 11: "attribute"},
    "graph": {1: "node", 5: "tensor", 15: "sparse"},
    "node": {5: "attribute"},
    "attribute": {5: "tensor", 6: "graph", 10: "tensor", 11: "graph", 22: "sparse", 23: "sparse"},
    "sparse": {1: "tensor", 2: "tensor"},
    "tensor": {13: "entry"},
}
_ENTRY_KEY: Final = 1
_ENTRY_VALUE: Final = 2


class WireError(ValueError):
    """The bytes are not a protobuf message."""


@dataclass(frozen=True, slots=True)
class Field:
    """One field: ``value`` of a number, or where a length-delimited one has its content, ``start`` to ``end``."""

    number: int
    kind: int
    value: int
    start: int
    end: int


def fields(data: Buffer, start: int, end: int) -> Iterator[Field]:
    """Yield the fields of the message in ``data[start:end]``, copying nothing.

    Raises WireError where the bytes end too early or make no field; groups, which ONNX never had, are one such.
    """
    while start < end:
        key, start = _varint(data, start, end)
        number, kind = key >> 3, key & 7
        value, stop = 0, start
        if kind == VARINT:
            value, stop = _varint(data, start, end)
        elif kind == BYTES:
            length, start = _varint(data, start, end)
            stop = start + length
        elif kind in (FIXED64, FIXED32):
            stop = start + (8 if kind == FIXED64 else 4)
        else:
            raise WireError(f"field {number} has wire type {kind}")
        if number == 0 or stop > end:
            raise WireError(f"field {number} does not fit its message")
        yield Field(number, kind, value, start, stop)
        start = stop


def looks_like_model(data: Buffer) -> bool:
    """Tell whether ``data`` is, or starts like, an ONNX model: its fields are those of a ModelProto."""
    seen: set[int] = set()
    try:
        for field in fields(data, 0, len(data)):
            number_expected = field.number in (MODEL_IR_VERSION, MODEL_VERSION)
            if field.number not in _MODEL_FIELDS or number_expected != (field.kind == VARINT):
                return False
            seen.add(field.number)
    except WireError:
        # A cut file: an IR version in front is as good a sign as a damaged file can give.
        return len(data) > 1 and data[0] == MODEL_IR_VERSION << 3 and data[1] < 0x40
    return MODEL_GRAPH in seen


def external_locations(data: Buffer) -> list[str]:
    """Return the files that the tensors of a serialised ModelProto refer to: sorted, each once.

    Every tensor counts, in subgraphs, functions, attributes and sparse tensors too, and whether or not it claims
    to be external: a superset is safe for a digest. Raises WireError.
    """
    return sorted(set(_locations(data, "model", 0, len(data), 0)))


def _locations(data: Buffer, message: str, start: int, end: int, depth: int) -> Iterator[str]:
    if depth > _MAX_DEPTH:
        raise WireError(f"messages are nested more than {_MAX_DEPTH} deep")
    below = _TENSORS_BELOW[message]
    for field in fields(data, start, end):
        inner = below.get(field.number)
        if field.kind != BYTES or inner is None:
            continue
        if inner == "entry":
            yield from _location(data, field)
        else:
            yield from _locations(data, inner, field.start, field.end, depth + 1)


def _location(data: Buffer, entry: Field) -> Iterator[str]:
    pair = {
        field.number: data[field.start : field.end]
        for field in fields(data, entry.start, entry.end)
        if field.kind == BYTES
    }
    if pair.get(_ENTRY_KEY) == b"location":
        yield pair.get(_ENTRY_VALUE, b"").decode("utf-8", "replace")


def _varint(data: Buffer, position: int, end: int) -> tuple[int, int]:
    value = shift = 0
    while position < end and shift < 64:
        byte = data[position]
        position += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, position
        shift += 7
    raise WireError("a number is cut or longer than 64 bits")
