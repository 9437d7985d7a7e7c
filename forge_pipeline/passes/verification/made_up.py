"""Made-up inputs that a model runs with: sizes and values are tried until ONNX Runtime takes them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
from onnx import ModelProto, NodeProto, ValueInfoProto

from forge_pipeline.errors import ForgeError
from forge_pipeline.ir.reference.interpreter import Interpreter
from forge_pipeline.ir.sizes.analysis import analyse
from forge_pipeline.ir.sizes.keeping import holding
from forge_pipeline.ir.traversal import subgraphs
from forge_pipeline.ir.values import fed
from forge_pipeline.passes.contract import Arrays
from forge_pipeline.passes.graph import Array
from forge_pipeline.passes.verification.candidate_sizes import Preferred, candidates
from forge_pipeline.passes.verification.division_by_zero import dividing_inputs
from forge_pipeline.passes.verification.exact import REFUSALS, reason
from forge_pipeline.passes.verification.samples import INTEGERS, Unsupported, sample
from forge_pipeline.passes.verification.trial_run import check_survival

TOPS = (4, 2, 1)
"""Exclusive bounds of integers of which the model does not say what they are: indices, flags, or sizes."""
MOVING = frozenset({"Identity", "Cast", "Reshape", "Flatten", "Squeeze", "Unsqueeze", "Transpose", "Slice", "Expand"})
"""Operators whose results have the values of their first input."""

Suits: TypeAlias = Callable[[Mapping[str, int]], bool]
"""Whether sizes of open extents are to be tried."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MadeUp:
    """Inputs that the model runs with, what it makes of each, by name, and the sizes of its open extents in them."""

    feeds: list[Arrays]
    results: list[dict[str, Any]]
    sizes: Mapping[str, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Kinds:
    """How many inputs, drawn from which seed; ``varied`` ones are extremes too (``samples``), else all are ordinary."""

    samples: int
    seed: int
    varied: bool


def made_up(
    model: ModelProto,
    run: Interpreter,
    preferred: Preferred,
    kinds: Kinds,
    *,
    suits: Suits | None = None,
) -> MadeUp:
    """Return inputs that ``run``, which is of ``model``, takes: finite results are preferred to others.

    Sizes that do not suit are left out; of those that do, the ones that every branch takes come first.

    Raises what ONNX Runtime said to the first of them where it takes none of those that are tried, and Unsupported
    where none is to be tried.
    """
    divisors = dividing_inputs(model)
    inputs = fed(model.graph)
    tops = index_bounds(model)
    free = _has_free_integers(inputs, tops)
    refusal: ForgeError | None = None
    second: MadeUp | None = None
    tried: Iterable[dict[str, int]] = candidates(inputs, preferred)
    if suits is not None:
        tried = filter(suits, tried)
    if suits is not None and any(next(subgraphs(node), None) is not None for node in model.graph.node):
        in_branches = holding((row.size, row.at_least) for row in analyse(model).constraints if row.graph)
        tried = sorted(tried, key=in_branches, reverse=True)
    for sizes in tried:
        for top in TOPS if free else TOPS[:1]:
            try:
                feeds: list[Arrays] = list(_samples(inputs, sizes, tops, top, divisors, kinds))
                if sizes or free:
                    check_survival(run, feeds)
                results = run.each(feeds)
            except REFUSALS as error:
                refusal = refusal or error
                continue
            is_finite = _are_finite(results)
            if not is_finite and not kinds.varied:  # a logarithm, a root, a norm, a mean of a length
                positive: list[Arrays] = [
                    {name: _positive(array, tops.get(name)) for name, array in feed.items()} for feed in feeds
                ]
                with suppress(*REFUSALS):
                    other = run.each(positive)
                    is_finite = _are_finite(other)
                if is_finite:
                    feeds, results = positive, other
            found = MadeUp(feeds=feeds, results=results, sizes=sizes)
            if is_finite:
                return found
            second = second or found
        if second is not None:
            return second
    raise refusal if refusal is not None else Unsupported("no sizes for its symbolic dimensions were tried")


def why_not(refusal: Exception) -> str:
    """Return why no inputs were found, in a line."""
    return str(refusal) if isinstance(refusal, Unsupported) else f"ONNX Runtime: {reason(refusal)}"


def index_bounds(model: ModelProto) -> dict[str, int]:
    """Return, for each input of integers that rows of constants are picked by, the number of these rows."""
    rows = {tensor.name: list(tensor.dims) for tensor in model.graph.initializer}
    sources = {value.name: value.name for value in fed(model.graph)}
    bounds: dict[str, int] = {}
    for node in model.graph.node:
        if node.op_type in MOVING and node.input[0] in sources:
            sources[node.output[0]] = sources[node.input[0]]
        if node.op_type in ("Gather", "GatherElements") and node.input[1] in sources and rows.get(node.input[0]):
            source = sources[node.input[1]]
            bounds[source] = min(bounds.get(source, 1 << 31), rows[node.input[0]][_axis(node)])
    return {name: bound for name, bound in bounds.items() if bound > 0}


def _axis(node: NodeProto) -> int:
    return next((int(item.i) for item in node.attribute if item.name == "axis"), 0)


def _has_free_integers(inputs: list[ValueInfoProto], tops: Mapping[str, int]) -> bool:
    return any(value.type.tensor_type.elem_type in INTEGERS and value.name not in tops for value in inputs)


def _samples(
    inputs: list[ValueInfoProto],
    sizes: Mapping[str, int],
    tops: Mapping[str, int],
    top: int,
    divisors: frozenset[str],
    kinds: Kinds,
) -> Iterator[Arrays]:
    for number in range(kinds.samples):
        seed, index = (kinds.seed, number) if kinds.varied else (kinds.seed + number, 0)
        made = sample(inputs, sizes, seed=seed, index=index, top=top, tops=tops)
        yield {
            name: np.where(array == 0, 1, array).astype(array.dtype) if name in divisors else array
            for name, array in made.items()
        }


def _positive(array: Array, rows: int | None) -> Array:
    """Return numbers without signs, and integers without zeros: those are no lengths, and rows of padding."""
    if array.dtype.kind == "f":
        return np.abs(array)
    return np.maximum(array, 1) if array.dtype.kind in "iu" and (rows is None or rows > 1) else array


def _are_finite(results: Iterable[Mapping[str, Any]]) -> bool:
    """Whether results of floats are numbers."""
    values = [value for result in results for value in result.values()]
    floats = [value for value in values if isinstance(value, np.ndarray) and value.dtype.kind == "f"]
    return all(bool(np.isfinite(value).all()) for value in floats)
