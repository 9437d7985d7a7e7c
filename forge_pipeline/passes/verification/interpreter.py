"""Running a model as it is written: ONNX Runtime without its optimisations, one thread, no prepacking.

The same operator on the same data then gives the same bits, whether its operands are constants or not.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnxruntime
from onnx import ModelProto
from onnxruntime.capi.onnxruntime_pybind11_state import (
    Fail,
    InvalidArgument,
    InvalidGraph,
    InvalidProtobuf,
    RuntimeException,
)
from onnxruntime.capi.onnxruntime_pybind11_state import NotImplemented as NotSupported

from forge_pipeline.ir.reference.session import session, session_options
from forge_pipeline.passes.quantization.qonnx import in_definition

Array = np.ndarray[Any, Any]

RUN_ERRORS = (Fail, InvalidArgument, InvalidGraph, InvalidProtobuf, NotSupported, RuntimeException)


class Interpreter:
    """A model ready to run. Raises one of RUN_ERRORS where ONNX Runtime cannot."""

    def __init__(self, model: ModelProto, outputs: Sequence[str] | None = None) -> None:
        options = session_options()
        options.use_deterministic_compute = True
        self._session = session(in_definition(model), options, prepack=False)
        self.outputs = list(outputs) if outputs is not None else [value.name for value in model.graph.output]

    def __call__(self, inputs: Mapping[str, Array]) -> list[Any]:
        """Return the outputs: arrays, or what ONNX Runtime makes of sequences and optionals. Raises RUN_ERRORS."""
        fed: dict[str, Any] = {name: _array(value) for name, value in inputs.items()}
        options = onnxruntime.RunOptions()
        options.log_severity_level = 4
        try:
            result: list[Any] = self._session.run(self.outputs, fed, options)
        except (RuntimeError, ValueError) as error:  # of the binding itself: a type that numpy lacks, a missing input
            raise NotSupported(str(error)) from error
        return result


def _array(value: Any) -> Any:
    """Return numpy's scalars as arrays; sequences and optionals stay what they are."""
    return np.asarray(value) if isinstance(value, np.generic) else value
