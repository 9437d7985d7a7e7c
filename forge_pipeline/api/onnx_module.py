"""ONNXModule as users hold it: with ``compile``, and with the rest of what a Forge module has."""

from __future__ import annotations

from typing import TYPE_CHECKING

from forge_pipeline.api.compile import Compilable
from forge_pipeline.errors import ModelError
from forge_pipeline.quantization.onnx_module import QuantizableModule

if TYPE_CHECKING:
    import numpy as np
    import onnx

    from forge_pipeline.ir.graph import Node


class ONNXModule(QuantizableModule, Compilable):
    """An ONNX model that can be looked at, edited, calibrated, quantized and compiled, each in place."""

    __slots__ = ()

    def _to_compile(self) -> ONNXModule:
        return self

    def set_batch_size(self, batch_size: int) -> None:
        """Fix the leading dimension of the inputs, in place. Raises ModelError if the model cannot follow."""
        from forge_pipeline.ir.batch_size import with_batch_size

        changed = with_batch_size(self, batch_size)
        self._model, self._file = changed._model, changed._file

    @property
    def typed_mod(self) -> onnx.ModelProto:
        """A copy of the model that states the types of all values. Raises ModelError for an invalid model."""
        from forge_pipeline.ir.external_data.mapped import outline
        from forge_pipeline.ir.shape_inference import check_and_infer

        if not self.is_mapped:
            return check_and_infer(self.mod)
        inferred = check_and_infer(outline(self.light))
        typed = self.copy()
        for field in ("value_info", "output"):
            values = getattr(typed.light.graph, field)
            del values[:]
            values.extend(getattr(inferred.graph, field))
        return typed.mod

    @property
    def params(self) -> dict[str, np.ndarray]:
        """The weights that are inputs with defaults, by name: a caller may replace them; others are constants."""
        from onnx import numpy_helper

        listed = {value.name for value in self.mod.graph.input}
        return {
            tensor.name: numpy_helper.to_array(tensor) for tensor in self.mod.graph.initializer if tensor.name in listed
        }

    @property
    def input_nodes(self) -> list[Node]:
        """The nodes that read an input, each once; an ONNX graph has no node for the input itself."""
        found = [node for name in self.input_names for node in self.main.consumers(name)]
        return list(dict.fromkeys(found))

    @property
    def output_nodes(self) -> list[Node]:
        """The nodes that define an output, each once."""
        found = [self.main.producer(name) for name in self.output_names]
        return list(dict.fromkeys(node for node in found if node is not None))

    @property
    def output_node(self) -> Node:
        """The node that defines the output of a model that has one. Raises ModelError."""
        nodes = self.output_nodes
        if self.output_count != 1 or not nodes:
            raise ModelError("output_node", "a model with one output", f"{self.output_count}", "use output_nodes")
        return nodes[0]

    @property
    def is_tensorrt(self) -> bool:
        """False: this package partitions Relax modules for TensorRT, not ONNX models."""
        return False

    def _repr_html_(self) -> str:
        """Show interface and operators as tables, and the graph as a picture, in a notebook."""
        from forge_pipeline.ir.display.html import html

        return html(self.describe())
