"""Convolution of int8 over images: the algorithms, in the order in which they are asked."""

from __future__ import annotations

from forge_pipeline.codegen.int8.algorithm import Algorithm
from forge_pipeline.codegen.int8.conv import amx, depthwise, direct, winograd
from forge_pipeline.codegen.int8.neon import kernels
from forge_pipeline.codegen.int8.x86 import pmaddubsw

ALGORITHMS = (
    Algorithm("depthwise", "each filter reads one channel of its own", depthwise.emit),
    Algorithm("amx", "`compile.amx`, one group, and a third of the tiles would be filled", amx.emit),
    Algorithm("micro_kernel", "NEON, where four pixels share what they load in fewer cycles", kernels.emit),
    Algorithm("winograd", "x86, 3x3 with stride 1, where transformed products take fewer cycles", winograd.emit),
    Algorithm("pmaddubsw", "x86 without VNNI, one group, and steps that pair, or need few masks", pmaddubsw.emit),
    Algorithm("direct", "always", direct.emit),
)
"""All take an image, its zero point, int8 weights or int16 ones, what surrounds them, and how sums are requantized."""
