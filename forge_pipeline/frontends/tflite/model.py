"""A TensorFlow Lite file as plain values: tensors, operators and their options, read from its flat buffer."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, Final

import numpy as np

from forge_pipeline.errors import ModelError

DTYPES: Final = {  # of schema.fbs, TensorType
    0: "float32", 1: "float16", 2: "int32", 3: "uint8", 4: "int64", 6: "bool", 7: "int16", 9: "int8", 10: "float64",
    12: "uint64", 15: "uint32", 16: "uint16", 17: "int4",
}  # fmt: skip
_MAX_RANK: Final = 8
_DAMAGE: Final = (struct.error, IndexError, TypeError, AttributeError, ValueError, OverflowError, UnicodeDecodeError)


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
    """A value: ``shape`` has None for an open size, ``data`` is None unless it is a constant."""

    name: str
    shape: tuple[int | None, ...]
    dtype: str
    data: np.ndarray | None
    quantization: Quantization | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Operator:
    """A call; an absent operand is -1. ``options`` reads a field of the operator's options table."""

    name: str
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    options: Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Graph:
    """The main subgraph. ``inputs`` and ``outputs`` map the names of the interface to tensors, in order."""

    tensors: tuple[Tensor, ...]
    operators: tuple[Operator, ...]
    inputs: dict[str, int] = field(default_factory=dict)
    outputs: dict[str, int] = field(default_factory=dict)


def read(path: Path) -> Graph:
    """Read a file. Raises ModelError for a damaged one, and for one with control flow or external buffers."""
    import tflite

    content = path.read_bytes()
    try:
        model = tflite.Model.GetRootAsModel(content, 0)
        if model.SubgraphsLength() != 1:
            raise ModelError(
                where=str(path),
                expected="one graph",
                found=f"{model.SubgraphsLength()}: it has control flow",
                fix="unroll its loops before it is converted to TensorFlow Lite, or give the SavedModel it came from",
            )
        return _graph(model, model.Subgraphs(0))
    except _DAMAGE as error:
        raise ModelError(
            where=str(path),
            expected="a whole TensorFlow Lite model",
            found=f"a damaged one ({type(error).__name__}: {error})",
            fix="copy or convert the model again",
        ) from error


def _graph(model: Any, graph: Any) -> Graph:
    tensors = tuple(_tensor(model, graph.Tensors(index)) for index in range(graph.TensorsLength()))
    operators = tuple(
        _operator(model, graph.Operators(index), len(tensors)) for index in range(graph.OperatorsLength())
    )
    inputs, outputs = dict(_interface(graph, "Inputs", tensors)), dict(_interface(graph, "Outputs", tensors))
    if model.SignatureDefsLength():
        signature = model.SignatureDefs(0)
        inputs = _named(inputs, (signature.Inputs(index) for index in range(signature.InputsLength())))
        outputs = _named(outputs, (signature.Outputs(index) for index in range(signature.OutputsLength())))
    return Graph(tensors=tensors, operators=operators, inputs=inputs, outputs=outputs)


def _interface(graph: Any, side: str, tensors: tuple[Tensor, ...]) -> Iterator[tuple[str, int]]:
    for position in range(getattr(graph, f"{side}Length")()):
        index = int(getattr(graph, side)(position))
        yield tensors[index].name, index


def _named(by_tensor: dict[str, int], entries: Iterator[Any]) -> dict[str, int]:
    """Take the signature's names, which are the author's, in the order of the graph."""
    names = {int(entry.TensorIndex()): entry.Name().decode() for entry in entries}
    if len(names) != len(by_tensor) or not names.keys() >= set(by_tensor.values()):
        return by_tensor
    return {names[index]: index for index in by_tensor.values()}


def _tensor(model: Any, tensor: Any) -> Tensor:
    dtype = DTYPES.get(tensor.Type())
    name = (tensor.Name() or b"").decode()
    if dtype is None:
        raise ModelError(
            where=f"tensor {name[:80]!r}",
            expected="numbers or flags: " + ", ".join(DTYPES.values()),
            found=f"type {tensor.Type()} of the TensorFlow Lite schema",
            fix="keep strings, resources and complex numbers outside the model",
        )
    static = [int(tensor.Shape(axis)) for axis in range(tensor.ShapeLength())]
    signature = [int(tensor.ShapeSignature(axis)) for axis in range(tensor.ShapeSignatureLength())] or static
    if len(static) > _MAX_RANK or any(extent < 0 for extent in static) or len(signature) != len(static):
        raise ValueError(f"tensor {name[:80]!r} of shape {static[:16]}")
    buffer = model.Buffers(tensor.Buffer())
    data = None
    if buffer.DataLength():
        data = _content(buffer.DataAsNumpy(), dtype, static)
    shape = tuple(None if extent == -1 else fixed for extent, fixed in zip(signature, static, strict=True))
    return Tensor(name=name, shape=shape, dtype=dtype, data=data, quantization=_quantization(tensor.Quantization()))


def _content(raw: np.ndarray, dtype: str, shape: list[int]) -> np.ndarray:
    if dtype == "int4":  # two in a byte, the first in the low half; shifted up and back to extend the sign
        pairs = np.stack([raw << 4, raw], axis=-1).reshape(-1).astype(np.int8) >> 4
        return np.ascontiguousarray(pairs[: int(np.prod(shape))].reshape(shape))
    return np.frombuffer(raw.tobytes(), np.dtype(dtype).newbyteorder("<")).astype(dtype).reshape(shape)


def _quantization(table: Any) -> Quantization | None:
    if table is None or not table.ScaleLength():
        return None
    scale = np.asarray(table.ScaleAsNumpy(), np.float32)
    zero = np.asarray(table.ZeroPointAsNumpy() if table.ZeroPointLength() else np.zeros(scale.size), np.int64)
    if not np.all(np.isfinite(scale)) or not np.all(scale > 0) or zero.size not in (1, scale.size):
        raise ValueError(f"scales {scale[:4]} with zero points {zero[:4]}")
    return Quantization(scale=scale, zero_point=np.broadcast_to(zero, scale.shape), axis=table.QuantizedDimension())


@cache
def _operator_names() -> dict[int, str]:
    import tflite

    return {value: name for name, value in vars(tflite.BuiltinOperator).items() if isinstance(value, int)}


@cache
def _option_names() -> dict[int, str]:
    import tflite

    return {value: name for name, value in vars(tflite.BuiltinOptions).items() if isinstance(value, int)}


def _operator(model: Any, operator: Any, count: int) -> Operator:
    import tflite

    code = model.OperatorCodes(operator.OpcodeIndex())
    number = max(code.BuiltinCode(), code.DeprecatedBuiltinCode())
    name = _operator_names().get(number, f"operator {number}")
    if name == "CUSTOM":
        name = f"custom {(code.CustomCode() or b'').decode()!r}"
    options = None
    table = operator.BuiltinOptions()
    kind = _option_names().get(operator.BuiltinOptionsType(), "NONE")
    if table is not None and kind != "NONE":
        options = getattr(tflite, kind)()
        options.Init(table.Bytes, table.Pos)
    inputs = tuple(int(operator.Inputs(position)) for position in range(operator.InputsLength()))
    outputs = tuple(int(operator.Outputs(position)) for position in range(operator.OutputsLength()))
    if any(not -1 <= index < count for index in (*inputs, *outputs)):
        raise IndexError(f"operand {max((*inputs, *outputs))} of {count}")
    return Operator(name=name, inputs=inputs, outputs=outputs, options=options)
