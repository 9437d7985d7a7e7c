"""Where a compiled model first leaves the model that it was compiled from: the layer, by a build that shows its values.

Such a build has every value of the layers table as an output beside the model's own, and each layer is judged by what
it was fed there: the reference interpreter computes it once more from the compiled model's own values. What the layers
before it did wrong is so no fault of its own.

An output is a value that has to be stored, so that the layers on both sides of it are not fused: a fault that lies in
how they are is not seen in that build. Then the values become outputs one after another, in the order of computation,
and the one with which the fault goes is where it lies: the least such number of values, by halving.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from onnx import ModelProto, helper

from forge_pipeline.evaluation.comparison import distance
from forge_pipeline.evaluation.layers import EXACT, Feed, Layer, comparable, cut, rows
from forge_pipeline.evaluation.matching import matches
from forge_pipeline.evaluation.noise import Noise
from forge_pipeline.ir.reference.interpreter import Interpreter
from forge_pipeline.quantization.network import layer

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from forge_pipeline.ir import ONNXModule

Compiled = Callable[[ModelProto, Feed], Mapping[str, "NDArray[Any]"]]
"""Compiles a model as the artifact was, runs it where that ran, and gives all of its outputs."""

SHARE = 10.0
"""Per cent of what all layers add that the first one to blame adds at least: less is the luck of rounding."""
STILL = 0.5
"""Of the artifact's distance, what a build shows at least that has the same fault."""


@dataclass(slots=True, kw_only=True)
class _Case:
    """One feed on which compiled and reference differ; ``pairs`` are the values of the float model and of ``model``."""

    reference: ONNXModule
    model: ONNXModule
    feed: Feed
    compiled: Compiled
    pairs: Mapping[str, str]
    exact: Mapping[str, NDArray[Any]]
    apart: float

    def shown(self, names: Sequence[str]) -> Mapping[str, NDArray[Any]]:
        """Return what a build computes whose inner values ``names`` are outputs."""
        tapped = ModelProto()
        tapped.CopyFrom(self.model.light)
        for name in names:
            element = helper.np_dtype_to_tensor_dtype(self.exact[name].dtype)
            tapped.graph.output.append(helper.make_tensor_value_info(name, element, None))
        return self.compiled(tapped, self.feed)

    def is_wrong(self, found: Mapping[str, NDArray[Any]]) -> bool:
        """Return whether a build's results are as far from the model's as the artifact's are."""
        wanted = {name: self.exact[name] for name in self.model.output_names}
        return distance(wanted, found) >= STILL * self.apart


def first_difference(
    reference: ONNXModule, model: ONNXModule, feed: Feed, found: Mapping[str, NDArray[Any]], compiled: Compiled
) -> str:
    """Return a phrase that names the first layer in which ``compiled`` leaves ``model``, or says that there is none.

    ``found`` are the artifact's outputs for ``feed``; ``reference`` is the float model, after whose layers the rows of
    the table are called. Raises what ``compiled`` raises, and ModelError where the reference interpreter refuses.
    """
    pairs = matches(reference.light.graph, model.light.graph)
    exact = Interpreter(model.light, where="model as compiled", taps=list(pairs.values()))(feed)
    inner = [
        name for name in dict.fromkeys(pairs.values()) if name in exact and name not in {*feed, *model.output_names}
    ]
    apart = distance({name: exact[name] for name in model.output_names}, found)
    case = _Case(reference=reference, model=model, feed=feed, compiled=compiled, pairs=pairs, exact=exact, apart=apart)
    values = case.shown(inner)
    if case.is_wrong(values):
        return _named(_table(case, values))
    if not case.is_wrong(case.shown([])):
        return "no layer: compiled once more, the model is right; the artifact is not what this release makes of it"
    low, high = 0, len(inner)
    while high - low > 1:
        middle = (low + high) // 2
        if case.is_wrong(case.shown(inner[:middle])):
            low = middle
        else:
            high = middle
    return f"where {_maker(case, inner[high - 1])} is fused with what reads it: the loss goes where that is stored"


def _table(case: _Case, values: Mapping[str, NDArray[Any]]) -> tuple[Layer, ...]:
    """Return the rows of the layers: how far each is from the model, and from what it should make of its own inputs."""
    seen = {**case.feed, **values}
    names = comparable(case.pairs, {**case.feed, **_renamed(case)}, seen)
    fed = {f"{case.pairs[name]}{EXACT}": seen[case.pairs[name]] for name in names if case.pairs[name] not in case.feed}
    dtypes = {name: array.dtype for name, array in fed.items()}
    taps = [case.pairs[name] for name in names]
    again = Interpreter(cut(case.model, dtypes).light, where="model as compiled, layer by layer", taps=taps)
    right = {**case.feed, **again({**case.feed, **fed})}
    total, own = ({name: Noise() for name in names} for _ in range(2))
    for name in names:
        tap = case.pairs[name]
        total[name].update({**case.feed, **case.exact}[tap], seen[tap])
        own[name].update(right[tap], seen[tap])
    return rows(case.reference.light.graph, total, own)


def _renamed(case: _Case) -> dict[str, NDArray[Any]]:
    """Return the model's values under the float model's names, which the pairs are known by."""
    return {name: case.exact[tap] for name, tap in case.pairs.items() if tap in case.exact}


def _named(table: Sequence[Layer]) -> str:
    first = next((row for row in table if row.noise_share >= SHARE), None)
    if first is None:
        return "many layers a little, as rounding does"
    decibel = "" if first.own_sqnr_db is None else f", SQNR {first.own_sqnr_db:g} dB"
    return f"{first.layer} ({first.operator}{decibel})"


def _maker(case: _Case, value: str) -> str:
    """Return the layer of the float model that makes a value of the model."""
    name = next(name for name, tap in case.pairs.items() if tap == value)
    node = next((node for node in case.reference.light.graph.node if name in node.output), None)
    return name if node is None else f"{layer(node)} ({node.op_type})"
