"""Ensembles of trees: rows of features go in, a row for each comes out.

They are what is left of ai.onnx.ml; its other operators are written out as ONNX's before sizes are asked for.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from onnx import TensorProto

from forge_pipeline.ir.sizes.expression import Whole
from forge_pipeline.ir.sizes.operation import Operation, Rule, needed
from forge_pipeline.ir.sizes.value import Known


def _rows(op: Operation) -> Whole:
    shape = needed(op.shape(0))
    return shape[0] if len(shape) > 1 else 1


def tree_regressor(op: Operation) -> Sequence[Known]:
    """TreeEnsembleRegressor: a float for each target."""
    return [Known(TensorProto.FLOAT, (_rows(op), int(op.attribute("n_targets", 1))))]


def tree_ensemble(op: Operation) -> Sequence[Known]:
    """TreeEnsemble-5: a value for each target, of the type of the thresholds."""
    return [Known(op.input(0).dtype, (_rows(op), int(op.attribute("n_targets"))))]


RULES: Final[Mapping[str, Rule]] = {"TreeEnsembleRegressor": tree_regressor, "TreeEnsemble": tree_ensemble}
