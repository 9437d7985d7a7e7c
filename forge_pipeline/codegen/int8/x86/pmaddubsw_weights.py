"""Weights for ``vpmaddubsw``, which adds products of two neighbouring bytes with saturation, such that none saturates.

Where activations up to 255 times a pair of weights might exceed int16, one of the two is replaced: w x is
(-w)(255 - x) + 255 w. Weights of different signs fit for sure, 255 - x is the complement of a byte, and the last term
is a constant, which goes into the filter's bias. So results are exact for all activations. Steps that need
complements in a panel of filters come last in it: only they pay for them, with one more instruction.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from forge_pipeline.codegen.layout.affine import LEVELS
from forge_pipeline.codegen.layout.builder import Array

GROUP = 4
"""Channels of a step: two pairs."""
MOST = np.iinfo(np.int16).max // LEVELS
"""Largest sum of the weights of one sign of a pair: 255 times as much fits int16."""
ROUND = 16
"""Parts of the steps of which a whole number has masks: layers of one shape then often share a kernel."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Panels:
    """Packed weights: panels of ``width`` filters, each with its own order of steps.

    ``weights`` (panels, steps, width, 4) are int8, ``masks`` (panels, complemented, width, 4) what activations are
    xor-ed with in the last steps, ``order`` (panels, steps) the number of each step; ``bias`` (filters) is to be added
    to sums, int64.
    """

    weights: Array
    masks: Array
    order: Array
    bias: Array

    @property
    def complemented(self) -> int:
        """Steps of every panel whose activations are complemented where masks say so."""
        return int(self.masks.shape[1])


def complements(weight: Array) -> Array | None:
    """Return where (filters, steps, 4) are to be multiplied by the complement of their activation.

    None where a pair has to have one negated, and both are -128, of which int8 has no opposite.
    """
    pairs = weight.astype(np.int32).reshape(*weight.shape[:2], GROUP // 2, 2)
    largest = np.maximum(np.maximum(pairs, 0).sum(axis=-1), -np.minimum(pairs, 0).sum(axis=-1))
    lowest = pairs == np.iinfo(np.int8).min
    if lowest.all(axis=-1).any():
        return None
    chosen = np.zeros(pairs.shape, bool)
    chosen[..., 0] = (largest > MOST) & lowest[..., 1]
    chosen[..., 1] = (largest > MOST) & ~lowest[..., 1]
    return chosen.reshape(weight.shape)


def pack(weight: Array, width: int) -> Panels | None:
    """Pack (filters, steps, 4), int8; missing filters are zero. None where ``complements`` is."""
    filters, steps, _ = weight.shape
    chosen = complements(weight)
    if chosen is None:
        return None
    bias = LEVELS * np.where(chosen, weight.astype(np.int64), 0).sum(axis=(1, 2))
    panels = -(-filters // width)
    shape = (panels, width, steps, GROUP)
    full, flipped = np.zeros(shape, np.int8), np.zeros(shape, bool)
    full.reshape(-1, steps, GROUP)[:filters] = np.where(chosen, -weight, weight)
    flipped.reshape(-1, steps, GROUP)[:filters] = chosen
    needs = flipped.any(axis=(1, 3))
    order = np.argsort(needs, axis=1, kind="stable")
    unit = max(1, steps // ROUND)
    last = min(steps, -(-int(needs.sum(axis=1).max(initial=0)) // unit) * unit)
    weights = np.take_along_axis(full.transpose(0, 2, 1, 3), order[:, :, None, None], axis=1)
    masks = np.take_along_axis(flipped.transpose(0, 2, 1, 3), order[:, steps - last :, None, None], axis=1)
    return Panels(
        weights=np.ascontiguousarray(weights),
        masks=np.where(masks, LEVELS, 0).astype(np.uint8),
        order=order,
        bias=bias,
    )
