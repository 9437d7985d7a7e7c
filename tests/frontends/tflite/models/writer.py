"""Writes .tflite files operator by operator, with the schema that LiteRT brings (the package ai-edge-litert)."""

from __future__ import annotations

import flatbuffers
import numpy as np
from ai_edge_litert import schema_py_generated as schema

TYPES = {
    "float32": "FLOAT32", "float16": "FLOAT16", "int32": "INT32", "uint8": "UINT8", "int64": "INT64", "bool": "BOOL",
    "int16": "INT16", "complex64": "COMPLEX64", "int8": "INT8", "float64": "FLOAT64", "resource": "RESOURCE",
    "uint32": "UINT32",
}  # fmt: skip


class Graph:
    """A subgraph that is being written; tensors are told by their numbers."""

    def __init__(self, file: File, name: str) -> None:
        self.file = file
        self.table = schema.SubGraphT()
        self.table.name, self.table.tensors, self.table.operators = name, [], []
        self.table.inputs, self.table.outputs = [], []

    def tensor(self, shape, dtype="float32", *, data=None, scale=None, zero=0, axis=0, variable=False, name=None):
        """Add a tensor; -1 in ``shape`` is an open size. ``scale`` may be a list, one for each slice along ``axis``."""
        table = schema.TensorT()
        table.name = f"t{len(self.table.tensors)}" if name is None else name.strip()
        table.shape = [1 if extent == -1 else extent for extent in shape]
        table.shapeSignature = list(shape) if -1 in shape else None
        table.type = getattr(schema.TensorType, TYPES[dtype])
        table.buffer = self.file.buffer(None if data is None else np.asarray(data, dtype))
        table.isVariable, table.hasRank = variable, True
        if scale is not None:
            table.quantization = schema.QuantizationParametersT()
            table.quantization.scale = np.atleast_1d(scale).astype(np.float32).tolist()
            table.quantization.zeroPoint = [zero] * len(table.quantization.scale)
            table.quantization.quantizedDimension = axis
        self.table.tensors.append(table)
        return len(self.table.tensors) - 1

    def const(self, data, dtype=None, **more):
        """Add a constant."""
        data = np.asarray(data, dtype)
        data = (
            data.astype({"float64": "float32", "int64": "int32"}.get(str(data.dtype)) or data.dtype)
            if dtype is None
            else data
        )
        return self.tensor(data.shape, str(data.dtype), data=data, **more)

    def sparse(self, shape, values, order, levels, blocks=()):
        """Add a sparse constant: of each level its size, or its segments and indices."""
        index = self.const(np.asarray(values, np.float32))
        table = self.table.tensors[index]
        table.shape, table.sparsity = list(shape), schema.SparsityParametersT()
        table.sparsity.traversalOrder, table.sparsity.blockMap = list(order), list(blocks)
        table.sparsity.dimMetadata = [schema.DimensionMetadataT() for _ in levels]
        for level, known in zip(table.sparsity.dimMetadata, levels, strict=True):
            if isinstance(known, int):
                level.denseSize = known
                continue
            level.format = schema.DimensionType.SPARSE_CSR
            kind = schema.SparseIndexVector.Uint8Vector
            level.arraySegmentsType, level.arrayIndicesType = kind, kind
            level.arraySegments, level.arrayIndices = schema.Uint8VectorT(), schema.Uint8VectorT()
            level.arraySegments.values, level.arrayIndices.values = known
        return index

    def input(self, shape, dtype="float32", **more):
        """Add an input."""
        self.table.inputs.append(self.tensor(shape, dtype, **more))
        return self.table.inputs[-1]

    def output(self, *indices):
        """Say that these tensors are outputs."""
        self.table.outputs += indices

    def op(self, name, inputs, outputs, options=None, /, *, custom=None, version=1, intermediates=None, **fields):
        """Add an operator; ``outputs`` are tensors, or pairs of shape and type. Return its tensors, or the only one."""
        made = [index if isinstance(index, int) else self.tensor(*index) for index in outputs]
        table = schema.OperatorT()
        table.opcodeIndex = self.file.code(name, version)
        table.inputs, table.outputs, table.intermediates = list(inputs), made, intermediates
        if options:
            union = "2" if hasattr(schema.BuiltinOptions2, options) else ""
            filled = getattr(schema, f"{options}T")()
            for key, value in fields.items():
                assert hasattr(filled, key), (options, key)
                setattr(filled, key, value)
            setattr(table, f"builtinOptions{union}Type", getattr(getattr(schema, f"BuiltinOptions{union}"), options))
            setattr(table, f"builtinOptions{union}", filled)
        if custom is not None:
            table.customOptions = list(custom)
        self.table.operators.append(table)
        return made[0] if len(made) == 1 else made


class File:
    """A model that is being written."""

    def __init__(self) -> None:
        self.model = schema.ModelT()
        self.model.version, self.model.subgraphs, self.model.operatorCodes = 3, [], []
        self.model.buffers = [schema.BufferT()]
        self.graphs: list[Graph] = []

    def graph(self, name="main") -> Graph:
        """Add a subgraph."""
        self.graphs.append(Graph(self, name))
        self.model.subgraphs.append(self.graphs[-1].table)
        return self.graphs[-1]

    def buffer(self, data):
        """Add the bytes of a constant."""
        if data is None:
            return 0
        self.model.buffers.append(schema.BufferT())
        self.model.buffers[-1].data = np.frombuffer(np.ascontiguousarray(data).tobytes(), np.uint8)
        return len(self.model.buffers) - 1

    def code(self, name, version):
        """Add an operator of the schema, or one of another name."""
        table = schema.OperatorCodeT()
        number = getattr(schema.BuiltinOperator, name, schema.BuiltinOperator.CUSTOM)
        table.builtinCode, table.deprecatedBuiltinCode, table.version = number, min(number, 127), version
        if number == schema.BuiltinOperator.CUSTOM:
            table.customCode = name
        self.model.operatorCodes.append(table)
        return len(self.model.operatorCodes) - 1

    def sign(self, key, graph, inputs, outputs):
        """Add a signature: names of the inputs and outputs of a graph."""
        table = schema.SignatureDefT()
        table.signatureKey, table.subgraphIndex = key, self.graphs.index(graph)
        for side, names in (("inputs", inputs), ("outputs", outputs)):
            entries = []
            for name, index in names.items():
                entries.append(schema.TensorMapT())
                entries[-1].name, entries[-1].tensorIndex = name, index
            setattr(table, side, entries)
        self.model.signatureDefs = [*(self.model.signatureDefs or []), table]

    def to_bytes(self) -> bytes:
        """Return the file."""
        builder = flatbuffers.Builder(1024)
        builder.Finish(self.model.Pack(builder), b"TFL3")
        return bytes(builder.Output())
