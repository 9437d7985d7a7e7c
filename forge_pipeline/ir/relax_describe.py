"""A Relax module in plain JSON, in the form of ``describe``: what the picture and the tables are drawn from."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tvm import ir, relax

from forge_pipeline.ir.relax_flat import operands
from forge_pipeline.ir.tensors import element_count

if TYPE_CHECKING:
    from forge_pipeline.ir.relax_node import Node
    from forge_pipeline.ir.relax_view import RelaxView

MACS = {  # operator -> whether each output element sums over one filter (or the other way round)
    **dict.fromkeys(("nn.conv1d", "nn.conv2d", "nn.conv3d"), True),
    **dict.fromkeys(("nn.conv1d_transpose", "nn.conv2d_transpose", "nn.conv3d_transpose"), False),
}


def describe(module: RelaxView) -> dict[str, Any]:
    """Return what there is to know about a module; the keys are those of ``describe.describe``."""
    sizes: dict[str, tuple[int, int]] = {}  # constant -> elements, bytes
    types: dict[str, int] = {}
    layers = []
    for node in module.main:
        for name, expr in zip(node.inputs, operands(node.value), strict=False):
            if isinstance(expr, ir.GenericConst) and name not in sizes:
                size = element_count(expr.value.shape) * expr.value.numpy().dtype.itemsize
                sizes[name] = element_count(expr.value.shape), size
                types[str(expr.value.dtype)] = types.get(str(expr.value.dtype), 0) + size
        layers.append(_layer(node, sizes))
    for array in module.params.values():
        types[str(array.dtype)] = types.get(str(array.dtype), 0) + array.nbytes
    inputs, outputs = module.describe_inputs(), module.describe_outputs()
    for row, node in zip(outputs, module.output_nodes, strict=True):
        row["name"], row["original"] = node.inputs[0], row["name"]
    operators = module.operators
    return {
        "fingerprint": module.fingerprint,
        "structure": module.structure,
        "opset": {},
        "inputs": inputs,
        "outputs": outputs,
        "operators": operators,
        "subgraphs": module.subgraph_count,
        "parameters": sum(n for n, _ in sizes.values()) + sum(array.size for array in module.params.values()),
        "weight_bytes": sum(types.values()),
        "weight_dtypes": dict(sorted(types.items())),
        "macs": sum(layer["macs"] or 0 for layer in layers),
        "quantized": "quantize" in operators or "dequantize" in operators,
        "layers": layers,
    }


def _layer(node: Node, constants: dict[str, tuple[int, int]]) -> dict[str, Any]:
    return {
        "name": node.name,
        "operator": node.op_type,
        "value": node.name,
        "original": node.name,
        "values": node.outputs,
        "reads": [name for name in dict.fromkeys(node.inputs) if name not in constants],
        "shape": None if node.shape is None else list(node.shape),
        "dtype": node.dtype,
        "weight_bytes": sum(constants[name][1] for name in dict.fromkeys(node.inputs) if name in constants),
        "macs": _macs(node),
    }


def _macs(node: Node) -> int | None:
    if node.op_type in MACS:
        data, weight = node.value.args
        outer = node.value.ty if MACS[node.op_type] else data.ty
        return _product(outer, [int(x) for x in weight.ty.shape.values][1:])
    if node.op_type == "matmul":
        inner = node.value.args[0].ty.shape.values[-1]
        return _product(node.value.ty, [int(inner)]) if hasattr(inner, "value") else None
    return 0


def _product(kind: Any, inner: list[int]) -> int | None:
    if not isinstance(kind, relax.TensorType) or kind.shape is None:
        return None
    dims = [
        int(x.value) if hasattr(x, "value") else 1 if index == 0 else None for index, x in enumerate(kind.shape.values)
    ]
    numbers = [x for x in (*dims, *inner) if x is not None]
    return element_count(numbers) if len(numbers) == len(dims) + len(inner) else None
