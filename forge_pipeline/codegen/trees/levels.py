"""The nodes of an ensemble level by level, and the order of its leaves from left to right."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Levels:
    """``order``: the nodes that can be reached, tree by tree and from the root down. ``depth`` of each tree.

    ``tree_of`` each node and ``tree_of_leaf``, which are -1 where no tree reaches them, mean something where
    ``are_trees``: no node and no leaf has two predecessors.
    """

    order: Array
    depth: Array
    level_of: Array
    tree_of: Array
    tree_of_leaf: Array
    are_trees: bool


def levels(true: Array, false: Array, roots: Array, leaves: int) -> Levels:
    """Walk all trees down at once. ValueError where a node is its own successor."""
    depth = np.zeros(len(roots), np.int64)
    tree_of_leaf = np.full(leaves, -1)
    tree_of, level_of = np.full(len(true), -1), np.zeros(len(true), np.int64)
    nodes, trees = roots, np.arange(len(roots))
    level = 0
    while nodes.size:
        tree_of_leaf[~nodes[nodes < 0]] = trees[nodes < 0]
        nodes, trees = nodes[nodes >= 0], trees[nodes >= 0]
        nodes, first = np.unique(nodes, return_index=True)
        trees = trees[first]
        if level > len(true):
            raise ValueError("a node that is its own successor")
        tree_of[nodes], level_of[nodes] = trees, level
        level += 1
        depth[trees] = level
        nodes, trees = np.concatenate([true[nodes], false[nodes]]), np.concatenate([trees, trees])
    reached = np.nonzero(tree_of >= 0)[0]
    order = reached[np.lexsort((reached, level_of[reached], tree_of[reached]))]
    edges = np.concatenate([roots, true[reached], false[reached]])
    return Levels(
        order=order,
        depth=depth,
        level_of=level_of,
        tree_of=tree_of,
        tree_of_leaf=tree_of_leaf,
        are_trees=len(np.unique(edges)) == len(edges),
    )
