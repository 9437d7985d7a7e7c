"""Trees as bits, one for each leaf: a node that is false clears those of its true side, the first that is left counts.

Source: Lucchese et al., "QuickScorer: a Fast Algorithm to Rank Documents with Additive Ensembles of Regression Trees",
SIGIR 2015; rows side by side in vectors: "Exploiting CPU SIMD Extensions to Speed-up Document Scoring with Tree
Ensembles", SIGIR 2016. A tree with more leaves than a word has bits is several parts, each of some neighbouring leaves
and a last bit for all the others: what remains where the leaf lies in another part. For that to be so, nodes that are
true and have leaves left of the part on their true side clear those of their false side.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np

from forge_pipeline.codegen.trees.comparisons import INTEGERS, Compared, contrary
from forge_pipeline.codegen.trees.ensemble import Ensemble
from forge_pipeline.codegen.trees.levels import Levels

Array = np.ndarray[Any, Any]

COLUMN, KEY, MASK = range(3)
"""What an entry consists of: the bits that are not in MASK are cleared where not `column <= key`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BitTable:
    """``entries`` (number, 3) of the keys' type, those of a part from its ``start`` to that of the next one.

    ``leaf_rows``: the number of the leaf of each bit, in the order of parts, -1 for the others' bit; a part's begin at
    ``first_row``, the highest bit's. ``tree`` of each part. ``columns`` are the codes that COLUMN counts.
    """

    entries: Array
    start: Array
    leaf_rows: Array
    first_row: Array
    tree: Array
    columns: Array


def bit_table(ensemble: Ensemble, nodes: Compared, level: Levels) -> BitTable | None:
    """Return the entries of an ensemble, None where it cannot be bits: shared nodes, or parts of EQ."""
    bits = np.iinfo(INTEGERS[ensemble.dtype]).bits
    if not level.are_trees:
        return None
    span = _Spans.of(ensemble, nodes, level)
    parts = np.where(span.count <= bits, 1, -(-span.count // (bits - 1)))
    if (parts > 1).any() and not nodes.are_single:
        return None
    size = -(-span.count // parts)  # leaves of a part, of which the last may have fewer
    parts = -(-span.count // size)
    first_part = np.concatenate([[0], np.cumsum(parts)])
    tree = np.repeat(np.arange(len(parts)), parts)
    begin = (np.arange(len(tree)) - first_part[tree]) * size[tree]
    end = np.minimum(begin + size[tree], span.count[tree])
    node, part = span.pairs(level, size, first_part)
    columns, keys, masks, owners = [], [], [], []
    low, middle, high = span.low[node], span.middle[node], span.high[node]
    a, b = begin[part], end[part]
    for column, key, first, last, chosen in (
        (nodes.column, nodes.key, low, middle, np.maximum(low, a) < np.minimum(middle, b)),
        (nodes.second_column, nodes.second_key, low, middle, nodes.second_column[node] >= 0),
        (*contrary(nodes.column, nodes.key), middle, high, (low < a) & (np.maximum(middle, a) < np.minimum(high, b))),
    ):
        at = np.nonzero(chosen)[0]
        columns.append(column[node[at]])
        keys.append(key[node[at]])
        masks.append(_cleared(np.maximum(first, a)[at] - a[at], np.minimum(last, b)[at] - a[at], bits))
        owners.append(part[at])
    code, owner = np.concatenate(columns), np.concatenate(owners)
    order = np.lexsort((code, owner))
    used = np.unique(code)
    entries = np.stack([np.searchsorted(used, code), np.concatenate(keys), np.concatenate(masks)], axis=1)
    rows = end - begin + (parts[tree] > 1)
    first_row = np.concatenate([[0], np.cumsum(rows)])
    return BitTable(
        entries=entries[order].astype(INTEGERS[ensemble.dtype]),
        start=np.searchsorted(owner[order], np.arange(len(tree) + 1)).astype(np.int32),
        leaf_rows=span.rows(begin, end, first_row, tree, parts),
        first_row=first_row[:-1].astype(np.int32),
        tree=tree,
        columns=used if len(used) else np.zeros(1, np.int64),
    )


def _cleared(first: Array, last: Array, bits: int) -> Array:
    """Return the words whose bits from ``first`` to ``last``, counted from the highest, are 0 and the others 1."""
    ones = np.uint64(2**bits - 1)

    def below(place: Array) -> Array:
        """The bits from ``place`` on, counted from the highest."""
        shifted = np.where(place >= bits, 0, ones >> np.minimum(place, bits - 1).astype(np.uint64))
        return shifted.astype(np.uint64)

    words = ones ^ (below(first) ^ below(last))
    return words.astype(np.uint32).view(np.int32).astype(np.int64) if bits == 32 else words.view(np.int64)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Spans:
    """Leaves of a tree from left, where nodes are true, to right: a node's are ``low`` to ``middle`` to ``high``.

    ``place`` of each leaf in its tree, and ``count`` of the leaves of each tree.
    """

    low: Array
    middle: Array
    high: Array
    place: Array
    count: Array
    tree_of_leaf: Array

    @classmethod
    def of(cls, ensemble: Ensemble, nodes: Compared, level: Levels) -> _Spans:
        total = np.zeros(len(nodes.true), np.int64)
        by_level = level.order[np.argsort(level.level_of[level.order], kind="stable")]
        edges = np.searchsorted(level.level_of[by_level], np.arange(level.depth.max(initial=0) + 1))
        steps = [by_level[a:b] for a, b in pairwise(edges.tolist())]

        def leaves_below(successor: Array) -> Array:
            return (
                np.where(successor < 0, 1, total[np.maximum(successor, 0)]) if len(total) else np.ones_like(successor)
            )

        for step in reversed(steps):
            total[step] = leaves_below(nodes.true[step]) + leaves_below(nodes.false[step])
        low, place = np.zeros(len(total), np.int64), np.zeros(ensemble.leaves, np.int64)
        for step in steps:
            middle = low[step] + leaves_below(nodes.true[step])
            for successor, start in ((nodes.true[step], low[step]), (nodes.false[step], middle)):
                low[successor[successor >= 0]] = start[successor >= 0]
                place[~successor[successor < 0]] = start[successor < 0]
        return cls(
            low=low,
            middle=low + leaves_below(nodes.true),
            high=low + total,
            place=place,
            count=leaves_below(ensemble.roots),
            tree_of_leaf=level.tree_of_leaf,
        )

    def pairs(self, level: Levels, size: Array, first_part: Array) -> tuple[Array, Array]:
        """Return nodes and parts that have leaves in common, each pair once."""
        node = level.order
        tree = level.tree_of[node]
        first = self.low[node] // size[tree]
        number = (self.high[node] - 1) // size[tree] - first + 1
        within = np.arange(int(number.sum())) - np.repeat(np.cumsum(number) - number, number)
        return np.repeat(node, number), np.repeat(first_part[tree] + first, number) + within

    def rows(self, begin: Array, end: Array, first_row: Array, tree: Array, parts: Array) -> Array:
        """Return the leaf of each bit of each part, -1 for the bit of the leaves of others."""
        rows = np.full(int(first_row[-1]), -1)
        leaf = np.nonzero(self.tree_of_leaf >= 0)[0]
        place, own = self.place[leaf], self.tree_of_leaf[leaf]
        first_part = np.searchsorted(tree, np.arange(len(parts)))
        size = (end - begin)[first_part]
        part = first_part[own] + place // size[own]
        rows[first_row[part] + place - begin[part]] = leaf
        return rows
