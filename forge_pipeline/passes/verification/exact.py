"""Models to be compared bit for bit: QONNX spelt out, and one operator on one input always the same bits."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from onnx import ModelProto

from forge_pipeline.errors import DataError, ModelError
from forge_pipeline.ir.reference.interpreter import Interpreter
from forge_pipeline.passes.quantization.qonnx import in_definition

REFUSALS: Final = (ModelError, DataError)
"""What is raised where ONNX Runtime refuses a model, and where it refuses to run it."""


def exact_interpreter(model: ModelProto, taps: Iterable[str] = ()) -> Interpreter:
    """Return a model ready to run. Raises ModelError where ONNX Runtime refuses it."""
    return Interpreter(in_definition(model), taps=taps, prepack=False)


def outputs_of(run: Interpreter, fed: Mapping[str, Any]) -> list[Any]:
    """Return the model's outputs in order: arrays, or what stands for sequences and optionals. Raises DataError."""
    found = run(fed, run.outputs)
    return [found[name] for name in run.outputs]


def outputs_of_each(run: Interpreter, feeds: Sequence[Mapping[str, Any]]) -> list[list[Any]]:
    """Return the same for each of ``feeds``, several of which are run at once."""
    return [[found[name] for name in run.outputs] for found in run.each(feeds, run.outputs)]


def reason(refusal: Exception) -> str:
    """Return the first line of what ONNX Runtime said."""
    said = str(refusal.__cause__ or refusal)
    return said.splitlines()[0].strip() if said else type(refusal).__name__
