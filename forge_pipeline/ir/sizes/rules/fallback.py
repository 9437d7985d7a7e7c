"""What ONNX's own inference knows of one node, for operators without a rule."""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

import onnx
from onnx import AttributeProto, TensorProto, TypeProto, defs, helper, numpy_helper

from forge_pipeline.ir.sizes.expression import Overgrown, Size, Whole, evaluate
from forge_pipeline.ir.sizes.expression import names as names_of
from forge_pipeline.ir.sizes.operation import Operation
from forge_pipeline.ir.sizes.value import UNKNOWN, Known

_SEEDS: Final = (11, 23)
"""Two sets of sizes that what is inferred from names is tried on: inference takes some names for 0."""
_CONTENTS: Final = 64
"""Elements of the largest constant that is handed over."""
Extents = Mapping[str, int] | None


def inferred(op: Operation, opsets: Mapping[str, int]) -> Sequence[Known] | None:
    """Return what ONNX's inference finds for a node by itself; what it does not find is not known.

    Sizes are given to it as names. An extent that it leaves open becomes one of its own, and so does one that is not
    what inference finds where the names are numbers. None where inference refuses the node.
    """
    node = op.node
    nothing = [UNKNOWN] * len(node.output)
    if any(entry.type in (AttributeProto.GRAPH, AttributeProto.GRAPHS) for entry in node.attribute):
        return nothing
    try:
        version = opsets.get(node.domain, op.opset if node.domain in ("", "ai.onnx") else 1)
        schema = defs.get_schema(node.op_type, version, "" if node.domain == "ai.onnx" else node.domain)
    except defs.SchemaError:
        return nothing
    given = [(name, known) for name, known in zip(node.input, op.inputs, strict=True) if name and known is not None]
    if any(known.is_sequence or not known.dtype for _, known in given):
        return nothing
    named: dict[str, Whole] = {
        str(size): size for _, known in given for size in known.shape or () if isinstance(size, Size)
    }
    found = _run(op, schema, opsets, given, None)
    if found is None:
        return None
    tried = [_run(op, schema, opsets, given, _extents(named.values(), seed)) for seed in _SEEDS] if named else []
    return [
        _known(op, index, name, found, named, tried) if name in found else UNKNOWN
        for index, name in enumerate(node.output)
    ]


def _extents(sizes: Iterable[Whole], seed: int) -> Mapping[str, int]:
    names = {name for size in sizes for name in names_of(size)}
    return {name: seed + zlib.crc32(name.encode()) % 97 for name in names}


def _run(
    op: Operation,
    schema: defs.OpSchema,
    opsets: Mapping[str, int],
    given: Sequence[tuple[str, Known]],
    extents: Extents,
) -> Mapping[str, TypeProto] | None:
    data = {
        name: numpy_helper.from_array(known.constant, name)
        for name, known in given
        if known.constant is not None and known.constant.size <= _CONTENTS
    }
    imports = [helper.make_opsetid(domain, number) for domain, number in opsets.items()]
    try:
        kinds = {name: _kind(known, extents) for name, known in given}
        found: Mapping[str, TypeProto] = onnx.shape_inference.infer_node_outputs(
            schema, op.node, kinds, data, opset_imports=imports
        )
    except (onnx.shape_inference.InferenceError, RuntimeError, ValueError, Overgrown):
        return None
    return found


def _kind(known: Known, extents: Extents) -> TypeProto:
    if known.shape is None:
        return helper.make_tensor_type_proto(known.dtype, None)
    if extents is None:
        return helper.make_tensor_type_proto(known.dtype, [s if isinstance(s, int) else str(s) for s in known.shape])
    return helper.make_tensor_type_proto(known.dtype, [max(1, evaluate(size, extents)) for size in known.shape])


def _known(
    op: Operation,
    index: int,
    name: str,
    found: Mapping[str, TypeProto],
    named: Mapping[str, Whole],
    tried: Sequence[Mapping[str, TypeProto] | None],
) -> Known:
    if not found[name].HasField("tensor_type"):
        return UNKNOWN
    tensor = found[name].tensor_type
    if not tensor.HasField("shape"):
        return Known(tensor.elem_type or TensorProto.UNDEFINED, None)
    shape: list[Whole] = []
    for axis, dim in enumerate(tensor.shape.dim):
        size: Whole | None = named.get(dim.dim_param)
        if dim.HasField("dim_value"):
            size = int(dim.dim_value)
        if size is None or not _agrees(size, name, axis, named, tried):
            size = op.fresh(f"{index}_{axis}")
        shape.append(size)
    return Known(tensor.elem_type, tuple(shape))


def _agrees(
    size: Whole, name: str, axis: int, named: Mapping[str, Whole], tried: Sequence[Mapping[str, TypeProto] | None]
) -> bool:
    for seed, found in zip(_SEEDS, tried, strict=False):
        dims = found[name].tensor_type.shape.dim if found is not None and name in found else ()
        if len(dims) <= axis or not dims[axis].HasField("dim_value"):
            return False
        if dims[axis].dim_value != max(1, evaluate(size, _extents(named.values(), seed))):
            return False
    return True
