"""What the leaves of an ensemble give to the targets, as rows of a table."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from forge_pipeline.codegen.trees.ensemble import Ensemble
from forge_pipeline.codegen.trees.levels import Levels

Array = np.ndarray[Any, Any]

NEUTRAL = {"SUM": 0.0, "AVERAGE": 0.0, "MIN": np.inf, "MAX": -np.inf}
"""What changes no aggregate."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Leaves:
    """A row of ``weights`` for each leaf, whose columns are for the targets from ``first_target`` of its tree on.

    Where every tree gives to one target, as boosting makes them, that is one column.
    """

    weights: Array
    first_target: Array

    @property
    def width(self) -> int:
        """How many targets a tree gives to."""
        return int(self.weights.shape[1])


def leaves_of(ensemble: Ensemble, level: Levels) -> Leaves:
    """Return the table of an ensemble's leaves, in the order of their numbers."""
    trees, given = len(ensemble.roots), ensemble.weight
    first = np.zeros(trees, np.int64)
    target = ensemble.target_of
    width = ensemble.targets
    tree = level.tree_of_leaf[ensemble.leaf_of]
    if level.are_trees and ensemble.targets > 1:
        reached = tree >= 0
        low, high = np.full(trees, ensemble.targets), np.full(trees, -1)
        np.minimum.at(low, tree[reached], target[reached])
        np.maximum.at(high, tree[reached], target[reached])
        if (high <= low).all():  # high is below low where no leaf of a tree gives anything
            first, width = np.where(high < 0, 0, low), 1
            target = np.zeros_like(target)
    weights = np.full((ensemble.leaves, width), NEUTRAL[ensemble.aggregate], given.dtype)
    combine = {"MIN": np.minimum, "MAX": np.maximum}.get(ensemble.aggregate, np.add)
    combine.at(weights, (ensemble.leaf_of, target), given)
    return Leaves(weights=weights, first_target=first)
