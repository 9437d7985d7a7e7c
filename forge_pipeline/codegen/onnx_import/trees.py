"""Ensembles of decision trees as one kernel."""

from __future__ import annotations

from typing import Any

import numpy as np

from forge_pipeline.codegen.trees.ensemble import read
from forge_pipeline.codegen.trees.kernel import NAME, kernel_of


def convert_tree_regressor(builder: Any, inputs: list[Any], attributes: dict[str, Any], opset: int) -> Any:
    """Return the sums, floats whatever the features are: (rows, targets)."""
    from tvm.relax import op

    sums = _evaluated("TreeEnsembleRegressor", builder, inputs[0], attributes)
    return sums if str(sums.ty.dtype) == "float32" else op.astype(sums, "float32")


def convert_tree_ensemble(builder: Any, inputs: list[Any], attributes: dict[str, Any], opset: int) -> Any:
    """Return the sums, of the features' type: (rows, targets)."""
    return _evaluated("TreeEnsemble", builder, inputs[0], attributes)


def _evaluated(operator: str, builder: Any, x: Any, attributes: dict[str, Any]) -> Any:
    """Raise NotImplementedError for attributes that contradict each other, or features that the input has not."""
    from tvm import relax, tirx
    from tvm.relax import op

    if attributes.get("post_transform") not in (None, 0, b"NONE"):
        raise NotImplementedError("a post transform")
    given = str(x.ty.dtype)
    dtype = "float64" if given == "float64" else "float32"
    try:
        ensemble = read(operator, attributes, dtype)
        kernel = kernel_of(ensemble)
    except ValueError as error:
        raise NotImplementedError(str(error)) from error
    rows, width = x.ty.shape.values
    if isinstance(width, tirx.IntImm) and ensemble.feature.max(initial=0) >= int(width):
        raise NotImplementedError(f"feature {ensemble.feature.max()} of {int(width)}")
    x = x if given == dtype else builder.emit(op.astype(x, dtype))
    tables = [relax.const(np.ascontiguousarray(table), str(table.dtype)) for table in kernel.tables]
    function = builder.add_func(kernel.function, NAME)
    sums = builder.emit(relax.call_tir(function, [x, *tables], relax.TensorType((rows, kernel.targets), dtype)))
    return sums if given == dtype else builder.emit(op.astype(sums, given))
