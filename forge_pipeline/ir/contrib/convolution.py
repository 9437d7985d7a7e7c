"""Convolutions of com.microsoft: with an activation and a residual, with channels last, with padding as an input.

Source: ONNX Runtime's ContribOperators.md; its conv_activation_fusion and conv_add_act_fusion.
"""

from __future__ import annotations

from onnx import NodeProto

from forge_pipeline.ir.contrib import nhwc
from forge_pipeline.ir.contrib.activations import activated
from forge_pipeline.ir.contrib.emitter import Emitter
from forge_pipeline.ir.contrib.writer import Unusual, Writer

FUSED = ("activation", "activation_params")


def _convolution(writer: Writer, node: NodeProto) -> None:
    """FusedConv (X, W, B, Z): Z is added in front of the activation."""
    op = Emitter(writer, node)
    own = {name: value for name, value in op.attributes.items() if name not in FUSED}
    x, weight, bias, other = (op.input(place) for place in range(4))
    value = op("Conv", x, weight, *([bias] * bool(bias)), **own)
    if other:
        value = op("Add", value, other)
    op.give(0, activated(op, value, op.text("activation"), op.listed("activation_params", float)))


def _channels_last(writer: Writer, node: NodeProto) -> None:
    """NhwcConv (X, W, B) and NhwcFusedConv (X, W, B, Z): images with channels last.

    Filters of the former have channels last too: so the optimizer writes them that makes them, and its kernel for GPUs
    reads them. Filters of the latter have them second.
    """
    op = Emitter(writer, node)
    if op.rank(op.input(1), "filters") != nhwc.RANK:
        raise Unusual("channels last over other than two axes")
    own = {name: value for name, value in op.attributes.items() if name not in FUSED}
    x, weight, bias, other = (op.input(place) for place in range(4))
    if node.op_type == "NhwcConv":
        weight = op.transpose(weight, *nhwc.TO_FIRST)
    value = op("Conv", nhwc.first(writer, x), weight, *([bias] * bool(bias)), **own)
    if other:
        value = op("Add", value, nhwc.first(writer, other))
    value = activated(op, value, op.text("activation"), op.listed("activation_params", float))
    nhwc.moved(writer, value, op.base)


def _transposed(writer: Writer, node: NodeProto) -> None:
    """ConvTransposeWithDynamicPads (X, W, Pads, B)."""
    op = Emitter(writer, node)
    own = dict(op.attributes)
    if op.input(2):
        own["pads"] = [int(pad) for pad in op.array(op.input(2), "a padding").reshape(-1)] or [0]
    bias = op.input(3)
    op.result(0, "ConvTranspose", op.input(0), op.input(1), *([bias] * bool(bias)), **own)


RULES = {
    "ConvTransposeWithDynamicPads": _transposed,
    "FusedConv": _convolution,
    "NhwcConv": _channels_last,
    "NhwcFusedConv": _channels_last,
}
"""How to write out each operator of com.microsoft."""
