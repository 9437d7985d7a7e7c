"""How each operator of com.microsoft is written out, and why some are not."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType

from onnx import NodeProto

from forge_pipeline.ir.contrib import (
    activations,
    attention,
    convolution,
    data_movement,
    embedding,
    experimental,
    group_query,
    linear,
    nhwc,
    normalization,
    recurrent,
    rotary,
    small_matrices,
)
from forge_pipeline.ir.contrib.writer import Writer

Rule = Callable[[Writer, NodeProto], None]

RULES: Mapping[str, Rule] = MappingProxyType(
    {
        **activations.RULES,
        **attention.RULES,
        **convolution.RULES,
        **data_movement.RULES,
        **embedding.RULES,
        **experimental.RULES,
        **group_query.RULES,
        **linear.RULES,
        **normalization.RULES,
        **recurrent.RULES,
        **rotary.RULES,
        **small_matrices.RULES,
        "NhwcMaxPool": nhwc.max_pool,
    }
)
"""How to write out operators on floats, and those that only move integers."""

OWN_NAMES = frozenset({"LayerNormalization", "SimplifiedLayerNormalization", *experimental.RULES})
"""Operators that ONNX Runtime has in ONNX's own domain, whatever the operator set."""

_REFUSED: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "a search that calls a model again and again: build the model inside, and search outside": (
            "BeamSearch", "GreedySearch", "Sampling", "WhisperBeamSearch",
        ),
        "weights picked by data, an expert for each token": (
            "MoE", "QMoE",
        ),
        "for a GPU: ONNX Runtime has no kernel on a CPU": (
            "DecoderAttention", "DecoderMaskedSelfAttention", "DequantizeWithOrder", "DynamicSparseAttention",
            "GatedDeltaNet", "GatedRelativePositionBias", "GemmFloat8", "GemmaRotaryEmbedding", "LongformerAttention",
            "MatMulBlockQuantizedFp4Weight", "MatMulBlockQuantizedFp8Weight", "MatMulNBitsMlp", "MatMulNBitsQkv",
            "PackedAttention", "PackedMultiHeadAttention", "PackedSparseAttentionIndexer", "PagedAttention",
            "QOrderedAttention", "QOrderedGelu", "QOrderedLayerNormalization", "QOrderedLongformerAttention",
            "QOrderedMatMul", "QuantizeWithOrder", "RelativePositionBias", "RemovePadding", "RestorePadding",
            "SparseAttentionIndexer", "SparsePagedAttention", "VarlenCausalConvWithState",
        ),
        "text": (
            "MurmurHash3", "Tokenizer", "WordConvEmbedding",
        ),
        "for training": (
            "BitmaskBiasDropout", "IsAllFinite", "TorchEmbedding",
        ),
        "weights packed for one kind of machine: give those they were packed from": (
            "EPContext", "MatMulFpQ4", "Snpe",
        ),
        "an operator for the inside of one model or one tool": (
            "AttnLSTM", "BifurcationDetector", "DynamicTimeWarping", "EngramGate", "HyperConnectionPostMix",
            "HyperConnectionPreMix", "MaxpoolWithMask", "NGramHashMapping", "NGramRepeatBlock", "SampleOp",
            "SparseAttention", "SparseToDenseMatMul", "VarlenNGramHashMapping",
        ),
        "no kernel on a CPU, and no optimizer that writes it": (
            "DequantizeBFP", "Irfft", "QuantizeBFP", "Rfft",
        ),
    }
)  # fmt: skip
REASONS: Mapping[str, str] = MappingProxyType({name: why for why, names in _REFUSED.items() for name in names})
"""Why operators are not written out."""

LAYOUTS: Mapping[str, str] = MappingProxyType(
    {
        "com.microsoft.nchwc": "channels in blocks, for one kind of machine: save the model at ORT_ENABLE_EXTENDED",
        "com.ms.internal.nhwc": "channels last, as an execution provider of ONNX Runtime wants them",
    }
)
"""Why the operators of other domains of ONNX Runtime are not written out."""
