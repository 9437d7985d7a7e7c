"""The compiled library against ONNX Runtime on the same inputs: a wrong result is an error, never an artifact."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from forge_pipeline.codegen.verification.judge import Feed, Judge, reference_of
from forge_pipeline.errors import DataError
from forge_pipeline.runtime.bundle import Library
from forge_runtime.entries import Entries, Entry

if TYPE_CHECKING:
    import numpy as np
    import onnx

    from forge_pipeline.ir.reference.interpreter import Interpreter
    from forge_pipeline.passes.verification.made_up import MadeUp, Suits

QUANTIZED = frozenset({"QuantizeLinear", "DynamicQuantizeLinear", "MatMulInteger"})

DATA, MADE_UP = "calibration data", "made-up inputs"
ANY = "any size"
RETRIES = 3
"""Other sizes that are tried where the library refuses those that were made up."""


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
    """Inputs that ONNX Runtime runs the model with: where they are from, which entry of the library they are for.

    ``results`` are what it makes of them, by name, where that is known already.
    """

    feed: Feed
    origin: str
    entry: str
    sizes: Mapping[str, int]
    results: Mapping[str, np.ndarray] | None = field(default=None, repr=False)


def verify(
    model: onnx.ModelProto, library: Library, checks: Checks, *, float16: bool, feeds: Sequence[Feed] = ()
) -> dict[str, Any]:
    """Return the largest error of each output over ``feeds``, and over made-up inputs for entries that none is for.

    ``library`` must be for this machine; it runs as its users will run it, where the compiler is not. What is returned
    has under ``unverified`` the entries that were not compared, since ONNX Runtime takes none of the inputs that were
    made up, and under ``refused`` sizes that the library alone refuses, where it takes others. Raises VerificationError
    where an output is off by more than the tolerance, and in a quantized model by more than rounding explains
    (``rounding``), or is not finite where it should be; DataError where the library refuses ``feeds``, or whatever is
    made up; CompileError where it does not run.
    """
    from forge_pipeline.codegen.verification.device import results

    source = Source(model=model, library=library, checks=checks)
    reference = reference_of(model)
    trials = source.trials(reference, feeds)
    wanted = _wanted(reference, trials)
    del reference  # not in memory beside the compiled model
    limit_name = precision(model, float16=float16)
    judge = Judge(model=model, limit=getattr(checks.tolerance, limit_name), limit_name=limit_name)
    names = [row["name"] for row in library.metadata["outputs"]]
    compared: list[Trial] = []
    refused: dict[str, tuple[Trial, DataError]] = {}
    found = results(library, [trial.feed for trial in trials]) if trials else []
    for trial, expected, have in zip(trials, wanted, found, strict=True):
        if not isinstance(have, DataError):
            judge.compare(trial.feed, names, expected, have)
            compared.append(trial)
        elif trial.origin == DATA:
            raise have
        else:
            refused.setdefault(trial.entry, (trial, have))
    for trial, refusal in refused.values():
        other, expected, have = source.another(trial, refusal)
        judge.compare(other.feed, names, expected, have)
        compared.append(other)
    report: dict[str, Any] = {
        "tolerance": judge.limit,
        "samples": len(compared),
        **judge.report(names if compared else ()),
        "inputs": listed(compared),
    }
    if refused:
        report["refused"] = {
            entry: {"sizes": dict(trial.sizes), "by_the_library": refusal.found}
            for entry, (trial, refusal) in refused.items()
        }
    if source.unverified:
        report["unverified"] = source.unverified
    return report


@dataclass(slots=True, kw_only=True)
class Source:
    """Where inputs to compare on come from. ``unverified`` has the entries that there are none for, with the reason."""

    model: onnx.ModelProto
    library: Library
    checks: Checks
    unverified: dict[str, str] = field(default_factory=dict)

    def trials(self, reference: Interpreter, feeds: Sequence[Feed]) -> list[Trial]:
        """Return inputs for every entry of the library: ``feeds`` where they fit one, made-up ones where none does."""
        from forge_pipeline.ir.dims import shown
        from forge_pipeline.passes.verification.exact import REFUSALS
        from forge_pipeline.passes.verification.made_up import why_not
        from forge_pipeline.passes.verification.samples import Unsupported
        from forge_runtime.interface import Interface

        interface = Interface.of(self.library.metadata, where="library")
        trials: list[Trial] = []
        for feed in feeds:
            sizes = interface.checked([feed[tensor.name] for tensor in interface.inputs]).sizes
            if interface.entries.is_open or interface.entries.taking(sizes) is not None:
                trials.append(Trial(feed=feed, origin=DATA, entry=_name(interface.entries, sizes), sizes=sizes))
        covered = {trial.entry for trial in trials}
        for name, extents in _to_cover(interface.entries):
            if name in covered:
                continue
            try:
                found = self._made_up(reference, extents)
            except (*REFUSALS, Unsupported) as refusal:
                self.unverified[name] = why_not(refusal)
                continue
            reached = _name(interface.entries, found.sizes)
            if reached != name:
                self.unverified[name] = f"ONNX Runtime takes {shown(found.sizes)} alone, of what was tried"
            if reached == name or not trials:
                trials += [
                    Trial(feed=feed, origin=MADE_UP, entry=reached, sizes=found.sizes, results=results)
                    for feed, results in zip(found.feeds, found.results, strict=True)
                ]
        return trials

    def another(self, trial: Trial, refusal: DataError) -> tuple[Trial, list[np.ndarray], list[np.ndarray]]:
        """Return inputs of other sizes for the entry of a made-up trial, what is wanted of them, and what came out.

        Raises ``refusal``, the library's, where it refuses those too, or ONNX Runtime takes no others.
        """
        from forge_pipeline.codegen.verification.device import results
        from forge_pipeline.ir.sizes.keeping import keeping
        from forge_pipeline.passes.verification.exact import REFUSALS
        from forge_pipeline.passes.verification.samples import Unsupported

        entries = Entries.of(self.library.metadata, where="library")
        extents = dict(_to_cover(entries)).get(trial.entry, {})
        reference, without = reference_of(self.model), [trial.sizes]
        keeps = keeping(self.library.metadata["constraints"])
        for _ in range(RETRIES):
            try:
                found = self._made_up(reference, extents, lambda sizes: sizes not in without and keeps(sizes))
            except (*REFUSALS, Unsupported) as nothing:
                raise refusal from nothing
            without.append(found.sizes)
            feed, wanted = found.feeds[0], found.results[0]
            (have,) = results(self.library, [feed])
            if _name(entries, found.sizes) == trial.entry and not isinstance(have, DataError):
                other = Trial(feed=feed, origin=MADE_UP, entry=trial.entry, sizes=found.sizes)
                return other, [wanted[name] for name in reference.outputs], have
        raise refusal

    def _made_up(self, reference: Interpreter, extents: Mapping[str, int], suits: Suits | None = None) -> MadeUp:
        from forge_pipeline.passes.verification.candidate_sizes import Preferred
        from forge_pipeline.passes.verification.made_up import Kinds, made_up

        checks = self.checks
        preferred = Preferred(batch=checks.batch, extent=checks.extent, given={**checks.dims, **extents})
        kinds = Kinds(samples=1 if extents else checks.samples, seed=checks.seed, varied=False)
        return made_up(self.model, reference, preferred, kinds, suits=suits)


def _to_cover(entries: Entries) -> Iterator[tuple[str, Mapping[str, int]]]:
    if entries.is_open:
        yield ANY, {}
    for row in entries.rows:
        yield str(row), row.extents


def _name(entries: Entries, sizes: Mapping[str, int]) -> str:
    row: Entry | None = entries.taking(sizes)
    return ANY if row is None else str(row)


def listed(trials: Sequence[Trial]) -> list[dict[str, Any]]:
    """Return each origin with the sizes that its inputs had, once."""
    rows: list[dict[str, Any]] = []
    for trial in trials:
        row = {"from": trial.origin, "sizes": dict(sorted(trial.sizes.items()))}
        if row not in rows:
            rows.append(row)
    return rows


def precision(model: onnx.ModelProto, *, float16: bool) -> str:
    """Return which tolerance is the model's: float32, float16 or quantized."""
    from onnx import TensorProto

    if any(node.op_type in QUANTIZED for node in model.graph.node):
        return "quantized"
    halves = (tensor.data_type == TensorProto.FLOAT16 for tensor in model.graph.initializer)
    types = (value.type.tensor_type.elem_type == TensorProto.FLOAT16 for value in model.graph.input)
    return "float16" if float16 or any(halves) or any(types) else "float32"


def _wanted(reference: Interpreter, trials: Sequence[Trial]) -> list[list[np.ndarray]]:
    """Return what the model makes of each trial's inputs, in the order of its outputs."""
    fresh = iter(reference.each([trial.feed for trial in trials if trial.results is None], reference.outputs))
    found = [next(fresh) if trial.results is None else trial.results for trial in trials]
    return [[results[name] for name in reference.outputs] for results in found]
