"""Ensembles of decision trees (ai.onnx.ml) as one kernel."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

from tvm import relax
from tvm.relax import op

from forge_pipeline.codegen.onnx_import.node import Converter, NodeImport
from forge_pipeline.codegen.trees.ensemble import read
from forge_pipeline.codegen.trees.kernel import NAME, kernel_of


def _evaluated(operator: str, node: NodeImport) -> Any:
    """Return the sums (rows, targets): of the features' type, a regressor's always float32."""
    if node.attributes.get("post_transform") not in (None, 0, b"NONE"):
        raise NotImplementedError("a post transform")
    given = node.dtype()
    dtype = "float64" if given == "float64" else "float32"
    try:
        ensemble = read(operator, dict(node.attributes), dtype)
        kernel = kernel_of(ensemble)
    except ValueError as error:  # attributes that contradict each other
        raise NotImplementedError(str(error)) from error
    rows, width = node.shape()
    if isinstance(width, int) and ensemble.feature.max(initial=0) >= width:
        raise NotImplementedError(f"feature {ensemble.feature.max()} of {width}")
    features = node.input(0) if given == dtype else node.emit(op.astype(node.input(0), dtype))
    tables = [node.const(table, str(table.dtype)) for table in kernel.tables]
    function = node.scope.builder.add_func(kernel.function, NAME)
    kind = relax.TensorType((node.size(rows), kernel.targets), dtype)
    sums = node.emit(relax.call_tir(function, [features, *tables], kind))
    wanted = "float32" if operator == "TreeEnsembleRegressor" else given
    return sums if wanted == dtype else op.astype(sums, wanted)


CONVERTERS: Mapping[str, Converter] = {
    name: partial(_evaluated, name) for name in ("TreeEnsemble", "TreeEnsembleRegressor")
}
