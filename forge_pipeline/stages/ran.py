"""What an artifact gave where it ran, beside what the model gives that it was compiled from."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING

from forge_pipeline.errors import ForgeError, VerificationError
from forge_pipeline.evaluation.comparison import COMPILED, QUANTIZED

if TYPE_CHECKING:
    from forge_pipeline.codegen.verification.verify import Tolerance
    from forge_pipeline.data import Feed
    from forge_pipeline.evaluation.comparison import Comparison
    from forge_pipeline.ir import ONNXModule
    from forge_pipeline.runners.artifact import Wanted
    from forge_pipeline.runtime.bundle import Library


@dataclass(frozen=True, slots=True, kw_only=True)
class Ran:
    """A library that was run ``where`` it was ``wanted``, what was ``found``, and the models that it is made of."""

    reference: ONNXModule
    model: ONNXModule
    library: Library
    wanted: Wanted
    where: str
    found: Comparison

    def check_values(self, tolerance: Tolerance, feeds: Iterable[Feed]) -> None:
        """Raise VerificationError where an output is off by more than the tolerance and what rounding decides.

        It is looked at closer, on the feed where it is farthest off, where all feeds together are off by that much.
        """
        from forge_pipeline.codegen.verification.judge import SMALL, Judge
        from forge_pipeline.codegen.verification.verify import precision
        from forge_pipeline.ir.reference.interpreter import Interpreter
        from forge_pipeline.runners.debugging import options_of

        halves = options_of(self.library.metadata).computes_or_stores_halves
        kind = precision(self.model.light, float16=halves)
        limit: float = getattr(tolerance, kind)
        noise = self.found.noise[COMPILED].values()
        if not any(each.broken or each.max_abs > limit * max(each.peak, SMALL) for each in noise):
            return
        feed = self._farthest(feeds)
        have, want = self._results(feed), Interpreter(self.model.light, where="model")(feed)
        judge = Judge(model=self.model.light, limit=limit, limit_name=kind)
        names = list(want)
        try:
            judge.compare(feed, names, [want[name] for name in names], [have[name] for name in names])
        except VerificationError as error:
            first = self._first_difference(feed, have)
            found = f"{error.found}; the first layer that differs: {first}"
            raise VerificationError(
                f"evaluate, {self.where}, {error.where}", error.expected, found, error.fix
            ) from error

    def check_drop(self, most: float | None, metric: str, feeds: Iterable[Feed], *, is_gain: bool) -> None:
        """Raise VerificationError where compilation loses more than ``most`` of the metric."""
        scores = self.found.scores
        drop = (scores[QUANTIZED] - scores[COMPILED]) * (1 if is_gain else -1)
        if most is None or drop <= most:
            return
        first = self._first_difference(self._farthest(feeds))
        both = f"quantized {scores[QUANTIZED]:.6g}, compiled {scores[COMPILED]:.6g}"
        raise VerificationError(
            where=f"evaluate, {self.where}",
            expected=f"a loss of at most {most:g} in {metric} by compilation",
            found=f"{drop:.6g} ({both}); the first layer that differs: {first}",
            fix="report it with the model, or raise evaluate.max_compiled_drop",
        )

    def _farthest(self, feeds: Iterable[Feed]) -> Feed:
        return next(islice(feeds, self.found.farthest, None))

    def _results(self, feed: Feed) -> Feed:
        from forge_pipeline.runners.artifact import opened

        with opened(self.library, lambda is_emulated: [feed], self.wanted) as artifact:
            return {} if artifact.model is None else dict(artifact.model(feed))

    def _first_difference(self, feed: Feed, found: Feed | None = None) -> str:
        """Return the first layer in which the library leaves its model, or why that is not known."""
        from forge_pipeline.evaluation.blame import first_difference
        from forge_pipeline.runners.debugging import compiled_like

        try:
            build = compiled_like(self.library.metadata, self.wanted)
            found = self._results(feed) if found is None else found
            return first_difference(self.reference, self.model, feed, found, build)
        except ForgeError as error:
            return f"not known: {error.where}: {error.found}"
