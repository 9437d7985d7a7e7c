"""A Relax module in ONNX, once both forms gave the same outputs for the same random numbers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import tvm

from forge_pipeline.errors import VerificationError
from forge_pipeline.ir.reference.interpreter import inference_function as onnx_function
from forge_pipeline.relax.graph import shape_of
from forge_pipeline.relax.reference import inference_function as relax_function
from forge_pipeline.relax.to_onnx.export import exported


def checked_export(
    module: tvm.IRModule, names: Sequence[str], weights: Mapping[str, np.ndarray], *, seed: int = 0, extent: int = 2
) -> onnx.ModelProto:
    """Return ``exported(...)`` after running both forms on the same random numbers.

    Symbolic dimensions take ``extent``. Raises ModelError, and VerificationError where an output differs.
    """
    model = exported(module, names, weights)
    rng = np.random.default_rng(seed)
    variables = [variable for variable in module["main"].params if str(variable.name) not in weights]
    feeds = [_random(variable.ty, rng, extent) for variable in variables]
    inputs = [str(variable.name) for variable in variables]
    fixed = [weights[str(variable.name)] for variable in module["main"].params if str(variable.name) in weights]
    wanted = relax_function(module, inputs, fixed, {"kind": "llvm"})(*feeds)
    found = onnx_function(model, [value.name for value in model.graph.input], "llvm")(*feeds)
    pairs = zip(_listed(wanted), _listed(found), names, strict=True)
    for want, have, name in pairs:
        same = want.shape == have.shape and np.allclose(
            have.astype(np.float64), want.astype(np.float64), rtol=1e-3, atol=1e-4 * _scale(want), equal_nan=True
        )
        if not same:
            raise VerificationError(
                where=f"output {name!r}",
                expected="the ONNX form of the module to compute what Relax computes",
                found=f"{have.dtype}{list(have.shape)} off by {_distance(want, have)}",
                fix="report the module; operators may be replaced one by one to find which",
            )
    return model


def _scale(array: np.ndarray) -> float:
    finite = array.astype(np.float64)[np.isfinite(array.astype(np.float64))]
    return max(1.0, float(np.abs(finite).max(initial=0.0)))


def _distance(want: np.ndarray, have: np.ndarray) -> str:
    if want.shape != have.shape:
        return f"its shape, {list(want.shape)}"
    return f"{float(np.nanmax(np.abs(want.astype(np.float64) - have.astype(np.float64)))):.3g}"


def _listed(value: Any) -> list[np.ndarray]:
    return value if isinstance(value, list) else [value]


def _random(kind: Any, rng: np.random.Generator, extent: int) -> np.ndarray:
    shape = [x if isinstance(x, int) else extent for x in shape_of(kind)]
    dtype = str(kind.dtype)
    if dtype.startswith(("int", "uint", "bool")):
        return rng.integers(0, 2, shape).astype(dtype)
    return rng.standard_normal(shape).astype(getattr(ml_dtypes, dtype, None) or dtype)
