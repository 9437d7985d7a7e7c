"""Models whose products are in AMX's tiles."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from tests.support.int8.compare import OPTIONS
from tests.support.int8.net import IN, OUT, convolution, exact_scales

AMX = "intel/sapphire-rapids"
TILES = replace(OPTIONS, amx=True)


def stacked(net: Any) -> str:
    """Two convolutions, whose blocked bytes go from tiles to tiles."""
    first = net.pair(convolution(net, 64, 64, 3, pads=[1] * 4), OUT)
    second = net.node("Conv", first, net.weight((32, 64, 1, 1), exact_scales(32)), net.bias(exact_scales(32) * OUT[0]))
    return net.pair(net.node("Relu", second), (4096.0, 9))


def product(net: Any, columns: int) -> str:
    weight = net.weight((net.shape[-1], columns), exact_scales(columns), axis=1)
    y = net.node("MatMul", net.pair("x", IN), weight)
    return net.pair(net.node("Add", y, net.tensor(np.arange(columns).astype(np.float32) * 32)), OUT)


CASES: dict[str, tuple[tuple[int, ...], Callable[[Any], str]]] = {
    "pixels that fill no tile": ((1, 64, 9, 9), lambda net: net.pair(convolution(net, 64, 48, 1), OUT)),
    "filters that fill no tile, a result in float": ((1, 40, 10, 10), lambda net: convolution(net, 40, 56, 3)),
    "strided, padded on one side": (
        (2, 32, 12, 12), lambda net: net.pair(convolution(net, 32, 16, 3, pads=[0, 0, 1, 1], strides=[2, 2]), OUT),
    ),
    "dilated, many rows": (
        (1, 16, 20, 20), lambda net: net.pair(convolution(net, 16, 96, 3, pads=[2] * 4, dilations=[2, 2]), OUT),
    ),
    "three channels, strided": (
        (1, 3, 21, 21), lambda net: net.pair(convolution(net, 3, 40, 7, pads=[3] * 4, strides=[2, 2]), OUT),
    ),
    "seven channels": ((2, 7, 9, 12), lambda net: net.pair(convolution(net, 7, 64, 5, pads=[0, 1, 1, 0]), OUT)),
    "more tiles than are a block": ((1, 64, 96, 96), lambda net: net.pair(convolution(net, 64, 32, 1), OUT)),
    "two blocks of nine steps": ((1, 128, 10, 10), lambda net: net.pair(convolution(net, 128, 48, 3), OUT)),
    "a matrix of two blocks of eight steps": ((70, 1024), lambda net: product(net, 48)),
    "one after the other": ((1, 64, 8, 8), stacked),
    "a matrix of few rows": ((16, 64), lambda net: product(net, 32)),
    "a batch of matrices": ((2, 30, 200), lambda net: product(net, 80)),
}  # fmt: skip
