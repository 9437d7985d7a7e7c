"""Verification: what a pass left behind must compute what it found, on the same inputs.

The reference is the model itself, run by ONNX Runtime without optimisations before and after. What cannot be run is
not verified, and the finding says so and why.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from onnx import ModelProto

from forge_pipeline.errors import ConfigError, VerificationError
from forge_pipeline.passes.contract import (
    Arrays,
    Equality,
    Metric,
    Pass,
    Tolerance,
    Unverified,
    Verification,
    VerifySettings,
)
from forge_pipeline.passes.verification.bisect import first_difference
from forge_pipeline.passes.verification.compare import METRICS, Difference, MetricFunction, bitwise, close
from forge_pipeline.passes.verification.exact import (
    REFUSALS,
    exact_interpreter,
    outputs_of,
    outputs_of_each,
    reason,
)
from forge_pipeline.passes.verification.reference import (
    Noise,
    Outputs,
    generate_inputs,
    short_mantissa,
    with_specials,
)
from forge_pipeline.passes.verification.samples import Unsupported
from forge_pipeline.registry import Registry


class PassVerificationError(VerificationError):
    """A pass changed what the model computes. ``before`` and ``after`` are the models, for inspection."""

    before: ModelProto
    after: ModelProto

    def keep(self, before: ModelProto, after: ModelProto) -> PassVerificationError:
        """Remember both models and return the error itself."""
        self.before, self.after = before, after
        return self


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """What verification found out about one pass."""

    how: Verification
    worst: Difference | None = None
    metric: float | None = None
    unverified: str | None = None
    since: str | None = None

    def as_json(self) -> dict[str, Any]:
        """Return the finding as plain JSON values; differences are rounded, as they vary with the processor."""
        if self.unverified is not None:
            return {"verified": False, "reason": self.unverified}
        row: dict[str, Any] = {"verified": True, "how": type(self.how).__name__.lower()}
        if self.since is not None:
            row["since"] = self.since
        if self.metric is not None and isinstance(self.how, Metric):
            row |= {"metric": self.how.name, "value": f"{self.metric:.6g}"}
        if self.worst is not None and self.worst.max_abs:
            row |= {"max_abs": f"{self.worst.max_abs:.1e}", "max_rel": f"{self.worst.max_rel:.1e}"}
            row |= {"output": self.worst.output, "at": list(self.worst.at)}
        return row


@dataclass(slots=True, kw_only=True)
class Verifier:
    """Holds the inputs, the outputs of the model as it was, and those of the model as the last pass left it.

    ``specials`` are the latter of an input with NaN and infinities, where the last pass was compared on one.
    """

    settings: VerifySettings
    inputs: list[Arrays] = field(default_factory=list)
    original: list[Outputs] = field(default_factory=list)
    current: list[Outputs] = field(default_factory=list)
    output_names: list[str] = field(default_factory=list)
    labels: Sequence[np.ndarray[Any, Any]] | None = None
    metrics: Mapping[str, MetricFunction] = field(default_factory=lambda: dict(METRICS))
    unverified: str | None = None
    rounding: float = 0.0
    noise: Noise | None = None
    specials: list[Outputs] | None = None
    since: str | None = None
    loads: bool = False

    @classmethod
    def of(
        cls,
        model: ModelProto,
        settings: VerifySettings,
        *,
        inputs: Sequence[Arrays] | None = None,
        labels: Sequence[np.ndarray[Any, Any]] | None = None,
        metrics: Mapping[str, MetricFunction] | None = None,
    ) -> Verifier:
        """Run ``model`` on ``inputs``, or on generated ones, and remember what it gave.

        ``metrics`` are the user's own, by name, beside the built-in ones.
        """
        verifier = cls(settings=settings, labels=labels, metrics=METRICS | dict(metrics or {}))
        verifier.output_names = [value.name for value in model.graph.output]
        verifier.rounding = short_mantissa(model)
        try:
            run = exact_interpreter(model)
            if inputs is None:
                made = generate_inputs(model, run, settings)
                verifier.inputs = made.feeds
                verifier.original = [[result[name] for name in run.outputs] for result in made.results]
            else:
                verifier.inputs = list(inputs)
                verifier.original = outputs_of_each(run, verifier.inputs)
            again = [outputs_of(run, fed) for fed in verifier.inputs[:1]]
        except REFUSALS as error:
            verifier.unverified = f"ONNX Runtime does not run the model: {reason(error)}"
        except Unsupported as error:
            verifier.unverified = f"no inputs to run the model with: {error}"
        else:
            verifier.current = verifier.original
            verifier.noise = Noise(model=model, inputs=verifier.inputs, outputs=verifier.original)
            if any(
                bitwise(name, a, b).failed
                for name, a, b in zip(verifier.output_names, verifier.original[0], again[0], strict=True)
            ):
                verifier.unverified = "the model's outputs are random: two runs on one input differ"
        verifier.loads = verifier.unverified is not None and _loads(model)
        return verifier

    def tolerates(self, after: ModelProto) -> bool:
        """Whether ONNX Runtime still loads a model that it loaded before, where no more than that can be checked."""
        return self.unverified is None or not self.loads or _loads(after)

    def adopt(self, model: ModelProto) -> None:
        """Go on from ``model``, a later state of the one that this verifier began with. Raises REFUSALS."""
        if self.unverified is None:
            run = exact_interpreter(model)
            self.current = outputs_of_each(run, self.inputs)
            self.specials = None

    def agrees(self, model: ModelProto) -> bool:
        """Whether ``model`` computes what the original does, within the tolerance of the settings."""
        try:
            run = exact_interpreter(model)
            got = outputs_of_each(run, self.inputs)
        except REFUSALS:
            return False
        worst = self._worst(self.original, got, self._allowed(Tolerance()))
        return worst is None or not worst.failed

    def check(self, step: Pass[Any], name: str, how: Verification, before: ModelProto, after: ModelProto) -> Finding:
        """Compare ``after`` with ``before``, the state it was made from. Raises PassVerificationError."""
        if self.unverified is not None:
            return Finding(how=how, unverified=self.unverified)
        fed = self.inputs
        if step.changes_interface:
            fed = [step.inputs_after(inputs) for inputs in self.inputs]
            self.inputs = [step.inputs_before(inputs) for inputs in fed]
            self.current = self._run(name, self.inputs, before, before)
            self.noise = Noise(model=before, inputs=self.inputs, outputs=self.current)
        got = self._run(name, fed, before, after)
        comparable = [list(step.outputs_before(outputs)) for outputs in got] if step.changes_interface else got
        if isinstance(how, Unverified):
            finding = Finding(how=how, unverified=how.reason)
        elif isinstance(how, Metric):
            finding = self._metric(name, how, comparable, before, after)
        else:
            finding = self._difference(name, how, comparable, before, after)
        is_special = isinstance(how, Equality) and how.specials and not step.changes_interface
        self.specials = self._specials(name, before, after) if is_special else None
        self.inputs, self.current = fed, got
        if step.changes_interface or isinstance(how, Metric | Unverified):
            self.output_names = [value.name for value in after.graph.output]
            self.original, self.since = got, name
        return finding

    def conclude(self, model: ModelProto) -> Finding:
        """Compare what the last pass left with what the passes began with: small errors may have added up.

        They began anew (``since``) after a pass that changed the interface or was allowed to change the outputs.
        """
        allowed = self._allowed(Tolerance()) or Tolerance()
        if self.unverified is not None:
            return Finding(how=allowed, unverified=self.unverified)
        worst = self._worst(self.original, self.current, allowed)
        if worst is not None and worst.failed:
            raise self._failure("all passes together", str(worst), allowed).keep(model, model)
        return Finding(how=allowed, worst=worst, since=self.since)

    def _run(self, name: str, fed: list[Arrays], before: ModelProto, after: ModelProto) -> list[Outputs]:
        try:
            return outputs_of_each(exact_interpreter(after), fed)
        except REFUSALS as error:
            raise PassVerificationError(
                where=f"pass {name!r}",
                expected="a model that ONNX Runtime runs",
                found=reason(error),
                fix="leave the pass out and report it with the models that were kept",
            ).keep(before, after) from error

    def _difference(
        self, name: str, how: Equality | Tolerance, got: list[Outputs], before: ModelProto, after: ModelProto
    ) -> Finding:
        allowed = self._allowed(how)
        worst = self._worst(self.current, got, allowed)
        if worst is None or not worst.failed:
            return Finding(how=allowed or how, worst=worst)
        cause = first_difference(before, after, self.inputs, allowed)
        found = f"output {worst}" + (f"; {cause}" if cause else "")
        raise self._failure(f"pass {name!r}", found, allowed).keep(before, after)

    def _specials(self, name: str, before: ModelProto, after: ModelProto) -> list[Outputs] | None:
        """Compare on an input with NaN and infinities too, where the model before runs on one; return what came of it.

        A detector that finds nothing in it may end in a Reshape that ONNX Runtime refuses.
        """
        fed = [with_specials(inputs) for inputs in self.inputs[:1]]
        try:
            want = self.specials or self._run(name, fed, before, before)
        except PassVerificationError:
            return None
        got = self._run(name, fed, before, after)
        allowed = Tolerance(rtol=self.rounding, atol=0.0) if self.rounding else None
        worst = self._worst(want, got, allowed)
        if worst is not None and worst.failed:
            raise self._failure(f"pass {name!r}, with NaN and infinities", f"output {worst}", allowed).keep(
                before, after
            )
        return got

    def _failure(self, where: str, found: str, allowed: Tolerance | None) -> PassVerificationError:
        rule = "bit by bit" if allowed is None else f"within rtol {allowed.rtol:g} and atol {allowed.atol:g}"
        return PassVerificationError(
            where=where,
            expected=f"the outputs of the model before it, {rule}",
            found=found,
            fix="leave the pass out, or allow more in its `verify` option if the difference is rounding",
        )

    def _worst(self, want: list[Outputs], got: list[Outputs], allowed: Tolerance | None) -> Difference | None:
        """Return the largest difference in units of what is allowed, with what the model amplifies where it matters."""
        pairs = [pair for samples in zip(want, got, strict=True) for pair in zip(*samples, strict=True)]
        names = self.output_names * len(want)
        found = [
            bitwise(name, a, b) if allowed is None else close(name, a, b, allowed)
            for name, (a, b) in zip(names, pairs, strict=True)
        ]
        if self.noise is not None and allowed is not None and allowed.rtol and any(one.failed for one in found):
            noises = itertools.chain(*self.noise.amounts[: len(want)])
            rows = zip(names, pairs, noises, strict=True)
            found = [close(name, a, b, allowed, noise) for name, (a, b), noise in rows]
        return max(found, key=lambda difference: (difference.share, difference.max_abs), default=None)

    def _metric(self, name: str, how: Metric, got: list[Outputs], before: ModelProto, after: ModelProto) -> Finding:
        function = Registry("metric", self.metrics).pick(how.name, where=f"{name}.verify.metric")
        if how.against == "labels" and self.labels is None:
            raise ConfigError(f"{name}.verify", "labels to compare with", "none", "give labels beside the inputs")
        reference = self.original if how.against == "reference" else [[label] for label in self.labels or ()]
        value = function(_joined(reference), _joined(got))
        low = float("-inf") if how.minimum is None else how.minimum
        high = float("inf") if how.maximum is None else how.maximum
        if not low <= value <= high:
            raise PassVerificationError(
                where=f"pass {name!r}",
                expected=f"{how.name} between {low:g} and {high:g}",
                found=f"{value:.6g}",
                fix="leave the pass out, or widen the range in its `verify` option",
            ).keep(before, after)
        return Finding(how=how, metric=value)

    @property
    def tolerance(self) -> Tolerance | None:
        """What the settings allow, with the rounding of the model's types."""
        return self._allowed(Tolerance())

    def _allowed(self, how: Equality | Tolerance) -> Tolerance | None:
        """Return the tolerance with its numbers set; None for bit by bit.

        ONNX Runtime computes most 16-bit operators in float32 and rounds where two of them meet, so removing a node
        between them changes bits: such models are allowed a few units of rounding.
        """
        if isinstance(how, Equality):
            return Tolerance(rtol=self.rounding, atol=0.0) if self.rounding else None
        return Tolerance(
            rtol=max(self.settings.rtol if how.rtol is None else how.rtol, self.rounding),
            atol=self.settings.atol if how.atol is None else how.atol,
        )


def _joined(samples: Sequence[Sequence[np.ndarray[Any, Any]]]) -> list[np.ndarray[Any, Any]]:
    """Return each output of all samples as one array, along its first axis."""
    return [np.concatenate([np.atleast_1d(array) for array in arrays]) for arrays in zip(*samples, strict=True)]


def _loads(model: ModelProto) -> bool:
    try:
        exact_interpreter(model)
    except REFUSALS:
        return False
    return True
