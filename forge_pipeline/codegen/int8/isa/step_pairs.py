"""Steps of `pmaddubsw` two by two: their products are added up in int16 before they are widened, where they fit.

Four products then go into each int16: those of one sign must not exceed it. The first step of a pair is read as it is;
of the second, weights may be negated, and their activations complemented, lane by lane, so that signs balance. Heavy
steps are tried with light ones, a few rounds of it; what finds no partner stays alone.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from forge_pipeline.codegen.layout.affine import LEVELS
from forge_pipeline.codegen.layout.builder import Array

MOST = np.iinfo(np.int16).max // LEVELS
"""Largest sum of the weights of one sign that one int16 takes: 255 times as much fits."""
LEAST = np.iinfo(np.int8).min
"""The byte that has no opposite."""
ROUNDS = 6
"""How often those without a partner are tried with others."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepPairs:
    """Pairs of steps of each panel of filters, as many in all panels.

    ``steps`` (panels, pairs, 2) are the numbers of both, ``flipped`` (panels, pairs, width, 4) says which weights of
    the second are negated: none in the first ``plain`` pairs.
    """

    steps: Array
    flipped: Array
    plain: int


def find_pairs(weight: Array, unit: int) -> StepPairs:
    """Pair steps of (panels, steps, width, 4), int8: a multiple of ``unit`` pairs, and of plain ones among them."""
    panels, steps, width, channels = weight.shape
    lanes = weight.astype(np.int16).reshape(panels, steps, -1, 2)
    size = abs(lanes)
    positive, negative = (np.maximum(signed, 0).sum(axis=-1, dtype=np.int16) for signed in (lanes, -lanes))
    alone = (np.maximum(positive, negative) <= MOST).all(axis=-1)
    keeps = (lanes == LEAST).any(axis=(-1, -2))
    heavy = size.sum(axis=-1, dtype=np.int16).max(axis=-1)
    free = np.ones((panels, steps), bool)
    found: list[tuple[Array, Array, Array, Array]] = []
    for turn in range(ROUNDS):
        panel, first, second = _candidates(free, heavy, alone, turn)
        options = _options(positive[panel, second], negative[panel, second], size[panel, second])
        fits = np.stack([
            (positive[panel, first] + up <= MOST) & (negative[panel, first] + down <= MOST) for up, down in options
        ])  # fmt: skip
        fits[1:, keeps[panel, second]] = False
        taken = fits.any(axis=0).all(axis=-1)
        panel, first, second = panel[taken], first[taken], second[taken]
        free[panel, first] = free[panel, second] = False
        found.append((panel, first, second, _flips(lanes[panel, second], fits[:, taken].argmax(axis=0))))
    panel, first, second, flipped = (np.concatenate(parts) for parts in zip(*found, strict=True))
    flipped = flipped.reshape(-1, width, channels)
    is_plain = ~flipped.any(axis=(1, 2))
    count = int(np.bincount(panel, minlength=panels).min()) // unit * unit
    plain = min(count, int(np.bincount(panel[is_plain], minlength=panels).min()) // unit * unit)
    order = np.lexsort((first, ~is_plain, panel))
    begins = np.searchsorted(panel[order], np.arange(panels))
    chosen = order[begins[:, None] + np.arange(count)]
    return StepPairs(steps=np.stack([first, second], axis=-1)[chosen], flipped=flipped[chosen], plain=plain)


def _candidates(free: Array, heavy: Array, alone: Array, turn: int) -> tuple[Array, Array, Array]:
    """Return panels, and steps to be tried with each other: the first of each fits without masks."""
    rank = np.argsort(np.where(free, heavy, np.iinfo(heavy.dtype).max), axis=1, kind="stable")
    counts = free.sum(axis=1)
    halves = counts // 2
    panel, light = np.nonzero(np.arange(int(halves.max(initial=0)))[None] < halves[:, None])
    dark = counts[panel] - 1 - (light + turn) % halves[panel]
    first, second = rank[panel, light], rank[panel, dark]
    swap = ~alone[panel, first]
    first, second = np.where(swap, second, first), np.where(swap, first, second)
    fits = alone[panel, first]
    return panel[fits], first[fits], second[fits]


def _options(positive: Array, negative: Array, size: Array) -> list[tuple[Array, Array]]:
    """Return what a pair of weights adds to the sums of either sign: as it is, and for every choice of signs."""
    left, right = size[..., 0], size[..., 1]
    none = np.zeros_like(left)
    return [(positive, negative), (left, right), (right, left), (left + right, none), (none, left + right)]


def _flips(lanes: Array, option: Array) -> Array:
    """Return which of (.., 2) weights change their sign, by the option of `_options` that is taken."""
    wanted = np.array([[0, 0], [1, -1], [-1, 1], [1, 1], [-1, -1]])[option]
    flipped: Array = lanes * wanted < 0
    return flipped
