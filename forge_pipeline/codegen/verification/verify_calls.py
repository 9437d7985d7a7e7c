"""A library that keeps states against ONNX Runtime, which is given them: several calls, each going on from the last."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from forge_pipeline.codegen.state.in_step import LAST, ONES, TOTAL, in_step
from forge_pipeline.codegen.verification.judge import Feed, Judge, reference_of
from forge_pipeline.codegen.verification.verify import MADE_UP, Checks, Trial, listed, precision
from forge_pipeline.errors import CompileError, DataError
from forge_pipeline.ir.sizes.keeping import call_sizes, keeping
from forge_pipeline.runtime.bundle import Library

if TYPE_CHECKING:
    import onnx

    from forge_pipeline.ir.reference.interpreter import Interpreter

PROMPTS = (5, 3, 2, 4)
"""Tokens that a first call may have."""
CALLS = 4
"""Calls that are compared: the first, and those that go on from it, of one token where the model takes one."""


def verify_calls(model: onnx.ModelProto, library: Library, checks: Checks, *, float16: bool) -> dict[str, Any]:
    """Return the largest error of each output over some calls, made-up inputs but for the states.

    Raises VerificationError where an output is off, DataError where the library refuses a call, CompileError where
    ONNX Runtime takes no such calls.
    """
    from forge_pipeline.codegen.verification.device import results

    metadata = library.metadata
    calls = Calls(model=model, metadata=metadata, dims=checks.dims, seed=checks.seed, reference=reference_of(model))
    feeds, wanted, sizes = calls.made(PROMPTS, CALLS)
    limit_name = precision(model, float16=float16)
    judge = Judge(model=model, limit=getattr(checks.tolerance, limit_name), limit_name=limit_name)
    names = [row["name"] for row in library.metadata["outputs"]]
    own = [{row["name"]: feed[row["name"]] for row in library.metadata["inputs"]} for feed in feeds]
    for feed, expected, have in zip(feeds, wanted, results(library, own), strict=True):
        if isinstance(have, DataError):
            raise have
        judge.compare(feed, names, [expected[name] for name in names], have)
    trials = [Trial(feed=feed, origin=MADE_UP, entry="", sizes=size) for feed, size in zip(feeds, sizes, strict=True)]
    counts = {"tolerance": judge.limit, "samples": len(feeds)}
    return {**counts, **judge.report(names), "inputs": listed(trials)}


class Calls:
    """Makes inputs for calls that go on from each other, of a model whose library keeps states."""

    def __init__(
        self,
        *,
        model: onnx.ModelProto,
        metadata: Mapping[str, Any],
        dims: Mapping[str, int],
        seed: int,
        reference: Interpreter,
    ) -> None:
        self.model, self.dims, self.seed, self.reference = model, dims, seed, reference
        self.states, self.steps = metadata["states"], in_step(model)
        self.most = min((int(row["max"]) for row in self.states if row["max"]), default=None)
        self.keeps = keeping(metadata["constraints"])
        self.counts: list[int] = []

    def made(
        self, prompts: Sequence[int], calls: int, *, later: Sequence[int] = (1, *PROMPTS)
    ) -> tuple[list[Feed], list[Mapping[str, np.ndarray]], list[Mapping[str, int]]]:
        """Return the inputs of the model for each call, states among them, what is wanted, and sizes.

        The first call has as many tokens as ONNX Runtime takes first of ``prompts``, the others of ``later``: they are
        in ``counts`` then. Raises CompileError where it takes none.
        """
        feeds: list[Feed] = []
        wanted: list[Mapping[str, np.ndarray]] = []
        sizes: list[Mapping[str, int]] = []
        kept: dict[str, np.ndarray] = {}
        before = 0
        for number in range(calls):
            tokens = prompts if number == 0 else later
            feed, outputs, found, count = self._call(kept, before, [n for n in tokens if not self._is_full(before + n)])
            kept = {row["input"]["name"]: outputs[row["output"]["name"]] for row in self.states}
            before += count
            self.counts.append(count)
            feeds.append(feed)
            wanted.append(outputs)
            sizes.append(found)
            if self._is_full(before + 1):
                break
        return feeds, wanted, sizes

    def _is_full(self, total: int) -> bool:
        return self.most is not None and total > self.most

    def _call(
        self, kept: Mapping[str, np.ndarray], before: int, tokens: Sequence[int]
    ) -> tuple[Feed, Mapping[str, np.ndarray], Mapping[str, int], int]:
        """Return a call of as many tokens as ONNX Runtime takes first, after ``before``; of no state, of zeros."""
        from forge_pipeline.ir.values import fed
        from forge_pipeline.passes.verification.exact import REFUSALS
        from forge_pipeline.passes.verification.made_up import index_bounds
        from forge_pipeline.passes.verification.samples import sample

        inputs, tops = fed(self.model.graph), index_bounds(self.model)
        states = {row["input"]["name"] for row in self.states}
        reason: Exception | None = None
        for count in tokens:
            for found in self._sizes(before, count):
                made = sample(inputs, found, seed=self.seed + before, index=0, top=2, tops=tops)
                feed = {
                    name: kept.get(name, np.zeros_like(value))
                    if name in states
                    else self._value(name, value, before + count)
                    for name, value in made.items()
                }
                try:
                    outputs = self.reference(feed, self.reference.outputs)
                except REFUSALS as refusal:
                    reason = reason or refusal
                    continue
                return feed, outputs, found, count
        raise CompileError(
            where="compile.verify",
            expected="calls that ONNX Runtime takes, each going on from the states of the last",
            found="none" if reason is None else f"none: {str(reason)[:200]}",
            fix="name sizes with compile.verify.dims, or compile unchecked with `compile.verify.enabled=false`",
        ) from reason

    def _value(self, name: str, made: np.ndarray, total: int) -> np.ndarray:
        """Return an input that is made up, or what it says where a session knows it: how many tokens there are."""
        numbers = {ONES: 1, TOTAL: total, LAST: total - 1}
        return np.full_like(made, numbers[self.steps.told[name]]) if name in self.steps.told else made

    def _sizes(self, before: int, count: int) -> Iterator[dict[str, int]]:
        """Yield sizes of the open extents for a call of ``count`` tokens, each that many, or all there are then."""
        from forge_pipeline.ir.dims import open_extents

        asked = [value for value in self.model.graph.input if value.name not in self.steps.told]
        known = dict.fromkeys(set(open_extents(self.model.graph.input)) - set(open_extents(asked)), before + count)
        given = {**self.dims, **known, **self.steps.sizes, **dict.fromkeys(self.steps.lengths, before)}
        yield from call_sizes(open_extents(self.model.graph.input), given, before, count, self.keeps)
