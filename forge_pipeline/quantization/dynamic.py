"""Dynamic quantization: weights are integers now, activations become integers when the model runs.

The form is DynamicQuantizeLinear -> DequantizeLinear -> product, rather than MatMulInteger and ConvInteger: it says
the same with operators that every importer knows (ConvInteger is one that TVM does not), and the same pattern as in
static quantization marks the integer products for a code generator.
"""

from __future__ import annotations

from onnx import ModelProto, NodeProto, helper

from forge_pipeline.ir.external_data.mapped import tensor_of
from forge_pipeline.ir.traversal import needs
from forge_pipeline.quantization.network import Network, layer
from forge_pipeline.quantization.plan import Plan
from forge_pipeline.quantization.weights import Constants, WeightScheme, channel_axis


def quantize_dynamic(network: Network, plan: Plan, scheme: WeightScheme) -> ModelProto:
    """Return a copy of the network's model with every product of ``plan`` that has weights in integers."""
    constants, products = Constants(), set(plan.products)
    measured: set[str] = set()
    for source in network.nodes:
        node = NodeProto()
        node.CopyFrom(source)
        weights = [index for index in (0, 1) if layer(source) in products and node.input[index] in network.constants]
        for index in weights:
            name, axis = node.input[index], channel_axis(source, index, network) if scheme.per_channel else None
            content = network.array(name)
            scale = scheme.scale(content, axis)
            node.input[index] = constants.weight(name, content, scale, axis, scheme, source.output[0])
            activation = node.input[1 - index]
            if activation not in measured:
                measured.add(activation)
                constants.nodes.extend(_measure(activation))
            node.input[1 - index] = f"{activation}_dq"
        constants.nodes.append(node)
    return rebuild(network, constants)


def rebuild(network: Network, constants: Constants) -> ModelProto:
    """Return the network's model with other nodes, the constants these read, and no others."""
    model = ModelProto()
    model.CopyFrom(network.model)
    graph = model.graph
    del graph.node[:], graph.initializer[:]
    graph.node.extend(constants.nodes)
    read = {name for node in constants.nodes for name in needs(node)} | network.outputs
    graph.initializer.extend(tensor for name, tensor in network.constants.items() if name in read)
    made = {name: tensor_of(array, name) for name, array in constants.tensors.items()} | constants.stored
    graph.initializer.extend(tensor for _, tensor in sorted(made.items()))
    return model


def _measure(name: str) -> list[NodeProto]:
    parameters = [f"{name}_q", f"{name}_scale", f"{name}_zero"]
    return [
        helper.make_node("DynamicQuantizeLinear", [name], parameters, f"{name}_quantize"),
        helper.make_node("DequantizeLinear", parameters, [f"{name}_dq"], f"{name}_dequantize"),
    ]
