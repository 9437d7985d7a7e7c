"""Activations of com.microsoft, those that optimizers fuse into what is in front of them among them.

Source: ONNX Runtime's ContribOperators.md; its optimizers conv_activation_fusion, gemm_activation_fusion.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType

from onnx import NodeProto, TensorProto, helper

from forge_pipeline.ir.contrib.emitter import Emitter
from forge_pipeline.ir.contrib.writer import Unusual, Writer

FUSED: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "Elu": ("alpha",), "HardSigmoid": ("alpha", "beta"), "LeakyRelu": ("alpha",), "Relu": (),
        "Selu": ("alpha", "gamma"), "Sigmoid": (), "Softplus": (), "Softsign": (), "Tanh": (),
        "ThresholdedRelu": ("alpha",),
    }
)  # fmt: skip
"""Activations that ONNX has in every operator set, and their attributes in the order of ``activation_params``."""

SCALED: Mapping[str, str] = MappingProxyType({"ParametricSoftplus": "Softplus", "ScaledTanh": "Tanh"})
"""Activations f(x) = alpha g(beta x), and g."""


def activated(op: Emitter, value: str, activation: str, numbers: Sequence[float]) -> str:
    """Return ``value`` behind an activation that a node names, with its parameters."""
    if activation in FUSED:
        return op(activation, value, **dict(zip(FUSED[activation], numbers, strict=False)))
    if activation == "Clip":
        return op("Clip", value, *(op.number(number, value) for number in numbers[:2]))
    gates: Mapping[str, Callable[[], str]] = {
        "Gelu": lambda: op.gelu(value),
        "FastGelu": lambda: op.tanh_gelu(value),
        "HardSwish": lambda: op("Mul", value, op("HardSigmoid", value, alpha=1 / 6, beta=0.5)),
        "Mish": lambda: op("Mul", value, op("Tanh", op("Softplus", value))),
        "QuickGelu": lambda: op("Mul", value, _gate(op, value, numbers[0] if numbers else 1.702)),
        "Silu": lambda: op.silu(value),
    }
    if activation in gates:
        return gates[activation]()
    if activation in SCALED:
        alpha, beta = (op.number(number, value) for number in (*numbers, 1.0, 1.0)[:2])
        return op("Mul", alpha, op(SCALED[activation], op("Mul", beta, value)))
    if activation not in ("", "Identity"):
        raise Unusual(f"the activation {activation}")
    return value


def _gate(op: Emitter, x: str, alpha: float) -> str:
    return op("Sigmoid", x if alpha == 1.0 else op("Mul", x, op.number(alpha, x)))


def _quick_gelu(writer: Writer, node: NodeProto) -> None:
    op = Emitter(writer, node)
    op.result(0, "Mul", op.input(0), _gate(op, op.input(0), op.real("alpha", 1.702)))


def _biased(op: Emitter) -> str:
    return op("Add", op.input(0), op.input(1)) if op.input(1) else op.input(0)


def _gelu(writer: Writer, node: NodeProto) -> None:
    op = Emitter(writer, node)
    op.give(0, op.gelu(_biased(op)))


def _fast_gelu(writer: Writer, node: NodeProto) -> None:
    op = Emitter(writer, node)
    op.give(0, op.tanh_gelu(_biased(op)))


def _split_gelu(writer: Writer, node: NodeProto) -> None:
    """BiasSplitGelu (X, bias): the left half times Gelu of the right one."""
    op = Emitter(writer, node)
    size = op.size(op.input(0), -1) or op.size(op.input(1), -1)
    if size is None or size % 2:
        raise Unusual(f"{size or 'an unknown number of'} channels to be halved")
    left, right = op.split(_biased(op), (size // 2, size // 2))
    op.result(0, "Mul", left, op.gelu(right))


def _bias_add(writer: Writer, node: NodeProto) -> None:
    op = Emitter(writer, node)
    op.result(0, "Add", _biased(op), op.input(2))


def _bias_softmax(writer: Writer, node: NodeProto) -> None:
    """BiasSoftmax (data, bias): softmax over all axes from ``axis`` on."""
    op = Emitter(writer, node)
    x = op.input(0)
    axis = op.integer("axis", 1)
    scores = _biased(op)
    if axis == -1 or axis == op.rank(x, "scores") - 1:
        op.result(0, "Softmax", scores, axis=-1)
        return
    flat = op.softmax(op("Flatten", scores, axis=axis))
    op.result(0, "Reshape", flat, op("Shape", x))


def _dropout(writer: Writer, node: NodeProto) -> None:
    """BiasDropout (data, bias, residual, ratio, training_mode) and BitmaskDropout (data, ratio, training_mode).

    Where nobody trains, nothing is dropped.
    """
    op = Emitter(writer, node)
    is_biased = node.op_type != "BitmaskDropout"
    mode = op.input(4 if is_biased else 2)
    if mode and bool(op.array(mode, "a training mode").any()):
        raise Unusual("dropout while training")
    if op.output(1) and node.op_type != "BiasDropout":
        raise Unusual("a mask in bits")
    value = _biased(op) if is_biased else op.input(0)
    if is_biased and op.input(2):
        value = op("Add", value, op.input(2))
    value = op.give(0, value)
    if op.output(1):
        kept = helper.make_tensor("kept", TensorProto.BOOL, [1], [1])
        op.result(1, "ConstantOfShape", op("Shape", value), value=kept)


def _scaled_silu(writer: Writer, node: NodeProto) -> None:
    """ScaledSiLU (X, scale)."""
    op = Emitter(writer, node)
    x = op.input(0)
    factor = op.cast(op.input(1), op.kind(x)) if op.input(1) else op.number(op.real("alpha", 1.0), x)
    op.give(0, op.silu(op("Mul", x, factor)))


def _gated_add(writer: Writer, node: NodeProto) -> None:
    """GatedAdd (X, Y, gate)."""
    op = Emitter(writer, node)
    op.result(0, "Add", op.input(0), op("Mul", op.input(1), op.input(2)))


RULES = {
    "BiasAdd": _bias_add,
    "BiasDropout": _dropout,
    "BiasGelu": _gelu,
    "BiasSoftmax": _bias_softmax,
    "BiasSplitGelu": _split_gelu,
    "BitmaskDropout": _dropout,
    "FastGelu": _fast_gelu,
    "GatedAdd": _gated_add,
    "Gelu": _gelu,
    "QuickGelu": _quick_gelu,
    "ScaledSiLU": _scaled_silu,
}
"""How to write out each operator of com.microsoft."""
