"""The inputs that models are compared on, and how much rounding they amplify."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from onnx import ModelProto, TensorProto

from forge_pipeline.errors import DataError
from forge_pipeline.ir.reference.interpreter import Interpreter
from forge_pipeline.passes.contract import Arrays, VerifySettings
from forge_pipeline.passes.nodes import attribute
from forge_pipeline.passes.verification.candidate_sizes import Preferred
from forge_pipeline.passes.verification.exact import exact_interpreter, outputs_of
from forge_pipeline.passes.verification.made_up import Kinds, MadeUp, made_up

Outputs = list[Any]
AMPLIFIED = 8  # how much more rounding passes may add within a model than one unit in its inputs
ROUNDING = {TensorProto.FLOAT16: 2.0**-10, TensorProto.BFLOAT16: 2.0**-7}


def generate_inputs(model: ModelProto, run: Interpreter, settings: VerifySettings) -> MadeUp:
    """Return inputs that the model runs with, and what it makes of them: sizes and integers are tried until it does."""
    kinds = Kinds(samples=settings.samples, seed=settings.seed, varied=True)
    return made_up(model, run, Preferred(given=settings.dims), kinds)


def with_specials(inputs: Arrays) -> Arrays:
    """Return inputs with a NaN and both infinities among the elements of every float one that has room for them."""
    changed = {}
    for name, array in inputs.items():
        changed[name] = array
        if array.dtype.kind == "f" and array.size >= 6:
            changed[name] = array.copy()
            changed[name].reshape(-1)[:: array.size // 3][:3] = [np.nan, np.inf, -np.inf]
    return changed


@dataclass(frozen=True, kw_only=True)
class Noise:
    """How much rounding a model amplifies: ``outputs`` are what it made of ``inputs``. Run when it is asked for."""

    model: ModelProto
    inputs: Sequence[Arrays]
    outputs: Sequence[Outputs]

    @cached_property
    def amounts(self) -> list[list[float]]:
        """Return, for each sample and output, AMPLIFIED times what one unit of rounding in the inputs changes.

        Neighbouring elements are moved to opposite sides. Samples that are not float, or that the model refuses when
        moved, have no noise.
        """
        run = exact_interpreter(self.model)
        return [self._amounts(run, fed, want) for fed, want in zip(self.inputs, self.outputs, strict=True)]

    def _amounts(self, run: Interpreter, fed: Arrays, want: Outputs) -> list[float]:
        try:
            got = outputs_of(run, {name: _moved(array) for name, array in fed.items()})
        except DataError:
            return [0.0] * len(want)
        return [AMPLIFIED * _largest(a, b) for a, b in zip(want, got, strict=True)]


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
