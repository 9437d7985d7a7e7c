"""A library, ready to be compared with its model: run here, by an emulator, on a board, or nowhere, and why."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

from forge_pipeline.codegen.link import loadable
from forge_pipeline.errors import MachineError
from forge_pipeline.evaluation import compiled
from forge_pipeline.evaluation.processor import cpu_name
from forge_pipeline.runners.board import Board
from forge_pipeline.runners.choice import Runner, prefers_host, without_host
from forge_pipeline.runners.contract import Facts, Place
from forge_pipeline.runners.emulators import Emulator
from forge_pipeline.runners.here import Here
from forge_pipeline.runners.samples import ran
from forge_pipeline.target import HOST, Target

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from forge_pipeline.data import Feed
    from forge_pipeline.runners.device import Device
    from forge_pipeline.runtime.bundle import Library
    from forge_runtime.engine import Engine
    from forge_runtime.profile import KernelTime

TIMES: Final = {
    "latency_min_ms": "least_ms",
    "latency_median_ms": "p50_ms",
    "latency_p90_ms": "p90_ms",
    "latency_p99_ms": "p99_ms",
    "latency_runs": "runs",
    "latency_threads": "threads",
    "open_ms": "open_ms",
    "first_ms": "first_ms",
    "peak_kib": "peak_kib",
}
"""What is told of a run where its clock is true, by forge-run's words for it. ``peak_kib`` is of the whole process."""
SLOW_MS: Final = 500
"""A run that takes longer is profiled once."""
OF_A_BOARD: Final = ("cpu", "kernel", "governor", "khz", "throttled", "celsius_before", "celsius_after")


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """How an artifact, compiled for ``target``, is to be run; ``is_sealed``: a board gets it encrypted.

    ``is_one_of_several``: of a library for several CPUs, so that a board may have another one. ``emulator``: the words
    of the user's own for this target, if any.
    """

    runner: Runner
    device: Device | None
    target: Target
    latency_runs: int
    latency_seconds: float
    is_sealed: bool = False
    is_one_of_several: bool = False
    emulator: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Artifact:
    """``model`` runs it on the feeds, in their order; None where nothing does, and ``why_not`` says what refused it.

    ``where`` names the place; ``is_emulated`` that its time is no time of the target. ``advice``: why no
    emulator runs it, where one was looked for. ``facts`` and ``profile`` are of the last of some feeds, behind the
    others where a library keeps states.
    """

    model: Callable[[Feed], Mapping[str, NDArray[Any]]] | None = None
    where: str | None = None
    is_emulated: bool = False
    why_not: tuple[str, str] = ("", "")
    advice: str | None = None
    facts: Callable[[Sequence[Feed]], Facts] = lambda feeds: {}
    profile: Callable[[Sequence[Feed]], list[KernelTime]] = lambda feeds: []


@contextmanager
def opened(library: Library, feeds: Callable[[bool], Iterable[Feed]], wanted: Wanted) -> Iterator[Artifact]:
    """Run ``library``, or make ready to; ``feeds`` gives those for an emulator, or for what is no emulator.

    Raises DeviceError, MachineError and ArtifactError where the place that was asked for does not run it.
    """
    with ExitStack() as held:
        yield _opened(library, feeds, wanted, held)


def _opened(library: Library, feeds: Callable[[bool], Iterable[Feed]], wanted: Wanted, held: ExitStack) -> Artifact:
    why: tuple[str, str] | None = None
    if prefers_host(wanted.runner, wanted.device is not None):
        engine = compiled.load(_linked(library, Target.from_tag(HOST)))
        if not isinstance(engine, MachineError):
            return _here(engine, library, wanted)
        why = engine.expected, engine.found
    place = without_host(wanted.runner, library.metadata["target"], wanted.device, wanted.emulator)
    if isinstance(place, str):
        return Artifact(
            why_not=why or ("a place that runs it", place), advice=place if wanted.runner == "auto" else None
        )
    try:
        found = held.enter_context(_ran(place, library, feeds, wanted))
    except MachineError as refusal:
        may_refuse = wanted.is_one_of_several or (isinstance(place, Emulator) and wanted.runner != "emulator")
        if not may_refuse:
            raise
        return Artifact(why_not=(refusal.expected, refusal.found))
    return found


@contextmanager
def _ran(place: Place, library: Library, feeds: Callable[[bool], Iterable[Feed]], wanted: Wanted) -> Iterator[Artifact]:
    """Run ``library`` in a place other than this process, on all feeds, before any output is asked for."""
    is_emulated = not place.measures_time
    runs = 0 if is_emulated else wanted.latency_runs
    is_sealed = wanted.is_sealed and isinstance(place, Board)
    linked, seconds = _linked(library, wanted.target), wanted.latency_seconds
    with ran(place, linked, feeds(is_emulated), runs=runs, seconds=seconds, is_sealed=is_sealed) as run:
        facts = {} if is_emulated else _timed(run.facts)
        yield Artifact(model=run, where=place.name, is_emulated=is_emulated, facts=lambda feeds: facts)


def _here(engine: Engine, library: Library, wanted: Wanted) -> Artifact:
    def facts(feeds: Sequence[Feed]) -> Facts:
        """Time a process of its own: what it takes to start and at most is not lost among what a build has."""
        linked = _linked(library, Target.from_tag(HOST))
        with ran(Here(), linked, feeds, runs=wanted.latency_runs, seconds=wanted.latency_seconds) as run:
            return {"cpu": cpu_name(), **_timed(run.facts)}

    def profile(feeds: Sequence[Feed]) -> list[KernelTime]:
        if engine.states:
            engine.reset()
        for feed in feeds[:-1]:
            engine.run(feed)
        found = engine.profile(feeds[-1], runs=1, apart=True)
        is_slow = sum(kernel.milliseconds for kernel in found) > SLOW_MS
        return found if is_slow else engine.profile(feeds[-1], apart=True)

    return Artifact(model=engine.run, where=HOST, facts=facts, profile=profile)


def _timed(facts: Facts) -> Facts:
    told = {name: facts[word] for name, word in TIMES.items() if word in facts}
    return told | {name: facts[name] for name in OF_A_BOARD if name in facts}


def _linked(library: Library, target: Target) -> Library:
    """Return ``library`` as ``target`` can load it: what was compiled for a linker is linked to a shared object."""
    if library.metadata["target"]["triple"] != target.triple:
        return library
    return replace(library, elf=loadable(bytes(library.elf), target))
