"""Reading ONNX's protobuf without protobuf: where the references to other files are.

A fully cached run must know every file that a model consists of, and must be quick, so it imports neither onnx nor
protobuf. Encoding: https://protobuf.dev/programming-guides/encoding; field numbers: onnx.proto.
"""

from __future__ import annotations

import mmap
from collections.abc import Iterator
from typing import Final, NamedTuple

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

_TEXT: Final = "text"  # a string, which must be UTF-8
_REFERENCE: Final = "reference"  # an entry of TensorProto.external_data

# message -> field number -> the message or leaf that it holds; fields that are neither are left out
_SCHEMA: Final[dict[str, dict[int, str]]] = {
    "model": {2: _TEXT, 3: _TEXT, 4: _TEXT, 7: "graph", 8: "opset", 20: "training", 25: "function"},
    "opset": {1: _TEXT},
    "training": {1: "graph", 2: "graph"},
    "function": {
        **dict.fromkeys((1, 4, 5, 6, 10, 13), _TEXT),
        7: "node", 9: "opset", 11: "attribute", 12: "value",
    },
    "graph": {1: "node", 2: _TEXT, 5: "tensor", 11: "value", 12: "value", 13: "value", 15: "sparse"},
    "node": {**dict.fromkeys((1, 2, 3, 4, 7, 8), _TEXT), 5: "attribute"},
    "attribute": {
        1: _TEXT, 5: "tensor", 6: "graph", 10: "tensor", 11: "graph",
        14: "type", 15: "type", 21: _TEXT, 22: "sparse", 23: "sparse",
    },
    "sparse": {1: "tensor", 2: "tensor"},
    "tensor": {8: _TEXT, 13: _REFERENCE},
    "value": {1: _TEXT, 2: "type"},
    "type": {1: "tensor type", 4: "element", 5: "map", 6: _TEXT, 8: "tensor type", 9: "element"},
    "tensor type": {2: "shape"},
    "element": {1: "type"},
    "map": {2: "type"},
    "shape": {1: "dimension"},
    "dimension": {2: _TEXT, 3: _TEXT},
}  # fmt: skip
_ENTRY_KEY: Final = 1
_ENTRY_VALUE: Final = 2
_GRAPH_INITIALIZER: Final = 5
_TENSOR_NAME: Final = 8
_TENSOR_RAW_DATA: Final = 9
_TENSOR_EXTERNAL_DATA: Final = 13
_TENSOR_DATA_LOCATION: Final = 14
_EXTERNAL: Final = 1  # TensorProto.DataLocation


class WireError(ValueError):
    """The bytes are not a protobuf message."""


class Field(NamedTuple):  # made faster than a frozen dataclass, and thousands of them are
    """One field: the ``value`` of a number, or where a length-delimited one has its content (start to end).

    The field as a whole, its tag and length included, is ``begin`` to ``end``.
    """

    number: int
    kind: int
    value: int
    begin: int
    start: int
    end: int


def fields(data: Buffer, start: int, end: int) -> Iterator[Field]:
    """Yield the fields of the message in ``data[start:end]``, copying nothing.

    Raises WireError where the bytes end too early or make no field; groups, which ONNX never had, are one such.
    """
    while start < end:
        begin = start
        key = data[start]
        start += 1
        if key > 0x7F:  # a number of more than one byte
            key, start = _varint(data, begin, end)
        number, kind = key >> 3, key & 7
        value, stop = 0, start
        if kind == VARINT:
            value, stop = _varint(data, start, end)
        elif kind == BYTES:
            length = data[start] if start < end else 0x80
            if length > 0x7F:
                length, start = _varint(data, start, end)
            else:
                start += 1
            stop = start + length
        elif kind in (FIXED64, FIXED32):
            stop = start + (8 if kind == FIXED64 else 4)
        else:
            raise WireError(f"field {number} has wire type {kind}")
        if number == 0 or stop > end:
            raise WireError(f"field {number} does not fit its message")
        yield Field(number, kind, value, begin, start, stop)
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
    entries = _leaves(data, _REFERENCE)
    return sorted({name for entry in entries for name in _location(data, entry)})


def check_text(data: Buffer, *, below: int = 1 << 63) -> None:
    """Raise WireError where a name in a serialised ModelProto is not UTF-8: protobuf parses it, and fails later.

    Initializers of the main graph of ``below`` bytes or more are not looked at: ``without_weights`` does that.
    """
    for _, _, _, _, start, end in _leaves(data, _TEXT, below):
        _check_text(data[start:end])


def _check_text(text: bytes) -> None:
    try:
        text.decode("utf-8")
    except UnicodeDecodeError as error:
        raise WireError(f"a name that is not UTF-8: {text[:40]!r}") from error


def _leaves(data: Buffer, wanted: str, below: int = 1 << 63) -> Iterator[Field]:
    """Yield the texts, or the references, of a serialised ModelProto, in no particular order.

    Initializers of the main graph of ``below`` bytes or more are left out.
    """
    waiting = [("model", 0, len(data), 0)]
    while waiting:
        message, begin, end, depth = waiting.pop()
        if depth > _MAX_DEPTH:
            raise WireError(f"messages are nested more than {_MAX_DEPTH} deep")
        schema = _SCHEMA[message]
        for field in fields(data, begin, end):
            number, kind, _, _, start, stop = field
            inner = schema.get(number)
            if inner is None or kind != BYTES:
                continue
            if inner is wanted:
                yield field
            elif inner is not _TEXT and inner is not _REFERENCE:
                if stop - start >= below and number == _GRAPH_INITIALIZER and message == "graph" and depth == 1:
                    continue
                waiting.append((inner, start, stop, depth + 1))


def _location(data: Buffer, entry: Field) -> Iterator[str]:
    pair = {
        field.number: data[field.start : field.end]
        for field in fields(data, entry.start, entry.end)
        if field.kind == BYTES
    }
    if pair.get(_ENTRY_KEY) == b"location":
        yield pair.get(_ENTRY_VALUE, b"").decode("utf-8", "replace")


def without_weights(data: Buffer, *, location: str, at_least: int) -> bytes:
    """Return a serialised ModelProto with its large weights left out, so that it parses in no memory to speak of.

    An initializer of the main graph with at least ``at_least`` bytes of ``raw_data`` refers, as external data would,
    to where in ``data`` these bytes are; the file's name in that reference is ``location``. Raises WireError, also
    where such a tensor's name is not UTF-8.
    """
    parts: list[bytes] = []
    for field in fields(data, 0, len(data)):
        if field.number == MODEL_GRAPH and field.kind == BYTES:
            parts.append(_field(MODEL_GRAPH, b"".join(_light_graph(data, field, location, at_least))))
        else:
            parts.append(data[field.begin : field.end])
    return b"".join(parts)


def _light_graph(data: Buffer, graph: Field, location: str, at_least: int) -> Iterator[bytes]:
    reference = _entry("location", location)
    for field in fields(data, graph.start, graph.end):
        if field.number == _GRAPH_INITIALIZER and field.kind == BYTES and field.end - field.start >= at_least:
            yield _field(_GRAPH_INITIALIZER, _light_tensor(data, field, reference, at_least))
        else:
            yield data[field.begin : field.end]


def _light_tensor(data: Buffer, tensor: Field, reference: bytes, at_least: int) -> bytes:
    kept, raw, is_external = [], [], False
    for field in fields(data, tensor.start, tensor.end):
        if field.number == _TENSOR_RAW_DATA and field.kind == BYTES:
            raw.append(field)
        elif field.number == _TENSOR_NAME and field.kind == BYTES:
            _check_text(data[field.start : field.end])
        is_external = is_external or field.number in (_TENSOR_EXTERNAL_DATA, _TENSOR_DATA_LOCATION)
        kept.append(field)
    if is_external or not raw or raw[-1].end - raw[-1].start < at_least:
        return data[tensor.start : tensor.end]
    parts = [data[field.begin : field.end] for field in kept if field.number != _TENSOR_RAW_DATA]
    start, end = raw[-1].start, raw[-1].end
    return b"".join((*parts, reference, _entry("offset", str(start)), _entry("length", str(end - start)), _IS_EXTERNAL))


def _entry(key: str, value: str) -> bytes:
    """Return a field of a TensorProto: an entry of ``external_data``."""
    return _field(_TENSOR_EXTERNAL_DATA, _field(_ENTRY_KEY, key.encode()) + _field(_ENTRY_VALUE, value.encode()))


def _field(number: int, content: bytes) -> bytes:
    return tag(number, len(content)) + content


def tag(number: int, length: int) -> bytes:
    """Return what precedes the content of a length-delimited field."""
    return varint(number << 3 | BYTES) + varint(length)


def varint(value: int) -> bytes:
    """Encode a number of at least 0, seven bits a byte, lowest first."""
    encoded = bytearray()
    while value > 0x7F:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    encoded.append(value)
    return bytes(encoded)


_IS_EXTERNAL: Final = varint(_TENSOR_DATA_LOCATION << 3 | VARINT) + varint(_EXTERNAL)


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
