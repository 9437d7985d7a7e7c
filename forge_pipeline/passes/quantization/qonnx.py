"""QONNX's operators to and from ONNX's QuantizeLinear and DequantizeLinear.

Source: Pappalardo et al., "QONNX: Representing Arbitrary-Precision Quantized Neural Networks", arXiv 2206.07527, and
the operator definitions of the qonnx repository (Quant, BipolarQuant, Trunc, MultiThreshold).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from onnx import ModelProto, NodeProto, TensorProto, helper

from forge_pipeline.passes.contract import NoOptions, Tolerance, Transformation, verified
from forge_pipeline.passes.graph import Array, Graph
from forge_pipeline.passes.nodes import attribute, is_op
from forge_pipeline.passes.rewrite import Builder
from forge_pipeline.registry import Registry

FIRST_OPSET = 13  # of the operators used here with axes as an input
WIDE_OPSET = 21  # the first in which QuantizeLinear gives 16 bits
DOMAINS = ("qonnx.custom_op.general", "finn.custom_op.general")
TO_EVEN = ("ROUND", "HALF_EVEN")
ROUNDING = {"ROUND": "Round", "HALF_EVEN": "Round", "CEIL": "Ceil", "FLOOR": "Floor"}
INTEGERS: dict[tuple[int, bool], type[np.integer[Any]]] = {
    (8, True): np.int8, (8, False): np.uint8, (16, True): np.int16, (16, False): np.uint16,
}  # fmt: skip


def is_qonnx(node: NodeProto) -> bool:
    """Whether a node is an operator of QONNX that is known here."""
    return node.domain in DOMAINS and node.op_type in SPELLINGS


@verified(Tolerance())
class QonnxToQDQ(Transformation[NoOptions]):
    """Spell out QONNX's operators: 8-bit Quant (16-bit from opset 21) as QDQ, narrower with a Clip, others in floats.

    What ONNX Runtime does not run becomes what it does; verification runs QONNX's operators by their definition.
    """

    def call(self, graph: Graph) -> int:
        """Replace each in place; the domain goes with the last."""
        if graph.opset() < FIRST_OPSET:
            return 0
        changes = sum(SPELLINGS[node.op_type](graph, node) for node in graph.nodes if is_qonnx(node))
        if changes:
            _drop_domains(graph)
        return changes


def in_definition(model: ModelProto) -> ModelProto:
    """Return a model that an interpreter without QONNX can run: ``model`` itself where it uses none of it.

    Quant is spelt out in floats, as it is defined, so that a wrong translation to QDQ differs from it.
    """
    if not any(is_qonnx(node) for node in model.graph.node):
        return model
    graph = Graph(model)
    for node in graph.nodes:
        if is_qonnx(node):
            (_quant_in_floats if node.op_type == "Quant" else SPELLINGS[node.op_type])(graph, node)
    _drop_domains(graph)
    return graph.model()


def _drop_domains(graph: Graph) -> None:
    if not any(node.domain in DOMAINS for node in graph.nodes):
        kept = [entry for entry in graph.header.opset_import if entry.domain not in DOMAINS]
        del graph.header.opset_import[:]
        graph.header.opset_import.extend(kept)


def bounds(bits: float, *, signed: bool, narrow: bool) -> tuple[float, float]:
    """Return the least and the greatest integer of a type of ``bits`` bits."""
    if signed:
        return -(2.0 ** (bits - 1)) + narrow, 2.0 ** (bits - 1) - 1
    return 0.0, 2.0**bits - 1 - narrow


def _put(graph: Graph, node: NodeProto, value: str) -> bool:
    graph.remove(node)
    graph.rename(value, node.output[0])
    return True


def _quant(graph: Graph, node: NodeProto) -> bool:
    bits = graph.array(node.input[3])
    if bits is None or bits.size != 1:
        return False
    signed, narrow = bool(attribute(node, "signed", 1)), bool(attribute(node, "narrow", 0))
    low, high = bounds(float(bits.reshape(())), signed=signed, narrow=narrow)
    scale, zero = graph.array(node.input[1]), graph.array(node.input[2])
    op = Builder(graph, f"{node.output[0]}_quant")
    rounding = attribute(node, "rounding_mode", "ROUND").upper()
    widest = 16 if graph.opset() >= WIDE_OPSET else 8
    dtype = _integer((low, high), scale, zero, signed=signed, widest=widest)
    axis = _axis(graph, node.input[0], scale)
    if dtype is not None and axis is not None and scale is not None and zero is not None and rounding in TO_EVEN:
        return _put(graph, node, _qdq(op, node.input[0], scale, zero.astype(dtype), (low, high), axis))
    return _quant_in_floats(graph, node)


def _axis(graph: Graph, name: str, scale: Array | None) -> int | None:
    """Return the one axis along which a scale varies, 0 for one number; None where QDQ has no such scale."""
    rank = graph.rank(name)
    if scale is None or scale.size == 1:
        return 0
    if rank is None or scale.ndim > rank:
        return None
    axes = [rank - scale.ndim + axis for axis, size in enumerate(scale.shape) if size != 1]
    return axes[0] if len(axes) == 1 else None


def _quant_in_floats(graph: Graph, node: NodeProto) -> bool:
    bits = graph.array(node.input[3])
    if bits is None or bits.size != 1:
        return False
    signed, narrow = bool(attribute(node, "signed", 1)), bool(attribute(node, "narrow", 0))
    limits = bounds(float(bits.reshape(())), signed=signed, narrow=narrow)
    op = Builder(graph, f"{node.output[0]}_quant")
    rounding = attribute(node, "rounding_mode", "ROUND").upper()
    return _put(graph, node, _in_floats(op, node, limits, rounding))


def _integer(
    limits: tuple[float, float], scale: Array | None, zero: Array | None, *, signed: bool, widest: int
) -> type[np.integer[Any]] | None:
    """Return the integer type of a QDQ pair for a range; None where scale and zero point do not let it be one.

    It has ``widest`` bits at most. QuantizeLinear adds the zero point after rounding, Quant before: with an odd one,
    halves go the other way.
    """
    if scale is None or zero is None or zero.size not in (1, scale.size) or (zero % 2 != 0).any():
        return None
    low, high = limits
    for (bits, is_signed), dtype in INTEGERS.items():
        info = np.iinfo(dtype)
        fits = bits <= widest and is_signed is signed
        if fits and info.min <= low and high <= info.max and low <= zero.min() and zero.max() <= high:
            return dtype
    return None


def _qdq(op: Builder, x: str, scale: Array, zero: Array, limits: tuple[float, float], axis: int) -> str:
    """Return QuantizeLinear and DequantizeLinear, behind what holds a narrower type's range."""
    info = np.iinfo(zero.dtype)
    if limits != (float(info.min), float(info.max)):
        low, high = (((limit - zero.astype(np.float64)) * scale).astype(scale.dtype) for limit in limits)
        if low.size == 1:
            x = str(op.Clip(x, op.constant(low.reshape(())), op.constant(high.reshape(()))))
        else:
            x = str(op.Min(op.Max(x, op.constant(low)), op.constant(high)))
    shape = () if scale.size == 1 else (scale.size,)
    step, origin = op.constant(scale.reshape(shape)), op.constant(np.broadcast_to(zero, scale.shape).reshape(shape))
    along = {"axis": axis} if shape else {}
    return str(op.DequantizeLinear(op.QuantizeLinear(x, step, origin, **along), step, origin, **along))


def _in_floats(op: Builder, node: NodeProto, limits: tuple[float, float], rounding: str) -> str:
    x, scale, zero = node.input[:3]
    dtype = np.float32
    shifted = op.Add(op.Div(x, scale), zero)
    low, high = (op.constant(limit, dtype) for limit in limits)
    if rounding in ROUNDING:
        whole = getattr(op, ROUNDING[rounding])(op.Min(op.Max(shifted, low), high))
    else:  # ROUND_TO_ZERO and what rounds towards zero by other names
        held = op.Min(op.Max(shifted, low), high)
        whole = op.Mul(op.Sign(held), op.Floor(op.Abs(held)))
    return str(op.Mul(op.Sub(whole, zero), scale))


def _bipolar(graph: Graph, node: NodeProto) -> bool:
    """``scale`` where x is not negative, ``-scale`` elsewhere."""
    op = Builder(graph, f"{node.output[0]}_bipolar")
    x, scale = node.input[:2]
    positive = op.GreaterOrEqual(x, op.constant(0.0, np.float32))
    sign = op.Where(positive, op.constant(1.0, np.float32), op.constant(-1.0, np.float32))
    return _put(graph, node, str(op.Mul(sign, scale)))


def _trunc(graph: Graph, node: NodeProto) -> bool:
    """Drop the lowest bits: ``floor(round(x / scale + zero) / 2^k) * 2^k`` in steps of the output's scale."""
    before, after = graph.array(node.input[3]), graph.array(node.input[4])
    if before is None or after is None or len(node.input) != 5:
        return False
    op = Builder(graph, f"{node.output[0]}_trunc")
    x, scale, zero = node.input[:3]
    whole = op.Round(op.Add(op.Div(x, scale), zero))
    factor = op.constant(2.0 ** float(before.reshape(()) - after.reshape(())), np.float32)
    rounded = getattr(op, ROUNDING.get(attribute(node, "rounding_mode", "FLOOR").upper(), "Floor"))
    return _put(graph, node, str(op.Mul(op.Sub(rounded(op.Div(whole, factor)), zero), scale)))


def _multithreshold(graph: Graph, node: NodeProto) -> bool:
    """``out_scale * (number of thresholds that x reaches) + out_bias``, thresholds per channel on axis 1."""
    thresholds = graph.array(node.input[1])
    rank = graph.rank(node.input[0])
    if thresholds is None or rank is None or rank < 2 or attribute(node, "data_layout", "NCHW")[1] != "C":
        return False
    op = Builder(graph, f"{node.output[0]}_thresholds")
    shape = (1, *thresholds.shape[:1], *(1,) * (rank - 2), thresholds.shape[1])
    each = op.constant(thresholds.reshape(shape).astype(np.float32))
    last = op.constant(np.array([rank], np.int64))
    reached = op.Cast(op.GreaterOrEqual(op.Unsqueeze(node.input[0], last), each), to=TensorProto.FLOAT)
    count = op.ReduceSum(reached, last, keepdims=0)
    scale, bias = (op.constant(attribute(node, name, value), np.float32) for name, value in DEFAULTS)
    return _put(graph, node, str(op.Add(op.Mul(count, scale), bias)))


DEFAULTS = (("out_scale", 1.0), ("out_bias", 0.0))
SPELLINGS: Registry[Callable[[Graph, NodeProto], bool]] = Registry(
    "operator of QONNX",
    {"Quant": _quant, "BipolarQuant": _bipolar, "Trunc": _trunc, "MultiThreshold": _multithreshold},
)


@verified(Tolerance())
class QDQToQonnx(Transformation[NoOptions]):
    """QuantizeLinear + DequantizeLinear -> Quant, for tools that read QONNX; ONNX Runtime does not.

    With one scale, or one a channel. A Clip before them that holds the range of fewer bits becomes those bits.
    """

    def call(self, graph: Graph) -> int:
        """Replace pairs; a weight that is stored as integers stays behind its DequantizeLinear."""
        changes = sum(_pair(graph, node) for node in graph.nodes if is_op(node, "DequantizeLinear"))
        if changes and not graph.opset(DOMAINS[0]):
            graph.header.opset_import.append(helper.make_opsetid(DOMAINS[0], 1))
        return changes


def _pair(graph: Graph, node: NodeProto) -> bool:
    before = graph.producer(node.input[0])
    if before is None or not is_op(before, "QuantizeLinear") or list(before.input[1:]) != list(node.input[1:]):
        return False
    scale = graph.array(node.input[1])
    zero = graph.array(node.input[2]) if len(node.input) > 2 and node.input[2] else None
    dtype = np.dtype(np.uint8) if zero is None else zero.dtype
    rank = graph.rank(before.input[0])
    if scale is None or scale.ndim > 1 or dtype.name not in BITS or graph.only_user(before.output[0]) is None:
        return False
    if len({attribute(pair, "axis", 1) for pair in (before, node)}) > 1 or (scale.size != 1 and rank is None):
        return False
    if attribute(before, "block_size", 0) or (len(node.input) > 2 and node.input[2] and zero is None):
        return False
    shape: tuple[int, ...] = ()
    if scale.size != 1:
        axis = attribute(node, "axis", 1) % (rank or 1)
        shape = tuple(scale.size if place == axis else 1 for place in range(rank or 1))
    origin = np.zeros((), np.float32) if zero is None else zero.astype(np.float32)
    origin = origin.reshape(shape if origin.size > 1 else ())
    signed = dtype.kind == "i"
    source, bits, narrow = _narrowed(graph, before, scale, origin, signed=signed, bits=BITS[dtype.name])
    op = Builder(graph, f"{node.output[0]}_qonnx")
    step = op.constant(scale.reshape(shape).astype(np.float32))
    names = [source, step, op.constant(origin), op.constant(float(bits), np.float32)]
    kinds = {"signed": int(signed), "narrow": int(narrow), "rounding_mode": "ROUND"}
    graph.remove(before)
    graph.replace(node, "Quant", names, domain=DOMAINS[0], **kinds)
    return True


def _narrowed(
    graph: Graph, quantize: NodeProto, scale: Array, zero: Array, *, signed: bool, bits: int
) -> tuple[str, int, bool]:
    """Return what is quantized to how many bits, and whether the range is narrow: a Clip before it may say less."""
    source = str(quantize.input[0])
    clip = graph.producer(source)
    if clip is None or not is_op(clip, "Clip") or graph.only_user(source) is None or scale.size != 1 or zero.size != 1:
        return source, bits, False
    ends = [graph.array(name) if name else None for name in [*clip.input[1:], "", ""][:2]]
    if ends[0] is None or ends[1] is None:
        return source, bits, False
    found = [
        float(end.reshape(())) / float(scale.reshape(())) + float(zero.reshape(())) for end in ends if end is not None
    ]
    for fewer in range(bits, 1, -1):
        for narrow in (False, True):
            if np.allclose(found, bounds(fewer, signed=signed, narrow=narrow), rtol=0, atol=1e-3):
                graph.remove(clip)
                return str(clip.input[0]), fewer, narrow
    return source, bits, False


BITS = {"int8": 8, "uint8": 8, "int16": 16, "uint16": 16}
