"""Runs one stage through the store: the only place where a stage meets files, clocks and secrets."""

from __future__ import annotations

import importlib.metadata
import json
import time
from collections.abc import Callable, Container, Iterable, Mapping
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, Literal, Protocol

from forge_pipeline.config import bind
from forge_pipeline.content import Content, unchanging
from forge_pipeline.digest import canonical_json, digest_content, digest_json
from forge_pipeline.errors import ForgeError
from forge_pipeline.frontends.source import Source, naming
from forge_pipeline.pipeline.reasons import reason_for
from forge_pipeline.pipeline.stage_configs import localized
from forge_pipeline.stages import stage_of
from forge_pipeline.stages.artifacts import KINDS, REPORT, Kind
from forge_pipeline.stages.contract import Result, Slice, Stage
from forge_pipeline.store import Action, Note, Store


class Input(Protocol):
    """Something a stage takes: an identity for the action key, and the object itself when the stage must run."""

    def digest(self) -> Any:
        """Return what stands for the content in an action key: plain JSON made of digests."""

    def value(self) -> Any:
        """Return the domain object."""


class Origin(Protocol):
    """A file or a collection of samples that knows the digest of its content."""

    def digest(self) -> Any:
        """Return what stands for the content in an action key."""


@dataclass(frozen=True, slots=True)
class External:
    """What comes from outside, as an input: the model's file, the samples."""

    content: Origin
    tools: tuple[str, ...] = ()  # distributions that decide what it becomes, beside those of the stage that takes it

    def digest(self) -> Any:
        """Return the digest of the content as it is now."""
        return self.content.digest()

    def value(self) -> Origin:
        """Return the thing itself."""
        return self.content


@dataclass(frozen=True, slots=True)
class InMemory:
    """What a program holds, as an input: identified by what its files would hold."""

    kind: Kind
    content: Any

    def digest(self) -> dict[str, str]:
        """Return the digests of the identity files."""
        contents = self.kind.write(self.content)
        return {name: digest_content(contents[name]) for name in self.kind.identity if name in contents}

    def value(self) -> Any:
        """Return the domain object."""
        return self.content


@dataclass(frozen=True, slots=True, kw_only=True)
class Output:
    """A stage's output in the store; an input of the stages after it."""

    stage: Stage
    action: Action
    hit: bool
    seconds: float
    store: Store

    @property
    def kind(self) -> Kind:
        """How the files are read."""
        return KINDS[self.stage.gives]

    @property
    def discloses(self) -> bool:
        """Whether the files show the model or the samples to whoever reads them without a password."""
        return self.kind.discloses(self.action.outputs)

    def digest(self) -> dict[str, str]:
        """Return the digests of the identity files."""
        outputs = self.action.outputs
        return {name: outputs[name] for name in self.kind.identity if name in outputs}

    def files(self) -> dict[str, Path]:
        """Return where the store keeps each file; read-only, to be read and never written."""
        return {name: self.store.path(digest) for name, digest in self.action.outputs.items()}

    def value(self) -> Any:
        """Read the domain object, always from the stored bytes: a fresh build and a hit take the same way."""
        return self.kind.read(self.files())

    def config(self) -> Mapping[str, Any]:
        """Return the options that it was built with, localized."""
        config: Mapping[str, Any] = self.action.report["config"]
        return config

    def report(self) -> Mapping[str, Any]:
        """Return the stage's report."""
        report: Mapping[str, Any] = json.loads(self.store.read(self.action.outputs[REPORT]))
        return report

    def manifest(self) -> dict[str, Any]:
        """Return the stage's entry in `manifest.json`."""
        return {
            "stage": self.stage.name,
            **({"variant": self.stage.variant} if self.stage.variant else {}),
            "action_key": self.action.key,
            "result": "hit" if self.hit else "built",
            "seconds": round(self.seconds, 3),
            "outputs": dict(sorted(self.action.outputs.items())),
        }


Ambient = Mapping[str, Callable[[str], Any]]
"""What a stage may want beside its inputs (a password, randomness, a progress display), each given the stage's name."""


@dataclass(frozen=True, slots=True)
class Run:
    """One run of a stage, for its resolved slice and its inputs: what it depends on, and how to do it."""

    stage: Stage
    portable: Slice
    inputs: Mapping[str, Input | None]
    ambient: Ambient
    ingredients: dict[str, Any]

    @classmethod
    def of(cls, name: str, portable: Slice, inputs: Mapping[str, Input | None], ambient: Ambient) -> Run:
        """Take the digest of all that the stage's output depends on. Use it inside ``unchanging``."""
        stage = stage_of(name, portable)
        return cls(stage, portable, inputs, ambient, key_parts(stage, localized(name, portable), inputs))

    @property
    def key(self) -> str:
        """The action key."""
        return digest_json(self.ingredients)

    def wanted(self) -> dict[str, Any]:
        """Return what the stage wants beside its inputs; none of it enters the action key, which may be among it."""
        return {want: self.key if want == "key" else self.ambient[want](self.stage.name) for want in self.stage.wants}

    def result(self) -> Result:
        """Run the stage."""
        values = {parameter: None if item is None else item.value() for parameter, item in self.inputs.items()}
        module = self.stage.module
        return module.run(
            bind(module.Config, self.ingredients["config"], where=self.stage.name), **values, **self.wanted()
        )

    def confirm(self) -> None:
        """Raise ForgeError, or StoreError, where what the stage read is no longer what its key says."""
        for item in self.inputs.values():
            if isinstance(item, Output):
                item.store.confirm(item.action, item.digest())
        again = key_parts(self.stage, localized(self.stage.name, self.portable), self.inputs)
        if again != self.ingredients:
            raise _unlike(self.stage.name, self.ingredients, again)


def run_once(name: str, portable: Slice, inputs: Mapping[str, Input | None], ambient: Ambient | None = None) -> Result:
    """Run a stage as ``Runner`` does, and keep nothing: large weights stay in the files that they are in."""
    with unchanging():
        run = Run.of(name, portable, inputs, ambient or {})
        result = run.result()
        run.confirm()
        return result


@dataclass(frozen=True, slots=True, kw_only=True)
class Runner:
    """Looks a stage's action up, or runs it and records the result.

    The stage itself may refuse a hit: a sealed artifact whose key file the password does not open. With ``sealed``,
    what shows the model or the samples stays on this machine: the remote store gets only what their kind of artifact
    does not disclose them in. ``starting`` is called with the name of a stage that has to run, ``announce`` with what
    every stage gave. ``model``, a file's name, is noted in the store with what comes in.
    """

    store: Store
    ambient: Ambient = field(default_factory=dict)
    announce: Callable[[Output], None] = lambda output: None
    sealed: bool = False
    starting: Callable[[str], object] = lambda stage: None
    model: str = ""

    def run(
        self,
        name: str,
        portable: Slice,
        inputs: Mapping[str, Input | None],
        *,
        first: Callable[[], object] | None = None,
    ) -> Output:
        """Return the output of stage ``name`` for its resolved ``portable`` slice and its inputs.

        ``first`` is called where the stage has to run, before it does; what it raises keeps it from that.
        What the stage reads is what its key says: a file that changes in between is a ForgeError, an object of the
        store a StoreError, and nothing is recorded.
        """
        with unchanging():
            return self._run(Run.of(name, portable, inputs, self.ambient), first)

    def look(self, name: str, portable: Slice, inputs: Mapping[str, Input | None]) -> tuple[Run, Output | None, bool]:
        """Return the run, the output where that is a hit, and whether it is here. Nothing is run or moved."""
        with unchanging():
            run = Run.of(name, portable, inputs, self.ambient)
            found = self.store.peek(run.key)
            if found is None:
                return run, None, False
            action, is_here = found
            hit = Output(stage=run.stage, action=action, hit=True, seconds=0.0, store=self.store)
            accepted = not is_here or run.stage.accepts(hit, run.wanted)
            return run, hit if accepted else None, is_here

    def _run(self, run: Run, first: Callable[[], object] | None) -> Output:
        stage = run.stage
        why = ""

        def build() -> tuple[dict[str, Content], dict[str, Any]]:
            nonlocal why
            if first is not None:
                first()
            with suppress(RecursionError):  # what a remote's records hold is anybody's
                why = str(reason_for(stage, run.ingredients, self.store, self.model))
            self.starting(stage.name)
            with ExitStack() as named:
                for item in run.inputs.values():
                    if isinstance(item, External) and isinstance(item.content, Source):
                        named.enter_context(naming(item.content.path))
                result = run.result()
            return {**KINDS[stage.gives].write(result.output), REPORT: canonical_json(result.report)}, run.ingredients

        def accepted(action: Action) -> bool:
            hit = Output(stage=stage, action=action, hit=True, seconds=0.0, store=self.store)
            return stage.accepts(hit, run.wanted)

        def shared(names: Container[str]) -> bool:
            return not (self.sealed and KINDS[stage.gives].discloses(names))

        start = time.perf_counter()
        action, hit = self.store.get_or_build(run.key, build, accept=accepted, share=shared, confirm=run.confirm)
        output = Output(stage=stage, action=action, hit=hit, seconds=time.perf_counter() - start, store=self.store)
        if not hit or self.store.was_fetched(run.key):
            came: Literal["built", "remote"] = "remote" if hit else "built"
            self.store.take_note(run.key, Note(came=came, when=time.time(), model=self.model, reason=why))
        self.announce(output)
        return output


def maker_of(stage: Stage, tools: Iterable[str] = ()) -> dict[str, Any]:
    """Return the code and the tools that make what ``stage`` gives, and the versions of more ``tools``."""
    return {
        "stage": stage.does,
        "version": stage.version,
        "tools": {tool: tool_version(tool) for tool in sorted({*stage.tools, *tools})},
    }


def key_parts(stage: Stage, config: Slice, inputs: Mapping[str, Input | None]) -> dict[str, Any]:
    """Return everything that can change the stage's output: its digest is the action key.

    No path, clock or host name is in it. The store keeps it with the action, to say later why a stage ran.
    """
    return {
        **maker_of(stage, [tool for item in inputs.values() if isinstance(item, External) for tool in item.tools]),
        "config": config,
        "inputs": {parameter: None if item is None else item.digest() for parameter, item in inputs.items()},
    }


def _unlike(name: str, before: Mapping[str, Any], after: Mapping[str, Any]) -> ForgeError:
    changed = [item for item, digest in before["inputs"].items() if digest != after["inputs"][item]]
    return ForgeError(
        where=f"{name}: {', '.join(changed) or 'code that the configuration names'}",
        expected="the same content each time it is read",
        found="other content than before",
        fix="run this again once nothing changes it",
    )


@cache
def tool_version(distribution: str) -> str:
    """Return the installed version of a distribution."""
    return importlib.metadata.version(distribution)
