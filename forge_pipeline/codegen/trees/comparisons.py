"""Every comparison of a tree as one of integers: `column <= key`.

The bits of a float but its sign are an integer that is ordered as the magnitudes are; with the sign, as the floats are
(IEEE 754 was made so). A column is a feature so seen; the other ways to compare are other keys, and columns with all
bits flipped, which reverses the order. NaN is the integer at the end where it has to be.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from forge_pipeline.codegen.trees.ensemble import EQ, GT, GTE, LT, NEQ, Ensemble

Array = np.ndarray[Any, Any]

INTEGERS = {"float32": "int32", "float64": "int64"}
"""The type of the keys of a type of features."""

FLIPPED, MISSING, KINDS = 2, 1, 4
"""A column's code is the feature times KINDS, plus these: order reversed, and NaN as what is below all numbers."""


def never(dtype: str) -> int:
    """Return the key that no column is at or below, not even where NaN counts as true."""
    return int(np.iinfo(INTEGERS[dtype]).min)


def lowest(dtype: str) -> int:
    """Return what NaN is in a column where it counts as true."""
    return never(dtype) + 1


def highest(dtype: str) -> int:
    """Return what NaN is in every other column."""
    return int(np.iinfo(INTEGERS[dtype]).max)


def infinity(dtype: str) -> int:
    """Return the bits of infinity; those of NaN are more, but for the sign."""
    return int(np.array(np.inf, dtype).view(INTEGERS[dtype]))


def keys_of(values: Array) -> Array:
    """Return the integers that are ordered as floats are, of which both zeros are the same; NaN is `never`."""
    dtype = str(values.dtype)
    bits = values.view(INTEGERS[dtype])
    sign = bits >> (8 * bits.itemsize - 1)
    keys = ((bits & highest(dtype)) ^ sign) - sign
    return np.where(np.isnan(values), never(dtype), keys).astype(INTEGERS[dtype])


@dataclass(frozen=True, slots=True, kw_only=True)
class Compared:
    """The nodes of an ensemble as comparisons of integers; columns are given by their codes.

    A node is true where `column <= key` and, where ``second_column`` is not -1, also `second_column <= second_key`.
    """

    column: Array
    key: Array
    second_column: Array
    second_key: Array
    true: Array
    false: Array

    @property
    def are_single(self) -> bool:
        """Whether each node is one comparison."""
        return bool((self.second_column < 0).all())


def compared(ensemble: Ensemble) -> Compared:
    """Return the nodes of an ensemble, which has no sets of members, as comparisons of integers."""
    mode, dtype = ensemble.mode, ensemble.dtype
    unequal = mode == NEQ
    equal = (mode == EQ) | unequal
    flipped = (mode == GTE) | (mode == GT)
    missing = ensemble.missing & ~unequal
    plain = keys_of(ensemble.value)
    is_never, nothing = plain == never(dtype), never(dtype) + missing.astype(plain.dtype)
    code = ensemble.feature * KINDS + missing * MISSING
    key = np.where(flipped, ~plain, plain) - ((mode == LT) | (mode == GT)).astype(plain.dtype)
    return Compared(
        column=code + flipped * FLIPPED,
        key=np.where(is_never, nothing, key),
        second_column=np.where(equal, code + FLIPPED, -1),
        second_key=np.where(is_never, nothing, ~plain),
        true=np.where(unequal, ensemble.false, ensemble.true),
        false=np.where(unequal, ensemble.true, ensemble.false),
    )


def contrary(column: Array, key: Array) -> tuple[Array, Array]:
    """Return the comparisons that are true where these are not: `column > key` is `~column <= ~key - 1`."""
    return column ^ (FLIPPED | MISSING), ~key - 1
