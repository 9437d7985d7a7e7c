"""Outputs with as many rows as a model finds of something, made comparable row by row.

A detector's two forms find the same boxes, but for some that are nearly as good as another or nearly good enough, so
that the places of all behind differ. Each row is compared with the nearest one of the other that is not taken yet, and
those that are left, on either side, with zeros: what only one of both finds counts in full.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

MOST_ROWS: Final = 4096
"""Rows above which the next one is taken for the nearest: pairs are looked for one row with all others at a time."""


def paired(
    reference: Mapping[str, NDArray[Any]], values: Mapping[str, NDArray[Any]], counted: Mapping[str, int]
) -> tuple[dict[str, NDArray[Any]], dict[str, NDArray[Any]]]:
    """Return both with rows along an output's ``counted`` axis in pairs; other outputs as they are."""
    own, other = dict(reference), dict(values)
    for name, axis in counted.items():
        if name in own:
            own[name], other[name] = _pair(own[name], other[name], axis)
    return own, other


def _pair(reference: NDArray[Any], values: NDArray[Any], axis: int) -> tuple[NDArray[Any], NDArray[Any]]:
    import numpy as np

    wanted, found = np.moveaxis(reference, axis, 0), np.moveaxis(values, axis, 0)
    places = _nearest(_flat(wanted), _flat(found))
    alone = np.setdiff1d(np.arange(len(found)), places)
    rows = np.zeros((len(wanted) + len(alone), *wanted.shape[1:]), found.dtype)
    expected = np.zeros(rows.shape, wanted.dtype)
    expected[: len(wanted)] = wanted
    is_met = places >= 0
    rows[: len(wanted)][is_met] = found[places[is_met]]
    rows[len(wanted) :] = found[alone]
    return np.moveaxis(expected, 0, axis), np.moveaxis(rows, 0, axis)


def _flat(rows: NDArray[Any]) -> NDArray[np.float64]:
    import numpy as np

    values = np.asarray(rows, np.float64).reshape(len(rows), int(np.prod(rows.shape[1:])))
    return np.where(np.isfinite(values), values, 0.0)


def _nearest(wanted: NDArray[np.float64], found: NDArray[np.float64]) -> NDArray[np.int64]:
    """Return the row of ``found`` for each of ``wanted``, none of them twice, -1 where there is none left."""
    import numpy as np

    places = np.arange(len(wanted))
    places[len(found) :] = -1
    if max(len(wanted), len(found)) > MOST_ROWS or np.array_equal(wanted, found):
        return places
    is_free = np.ones(len(found), bool)
    for index, row in enumerate(wanted[: len(wanted) if len(found) else 0]):
        if not is_free.any():
            places[index:] = -1
            break
        far = np.abs(found - row).sum(axis=1)
        places[index] = int(np.argmin(np.where(is_free, far, np.inf)))
        is_free[places[index]] = False
    return places
