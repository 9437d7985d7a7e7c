"""The compiled library against ONNX Runtime on the same inputs: a wrong result is an error, never an artifact."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from forge_pipeline.errors import DataError, ModelError, VerificationError
from forge_pipeline.runtime.bundle import Library
from forge_pipeline.runtime.entries import Entries, Entry

if TYPE_CHECKING:
    import numpy as np
    import onnx

    from forge_pipeline.ir.reference.interpreter import Interpreter

SMALL = 1e-2
"""An output that stays below this is compared as if it reached it: a sigmoid is exact to 1e-7 of 1, not of itself."""

QUANTIZED = frozenset({"QuantizeLinear", "DynamicQuantizeLinear", "MatMulInteger"})

DATA, MADE_UP = "calibration data", "made-up inputs"
ANY = "any size"

Feed = Mapping[str, "np.ndarray"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Tolerance:
    """Largest |difference| / largest |expected| of an output, by what the model computes with."""

    float32: float
    float16: float
    quantized: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Checks:
    """The section `verify` of conf/compile: how many inputs, sizes for symbolic dimensions to try first, how exact."""

    enabled: bool
    samples: int
    seed: int
    batch: int
    extent: int
    dims: dict[str, int]
    tolerance: Tolerance


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """Inputs that ONNX Runtime runs the model with: where they are from, which entry of the library they are for."""

    feed: Feed
    origin: str
    entry: str
    sizes: Mapping[str, int]


@dataclass(slots=True, kw_only=True)
class _Trials:
    """What to compare on, and the entries that there is nothing for, with the reason."""

    found: list[Trial] = field(default_factory=list)
    unverified: dict[str, str] = field(default_factory=dict)


def verify(
    model: onnx.ModelProto, library: Library, checks: Checks, *, float16: bool, feeds: Sequence[Feed] = ()
) -> dict[str, Any]:
    """Return the largest error of each output over ``feeds``, and over made-up inputs for entries that none is for.

    ``library`` must be for this machine; it runs as its users will run it, where the compiler is not. ``unverified``
    in what is returned has the entries that were not compared, with the reason: ONNX Runtime takes none of the inputs
    that were made up, or the library refuses their sizes. Raises VerificationError where an output is off by more than
    the tolerance, and in a quantized model by more than rounding explains (``rounding``), or is not finite where it
    should be; DataError where the library refuses ``feeds``; CompileError where it does not run.
    """
    from forge_pipeline.codegen.device import results

    reference = _reference(model)
    trials = _trials(model, reference, library, checks, feeds)
    wanted = [_ordered(reference, trial.feed) for trial in trials.found]
    del reference  # not in memory beside the compiled model
    limit_name = precision(model, float16=float16)
    judge = Judge(model=model, limit=getattr(checks.tolerance, limit_name), limit_name=limit_name)
    names = [row["name"] for row in library.metadata["outputs"]]
    compared: list[Trial] = []
    found = results(library, [trial.feed for trial in trials.found]) if trials.found else []
    for trial, expected, have in zip(trials.found, wanted, found, strict=True):
        if isinstance(have, DataError):
            if trial.origin == DATA:
                raise have
            trials.unverified[trial.entry] = f"the library refuses what ONNX Runtime takes: {have.found}"
            continue
        compared.append(trial)
        judge.compare(trial.feed, names, expected, have)
    report: dict[str, Any] = {
        "tolerance": judge.limit,
        "samples": len(compared),
        "error": {name: _rounded(judge.worst.get(name, 0.0)) for name in names} if compared else {},
        "inputs": _listed(compared),
    }
    if judge.rounding:
        report["rounding"] = {name: _rounded(value) for name, value in judge.rounding.items()}
    if trials.unverified:
        report["unverified"] = trials.unverified
    return report


def _trials(
    model: onnx.ModelProto, reference: Interpreter, library: Library, checks: Checks, feeds: Sequence[Feed]
) -> _Trials:
    """Return inputs for every entry of the library: ``feeds`` where they fit one, made-up ones where none does."""
    from forge_pipeline.ir.dims import shown
    from forge_pipeline.passes.verification.candidate_sizes import Preferred
    from forge_pipeline.passes.verification.exact import REFUSALS
    from forge_pipeline.passes.verification.made_up import Kinds, made_up, why_not
    from forge_pipeline.passes.verification.samples import Unsupported
    from forge_pipeline.runtime.interface import Interface

    interface = Interface.of({**library.metadata, "weights": []}, memoryview(b""), where="library")
    entries = interface.entries
    trials = _Trials()
    for feed in feeds:
        sizes = interface.checked([feed[tensor.name] for tensor in interface.inputs]).sizes
        if entries.is_open or entries.taking(sizes) is not None:
            trials.found.append(Trial(feed=feed, origin=DATA, entry=_name(entries, sizes), sizes=sizes))
    covered = {trial.entry for trial in trials.found}
    for name, extents in _to_cover(entries):
        if name in covered:
            continue
        preferred = Preferred(batch=checks.batch, extent=checks.extent, given={**checks.dims, **extents})
        kinds = Kinds(samples=1 if extents else checks.samples, seed=checks.seed, varied=False)
        try:
            found = made_up(model, reference, preferred, kinds)
        except (*REFUSALS, Unsupported) as refusal:
            trials.unverified[name] = why_not(refusal)
            continue
        reached = _name(entries, found.sizes)
        if reached != name:
            trials.unverified[name] = f"ONNX Runtime takes {shown(found.sizes)} alone, of what was tried"
        if reached == name or not trials.found:
            trials.found += [Trial(feed=feed, origin=MADE_UP, entry=reached, sizes=found.sizes) for feed in found.feeds]
    return trials


def _to_cover(entries: Entries) -> Iterator[tuple[str, Mapping[str, int]]]:
    if entries.is_open:
        yield ANY, {}
    for row in entries.rows:
        yield str(row), row.extents


def _name(entries: Entries, sizes: Mapping[str, int]) -> str:
    row: Entry | None = entries.taking(sizes)
    return ANY if row is None else str(row)


def _listed(trials: Sequence[Trial]) -> list[dict[str, Any]]:
    """Return each origin with the sizes that its inputs had, once."""
    rows: list[dict[str, Any]] = []
    for trial in trials:
        row = {"from": trial.origin, "sizes": dict(sorted(trial.sizes.items()))}
        if row not in rows:
            rows.append(row)
    return rows


@dataclass(slots=True, kw_only=True)
class Judge:
    """Compares outputs. ``worst`` has the largest error of each so far, ``rounding`` what it was forgiven for."""

    model: onnx.ModelProto
    limit: float
    limit_name: str
    worst: dict[str, float] = field(default_factory=dict)
    rounding: dict[str, float] = field(default_factory=dict)

    def compare(
        self, feed: Feed, names: Sequence[str], wanted: Sequence[np.ndarray], found: Sequence[np.ndarray]
    ) -> None:
        """Raise VerificationError where one of the outputs is not what is wanted."""
        noise: dict[str, Deviation] = {}
        for name, want, have in zip(names, wanted, found, strict=True):
            _check_kind(name, want, have, self._fix)
            off = Deviation.of(want, have)
            if off.peak > self.limit and self.limit_name == "quantized":
                noise = noise or self._noise(feed, dict(zip(names, wanted, strict=True)))
            moved = noise.get(name, NOTHING)
            if off.peak > self.limit and not off.is_within(moved):
                by = f", where rounding alone moves it by {moved.peak:.3g}" if noise else ""
                expected = f"ONNX Runtime's values within {self.limit:g} of the largest"
                raise VerificationError(f"output {name!r}", expected, f"off by {off.peak:.3g}{by}", self._fix)
            if off.peak > self.limit:
                self.rounding[name] = max(self.rounding.get(name, 0.0), moved.peak)
            self.worst[name] = max(self.worst.get(name, 0.0), off.peak)

    def _noise(self, feed: Feed, wanted: Mapping[str, np.ndarray]) -> dict[str, Deviation]:
        """Return how far each output is moved where roundings fall otherwise; not at all where that cannot be run."""
        from forge_pipeline.codegen.rounding import DRAWS, dithered

        noise = dict.fromkeys(wanted, NOTHING)
        for seed in range(DRAWS):
            try:
                moved = _reference(dithered(self.model, seed))(feed)
            except (ModelError, DataError):
                return noise
            for name, want in wanted.items():
                if moved[name].shape == want.shape:
                    noise[name] = noise[name].larger(Deviation.of(want, moved[name]))
        return noise

    @property
    def _fix(self) -> str:
        return (
            "try `compile.generator=stock` or `compile.opt_level=1` to see which step is wrong, and report the model; "
            f"where that much is acceptable, raise `compile.verify.tolerance.{self.limit_name}`"
        )


def precision(model: onnx.ModelProto, *, float16: bool) -> str:
    """Return which tolerance is the model's: float32, float16 or quantized."""
    from onnx import TensorProto

    if any(node.op_type in QUANTIZED for node in model.graph.node):
        return "quantized"
    halves = (tensor.data_type == TensorProto.FLOAT16 for tensor in model.graph.initializer)
    types = (value.type.tensor_type.elem_type == TensorProto.FLOAT16 for value in model.graph.input)
    return "float16" if float16 or any(halves) or any(types) else "float32"


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
        largest = max(float(np.max(np.abs(expected))), SMALL)
        power = float(np.vdot(difference, difference)) / max(float(np.vdot(expected, expected)), SMALL**2)
        return cls(peak=float(np.max(np.abs(difference))) / largest, power=power)

    def is_within(self, other: Deviation) -> bool:
        """Return whether neither is more than the other's."""
        return self.peak <= other.peak and self.power <= other.power

    def larger(self, other: Deviation) -> Deviation:
        """Return the larger of each."""
        return Deviation(peak=max(self.peak, other.peak), power=max(self.power, other.power))


NOTHING = Deviation(peak=0.0, power=0.0)


def _check_kind(name: str, want: np.ndarray, have: np.ndarray, fix: str) -> None:
    """Raise VerificationError unless both are of one type and shape, and finite in the same places."""
    import numpy as np

    if want.shape != have.shape or want.dtype != have.dtype:
        raise VerificationError(
            f"output {name!r}", f"{want.dtype}{list(want.shape)}", f"{have.dtype}{list(have.shape)}", fix
        )
    expected, found = np.asarray(want, np.float64), np.asarray(have, np.float64)
    finite = np.isfinite(expected)
    if not np.array_equal(expected[~finite], found[~finite], equal_nan=True) or not np.isfinite(found[finite]).all():
        raise VerificationError(f"output {name!r}", "NaN and infinity where ONNX Runtime has them", "others", fix)


def _reference(model: onnx.ModelProto) -> Interpreter:
    from forge_pipeline.ir.reference.interpreter import Interpreter

    return Interpreter(
        model,
        where=f"model {model.graph.name!r}",
        fix="correct the model, or compile unchecked with `compile.verify.enabled=false`",
    )


def _ordered(reference: Interpreter, feed: Feed) -> list[np.ndarray]:
    found = reference(feed, reference.outputs)
    return [found[name] for name in reference.outputs]


def _rounded(error: float) -> float:
    """Keep one digit: what follows it differs between machines, and reports should not."""
    return float(f"{error:.0e}")
