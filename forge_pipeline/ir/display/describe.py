"""A model in plain JSON: its interface, what it is made of, and every layer with its shape and cost."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from onnx import ModelProto, NodeProto, ValueInfoProto

from forge_pipeline.errors import ModelError
from forge_pipeline.ir.canonical import Canonical
from forge_pipeline.ir.fingerprint import digest, pieces
from forge_pipeline.ir.labels import labels_of
from forge_pipeline.ir.sizes.analysis import NOTHING, Sizes, analyse
from forge_pipeline.ir.sizes.facts import Constraint
from forge_pipeline.ir.tensors import DTYPES, element_count
from forge_pipeline.ir.traversal import every_graph, every_node, needs

Json = dict[str, Any]
Shape = list[int | str]

QUANTIZED = frozenset({"QuantizeLinear", "DequantizeLinear", "DynamicQuantizeLinear"})


def describe(form: Canonical, inferred: ModelProto) -> Json:
    """Return what there is to know about a model; ``inferred`` is its skeleton with the types of all values.

    Names are those of the file. ``layers`` are the nodes of the main graph in topological order: ``value`` is the
    first output, ``reads`` are the values it needs, ``macs`` counts multiply-accumulates (null where a dimension is
    not known, symbolic leading dimensions count as 1). Shapes are expressions over the inputs' dimensions; ``demands``
    are what these must keep, and which operator wants it.
    """
    types = {value.name: value for graph in every_graph(inferred) for value in _values(graph)}
    weights = {weight.header.name: weight for weight in form.weights}
    sizes = _sizes(inferred)
    known = _Known(types, {name: list(weight.header.dims) for name, weight in weights.items()}, sizes)
    skeleton = form.skeleton
    operators: dict[str, int] = {}
    for node in every_node(skeleton):
        operators[_operator(node)] = operators.get(_operator(node), 0) + 1
    layers = [_layer(node, form.names, known, weights) for node in skeleton.graph.node]
    return {
        "fingerprint": digest(pieces(form)),
        "structure": digest(pieces(form, weights=False)),
        "opset": {entry.domain or "ai.onnx": entry.version for entry in skeleton.opset_import},
        "inputs": [_value(value.name, known) for value in skeleton.graph.input],
        "outputs": [_value(value.name, known) for value in skeleton.graph.output],
        "demands": [_demand(constraint, sizes) for constraint in sizes.constraints],
        "labels": labels_of(skeleton),
        "operators": dict(sorted(operators.items())),
        "subgraphs": sum(1 for _ in every_graph(skeleton)) - 1,
        "parameters": sum(element_count(weight.header.dims) for weight in form.weights),
        "weight_bytes": sum(weight.size for weight in form.weights),
        "weight_dtypes": _bytes_by_type(form),
        "macs": sum(layer["macs"] or 0 for layer in layers),
        "quantized": any(name in QUANTIZED for name in operators),
        "layers": layers,
    }


class _Known:
    """Types of values, by canonical name."""

    def __init__(self, types: Mapping[str, ValueInfoProto], weights: Mapping[str, list[int]], sizes: Sizes) -> None:
        self._types, self._weights, self._sizes = types, weights, sizes

    def shape(self, name: str) -> Shape | None:
        if name in self._weights:
            return list(self._weights[name])
        sizes = self._sizes.shape(name)
        if sizes is not None:
            return [size if isinstance(size, int) else str(size) for size in sizes]
        if name not in self._types or not self._types[name].type.tensor_type.HasField("shape"):
            return None
        dims = self._types[name].type.tensor_type.shape.dim
        return [dim.dim_value if dim.HasField("dim_value") else dim.dim_param or "?" for dim in dims]

    def dtype(self, name: str) -> str | None:
        value = self._types.get(name)
        return DTYPES.get(value.type.tensor_type.elem_type) if value is not None else None


def _sizes(inferred: ModelProto) -> Sizes:
    """Return the sizes of all values; of none where they cannot agree, which whoever runs the model says."""
    try:
        return analyse(inferred)
    except ModelError:
        return NOTHING


def _demand(constraint: Constraint, sizes: Sizes) -> Json:
    relation = ">=" if constraint.at_least else "=="
    because = sizes.explained(constraint)
    return {"holds": f"{constraint.size} {relation} 0", "because": because, "graph": constraint.graph}


def _layer(node: NodeProto, names: Mapping[str, str], known: _Known, weights: Mapping[str, Any]) -> Json:
    value = node.output[0] if node.output else ""
    used = [name for name in needs(node) if name in weights]
    return {
        "name": names.get(node.name, node.name),
        "operator": _operator(node),
        "value": value,
        "original": names.get(value, value),
        "values": [name for name in node.output if name],
        "reads": [name for name in dict.fromkeys(needs(node)) if name not in weights],
        "shape": known.shape(value),
        "dtype": known.dtype(value),
        "weight_bytes": sum(weights[name].size for name in dict.fromkeys(used)),
        "macs": _macs(node, known),
    }


def _macs(node: NodeProto, known: _Known) -> int | None:
    """Multiply-accumulates of the operators that do nearly all of them; 0 for every other."""
    if node.op_type == "Conv":  # each output element sums over one filter: channels per group times kernel
        return _product(known.shape(node.output[0]), (known.shape(node.input[1]) or ["?"])[1:])
    if node.op_type == "ConvTranspose":  # each input element is spread by one filter
        return _product(known.shape(node.input[0]), (known.shape(node.input[1]) or ["?"])[1:])
    if node.op_type in ("MatMul", "Gemm"):
        left = known.shape(node.input[0]) or ["?"]
        transposed = any(entry.name == "transA" and entry.i for entry in node.attribute)
        return _product(known.shape(node.output[0]), left[:1] if transposed else left[-1:])
    return 0


def _product(shape: Shape | None, inner: Shape) -> int | None:
    if shape is None:
        return None
    dims = [1 if index == 0 and isinstance(dim, str) else dim for index, dim in enumerate(shape)]
    numbers = [dim for dim in (*dims, *inner) if isinstance(dim, int)]
    return element_count(numbers) if len(numbers) == len(dims) + len(inner) else None


def _value(name: str, known: _Known) -> Json:
    return {"name": name, "shape": known.shape(name), "dtype": known.dtype(name)}


def _bytes_by_type(form: Canonical) -> dict[str, int]:
    sizes: dict[str, int] = {}
    for weight in form.weights:
        name = DTYPES[weight.header.data_type]
        sizes[name] = sizes.get(name, 0) + weight.size
    return dict(sorted(sizes.items()))


def _operator(node: NodeProto) -> str:
    return f"{node.domain}.{node.op_type}" if node.domain else str(node.op_type)


def _values(graph: Any) -> Iterator[ValueInfoProto]:
    yield from graph.value_info
    yield from graph.input
    yield from graph.output
