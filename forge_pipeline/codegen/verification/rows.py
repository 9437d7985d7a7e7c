"""Outputs with as many rows as a model finds of something: rounding makes it find one more, or one less.

Boxes that overlap by nearly as much as is allowed, or points that are nearly the brightest. All rows behind are then in
another place, so rows are compared in their order, each with the one that it is most likely to be: those of the longest
common subsequence are found by both.
"""

from __future__ import annotations

from typing import Final

import numpy as np

SHIFTED: Final = 1024
"""Rows that a row is looked for at most before and behind where it is, besides those that one side has more."""


def strays(want: np.ndarray, have: np.ndarray, axis: int, difference: float) -> float:
    """Return the share of rows, of both, that only one has: all others differ by no more than ``difference``.

    ``want`` and ``have`` may differ in their extent along ``axis`` alone, or every row is a stray.
    """
    expected, found = (np.moveaxis(np.asarray(array, np.float64), axis, 0) for array in (want, have))
    if expected.shape[1:] != found.shape[1:]:
        return 1.0
    total = len(expected) + len(found)
    return 1 - 2 * _common(_flat(expected), _flat(found), difference) / total if total else 0.0


def _flat(rows: np.ndarray) -> np.ndarray:
    return rows.reshape(len(rows), int(np.prod(rows.shape[1:])))


def _common(want: np.ndarray, have: np.ndarray, difference: float) -> int:
    """Return the length of the longest common subsequence (Wagner and Fischer, 1974, within a band)."""
    band = SHIFTED + abs(len(want) - len(have))
    longest = np.zeros(len(have) + 1, np.int64)  # of the rows of ``want`` so far, and the first so many of ``have``
    for index, row in enumerate(want):
        first, end = max(0, index - band), min(len(have), index + band + 1)
        part = have[first:end]
        with np.errstate(invalid="ignore"):  # equal infinities, and NaN where NaN is wanted, are alike
            near = (np.abs(part - row) <= difference) | (part == row) | (np.isnan(part) & np.isnan(row))
        alike = near.all(axis=1)
        longest[first + 1 : end + 1] = np.maximum(longest[first + 1 : end + 1], longest[first:end] + alike)
        longest[first:] = np.maximum.accumulate(longest[first:])
    return int(longest[-1])
