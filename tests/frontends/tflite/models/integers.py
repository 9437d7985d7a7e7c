"""Models of integers: of 16 bits, with a scale along other axes than the first, and what only moves them."""

from __future__ import annotations

import numpy as np
from cases import case, random


@case
def sixteen_bits(g):
    """Activations of 16 bits with weights of 8 and biases of 64."""
    values = g.input((1, 5, 5, 2), "int16", scale=0.0002)
    kernel = g.const(random.integers(-127, 128, (3, 3, 3, 2)), "int8", scale=[0.01, 0.02, 0.015])
    bias = g.tensor((3,), "int64", data=random.integers(-90000, 90000, 3), scale=[2e-6, 4e-6, 3e-6])
    result = g.tensor((1, 5, 5, 3), "int16", scale=0.0004)
    made = g.op(
        "CONV_2D",
        [values, kernel, bias],
        [result],
        "Conv2DOptions",
        padding=0,
        strideW=1,
        strideH=1,
        dilationWFactor=1,
        dilationHFactor=1,
        fusedActivationFunction=1,
        version=4,
    )
    g.output(made)
    matrix = g.const(random.integers(-127, 128, (4, 75)), "int8", scale=0.01)
    bias = g.tensor((4,), "int64", data=random.integers(-90000, 90000, 4), scale=0.01 * 0.0004)
    result = g.tensor((1, 4), "int16", scale=0.0007)
    g.output(g.op("FULLY_CONNECTED", [made, matrix, bias], [result], "FullyConnectedOptions", version=4))


@case
def per_axis(g):
    """Scales along other axes than the first."""
    values = g.input((1, 5, 5, 3), "int8", scale=0.02, zero=4)
    kernel = g.const(random.integers(-127, 128, (1, 3, 3, 3)), "int8", scale=[0.01, 0.02, 0.015], axis=3)
    bias = g.tensor((3,), "int32", data=random.integers(-900, 900, 3), scale=[2e-4, 4e-4, 3e-4])
    result = g.tensor((1, 5, 5, 3), "int8", scale=0.05, zero=-3)
    g.output(
        g.op(
            "DEPTHWISE_CONV_2D",
            [values, kernel, bias],
            [result],
            "DepthwiseConv2DOptions",
            padding=0,
            strideW=1,
            strideH=1,
            dilationWFactor=1,
            dilationHFactor=1,
            depthMultiplier=1,
            version=3,
        )
    )


@case
def integer_moves(g):
    values = g.input((1, 4, 4, 3), "int8", scale=0.02, zero=4)
    pads = g.const(np.array([[0, 0], [1, 1], [2, 0], [0, 0]], np.int32))
    padded = g.tensor((1, 6, 6, 3), "int8", scale=0.02, zero=4)
    g.output(g.op("PAD", [values, pads], [padded], "PadOptions"))
    halves = [g.tensor((1, 2, 4, 3), "int8", scale=0.02, zero=4) for _ in range(2)]
    g.output(*g.op("SPLIT", [g.const(np.int32(1)), values], halves, "SplitOptions", numSplits=2))
    blocks = g.tensor((4, 2, 2, 3), "int8", scale=0.02, zero=4)
    operands = [values, g.const(np.array([2, 2], np.int32)), g.const(np.zeros((2, 2), np.int32))]
    g.output(g.op("SPACE_TO_BATCH_ND", operands, [blocks], "SpaceToBatchNDOptions"))
    other = g.tensor((1, 4, 4, 3), "uint8", scale=0.03, zero=120)
    g.output(g.op("QUANTIZE", [values], [other], "QuantizeOptions"))
    zeros = g.tensor((1, 4, 4, 3), "int8", scale=0.02, zero=4)
    g.output(g.op("MAXIMUM", [values, g.const(np.full((1, 1, 1, 3), 9), "int8", scale=0.02, zero=4)], [zeros]))
