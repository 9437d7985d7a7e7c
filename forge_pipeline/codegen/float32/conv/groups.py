"""Groups of a convolution whose channels fill no vectors: merged with their neighbours, filled up, or moved apart."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
from tvm import te, tirx

from forge_pipeline.codegen.float32.conv.geometry import Geometry
from forge_pipeline.codegen.layout.builder import Array

COPYING = 1.5
"""How many times fewer the products have to be to pay for copies of the image and of the result."""


def merge_groups(geometry: Geometry, weight: Array, lanes: int) -> tuple[Geometry, Array]:
    """Return an equal convolution whose groups fill whole vectors: neighbours merged, with zeros between them."""
    groups, together = geometry.groups, how_many_merge(geometry, lanes)
    if together == 1:
        return geometry, weight
    inputs, outputs = geometry.channels // groups, geometry.filters // groups
    merged = np.zeros((geometry.filters, inputs * together, *geometry.kernel), weight.dtype)
    for group in range(groups):
        rows = slice(group * outputs, (group + 1) * outputs)
        first = group % together * inputs
        merged[rows, first : first + inputs] = weight[rows]
    return replace(geometry, groups=groups // together), merged


def how_many_merge(geometry: Geometry, lanes: int) -> int:
    """Return how many groups have to be one for its channels and its filters to fill whole vectors."""
    groups = geometry.groups
    inputs, outputs = geometry.channels // groups, geometry.filters // groups
    together = math.lcm(lanes // math.gcd(lanes, inputs), lanes // math.gcd(lanes, outputs))
    return groups if groups % together else together


def fill_groups(geometry: Geometry, weight: Array, lanes: int) -> tuple[Geometry, Array]:
    """Return an equal convolution with groups of zeros for the channels that fill the last blocks of image and result.

    Seven groups of half a vector are eight then, of which two are merged into one.
    """
    groups = geometry.groups
    widths = geometry.channels // groups, geometry.filters // groups
    together = math.lcm(*(lanes // math.gcd(lanes, width) for width in widths))
    full = -(-groups // together) * together
    if groups == 1 or any(full * width != -(-groups * width // lanes) * lanes for width in widths):
        return geometry, weight
    filled = np.zeros((full * widths[1], *weight.shape[1:]), weight.dtype)
    filled[: geometry.filters] = weight
    return replace(geometry, channels=full * widths[0], filters=full * widths[1], groups=full), filled


def pad_groups(geometry: Geometry, weight: Array, lanes: int) -> tuple[Geometry, Array] | None:
    """Return an equal convolution of groups that are filled up to whole vectors, with zeros.

    None where it has no fewer products than that of merged groups, by COPYING at least.
    """
    groups = geometry.groups
    inputs, outputs = geometry.channels // groups, geometry.filters // groups
    full_in, full_out = (-(-extent // lanes) * lanes for extent in (inputs, outputs))
    if full_in * full_out * COPYING > inputs * outputs * how_many_merge(geometry, lanes):
        return None
    padded = np.zeros((groups, full_out, full_in, *geometry.kernel), weight.dtype)
    padded[:, :outputs, :inputs] = weight.reshape(groups, outputs, inputs, *geometry.kernel)
    wide = replace(geometry, channels=groups * full_in, filters=groups * full_out)
    return wide, padded.reshape(groups * full_out, full_in, *geometry.kernel)


def move_groups(image: te.Tensor, groups: int, channels: int, to: int) -> te.Tensor:
    """Describe a blocked image whose groups, of ``channels`` that matter, start ``to`` channels apart; the rest is 0.

    Where ``to`` is ``channels``, the image's groups are those that `pad_groups` filled up.
    """
    batch, _, height, width, lanes = image.shape
    lanes = int(lanes)
    apart = -(-channels // lanes) * lanes if to == channels else channels

    def element(n: Any, block: Any, h: Any, w: Any, lane: Any) -> Any:
        group, channel = (block * lanes + lane) // to, (block * lanes + lane) % to
        at = group * apart + channel
        inside = tirx.all(channel < channels, group < groups)
        return tirx.if_then_else(inside, image[n, at // lanes, h, w, at % lanes], tirx.const(0, image.dtype))

    return te.compute((batch, -(-groups * to // lanes), height, width, lanes), element, name="groups")
