"""ONNX forms of Relax's normalisations."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import numpy as np

from forge_pipeline.relax.to_onnx.exporter import Exporter, Unsupported
from forge_pipeline.relax.to_onnx.tensors import Row, dtype_of, rank_of

Known = dict[str, Any]


def _normal(maker: Exporter, call: Any, known: Known, x: str, gamma: str, beta: str) -> str:
    rank = rank_of(call.args[0])
    axes = sorted(axis % rank for axis in known["axes"])
    if axes != list(range(rank - len(axes), rank)):
        raise Unsupported(f"axes {axes}, which are not the last ones")
    return maker.node("LayerNormalization", x, gamma, beta, axis=axes[0], epsilon=known["epsilon"])


def _rms(maker: Exporter, call: Any, known: Known, x: str, weight: str) -> str:
    axes = maker.constant(known["axes"], "int64", "axes")
    mean = maker.node("ReduceMean", maker.node("Mul", x, x), axes, keepdims=1)
    shifted = maker.node("Add", mean, maker.constant(known["epsilon"], dtype_of(call)))
    return maker.node("Mul", maker.node("Div", x, maker.node("Sqrt", shifted)), weight)


def _group(maker: Exporter, call: Any, known: Known, x: str, gamma: str, beta: str) -> str:
    rank = rank_of(call.args[0])
    if known["channel_axis"] % rank != 1 or sorted(a % rank for a in known["axes"]) != list(range(2, rank)):
        raise Unsupported("channels that are not the second dimension")
    groups = int(known["num_groups"])
    scale, shift = np.ones(groups), np.zeros(groups)
    dtype = dtype_of(call)
    rows = maker.node("Reshape", x, maker.constant([0, groups, -1], "int64", "shape"))
    plain = maker.node(
        "InstanceNormalization",
        rows,
        maker.constant(scale, dtype),
        maker.constant(shift, dtype),
        epsilon=known["epsilon"],
    )
    y = maker.node("Reshape", plain, maker.node("Shape", x))
    along = maker.constant([-1] + [1] * (rank - 2), "int64", "shape")
    scaled = maker.node("Mul", y, maker.node("Reshape", gamma, along))
    return maker.node("Add", scaled, maker.node("Reshape", beta, along))


def _instance(maker: Exporter, call: Any, known: Known, x: str, gamma: str, beta: str) -> str:
    rank = rank_of(call.args[0])
    if known["channel_axis"] % rank != 1 or sorted(a % rank for a in known["axes"]) != list(range(2, rank)):
        raise Unsupported("channels that are not the second dimension")
    return maker.node("InstanceNormalization", x, gamma, beta, epsilon=known["epsilon"])


def _batch(maker: Exporter, call: Any, known: Known, x: str, *statistics: str) -> list[str]:
    if known.get("training"):
        raise Unsupported("training mode")
    rank = rank_of(call.args[0])
    axis = known["axis"] % rank
    order = list(range(rank))
    order.insert(1, order.pop(axis))
    moved = x if axis == 1 else maker.node("Transpose", x, perm=order)
    y = maker.node("BatchNormalization", moved, *statistics, epsilon=known["epsilon"])
    back = [order.index(place) for place in range(rank)]
    return [y if axis == 1 else maker.node("Transpose", y, perm=back), statistics[2], statistics[3]]


NORMS: Mapping[str, Row] = MappingProxyType(
    {
        "nn.layer_norm": _normal,
        "nn.rms_norm": _rms,
        "nn.group_norm": _group,
        "nn.instance_norm": _instance,
        "nn.batch_norm": _batch,
    }
)
