"""ONNX Runtime's own format (`.ort`) -> ONNX: the same graph in a flat buffer, as mobile packages ship it.

Read by the bindings of the format's schema that ONNX Runtime's package has. What a file holds for a build of ONNX
Runtime without its optimizer (optimizations to be made when it is loaded, kernels by type) says nothing about what is
computed, and is left out. Operators that its optimizer wrote are decided on by the load stage, as in an ONNX file.
"""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import onnx
from onnx import AttributeProto, GraphProto, ModelProto, NodeProto, TensorProto, TypeProto, ValueInfoProto

from forge_pipeline.errors import ModelError
from forge_pipeline.frontends.contract import Converted, Declared
from forge_pipeline.frontends.flat_buffers import whole

_LEAST_IR: Final = 4
"""The first version of ONNX in which an initializer need not be an input as well."""
_TENSOR, _SEQUENCE = 1, 2  # of TypeInfoValue
_VALUE, _PARAMETER = 1, 2  # of DimensionValueType


def convert(path: Path, inputs: tuple[Declared, ...]) -> Converted:
    """Return the model in ``path`` as ONNX. Raises ModelError for a damaged file and for weights in another file."""
    content = path.read_bytes()
    with whole(path, "model in ONNX Runtime's format"):
        session = _schema("InferenceSession").GetRootAs(content, 0)
        model = _model(session.Model())
        version = _text(session.OrtVersion())
    return Converted(model=model, notes={"importer": "ort", "format": version})


def _schema(table: str) -> Any:
    """Return the class that reads a table of the schema."""
    spec = importlib.util.find_spec("onnxruntime")
    if spec is None or spec.origin is None:
        raise ImportError("onnxruntime")
    folder = str(Path(spec.origin).parent / "tools" / "ort_format_model")  # it asks to be put on the path
    if folder not in sys.path:
        sys.path.append(folder)
    module = importlib.import_module(f"ort_flatbuffers_py.fbs.{table}")
    return getattr(module, table)


def _all(count: int, entry: Callable[[int], Any]) -> Iterator[Any]:
    return (entry(index) for index in range(count))


def _text(value: bytes | None) -> str:
    return (value or b"").decode()


def _names(count: int, entry: Callable[[int], bytes]) -> list[str]:
    return [_text(name) for name in _all(count, entry)]


def _model(source: Any) -> ModelProto:
    model = ModelProto(
        ir_version=max(source.IrVersion(), _LEAST_IR),
        producer_name=_text(source.ProducerName()),
        producer_version=_text(source.ProducerVersion()),
        graph=_graph(source.Graph(), "main"),
    )
    for entry in _all(source.OpsetImportLength(), source.OpsetImport):
        model.opset_import.add(domain=_text(entry.Domain()), version=entry.Version())
    return model


def _graph(source: Any, name: str) -> GraphProto:
    values = {_text(value.Name()): value for value in _all(source.NodeArgsLength(), source.NodeArgs)}
    graph = GraphProto(name=name)
    graph.initializer.extend(_tensor(one) for one in _all(source.InitializersLength(), source.Initializers))
    sparse = _all(source.SparseInitializersLength(), source.SparseInitializers)
    graph.sparse_initializer.extend(_sparse(one) for one in sparse)
    for names, side in (
        (_names(source.InputsLength(), source.Inputs), graph.input),
        (_names(source.OutputsLength(), source.Outputs), graph.output),
    ):
        side.extend(_value(name, values[name]) for name in names if name in values)
    graph.node.extend(_node(node) for node in _all(source.NodesLength(), source.Nodes))
    return graph


def _node(source: Any) -> NodeProto:
    node = NodeProto(
        name=_text(source.Name()),
        op_type=_text(source.OpType()),
        domain=_text(source.Domain()),
        input=_names(source.InputsLength(), source.Inputs),
        output=_names(source.OutputsLength(), source.Outputs),
    )
    node.attribute.extend(_attribute(entry) for entry in _all(source.AttributesLength(), source.Attributes))
    return node


def _attribute(source: Any) -> AttributeProto:
    name, kind = _text(source.Name()), source.Type()
    found = AttributeProto(name=name, type=kind)
    if kind == AttributeProto.FLOAT:
        found.f = source.F()
    elif kind == AttributeProto.INT:
        found.i = source.I()
    elif kind == AttributeProto.STRING:
        found.s = source.S() or b""
    elif kind == AttributeProto.TENSOR:
        found.t.CopyFrom(_tensor(source.T()))
    elif kind == AttributeProto.GRAPH:
        found.g.CopyFrom(_graph(source.G(), name))
    elif kind == AttributeProto.FLOATS:
        found.floats.extend(_all(source.FloatsLength(), source.Floats))
    elif kind == AttributeProto.INTS:
        found.ints.extend(_all(source.IntsLength(), source.Ints))
    elif kind == AttributeProto.STRINGS:
        found.strings.extend(_all(source.StringsLength(), source.Strings))
    elif kind == AttributeProto.TENSORS:
        found.tensors.extend(_tensor(one) for one in _all(source.TensorsLength(), source.Tensors))
    elif kind == AttributeProto.GRAPHS:
        found.graphs.extend(_graph(one, name) for one in _all(source.GraphsLength(), source.Graphs))
    else:
        raise ValueError(f"an attribute of type {kind}")
    return found


def _tensor(source: Any) -> TensorProto:
    name = _text(source.Name())
    if source.ExternalDataOffset() >= 0:
        raise ModelError(
            where=name,
            expected="weights in the model's file",
            found="an offset into another file",
            fix="convert the model again, or give the ONNX file that it was converted from",
        )
    tensor = TensorProto(name=name, data_type=source.DataType(), dims=_all(source.DimsLength(), source.Dims))
    if tensor.data_type == TensorProto.STRING:
        tensor.string_data.extend(_all(source.StringDataLength(), source.StringData))
    else:
        tensor.raw_data = source.RawDataAsNumpy().tobytes() if source.RawDataLength() else b""
    return tensor


def _sparse(source: Any) -> onnx.SparseTensorProto:
    return onnx.SparseTensorProto(
        values=_tensor(source.Values()),
        indices=_tensor(source.Indices()),
        dims=_all(source.DimsLength(), source.Dims),
    )


def _value(name: str, source: Any) -> ValueInfoProto:
    value = ValueInfoProto(name=name)
    if source.Type() is not None:
        value.type.CopyFrom(_type(source.Type()))
    return value


def _type(source: Any) -> TypeProto:
    found, kind = TypeProto(), source.ValueType()
    if kind == _TENSOR:
        tensor = _schema("TensorTypeAndShape")()
        tensor.Init(source.Value().Bytes, source.Value().Pos)
        found.tensor_type.elem_type = tensor.ElemType()
        if tensor.Shape() is not None:
            found.tensor_type.shape.SetInParent()
            for dim in _all(tensor.Shape().DimLength(), tensor.Shape().Dim):
                _dim(dim.Value(), found.tensor_type.shape.dim.add())
    elif kind == _SEQUENCE:
        sequence = _schema("SequenceType")()
        sequence.Init(source.Value().Bytes, source.Value().Pos)
        found.sequence_type.elem_type.CopyFrom(_type(sequence.ElemType()))
    return found


def _dim(source: Any, dim: onnx.TensorShapeProto.Dimension) -> None:
    if source is None:
        return
    if source.DimType() == _VALUE:
        dim.dim_value = source.DimValue()
    elif source.DimType() == _PARAMETER:
        dim.dim_param = _text(source.DimParam())
