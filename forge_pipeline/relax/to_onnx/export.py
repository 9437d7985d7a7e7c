"""From a Relax module to ONNX, the form in which models are calibrated, quantized and compiled.

The operators that TVM's front ends give are in ``export_tensors``, ``export_indexing``, ``export_reductions``,
``export_layers`` and ``export_norms``, one row each. What has no row is refused, all of it at once; nothing is
approximated. ``export_check`` also runs both forms on the same numbers.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np
import onnx
import tvm
from onnx import helper, numpy_helper
from tvm import relax

from forge_pipeline.errors import ModelError
from forge_pipeline.relax.bindings import Bound, Expr, attributes, bindings, operator, results
from forge_pipeline.relax.graph import shape_of
from forge_pipeline.relax.to_onnx.exporter import Exporter, Unsupported, onnx_type
from forge_pipeline.relax.to_onnx.indexing import INDEXED
from forge_pipeline.relax.to_onnx.kernels import convert_kernel, is_known
from forge_pipeline.relax.to_onnx.layers import LAYERS
from forge_pipeline.relax.to_onnx.normalization import NORMS
from forge_pipeline.relax.to_onnx.reductions import REDUCED
from forge_pipeline.relax.to_onnx.tensors import TENSORS

OPSET: Final = 20
IR_VERSION: Final = 10


def exported(module: tvm.IRModule, names: Sequence[str], weights: Mapping[str, np.ndarray]) -> onnx.ModelProto:
    """Return `main` as an ONNX model whose outputs are called ``names``; ``weights`` become initializers.

    Raises ModelError that lists every operator without a form in ONNX.
    """
    function = module["main"]
    maker = Exporter(module)
    inputs = []
    for variable in function.params:
        name = maker.fresh(str(variable.name))
        maker.values[variable] = name
        if str(variable.name) in weights:
            maker.initializers.append(numpy_helper.from_array(weights[str(variable.name)], name))
            continue
        inputs.append(_value_info(name, variable.ty))
        for axis, extent in enumerate(variable.ty.shape.values):
            if isinstance(extent, relax.Var):
                maker.symbols.setdefault(str(extent.name), (name, axis))
    _refuse_unknown(bindings(function))
    for step in bindings(function):
        _step(maker, step)
    outputs = _outputs(maker, results(function), names)
    join_biases(maker.nodes, maker.initializers)
    graph = helper.make_graph(maker.nodes, "main", inputs, outputs, maker.initializers)
    opset = [helper.make_opsetid("", OPSET)]
    return helper.make_model(graph, ir_version=IR_VERSION, opset_imports=opset, producer_name="forge-pipeline")


def join_biases(nodes: list[onnx.NodeProto], initializers: list[onnx.TensorProto]) -> None:
    """Make an addition of one constant a channel behind a convolution the convolution's bias, in place.

    Relax's convolutions have no bias; in ONNX, quantization and code generation look for it there.
    """
    constants = {tensor.name: tensor for tensor in initializers}
    readers = Counter(name for node in nodes for name in node.input)
    made = {node.output[0]: node for node in nodes}
    for node in list(nodes):
        if node.op_type != "Add":
            continue
        for source, bias in (tuple(node.input), tuple(reversed(node.input))):
            layer, tensor = made.get(source), constants.get(bias)
            if layer is None or tensor is None or layer.op_type not in ("Conv", "ConvTranspose"):
                continue
            weight = constants.get(layer.input[1])
            if weight is None or len(layer.input) > 2 or readers[source] != 1:
                continue
            channels = _channels(layer, weight)
            rank = len(weight.dims)
            if [1] * (rank - len(tensor.dims)) + list(tensor.dims) != [1, channels] + [1] * (rank - 2):
                continue
            array = numpy_helper.to_array(tensor).reshape(-1)
            initializers.append(numpy_helper.from_array(array, f"{source}_bias"))
            layer.input.append(f"{source}_bias")
            layer.output[0] = node.output[0]
            made[node.output[0]] = layer
            nodes.remove(node)
            break
    used = {name for node in nodes for name in node.input}
    initializers[:] = [tensor for tensor in initializers if tensor.name in used]


def _channels(layer: onnx.NodeProto, weight: onnx.TensorProto) -> int:
    """Return how many output channels a convolution has."""
    if layer.op_type == "Conv":
        return int(weight.dims[0])
    groups = next((attribute.i for attribute in layer.attribute if attribute.name == "group"), 1)
    return int(weight.dims[1]) * int(groups)


def _rows() -> Mapping[str, Any]:
    return {**TENSORS, **INDEXED, **REDUCED, **LAYERS, **NORMS, "call_tir": convert_kernel}


def _refuse_unknown(steps: Sequence[Bound]) -> None:
    known = {*_rows(), "tuple", "tuple_get_item", "copy", "constant", "shape"}
    unknown: dict[str, str] = {}
    for step in steps:
        name = operator(step.value)
        if name not in known or (name == "call_tir" and not is_known(step.value)):
            shown = f"{name} {step.value.args[0].name_hint}" if name == "call_tir" else name
            unknown.setdefault(shown, str(step.variable.name))
    if unknown:
        raise ModelError(
            where="RelaxModule",
            expected="operators that have a form in ONNX, in which models are calibrated, quantized and compiled",
            found="; ".join(f"{name} ({where})" for name, where in sorted(unknown.items())),
            fix="replace them by operators of tvm.relax.op, or make the module from the ONNX model",
        )


def _step(maker: Exporter, step: Bound) -> None:
    expr = step.value
    if not isinstance(expr, relax.Call):
        maker.values[step.variable] = maker.value(expr)
        return
    arguments = [maker.value(argument) for argument in expr.args]
    try:
        maker.values[step.variable] = _rows()[operator(expr)](maker, expr, attributes(expr), *arguments)
    except Unsupported as error:
        raise ModelError(
            where=f"node {step.variable.name!r}",
            expected=f"a use of {operator(expr)} that has a form in ONNX",
            found=str(error),
            fix="write it with other operators of tvm.relax.op",
        ) from error


def _outputs(maker: Exporter, expressions: Sequence[Expr], names: Sequence[str]) -> list[onnx.ValueInfoProto]:
    outputs = []
    for expr, wanted in zip(expressions, names, strict=True):
        source = maker.value(expr)
        name = maker.fresh(wanted)
        maker.nodes.append(helper.make_node("Identity", [source], [name]))
        outputs.append(_value_info(name, expr.ty))
    return outputs


def _value_info(name: str, kind: Any) -> onnx.ValueInfoProto:
    if not isinstance(kind, relax.TensorType) or kind.shape is None:
        raise ModelError(f"value {name!r}", "a tensor with a shape", str(kind), "give `main` tensors with shapes")
    return helper.make_tensor_value_info(name, onnx_type(str(kind.dtype)), list(shape_of(kind)))
