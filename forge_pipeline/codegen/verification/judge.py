"""Whether outputs are what is wanted, up to a tolerance and up to what rounding decides."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING

from forge_pipeline.errors import DataError, ModelError, VerificationError

if TYPE_CHECKING:
    import numpy as np
    import onnx

    from forge_pipeline.ir.reference.interpreter import Interpreter

Feed = Mapping[str, "np.ndarray"]

SMALL = 1e-2
"""An output that stays below this is compared as if it reached it: a sigmoid is exact to 1e-7 of 1, not of itself."""

DRAWS, MOST_DRAWS = 3, 12
"""Times that roundings are drawn: the largest difference counts. More are for an output that would be refused: of a
deep network with dynamic scales, single draws moved an output by 0.037 to 0.18 of its largest value."""

BEYOND = 1.5
"""Times what a few draws of all roundings move an output by."""


@dataclass(kw_only=True)
class Judge:
    """Compares outputs. ``worst`` has the largest error of each so far, ``rounding`` what it was forgiven for.

    ``strays`` has the largest share of rows, of those that data decides the number of, that only one side found: no
    more than rounding alone makes (`rows`).
    """

    model: onnx.ModelProto
    limit: float
    limit_name: str
    worst: dict[str, float] = field(default_factory=dict)
    rounding: dict[str, float] = field(default_factory=dict)
    strays: dict[str, float] = field(default_factory=dict)

    def compare(
        self, feed: Feed, names: Sequence[str], wanted: Sequence[np.ndarray], found: Sequence[np.ndarray]
    ) -> None:
        """Raise VerificationError where one of the outputs is not what is wanted."""
        outputs = dict(zip(names, wanted, strict=True))
        drawn: list[Mapping[str, Noise]] = []
        for name, want, have in zip(names, wanted, found, strict=True):
            is_alike = _is_alike(want, have)
            off = Deviation.of(want, have) if is_alike else NOTHING
            if is_alike and off.peak <= self.limit:
                self.worst[name] = max(self.worst.get(name, 0.0), off.peak)
                continue
            if not is_alike and (name not in self._axes or want.dtype != have.dtype):
                raise self._unlike(name, want, have)
            share = self._strays(name, want, have)
            for noise in self._noises(feed, outputs, drawn):
                moved = noise[name]
                if is_alike and off.is_within(moved.deviation):
                    self.rounding[name] = max(self.rounding.get(name, 0.0), moved.deviation.peak)
                    self.worst[name] = max(self.worst.get(name, 0.0), off.peak)
                    break
                if share is not None and share <= moved.strays:
                    self.strays[name] = max(self.strays.get(name, 0.0), share)
                    self.worst[name] = max(self.worst.get(name, 0.0), self.limit)  # rows that both found are within it
                    break
            else:
                raise self._off(name, off, moved, share) if is_alike else self._unlike(name, want, have)

    def report(self, names: Sequence[str]) -> dict[str, dict[str, float]]:
        """Return the largest errors of these outputs, and what was forgiven of which."""
        errors = {name: self.worst.get(name, 0.0) for name in names}
        rows = {"error": errors, "rounding": self.rounding, "strays": self.strays}
        return {
            key: {name: rounded(value) for name, value in found.items()} for key, found in rows.items()
            if found or key == "error"
        }  # fmt: skip

    def _strays(self, name: str, want: np.ndarray, have: np.ndarray) -> float | None:
        """Return the share of rows that only one side found, None where data does not decide how many there are."""
        from forge_pipeline.codegen.verification.rows import strays

        axis = self._axes.get(name)
        return None if axis is None else strays(want, have, axis, self.limit * _largest(want))

    @cached_property
    def _axes(self) -> Mapping[str, int]:
        from forge_pipeline.ir.sizes.counted import counted_axes

        return counted_axes(self.model)

    def _off(self, name: str, off: Deviation, moved: Noise, share: float | None) -> VerificationError:
        by = f", where rounding alone moves it by {moved.deviation.peak:.3g}" if moved.deviation.peak else ""
        if share is not None:
            by += f"; {share:.2%} of its rows are found by one side alone, where rounding makes that {moved.strays:.2%}"
        expected = f"ONNX Runtime's values within {self.limit:g} of the largest"
        return VerificationError(f"output {name!r}", expected, f"off by {off.peak:.3g}{by}", self._fix)

    def _unlike(self, name: str, want: np.ndarray, have: np.ndarray) -> VerificationError:
        if want.shape != have.shape or want.dtype != have.dtype:
            expected, found = (f"{array.dtype}{list(array.shape)}" for array in (want, have))
            return VerificationError(f"output {name!r}", expected, found, self._fix)
        return VerificationError(
            f"output {name!r}", "NaN and infinity where ONNX Runtime has them", "others", self._fix
        )

    def _noises(
        self, feed: Feed, wanted: Mapping[str, np.ndarray], drawn: list[Mapping[str, Noise]]
    ) -> Iterator[Mapping[str, Noise]]:
        """Yield `_noise` of a few draws, then of more, for what the few do not explain; ``drawn`` keeps both."""
        yield from drawn
        for seeds in (range(DRAWS), range(DRAWS, MOST_DRAWS))[len(drawn) :]:
            drawn.append(self._noise(feed, wanted, seeds, drawn[-1] if drawn else dict.fromkeys(wanted, Noise())))
            yield drawn[-1]

    def _noise(
        self, feed: Feed, wanted: Mapping[str, np.ndarray], seeds: range, before: Mapping[str, Noise]
    ) -> Mapping[str, Noise]:
        """Return how far each output is moved where roundings fall otherwise; not at all where that cannot be run.

        Of what is quantized that is a little more than the largest of a few draws: the compiled model is another draw,
        and one in four would be beyond them. Of floats that is twice what inputs, and weights, show that are moved by
        their spacing, or twice what ONNX Runtime is off from its own results in double precision: either side has
        errors of its own.
        """
        from forge_pipeline.codegen.verification.rounding import dithered, nudged, with_nudged_weights
        from forge_pipeline.ir.reference.double import feed_in_double, in_double

        noise = dict(before)

        def see(model: onnx.ModelProto, fed: Feed, times: float) -> None:
            with suppress(ModelError, DataError):
                moved = reference_of(model)(fed)
                for name, want in wanted.items():
                    if moved[name].shape == want.shape:
                        off = Deviation.of(want, moved[name]).times(times)
                        noise[name] = replace(noise[name], deviation=noise[name].deviation.larger(off))
                    share = times * (self._strays(name, want, moved[name]) or 0.0)
                    noise[name] = replace(noise[name], strays=max(noise[name].strays, share))

        is_quantized = self.limit_name == "quantized"
        for seed in seeds:
            if is_quantized:
                see(dithered(self.model, seed), feed, BEYOND)
            else:
                see(self.model, nudged(feed, seed), 2)
                see(with_nudged_weights(self.model, seed), nudged(feed, seed), 2)
        if not is_quantized and seeds.start == 0:
            see(in_double(self.model), feed_in_double(feed), 2)
        return noise

    @property
    def _fix(self) -> str:
        return (
            "try `compile.generator=stock` or `compile.opt_level=1` to see which step is wrong, and report the model; "
            f"where that much is acceptable, raise `compile.verify.tolerance.{self.limit_name}`"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Deviation:
    """How far values are from those that are wanted, where both are finite.

    ``peak`` is the largest difference in units of the largest wanted value, ``power`` the sum of squares of differences
    in units of that of the wanted values: one value that is wrong shows in the first, many that are a little in both.
    """

    peak: float
    power: float

    @classmethod
    def of(cls, want: np.ndarray, have: np.ndarray) -> Deviation:
        """Measure two arrays of one shape."""
        import numpy as np

        expected, found = np.asarray(want, np.float64), np.asarray(have, np.float64)
        finite = np.isfinite(expected) & np.isfinite(found)
        expected, found = expected[finite], found[finite]
        if not expected.size:
            return NOTHING
        difference = found - expected
        largest = _largest(expected)
        noise, signal = (float(np.einsum("i,i->", values, values)) for values in (difference, expected))
        return cls(peak=float(np.max(np.abs(difference))) / largest, power=noise / max(signal, SMALL**2))

    def is_within(self, other: Deviation) -> bool:
        """Return whether neither is more than the other's."""
        return self.peak <= other.peak and self.power <= other.power

    def times(self, factor: float) -> Deviation:
        """Return that of differences that are ``factor`` times as large."""
        return Deviation(peak=factor * self.peak, power=factor**2 * self.power)

    def larger(self, other: Deviation) -> Deviation:
        """Return the larger of each."""
        return Deviation(peak=max(self.peak, other.peak), power=max(self.power, other.power))


NOTHING = Deviation(peak=0.0, power=0.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Noise:
    """What rounding alone does to an output: how far its values move, and the share of rows that come or go."""

    deviation: Deviation = NOTHING
    strays: float = 0.0


def _largest(values: np.ndarray) -> float:
    """Return the largest finite size, or `SMALL`."""
    import numpy as np

    finite = np.abs(np.asarray(values, np.float64))
    return max(float(np.max(finite, where=np.isfinite(finite), initial=0.0)), SMALL)


def _is_alike(want: np.ndarray, have: np.ndarray) -> bool:
    """Return whether both are of one type and shape, and finite in the same places."""
    import numpy as np

    if want.shape != have.shape or want.dtype != have.dtype:
        return False
    expected, found = np.asarray(want, np.float64), np.asarray(have, np.float64)
    finite = np.isfinite(expected)
    return bool(np.array_equal(expected[~finite], found[~finite], equal_nan=True) and np.isfinite(found[finite]).all())


def rounded(error: float) -> float:
    """Keep one digit: what follows it differs between machines, and reports should not."""
    return float(f"{error:.0e}")


def reference_of(model: onnx.ModelProto) -> Interpreter:
    """Return ``model`` ready to run in ONNX Runtime. Raises ModelError where it refuses the model."""
    from forge_pipeline.ir.reference.interpreter import Interpreter

    return Interpreter(
        model,
        where=f"model {model.graph.name!r}",
        fix="correct the model, or compile unchecked with `compile.verify.enabled=false`",
    )
