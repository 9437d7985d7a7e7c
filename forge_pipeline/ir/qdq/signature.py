"""What operators on integers need to be written out: as many inputs, and the attributes without a default.

Files come from anywhere, and com.microsoft's operators are unknown to ONNX's checker: they are looked at here first.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

import onnx
from onnx import NodeProto

from forge_pipeline.ir.qdq.writer import MICROSOFT, Unusual

LEAST_INPUTS: Mapping[str, int] = MappingProxyType(
    {
        "BiasGelu": 2, "DequantizeLinear": 2, "DynamicQuantizeLSTM": 12, "DynamicQuantizeMatMul": 3, "FastGelu": 1,
        "FusedConv": 2, "FusedGemm": 2, "FusedMatMul": 2, "GatherBlockQuantized": 3, "Gelu": 1,
        "MatMulIntegerToFloat": 4, "MatMulNBits": 3, "NhwcMaxPool": 1, "QGemm": 6, "QLinearAdd": 7,
        "QLinearAveragePool": 4, "QLinearConcat": 3, "QLinearConv": 8, "QLinearGlobalAveragePool": 5,
        "QLinearLeakyRelu": 4, "QLinearMul": 7, "QLinearReduceMean": 4, "QLinearSigmoid": 4, "QLinearSoftmax": 5,
        "QLinearWhere": 9, "QuantizeLinear": 2, "QuickGelu": 1, "SkipLayerNormalization": 3,
    }
)  # fmt: skip
"""How many inputs com.microsoft's operators have at least: ONNX Runtime's schemas."""

NEEDED: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "DynamicQuantizeLSTM": ("hidden_size",),
        "MatMulNBits": ("K", "N", "block_size"),
        "NhwcMaxPool": ("kernel_shape",),
        "QLinearAveragePool": ("kernel_shape",),
        "QLinearConcat": ("axis",),
    }
)
"""Attributes of com.microsoft's operators without which they mean nothing."""


def check(node: NodeProto, opset: int) -> None:
    """Raise Unusual for a node without what its operator needs, in ONNX's operator set ``opset``."""
    if node.domain == MICROSOFT:
        least, needed = LEAST_INPUTS.get(node.op_type, 0), NEEDED.get(node.op_type, ())
    else:
        try:
            schema = onnx.defs.get_schema(node.op_type, opset, "")
        except onnx.defs.SchemaError as error:
            raise Unusual(f"no {node.op_type} in operator set {opset}") from error
        least, needed = schema.min_input, tuple(name for name, item in schema.attributes.items() if item.required)
    if len(node.input) < least:
        raise Unusual(f"{len(node.input)} inputs, {least} at least")
    missing = [name for name in needed if name not in {item.name for item in node.attribute}]
    if missing:
        raise Unusual(f"no attribute {', '.join(missing)}")
