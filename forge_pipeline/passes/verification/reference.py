"""The inputs that models are compared on, and how much rounding they amplify."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from onnx import ModelProto, TensorProto

from forge_pipeline.ir.reference.interpreter import Interpreter
from forge_pipeline.passes.contract import Arrays, VerifySettings
from forge_pipeline.passes.nodes import attribute
from forge_pipeline.passes.verification.candidate_sizes import Preferred
from forge_pipeline.passes.verification.exact import outputs_of
from forge_pipeline.passes.verification.made_up import Kinds, made_up

Outputs = list[Any]
AMPLIFIED = 8  # how much more rounding passes may add within a model than one unit in its inputs
ROUNDING = {TensorProto.FLOAT16: 2.0**-10, TensorProto.BFLOAT16: 2.0**-7}


def generate_inputs(model: ModelProto, run: Interpreter, settings: VerifySettings) -> list[Arrays]:
    """Return inputs that the model runs with: sizes and integers are tried until it does."""
    kinds = Kinds(samples=settings.samples, seed=settings.seed, varied=True)
    return made_up(model, run, Preferred(given=settings.dims), kinds).feeds


def with_specials(inputs: Arrays) -> Arrays:
    """Return inputs with a NaN and both infinities among the elements of every float one that has room for them."""
    changed = {}
    for name, array in inputs.items():
        changed[name] = array
        if array.dtype.kind == "f" and array.size >= 6:
            changed[name] = array.copy()
            changed[name].reshape(-1)[:: array.size // 3][:3] = [np.nan, np.inf, -np.inf]
    return changed


def noise_of(run: Interpreter, inputs: Sequence[Arrays], outputs: Sequence[Outputs]) -> list[list[float]]:
    """Return, for each sample and output, AMPLIFIED times what one unit of rounding in the inputs changes.

    Neighbouring elements are moved to opposite sides. Samples that are not float, or that the model refuses when
    moved, have no noise.
    """
    noises = []
    for fed, want in zip(inputs, outputs, strict=True):
        got = outputs_of(run, {name: _moved(array) for name, array in fed.items()})
        noises.append([AMPLIFIED * _largest(a, b) for a, b in zip(want, got, strict=True)])
    return noises


def _moved(array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    if array.dtype.kind != "f":
        return array
    signs = np.resize(np.array([1, -1], array.dtype), array.shape)
    return np.asarray(array + signs * np.spacing(np.abs(array)))


def _largest(want: Any, got: Any) -> float:
    if not isinstance(want, np.ndarray) or want.dtype.kind != "f" or want.shape != got.shape:
        return 0.0
    with np.errstate(invalid="ignore", over="ignore"):
        error = np.abs(got.astype(np.float64) - want.astype(np.float64))
    return float(error[np.isfinite(error)].max(initial=0.0))


def short_mantissa(model: ModelProto) -> float:
    """Return eight units of rounding of the shortest 16-bit float type in use, 0 where there is none."""
    used = {tensor.data_type for tensor in model.graph.initializer}
    used |= {value.type.tensor_type.elem_type for value in (*model.graph.input, *model.graph.output)}
    used |= {attribute(node, "to") for node in model.graph.node if node.op_type == "Cast"}
    return max((8 * unit for elem_type, unit in ROUNDING.items() if elem_type in used), default=0.0)
