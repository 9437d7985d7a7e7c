"""Uses of supported operators that TVM's importer gets wrong without a word: each is refused, with its reason.

Found by running ONNX's own node tests through the compiler; what could be mended is in ``converters`` instead.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np
    import onnx


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """What is known about a graph's values: constants, and shapes (None for a dimension that is not known)."""

    constants: Mapping[str, Any]
    shapes: Mapping[str, tuple[int | None, ...]]
    opset: int

    @classmethod
    def of(cls, model: onnx.ModelProto) -> Facts:
        """Read them from a model after shape inference."""
        graph = model.graph
        shapes = {}
        for value in (*graph.input, *graph.value_info, *graph.output):
            if value.type.tensor_type.HasField("shape"):
                dims = value.type.tensor_type.shape.dim
                shapes[value.name] = tuple(dim.dim_value if dim.HasField("dim_value") else None for dim in dims)
        constants = {tensor.name: tensor for tensor in graph.initializer}
        for node in graph.node:
            if node.op_type == "Constant":
                constants.update((node.output[0], item.t) for item in node.attribute if item.name == "value")
        shapes |= {name: tuple(tensor.dims) for name, tensor in constants.items()}
        opset = next((item.version for item in model.opset_import if item.domain in ("", "ai.onnx")), 1)
        return cls(constants=constants, shapes=shapes, opset=opset)

    def constant(self, name: str) -> np.ndarray | None:
        """Return the value of a constant, or None where ``name`` is none."""
        from onnx import numpy_helper

        return numpy_helper.to_array(self.constants[name]) if name in self.constants else None


Trap = Callable[["onnx.NodeProto", Facts], Iterator[str]]

TRAPS: Mapping[str, Trap] = MappingProxyType({})
