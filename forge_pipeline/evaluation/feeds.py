"""What the models are run on: the evaluation part of the data, or made-up inputs where there is no data."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from forge_pipeline.data import Dataset, Feed, Preparation, Samples
from forge_pipeline.errors import DataError
from forge_pipeline.ir import ONNXModule
from forge_pipeline.ir.reference.interpreter import Interpreter

if TYPE_CHECKING:
    from numpy.typing import NDArray

MADE_UP = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Feeds:
    """``origin`` says where they are from, for the report."""

    feeds: Samples | Sequence[Feed]
    labels: NDArray[Any] | None
    origin: str


def feeds_for(module: ONNXModule, data: Dataset | None, preparation: Preparation) -> Feeds:
    """Return the evaluation samples of ``data``, fitted to the model's inputs. Raises DataError."""
    from forge_pipeline.data.fitting import input_specs

    specs = input_specs(module.light)
    if data is None:
        return Feeds(feeds=_made_up(module), labels=None, origin="random inputs: no data was given")
    samples = data.samples(preparation, specs, "evaluation")
    origin = "the calibration samples: there are no others" if samples.shared else "evaluation samples"
    return Feeds(feeds=samples, labels=samples.labels(), origin=origin)


def _made_up(module: ONNXModule) -> list[Feed]:
    """Return ordinary random inputs, with sizes for symbolic dimensions that the model runs with. Raises DataError."""
    from forge_pipeline.passes.verification.samples import bindings, sample

    constants = {tensor.name for tensor in module.light.graph.initializer}
    inputs = [value for value in module.light.graph.input if value.name not in constants]
    model = Interpreter(module.light, where="float model")
    refusal = None
    for sizes in bindings(inputs, {}):
        feeds: list[Feed] = [sample(inputs, sizes, seed=number, index=0, top=1) for number in range(MADE_UP)]
        try:
            model(feeds[0])
        except DataError as error:
            refusal = error
        else:
            return feeds
    raise DataError(
        where="evaluate without data",
        expected="sizes for the symbolic dimensions that the model runs with",
        found="none among the usual ones" if refusal is None else refusal.found,
        fix="give samples: data.path=FILE.npz",
    )
