"""What the models are run on: the evaluation part of the data, or made-up inputs where there is no data."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from forge_pipeline.data import Dataset, Feed, Preparation, Samples
from forge_pipeline.data.fitting import input_specs
from forge_pipeline.ir import ONNXModule
from forge_pipeline.ir.dims import shown
from forge_pipeline.ir.reference.interpreter import Interpreter
from forge_pipeline.passes.verification.candidate_sizes import Preferred
from forge_pipeline.passes.verification.exact import REFUSALS
from forge_pipeline.passes.verification.made_up import Kinds, made_up, why_not
from forge_pipeline.passes.verification.samples import Unsupported

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from forge_pipeline.passes.verification.made_up import Suits

MADE_UP = 8

NO_SIZES: Mapping[str, int] = MappingProxyType({})


@dataclass(frozen=True, slots=True, kw_only=True)
class Feeds:
    """``origin`` says where they are from, for the report; ``missing``, why there are none.

    ``sizes`` are those that were chosen for open extents, by whoever made the feeds up, and ``results`` what the float
    model made of each feed then, by name.
    """

    feeds: Samples | Sequence[Feed]
    labels: NDArray[Any] | None
    origin: str
    missing: str | None = None
    sizes: Mapping[str, int] = field(default_factory=dict)
    results: Sequence[Mapping[str, NDArray[Any]]] = ()


def feeds_for(
    module: ONNXModule,
    data: Dataset | None,
    preparation: Preparation,
    sizes: Mapping[str, int] = NO_SIZES,
    suits: Suits | None = None,
) -> Feeds:
    """Return the evaluation samples of ``data``, fitted to the model's inputs. Raises DataError.

    Without data, ordinary random inputs, of ``sizes`` as far as these are given, and of others that suit and that the
    model runs with; none where ONNX Runtime takes none of those that are tried.
    """
    if data is None:
        return _made_up(module, sizes, suits)
    samples = data.samples(preparation, input_specs(module.light), "evaluation")
    origin = "the calibration samples: there are no others" if samples.shared else "evaluation samples"
    return Feeds(feeds=samples, labels=samples.labels(), origin=origin)


def _made_up(module: ONNXModule, sizes: Mapping[str, int], suits: Suits | None) -> Feeds:
    run = Interpreter(module.light, where="float model")
    kinds = Kinds(samples=MADE_UP, seed=0, varied=False)
    try:
        found = made_up(module.light, run, Preferred(given=sizes), kinds, suits=suits)
    except (*REFUSALS, Unsupported) as refusal:
        return Feeds(feeds=[], labels=None, origin="none: no data was given", missing=why_not(refusal))
    chosen = f" of {shown(found.sizes)}" if found.sizes else ""
    origin = f"random inputs{chosen}: no data was given"
    feeds = [dict(feed) for feed in found.feeds]
    return Feeds(feeds=feeds, labels=None, origin=origin, sizes=found.sizes, results=found.results)
