"""TensorFlow Lite's hybrid kernels in ONNX: what goes into a product with integer weights is rounded to 8 bits.

So its plain kernels (not those of XNNPACK, which round in another way) compute a dynamic-range model. Each sample has a
range of its own, asymmetric for weights with a scale a channel, symmetric for those with one scale
(tensorflow/lite/kernels/internal/reference/portable_tensor_utils.cc: PortableAsymmetricQuantizeFloats,
PortableSymmetricQuantizeFloats).
"""

from __future__ import annotations

import numpy as np
import onnx
from onnx import helper, numpy_helper


def rounded(model: onnx.ModelProto) -> onnx.ModelProto:
    """Return a converted dynamic-range model that rounds as the interpreter's plain kernels do."""
    result = onnx.ModelProto()
    result.CopyFrom(model)
    made = {name: node for node in model.graph.node for name in node.output}
    nodes: list[onnx.NodeProto] = []

    def weight(array: np.ndarray) -> str:
        name = f"hybrid_constant_{len(result.graph.initializer)}"
        result.graph.initializer.append(numpy_helper.from_array(array, name))
        return name

    def constant(number: float) -> str:
        return weight(np.asarray(number, np.float32))

    def add(op_type: str, *inputs: str, **attributes: object) -> str:
        name = f"hybrid_{len(nodes)}"
        nodes.append(helper.make_node(op_type, list(inputs), [name], **attributes))
        return name

    def rounding(x: str, axes: list[int], *, per_axis: bool) -> str:
        zero = constant(0)
        along = weight(np.array(axes, np.int64))
        low = add("Min", add("ReduceMin", x, along, keepdims=1), zero)
        high = add("Max", add("ReduceMax", x, along, keepdims=1), zero)
        if not per_axis:
            largest = add("Max", add("Neg", low), high)
            steps = add("Round", add("Mul", x, add("Div", constant(127), largest)))
            return add("Mul", add("Clip", steps, constant(-127), constant(127)), add("Div", largest, constant(127)))
        scale = add("Div", add("Sub", high, low), constant(255))
        offset = add("Round", add("Sub", constant(-128), add("Div", low, scale)))
        steps = add("Round", add("Add", add("Div", x, scale), offset))
        return add("Mul", add("Sub", add("Clip", steps, constant(-128), constant(127)), offset), scale)

    for node in result.graph.node:
        weights = made.get(node.input[1]) if node.op_type in ("Conv", "Gemm", "MatMul") else None
        if weights is not None and weights.op_type == "DequantizeLinear":
            per_axis = any(attribute.name == "axis" for attribute in weights.attribute)
            axes = [1, 2, 3] if node.op_type == "Conv" else [-1]
            node.input[0] = rounding(node.input[0], axes, per_axis=per_axis)
        kept = onnx.NodeProto()
        kept.CopyFrom(node)
        nodes.append(kept)
    del result.graph.node[:]
    result.graph.node.extend(nodes)
    return result
