"""The reader of TensorFlow Lite's files: from their flat buffer to plain values."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any, Final

import numpy as np

from forge_pipeline.errors import ModelError
from forge_pipeline.frontends.flat_buffers import whole
from forge_pipeline.frontends.tflite.model import DTYPES, Graph, Model, Operator, Quantization, Tensor
from forge_pipeline.frontends.tflite.sparsity import dense

_MAX_RANK: Final = 8
_HANDLE: Final = "resource"
_GRAPHS: Final = {
    "CALL": ("Subgraph",),
    "CALL_ONCE": ("InitSubgraphIndex",),
    "IF": ("ThenSubgraphIndex", "ElseSubgraphIndex"),
    "STABLEHLO_COMPOSITE": ("DecompositionSubgraphIndex",),
    "WHILE": ("CondSubgraphIndex", "BodySubgraphIndex"),
}
"""The options of operators that run other graphs."""


def read(path: Path) -> Model:
    """Read a file. Raises ModelError for a damaged one, and for one with tensors that hold no numbers."""
    import tflite

    content = path.read_bytes()
    with whole(path, "TensorFlow Lite model"):
        return _model(tflite.Model.GetRootAsModel(content, 0), content)


def _model(model: Any, content: bytes) -> Model:
    graphs = [_graph(model, model.Subgraphs(index), content) for index in range(model.SubgraphsLength())]
    if not graphs:
        raise ValueError("no graph")
    main = 0
    if model.SignatureDefsLength():
        signature = _signature(model)
        main = int(signature.SubgraphIndex())
        graphs[main] = _signed(graphs[main], signature)
    return Model(graphs=tuple(graphs), main=main)


def _signature(model: Any) -> Any:
    """Return the signature that serving programs call, or else the first."""
    signatures = [model.SignatureDefs(index) for index in range(model.SignatureDefsLength())]
    return next((one for one in signatures if one.SignatureKey() == b"serving_default"), signatures[0])


def _signed(graph: Graph, signature: Any) -> Graph:
    inputs = _named(graph.inputs, (signature.Inputs(index) for index in range(signature.InputsLength())))
    outputs = _named(graph.outputs, (signature.Outputs(index) for index in range(signature.OutputsLength())))
    return Graph(tensors=graph.tensors, operators=graph.operators, inputs=inputs, outputs=outputs)


def _named(by_tensor: dict[str, int], entries: Iterator[Any]) -> dict[str, int]:
    """Take the signature's names, which are the author's, in the order of the graph."""
    names = {int(entry.TensorIndex()): entry.Name().decode() for entry in entries}
    if len(names) != len(by_tensor) or not names.keys() >= set(by_tensor.values()):
        return by_tensor
    return {names[index]: index for index in by_tensor.values()}


def _graph(model: Any, graph: Any, content: bytes) -> Graph:
    tensors = tuple(_tensor(model, graph.Tensors(index), content) for index in range(graph.TensorsLength()))
    operators = tuple(
        _operator(model, graph.Operators(index), len(tensors)) for index in range(graph.OperatorsLength())
    )
    inputs, outputs = (_interface(graph, side, tensors) for side in ("Inputs", "Outputs"))
    computed = {*inputs.values(), *(index for operator in operators for index in operator.outputs)}
    tensors = tuple(one if index in computed else _empty(one) for index, one in enumerate(tensors))
    return Graph(tensors=tensors, operators=operators, inputs=inputs, outputs=outputs)


def _empty(tensor: Tensor) -> Tensor:
    """Return a tensor that nothing computes; if it has no numbers, it is a constant of none, as its buffer is empty."""
    if tensor.data is not None or tensor.variable or 0 not in tensor.static or tensor.dtype == _HANDLE:
        return tensor
    return replace(tensor, data=np.zeros(tensor.static, "int8" if tensor.dtype == "int4" else tensor.dtype))


def _interface(graph: Any, side: str, tensors: tuple[Tensor, ...]) -> dict[str, int]:
    """Return the tensors of one side by name; one without a name, or with one that is taken, is told by its place."""
    found: dict[str, int] = {}
    for position in range(getattr(graph, f"{side}Length")()):
        index = int(getattr(graph, side)(position))
        if not 0 <= index < len(tensors):
            raise IndexError(f"tensor {index} of {len(tensors)}")
        name = tensors[index].name or f"{side[:-1].lower()}_{position}"
        found[name if name not in found else f"{name}_{position}"] = index
    return found


# Tensors.


def _tensor(model: Any, tensor: Any, content: bytes) -> Tensor:
    dtype = DTYPES.get(tensor.Type())
    name = (tensor.Name() or b"").decode()
    if dtype is None:
        raise ModelError(
            where=f"tensor {name[:80]!r}",
            expected="numbers or flags: " + ", ".join(DTYPES.values()),
            found=f"type {tensor.Type()} of the TensorFlow Lite schema",
            fix="keep strings, variants and types of fewer than 4 bits outside the model",
        )
    static = [int(tensor.Shape(axis)) for axis in range(tensor.ShapeLength())]
    signature = [int(tensor.ShapeSignature(axis)) for axis in range(tensor.ShapeSignatureLength())] or static
    if len(static) > _MAX_RANK or any(extent < 0 for extent in static) or len(signature) != len(static):
        raise ValueError(f"tensor {name[:80]!r} of shape {static[:16]}")
    return Tensor(
        name=name,
        shape=tuple(None if extent == -1 else fixed for extent, fixed in zip(signature, static, strict=True)),
        static=tuple(static),
        dtype=dtype,
        data=None if dtype == _HANDLE else _data(model, tensor, content, dtype, static),
        quantization=_quantization(tensor.Quantization(), static),
        variable=bool(tensor.IsVariable()),
    )


def _data(model: Any, tensor: Any, content: bytes, dtype: str, shape: list[int]) -> np.ndarray | None:
    buffer = model.Buffers(tensor.Buffer())
    if buffer.DataLength():
        raw = buffer.DataAsNumpy()
    elif buffer.Offset() > 1:  # of a file too large for one flat buffer
        raw = np.frombuffer(content, np.uint8, int(buffer.Size()), int(buffer.Offset()))
    else:
        return None
    parameters = tensor.Sparsity()
    if parameters is None:
        return _numbers(raw, dtype, int(np.prod(shape))).reshape(shape)
    return dense(_numbers(raw, dtype, None), parameters, shape)


def _numbers(raw: np.ndarray, dtype: str, count: int | None) -> np.ndarray:
    if dtype == "int4":  # two in a byte, the first in the low half; shifted up and back to extend the sign
        pairs = np.stack([raw << 4, raw], axis=-1).reshape(-1).astype(np.int8) >> 4
        return np.ascontiguousarray(pairs[:count])
    return np.frombuffer(raw.tobytes(), np.dtype(dtype).newbyteorder("<")).astype(dtype)


def _quantization(table: Any, shape: list[int]) -> Quantization | None:
    """Return the scales. A file may give a vector, such as a bias, the axis that its kernel has: it has only one."""
    if table is not None and table.DetailsType():
        raise ModelError(
            where="tensor quantization",
            expected="one scale for a tensor, or one for each slice along an axis",
            found=f"a form of its own, {table.DetailsType()} of the schema's QuantizationDetails",
            fix="quantize the model per tensor or per channel",
        )
    if table is None or not table.ScaleLength():
        return None
    scale = np.asarray(table.ScaleAsNumpy(), np.float32)
    zero = np.asarray(table.ZeroPointAsNumpy() if table.ZeroPointLength() else np.zeros(scale.size), np.int64)
    if not np.all(np.isfinite(scale)) or not np.all(scale > 0) or zero.size not in (1, scale.size):
        raise ValueError(f"scales {scale[:4]} with zero points {zero[:4]}")
    axis = 0 if len(shape) == 1 else int(table.QuantizedDimension())
    if scale.size > 1 and not (0 <= axis < len(shape) and shape[axis] == scale.size):
        raise ValueError(f"{scale.size} scales along axis {axis} of the shape {shape}")
    return Quantization(scale=scale, zero_point=np.broadcast_to(zero, scale.shape), axis=axis)


# Operators.


@cache
def _names(enumeration: str) -> dict[int, str]:
    import tflite

    return {value: name for name, value in vars(getattr(tflite, enumeration)).items() if isinstance(value, int)}


def _operator(model: Any, operator: Any, count: int) -> Operator:
    code = model.OperatorCodes(operator.OpcodeIndex())
    number = max(code.BuiltinCode(), code.DeprecatedBuiltinCode())
    name = _names("BuiltinOperator").get(number, f"operator {number}")
    if name == "CUSTOM":
        name = f"custom {(code.CustomCode() or b'').decode()}"
    operands = {
        side: tuple(int(getattr(operator, side)(place)) for place in range(getattr(operator, f"{side}Length")()))
        for side in ("Inputs", "Outputs", "Intermediates")
    }
    if any(not -1 <= index < count for indices in operands.values() for index in indices):
        raise IndexError(f"an operand outside of {count} tensors")
    options = _options(operator)
    return Operator(
        name=name,
        inputs=operands["Inputs"],
        outputs=operands["Outputs"],
        options=options,
        custom=bytes(operator.CustomOptionsAsNumpy()) if operator.CustomOptionsLength() else b"",
        version=int(code.Version()),
        intermediates=operands["Intermediates"],
        graphs=tuple(int(getattr(options, field)()) for field in _GRAPHS.get(name, ()) if options is not None),
    )


def _options(operator: Any) -> Any:
    import tflite

    for suffix in ("", "2"):  # a second union, of what was added later
        table = getattr(operator, f"BuiltinOptions{suffix}")()
        kind = _names(f"BuiltinOptions{suffix}").get(getattr(operator, f"BuiltinOptions{suffix}Type")(), "NONE")
        if table is not None and kind != "NONE":
            options = getattr(tflite, kind)()
            options.Init(table.Bytes, table.Pos)
            return options
    return None
