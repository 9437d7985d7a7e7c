"""Runs one stage through the store: the only place where a stage meets files, clocks and secrets."""

from __future__ import annotations

import importlib.metadata
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, Protocol

from forge_pipeline.config import bind
from forge_pipeline.content import Content, unchanging
from forge_pipeline.digest import canonical_json, digest_json
from forge_pipeline.errors import ForgeError
from forge_pipeline.pipeline.stage_configs import Slice, localized
from forge_pipeline.stages import STAGES
from forge_pipeline.stages.artifacts import KINDS, REPORT, Kind
from forge_pipeline.stages.contract import Stage
from forge_pipeline.store import Action, Store


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

    def manifest(self) -> dict[str, Any]:
        """Return the stage's entry in `manifest.json`."""
        return {
            "stage": self.stage.name,
            "action_key": self.action.key,
            "result": "hit" if self.hit else "built",
            "seconds": round(self.seconds, 3),
            "outputs": dict(sorted(self.action.outputs.items())),
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Runner:
    """Looks a stage's action up, or runs it and records the result.

    ``ambient`` provides what a stage may want beside its inputs (a password, randomness, a progress display);
    none of it enters the action key. ``accept`` may refuse a hit, by stage name: the sealed artifact whose key
    file the supplied password does not open. With ``sealed``, what shows the model or the samples stays on this
    machine: the remote store gets only what their kind of artifact does not disclose them in.
    """

    store: Store
    ambient: Mapping[str, Any] = field(default_factory=dict)
    accept: Mapping[str, Callable[[Output], bool]] = field(default_factory=dict)
    announce: Callable[[Output], None] = lambda output: None
    sealed: bool = False

    def run(self, name: str, portable: Slice, inputs: Mapping[str, Input | None]) -> Output:
        """Return the output of stage ``name`` for its resolved ``portable`` slice and its inputs.

        What the stage reads is what its key says: a file that changes in between is a ForgeError, an object of the
        store a StoreError, and nothing is recorded.
        """
        with unchanging():
            return self._run(name, portable, inputs)

    def _run(self, name: str, portable: Slice, inputs: Mapping[str, Input | None]) -> Output:
        stage = STAGES[name]
        config = localized(name, portable)
        ingredients = key_parts(stage, config, inputs)
        key = digest_json(ingredients)

        def build() -> tuple[dict[str, Content], dict[str, Any]]:
            values = {parameter: None if item is None else item.value() for parameter, item in inputs.items()}
            wanted = {want: key if want == "key" else self.ambient[want] for want in stage.wants}
            result = stage.module.run(bind(stage.module.Config, config, where=name), **values, **wanted)
            contents = KINDS[stage.gives].write(result.output)
            return {**contents, REPORT: canonical_json(result.report)}, ingredients

        def confirm() -> None:
            for item in inputs.values():
                if isinstance(item, Output):
                    item.store.confirm(item.action, item.digest())
            again = key_parts(stage, localized(name, portable), inputs)
            if again != ingredients:
                raise _unlike(name, ingredients, again)

        def accepted(action: Action) -> bool:
            check = self.accept.get(name)
            return check is None or check(Output(stage=stage, action=action, hit=True, seconds=0.0, store=self.store))

        def shared(contents: Mapping[str, Content]) -> bool:
            return not (self.sealed and KINDS[stage.gives].discloses(contents))

        start = time.perf_counter()
        action, hit = self.store.get_or_build(key, build, accept=accepted, share=shared, confirm=confirm)
        output = Output(stage=stage, action=action, hit=hit, seconds=time.perf_counter() - start, store=self.store)
        self.announce(output)
        return output


def key_parts(stage: Stage, config: Slice, inputs: Mapping[str, Input | None]) -> dict[str, Any]:
    """Return everything that can change the stage's output: its digest is the action key.

    No path, clock or host name is in it. The store keeps it with the action, to say later why a stage ran.
    """
    tools = {*stage.tools, *(tool for item in inputs.values() if isinstance(item, External) for tool in item.tools)}
    return {
        "stage": stage.name,
        "version": stage.version,
        "config": config,
        "inputs": {parameter: None if item is None else item.digest() for parameter, item in inputs.items()},
        "tools": {tool: tool_version(tool) for tool in sorted(tools)},
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
