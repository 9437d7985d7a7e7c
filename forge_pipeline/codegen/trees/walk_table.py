"""Trees as records to walk along: the next record is `base + (column <= key)`, as often as the tree is deep.

Both successors of a node are neighbours, the false one first. A leaf is its own successor, since its key is below all
columns; so a tree that is less deep than its neighbours waits, and no step is conditional (the "predicated" traversal
of Asadi, Lin and de Vries, "Runtime Optimizations for Tree-based Machine Learning Models", TKDE 2014, with pointers).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from forge_pipeline.codegen.trees.comparisons import INTEGERS, Compared, never
from forge_pipeline.codegen.trees.ensemble import Ensemble
from forge_pipeline.codegen.trees.levels import levels

Array = np.ndarray[Any, Any]

TOGETHER = 4
"""Trees that are walked along at the same time: each step of one waits for two loads (measured: 4 best of 4 to 16)."""

BASE, COLUMN, KEY, LEAF = range(4)
"""What a record consists of."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WalkTable:
    """``records`` (number, 4) of the keys' type, the first ones the roots in the order of ``trees``.

    Groups of TOGETHER trees are walked ``steps`` (groups) times; those that fill the last group are -1 in ``trees``,
    and stay at a leaf of their own. LEAF of a leaf's record is its number; that of a tree which only fills is -1.
    ``columns`` are the codes that COLUMN counts.
    """

    records: Array
    steps: Array
    trees: Array
    columns: Array

    @property
    def work(self) -> int:
        """Steps of all trees for one row."""
        return int(self.steps.sum()) * TOGETHER


def walk_table(ensemble: Ensemble, nodes: Compared) -> WalkTable:
    """Return the records of an ensemble."""
    column, key, true, false = _one_by_one(nodes)
    level = levels(true, false, ensemble.roots, ensemble.leaves)
    trees = np.argsort(level.depth, kind="stable")
    trees = np.concatenate([np.full(-len(trees) % TOGETHER, -1), trees])
    depth = np.where(trees < 0, 0, level.depth[trees])
    order, roots = level.order, np.where(trees < 0, -ensemble.leaves - 1, ensemble.roots[trees])
    held = np.concatenate([roots, np.stack([false[order], true[order]], axis=1).reshape(-1)])
    pair = np.zeros(len(true), np.int64)
    pair[order] = len(roots) + 2 * np.arange(len(order))
    columns = np.unique(column[order])
    inner = held >= 0
    node = np.where(inner, held, 0)
    records = np.zeros((len(held), 4), INTEGERS[ensemble.dtype])
    records[:, BASE], records[:, KEY] = np.arange(len(held)), never(ensemble.dtype)
    if inner.any():
        records[inner, BASE] = pair[node[inner]]
        records[inner, COLUMN] = np.searchsorted(columns, column[node[inner]])
        records[inner, KEY] = key[node[inner]]
    records[:, LEAF] = np.where(inner | (held < -ensemble.leaves), -1, ~held)
    return WalkTable(
        records=records,
        steps=depth.reshape(-1, TOGETHER).max(axis=1).astype(np.int32),
        trees=trees,
        columns=columns if len(columns) else np.zeros(1, np.int64),
    )


def _one_by_one(nodes: Compared) -> tuple[Array, Array, Array, Array]:
    """Return columns, keys and successors, where a node of two comparisons is one of the first, then of the second."""
    both = np.nonzero(nodes.second_column >= 0)[0]
    added = len(nodes.column) + np.arange(len(both))
    true = nodes.true.copy()
    true[both] = added
    return (
        np.concatenate([nodes.column, nodes.second_column[both]]),
        np.concatenate([nodes.key, nodes.second_key[both]]),
        np.concatenate([true, nodes.true[both]]),
        np.concatenate([nodes.false, nodes.false[both]]),
    )
