"""A model made ready for quantization, and who produces and consumes its values."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import ModelProto, NodeProto, TensorProto, numpy_helper, version_converter

from forge_pipeline.errors import ModelError
from forge_pipeline.ir.constant_node import constant_tensor
from forge_pipeline.ir.external_data.mapped import array_of, is_mapped, outline, tensor_of
from forge_pipeline.ir.traversal import needs
from forge_pipeline.ir.values import fed

OPSET = 13  # the first with an axis on QuantizeLinear, for a scale per channel


def prepare(model: ModelProto) -> ModelProto:
    """Return a copy in the form that planning and rewriting expect; it computes the same.

    Opset 13 or newer, constants as initializers, initializers not listed as inputs, every Gemm with alpha and beta
    of one. Calibration and quantization both work on this form, so that value names agree. Raises ModelError.
    """
    result = ModelProto()
    result.CopyFrom(model)
    _constants_to_initializers(result)
    inputs = fed(result.graph)
    del result.graph.input[:]
    result.graph.input.extend(inputs)
    result.ir_version = 10
    result = at_opset(result, OPSET)
    _plain_gemms(result)
    del result.graph.value_info[:]
    return result


def at_opset(model: ModelProto, least: int) -> ModelProto:
    """Return ``model`` at opset ``least`` or its own newer one. Raises ModelError where a node has no newer form."""
    version = opset(model)
    if version >= least:
        return model
    try:
        converted = version_converter.convert_version(outline(model), least)
    except (version_converter.ConvertError, RuntimeError) as error:
        raise ModelError(
            where=f"opset {version}",
            expected=f"operators that have a form in opset {least}, which quantized models need",
            found=str(error),
            fix=f"export the model with opset {least} or newer",
        ) from error
    mapped = [tensor for tensor in model.graph.initializer if is_mapped(tensor)]
    names = {tensor.name for tensor in mapped}
    kept = [value for value in converted.graph.input if value.name not in names]
    del converted.graph.input[:]
    converted.graph.input.extend(kept)
    converted.graph.initializer.extend(mapped)
    return converted


def opset(model: ModelProto) -> int:
    """Return the version of ONNX's own operators that the model uses."""
    return next((item.version for item in model.opset_import if item.domain in ("", "ai.onnx")), 1)


def attribute(node: NodeProto, name: str, default: Any) -> Any:
    """Return a node's attribute as a Python value."""
    for item in node.attribute:
        if item.name == name:
            return onnx.helper.get_attribute_value(item)
    return default


@dataclass(frozen=True)
class Network:
    """The graph of a prepared model. Looks only at the main graph; what a subgraph captures counts as consumed."""

    model: ModelProto

    @property
    def nodes(self) -> Sequence[NodeProto]:
        """All nodes, each after those it depends on."""
        return self.model.graph.node  # type: ignore[no-any-return]

    @cached_property
    def producer(self) -> dict[str, NodeProto]:
        """The node that produces a value."""
        return {name: node for node in self.nodes for name in node.output if name}

    @cached_property
    def consumers(self) -> dict[str, list[NodeProto]]:
        """The nodes that consume a value, each once."""
        found: dict[str, list[NodeProto]] = {}
        for node in self.nodes:
            for name in dict.fromkeys(needs(node)):
                if name:
                    found.setdefault(name, []).append(node)
        return found

    @cached_property
    def constants(self) -> dict[str, TensorProto]:
        """Initializers by name."""
        return {tensor.name: tensor for tensor in self.model.graph.initializer}

    @cached_property
    def outputs(self) -> frozenset[str]:
        """Names of the model's outputs."""
        return frozenset(value.name for value in self.model.graph.output)

    @cached_property
    def rank(self) -> dict[str, int]:
        """The position of the node that produces a value; -1 for inputs."""
        places = {name: index for index, node in enumerate(self.nodes) for name in node.output}
        return {**{value.name: -1 for value in self.model.graph.input}, **places}

    @cached_property
    def floats(self) -> frozenset[str]:
        """Values known to be float32."""
        inferred = onnx.shape_inference.infer_shapes(self.model)
        values = (*inferred.graph.input, *inferred.graph.value_info, *inferred.graph.output)
        kind = TensorProto.FLOAT
        return frozenset(value.name for value in values if value.type.tensor_type.elem_type == kind)

    def array(self, name: str) -> NDArray[Any]:
        """Return an initializer's content."""
        return array_of(self.constants[name])

    def copy(self) -> Network:
        """Return a network with a model of its own."""
        model = ModelProto()
        model.CopyFrom(self.model)
        return Network(model)

    def with_arrays(
        self, arrays: Mapping[str, NDArray[Any]], inputs: Mapping[str, Sequence[str]] | None = None
    ) -> Network:
        """Return a copy with other or further constants, and other inputs for nodes, named by their first output."""
        result = self.copy()
        graph = result.model.graph
        kept = [tensor for tensor in graph.initializer if tensor.name not in arrays]
        del graph.initializer[:]
        graph.initializer.extend(kept)
        graph.initializer.extend(numpy_helper.from_array(array, name) for name, array in sorted(arrays.items()))
        for node in graph.node:
            if inputs is not None and node.output[0] in inputs:
                del node.input[:]
                node.input.extend(inputs[node.output[0]])
        return result

    def variables(self, node: NodeProto) -> Iterator[str]:
        """Yield the inputs of a node that are computed or fed."""
        for name in node.input:
            if name and name not in self.constants:
                yield name


def layer(node: NodeProto) -> str:
    """Return what a layer is called in configuration and reports: the node's name, else its output's."""
    return str(node.name or node.output[0])


def _constants_to_initializers(model: ModelProto) -> None:
    kept = []
    for node in model.graph.node:
        tensor = constant_tensor(node)
        if tensor is None or tensor.data_type == TensorProto.STRING:
            kept.append(node)
        else:
            model.graph.initializer.append(tensor)
            model.graph.initializer[-1].name = node.output[0]
    if len(kept) < len(model.graph.node):
        del model.graph.node[:]
        model.graph.node.extend(kept)


def _plain_gemms(model: ModelProto) -> None:
    """Move alpha and beta into constant operands: an integer product has no place for them."""
    graph = model.graph
    tensors = {tensor.name: tensor for tensor in graph.initializer}
    for node in graph.node:
        if node.op_type != "Gemm":
            continue
        for name, index in (("alpha", 1), ("beta", 2)):
            factor = attribute(node, name, 1.0)
            operand = node.input[index] if len(node.input) > index else ""
            if factor == 1.0 or (operand and operand not in tensors):
                continue
            if operand:
                scaled = array_of(tensors[operand]) * np.float32(factor)
                fresh = f"{operand}_{name}_{layer(node)}"
                graph.initializer.append(tensor_of(scaled.astype(np.float32), fresh))
                node.input[index] = fresh
            kept = [item for item in node.attribute if item.name != name]
            del node.attribute[:]
            node.attribute.extend(kept)
