"""What operators need to be written out: as many inputs, and the attributes without a default.

Files come from anywhere, and com.microsoft's operators are unknown to ONNX's checker: they are looked at here first.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

import onnx
from onnx import AttributeProto, NodeProto

from forge_pipeline.ir.contrib.writer import MICROSOFT, Unusual

LEAST_INPUTS: Mapping[str, int] = MappingProxyType(
    {
        "Affine": 1, "Attention": 2, "BiasAdd": 3, "BiasDropout": 2, "BiasGelu": 2, "BiasSoftmax": 2,
        "BiasSplitGelu": 2, "BitmaskDropout": 1, "BranchwiseRMSNorm": 1, "CDist": 2, "CausalConvWithState": 2,
        "ComplexMul": 2, "ComplexMulConj": 2, "ConvTransposeWithDynamicPads": 2, "Crop": 1, "CropAndResize": 4,
        "DecoderMaskedMultiHeadAttention": 1, "DequantizeLinear": 2, "DynamicQuantizeLSTM": 12,
        "DynamicQuantizeMatMul": 3, "DynamicSlice": 3, "EmbedLayerNormalization": 7, "ExpandDims": 2, "FastGelu": 1,
        "FusedConv": 2, "FusedGemm": 2, "FusedMatMul": 2, "FusedMatMulActivation": 2, "GatedAdd": 3, "GatedRMSNorm": 3,
        "GatherBlockQuantized": 3, "GatherND": 2, "Gelu": 1, "GemmFastGelu": 2, "GridSample": 2, "GroupNorm": 3,
        "GroupQueryAttention": 7, "ImageScaler": 1, "Inverse": 1, "LayerNormalization": 2, "LinearAttention": 3,
        "LinearAttentionGate": 3, "MRotaryEmbedding": 4, "MatMulBnb4": 3, "MatMulInteger16": 2,
        "MatMulIntegerToFloat": 4, "MatMulNBits": 3, "MulInteger": 3, "MultiHeadAttention": 1, "NhwcConv": 2,
        "NhwcFusedConv": 2, "NhwcMaxPool": 1, "Pad": 2, "ParametricSoftplus": 1, "QAttention": 5,
        "QEmbedLayerNormalization": 18, "QGemm": 6, "QLinearAdd": 7, "QLinearAveragePool": 4, "QLinearConcat": 3,
        "QLinearConv": 8, "QLinearGlobalAveragePool": 5, "QLinearLeakyRelu": 4, "QLinearMul": 7,
        "QLinearReduceMean": 4, "QLinearSigmoid": 4, "QLinearSoftmax": 5, "QLinearWhere": 9, "QuantizeLinear": 2,
        "QuickGelu": 1, "Range": 2, "ReduceSumInteger": 1, "RotaryEmbedding": 4, "Scale": 1, "ScaledSiLU": 1,
        "ScaledTanh": 1, "SimplifiedLayerNormalization": 2, "SkipGroupNorm": 4, "SkipLayerNormalization": 3,
        "SkipSimplifiedLayerNormalization": 3, "TransposeMatMul": 2, "Trilu": 1, "UnfoldTensor": 1, "Unique": 1,
    }
)  # fmt: skip
"""How many inputs com.microsoft's operators have at least: ONNX Runtime's schemas."""

NEEDED: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "Attention": ("num_heads",),
        "Crop": ("border",),
        "DecoderMaskedMultiHeadAttention": ("num_heads",),
        "DynamicQuantizeLSTM": ("hidden_size",),
        "GroupNorm": ("activation", "groups"),
        "GroupQueryAttention": ("kv_num_heads", "num_heads"),
        "LinearAttention": ("kv_num_heads", "q_num_heads"),
        "MRotaryEmbedding": ("mrope_section",),
        "MatMulBnb4": ("K", "N", "block_size", "quant_type"),
        "MatMulNBits": ("K", "N", "block_size"),
        "MultiHeadAttention": ("num_heads",),
        "NhwcMaxPool": ("kernel_shape",),
        "ParametricSoftplus": ("alpha", "beta"),
        "QAttention": ("num_heads",),
        "QLinearAveragePool": ("kernel_shape",),
        "QLinearConcat": ("axis",),
        "ReduceSumInteger": ("axes",),
        "ScaledTanh": ("alpha", "beta"),
        "SkipGroupNorm": ("activation", "groups"),
        "UnfoldTensor": ("size",),
    }
)
"""Attributes of com.microsoft's operators without which they mean nothing."""


INTEGERS = ("K", "N", "axis", "bits", "block_size", "gather_axis", "hidden_size", "keepdims", "opset", "quant_type",
            "quantize_axis", "transA", "transB", "weight_prepacked")  # fmt: skip
KINDS: Mapping[str, int] = MappingProxyType(
    {
        **dict.fromkeys(INTEGERS, AttributeProto.INT),
        **dict.fromkeys(("axes", "dilations", "kernel_shape", "pads", "strides"), AttributeProto.INTS),
        "alpha": AttributeProto.FLOAT,
    }
)
"""Types of attributes of com.microsoft's operators, whichever has one of that name."""


def check(node: NodeProto, opset: int) -> None:
    """Raise Unusual for a node without what its operator needs, in ONNX's operator set ``opset``."""
    kinds: Mapping[str, int] = KINDS
    if node.domain == MICROSOFT:
        least, needed = LEAST_INPUTS.get(node.op_type, 0), NEEDED.get(node.op_type, ())
    else:
        try:
            schema = onnx.defs.get_schema(node.op_type, opset, "")
        except onnx.defs.SchemaError as error:
            raise Unusual(f"no {node.op_type} in operator set {opset}") from error
        least, needed = schema.min_input, tuple(name for name, item in schema.attributes.items() if item.required)
        kinds = {name: item.type.value for name, item in schema.attributes.items()}
    if len(node.input) < least:
        raise Unusual(f"{len(node.input)} inputs, {least} at least")
    missing = [name for name in needed if name not in {item.name for item in node.attribute}]
    if missing:
        raise Unusual(f"no attribute {', '.join(missing)}")
    wrong = [item.name for item in node.attribute if item.name in kinds and item.type != kinds[item.name]]
    if wrong:
        raise Unusual(f"an attribute {wrong[0]} of another type")
