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
    group_query,
    linear,
    nhwc,
    normalization,
    rotary,
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
        **group_query.RULES,
        **linear.RULES,
        **normalization.RULES,
        **rotary.RULES,
        "NhwcMaxPool": nhwc.max_pool,
    }
)
"""How to write out operators on floats, and those that only move integers."""

OWN_NAMES = frozenset({"LayerNormalization", "SimplifiedLayerNormalization"})
"""Operators that ONNX Runtime writes into ONNX's own domain, whatever the operator set."""

_GENERATION = "a search that calls a model again and again: build the model inside, and search outside"
_EXPERTS = "weights picked by data, an expert for each token"
_GPU = "a layout for CUDA, for which ONNX Runtime has no kernel on a CPU"
_STRINGS = "text"
_TRAINING = "for training"
_BLOB = "weights packed for one kind of machine: give those they were packed from"
_STEPS = "a recurrence over tokens"

REASONS: Mapping[str, str] = MappingProxyType(
    {
        **dict.fromkeys(("BeamSearch", "GreedySearch", "Sampling", "WhisperBeamSearch"), _GENERATION),
        **dict.fromkeys(("MoE", "QMoE"), _EXPERTS),
        **dict.fromkeys(
            (
                "DecoderAttention", "DecoderMaskedSelfAttention", "DynamicSparseAttention", "GatedRelativePositionBias",
                "GemmFloat8", "GemmaRotaryEmbedding", "LongformerAttention", "PackedAttention",
                "PackedMultiHeadAttention", "PagedAttention", "DequantizeWithOrder", "QOrderedAttention",
                "QOrderedGelu", "QOrderedLayerNormalization", "QOrderedLongformerAttention", "QOrderedMatMul",
                "QuantizeWithOrder", "RelativePositionBias", "RemovePadding", "RestorePadding", "SparsePagedAttention",
            ),
            _GPU,
        ),
        **dict.fromkeys(("MurmurHash3", "Tokenizer", "WordConvEmbedding"), _STRINGS),
        **dict.fromkeys(("BitmaskBiasDropout", "IsAllFinite", "TorchEmbedding"), _TRAINING),
        **dict.fromkeys(("EPContext", "MatMulFpQ4", "Snpe"), _BLOB),
        **dict.fromkeys(("AttnLSTM", "GatedDeltaNet", "LinearAttention"), _STEPS),
    }
)  # fmt: skip
"""Why operators are not written out."""

LAYOUTS: Mapping[str, str] = MappingProxyType(
    {
        "com.microsoft.nchwc": "channels in blocks, for one kind of machine: save the model at ORT_ENABLE_EXTENDED",
        "com.ms.internal.nhwc": "channels last, as an execution provider of ONNX Runtime wants them",
    }
)
"""Why the operators of other domains of ONNX Runtime are not written out."""
