"""A product's weights as integers behind a DequantizeLinear: what static and dynamic quantization share."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray
from onnx import NodeProto, TensorProto, helper

from forge_pipeline.quantization.integers import INTEGERS, Affine, IntegerType, quantize, weight_scale
from forge_pipeline.quantization.network import Network, attribute


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightScheme:
    """``limit``: the largest integer that a weight takes (127; 64 where pairs of products saturate 16 bits)."""

    kind: IntegerType
    limit: int
    per_channel: bool

    @property
    def signed(self) -> IntegerType:
        """The type with zero in the middle, whatever the offset it is stored with."""
        return INTEGERS["int8"]

    def scale(self, weights: NDArray[Any], axis: int | None) -> NDArray[np.float32]:
        """Return the symmetric scale of a weight, per channel along ``axis`` if there is one."""
        return weight_scale(weights, axis, largest=self.limit)


@dataclass(slots=True)
class Constants:
    """The integer constants of a model under construction, and the nodes that turn them into reals.

    ``stored`` are those that are done: what is large need not be in memory as an array until the model is.
    """

    nodes: list[NodeProto] = field(default_factory=list)
    tensors: dict[str, NDArray[Any]] = field(default_factory=dict)
    stored: dict[str, TensorProto] = field(default_factory=dict)
    _weights: dict[str, Affine] = field(default_factory=dict)

    def node(self, operator: str, inputs: list[str], base: str, name: str = "", **attributes: Any) -> str:
        """Add a node whose one result is ``base``."""
        self.nodes.append(helper.make_node(operator, inputs, [base], name or base, **attributes))
        return base

    def constant(self, array: NDArray[Any], base: str) -> str:
        """Add a constant of this name."""
        self.tensors[base] = array
        return base

    def weight(
        self, name: str, weights: NDArray[Any], scale: NDArray[np.float32], axis: int | None, scheme: WeightScheme,
        reader: str, codes: NDArray[np.int8] | None = None,
    ) -> str:  # fmt: skip
        """Store weights; return the value that holds them. ``reader`` tells apart the same weights in two scales.

        ``codes``: the integers, without offset, where they are not those that are nearest to the weights.
        """
        known = self._weights.get(name)
        if known is not None and known.axis == axis and np.array_equal(known.scale, scale):
            return f"{name}_dq"
        prefix = name if known is None else f"{name}_{reader}"
        middle = 0 if scheme.kind.low < 0 else (scheme.kind.high + 1) // 2
        affine = Affine(scale=scale, zero=np.full(scale.shape, middle, scheme.kind.name), axis=axis)
        self._weights[prefix] = affine
        integers = quantize(weights, affine, scheme.kind) if codes is None else codes.astype(np.int16) + middle
        limited = np.clip(
            integers, max(middle - scheme.limit, scheme.kind.low), min(middle + scheme.limit, scheme.kind.high)
        )
        return self.dequantize(prefix, limited.astype(scheme.kind.name), affine)

    def dequantize(self, name: str, integers: NDArray[Any], affine: Affine) -> str:
        """Store integers; return the value of the DequantizeLinear that reads them."""
        self.tensors[f"{name}_q"] = integers
        self.tensors[f"{name}_scale"], self.tensors[f"{name}_zero"] = affine.scale, affine.zero
        node = helper.make_node(
            "DequantizeLinear", [f"{name}_q", f"{name}_scale", f"{name}_zero"], [f"{name}_dq"], f"{name}_dequantize"
        )
        if affine.axis is not None:
            node.attribute.append(helper.make_attribute("axis", affine.axis))
        self.nodes.append(node)
        return f"{name}_dq"


def channel_axis(node: NodeProto, index: int, network: Network) -> int | None:
    """Return the axis of a product's constant operand that runs over output channels; None where there is none."""
    rank = network.array(node.input[index]).ndim
    if node.op_type == "Conv":
        return 0
    if node.op_type == "ConvTranspose":
        return 1
    if node.op_type == "Gemm":
        return 0 if attribute(node, "transB", 0) else 1
    return rank - 1 if index == 1 and rank > 1 else None
