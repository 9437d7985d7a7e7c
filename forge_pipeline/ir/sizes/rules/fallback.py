"""What ONNX's own inference knows of one node, for operators without a rule."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import onnx
from onnx import TensorProto, TypeProto, defs, helper, numpy_helper

from forge_pipeline.ir.sizes.expression import Size, Whole
from forge_pipeline.ir.sizes.operation import Operation
from forge_pipeline.ir.sizes.value import UNKNOWN, Known


def inferred(op: Operation, opsets: Mapping[str, int]) -> Sequence[Known]:
    """Return what ONNX's inference finds for a node by itself; what it does not find is not known.

    Sizes are given to it as names. An extent that it leaves open becomes one of its own.
    """
    node = op.node
    try:
        version = opsets.get(node.domain, op.opset if node.domain in ("", "ai.onnx") else 1)
        schema = defs.get_schema(node.op_type, version, "" if node.domain == "ai.onnx" else node.domain)
    except defs.SchemaError:
        return [UNKNOWN] * len(node.output)
    names: dict[str, Whole] = {}
    pairs = [(name, known) for name, known in zip(node.input, op.inputs, strict=True) if name and known is not None]
    kinds = {name: _kind(known, names) for name, known in pairs}
    if any(kind is None for kind in kinds.values()):
        return [UNKNOWN] * len(node.output)
    data = {}
    for name, known in pairs:
        if known.constant is not None and known.constant.size <= 64:
            data[name] = numpy_helper.from_array(known.constant, name)
    imports = [helper.make_opsetid(domain, number) for domain, number in opsets.items()]
    try:
        found = onnx.shape_inference.infer_node_outputs(schema, node, kinds, data, opset_imports=imports)
    except (onnx.shape_inference.InferenceError, RuntimeError, ValueError):
        return [UNKNOWN] * len(node.output)
    return [
        _known(op, index, found[name], names) if name in found else UNKNOWN for index, name in enumerate(node.output)
    ]


def _kind(known: Known, names: dict[str, Whole]) -> TypeProto | None:
    if known.is_sequence or not known.dtype:
        return None
    if known.shape is None:
        return helper.make_tensor_type_proto(known.dtype, None)
    dims: list[int | str] = []
    for size in known.shape:
        if isinstance(size, Size):
            names[str(size)] = size
        dims.append(size if isinstance(size, int) else str(size))
    return helper.make_tensor_type_proto(known.dtype, dims)


def _known(op: Operation, index: int, kind: TypeProto, names: Mapping[str, Whole]) -> Known:
    if not kind.HasField("tensor_type"):
        return UNKNOWN
    tensor = kind.tensor_type
    if not tensor.HasField("shape"):
        return Known(tensor.elem_type or TensorProto.UNDEFINED, None)
    shape: list[Whole] = []
    for axis, dim in enumerate(tensor.shape.dim):
        if dim.HasField("dim_value"):
            shape.append(int(dim.dim_value))
        elif dim.dim_param in names:
            shape.append(names[dim.dim_param])
        else:
            shape.append(op.fresh(f"{index}_{axis}"))
    return Known(tensor.elem_type, tuple(shape))
