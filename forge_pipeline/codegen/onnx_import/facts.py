"""What is known of a graph before it is imported: constants, shapes, element types."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np
    import onnx


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """What is known about a graph's values: constants, and shapes (None for a dimension that is not known)."""

    constants: Mapping[str, Any]
    shapes: Mapping[str, tuple[int | None, ...]]
    dtypes: Mapping[str, int]
    used: frozenset[str]

    @classmethod
    def of(cls, model: onnx.ModelProto) -> Facts:
        """Read them from a model after shape inference."""
        graph = model.graph
        shapes, dtypes = {}, {}
        for value in (*graph.input, *graph.value_info, *graph.output):
            dtypes[value.name] = value.type.tensor_type.elem_type
            if value.type.tensor_type.HasField("shape"):
                dims = value.type.tensor_type.shape.dim
                shapes[value.name] = tuple(dim.dim_value if dim.HasField("dim_value") else None for dim in dims)
        constants = {tensor.name: tensor for tensor in graph.initializer}
        for node in graph.node:
            if node.op_type == "Constant":
                constants.update((node.output[0], item.t) for item in node.attribute if item.name == "value")
        shapes |= {name: tuple(tensor.dims) for name, tensor in constants.items()}
        dtypes |= {name: tensor.data_type for name, tensor in constants.items()}
        used = {value.name for value in graph.output} | {name for node in graph.node for name in node.input}
        return cls(constants=constants, shapes=shapes, dtypes=dtypes, used=frozenset(used))

    def constant(self, name: str) -> np.ndarray | None:
        """Return the value of a constant, or None where ``name`` is none."""
        from forge_pipeline.ir.external_data.mapped import array_of

        return array_of(self.constants[name]) if name in self.constants else None

    def dtype(self, name: str) -> str:
        """Return the element type of a value as numpy names it, or the empty string."""
        from onnx import helper

        return str(helper.tensor_dtype_to_np_dtype(self.dtypes[name])) if self.dtypes.get(name) else ""
