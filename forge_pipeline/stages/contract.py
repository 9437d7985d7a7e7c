"""What a stage is: a name, what it takes, what it gives, and everything that can change its output."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Container, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal, Protocol

DELIVERED = "{target}"
"""The folder of what is delivered for a target."""

Form = Literal["library", "executable", "objects"]
"""What is delivered of a model, and under which names: a library, a program, or what a linker takes."""

Slice = dict[str, Any]
"""The options of one stage: exactly what its output may depend on, beside its inputs."""


PART = "part"
MARK = "@"
"""Between a stage's name and a CPU's, in the name of a step: `compile@x86-64/v3`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Joint:
    """What makes one output of a stage of those for several CPUs: a module ``code``, whose ``run`` takes the outputs
    by tag, as ``parts``, and beside them what ``takes`` names. ``version`` is raised as a stage's is.
    """

    code: str
    version: int
    takes: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """One row of the STAGES table. The code is in the module of the same name, imported when it runs.

    ``takes`` maps a parameter of ``run`` to where it comes from: a stage, or ``source`` (the model's file), ``data``
    (the samples) or ``calibration data`` (the part of them that calibrates). ``version`` is raised by hand when the
    code gives other bytes for the same inputs. ``tools`` names the distributions whose version enters the action
    key. ``wants`` names what the runner hands over beside the inputs: ``key`` (the action key), ``password``,
    ``entropy`` (a source of random bytes), ``progress`` (a callback), ``dump`` (a folder for who debugs, or None),
    ``shelf`` (where kernels are kept that its code made with its tools, or None),
    ``device`` (how the board is reached that is to run the artifact, or None), ``quiet`` (gives a context in which
    nothing else of the build runs on this machine, for what is timed).
    ``folder``: where `dvc repro` puts its output, below `out/`; DVC runs the stage once, or with ``per_target`` once
    for each. ``deliverables``: what of its output is for the user. ``joint``: how several outputs become one, where
    a library is for several CPUs. ``variant``: the CPU of which this is the step, in such a build; ``code``: the module
    of another name that this is the step of.
    """

    name: str
    version: int
    takes: Mapping[str, str]
    gives: str
    tools: tuple[str, ...]
    per_target: bool
    folder: str
    deliverables: tuple[str, ...] = ()
    wants: tuple[str, ...] = ()
    joint: Joint | None = None
    variant: str = ""
    code: str = ""

    @property
    def module(self) -> StageModule:
        """The stage's code: ``Config`` and ``run``."""
        return importlib.import_module(f"forge_pipeline.stages.{self.does}")

    @property
    def does(self) -> str:
        """What is done, as an action key has it."""
        return self.code or self.name

    def alone(self, variant: str, several: Container[str]) -> Stage:
        """Return the step for one CPU of several: it takes what stages among ``several`` gave for that one."""
        takes = {to: step(origin, variant) if origin in several else origin for to, origin in self.takes.items()}
        return replace(self, takes=takes, deliverables=(), variant=variant, joint=None)

    def joined(self, variants: Iterable[str]) -> Stage:
        """Return the step that makes one output of those for several CPUs."""
        if self.joint is None:
            raise AssertionError(f"nothing joins what {self.name} gives")
        takes = {step(PART, variant): step(self.name, variant) for variant in variants} | dict(self.joint.takes)
        made = {"version": self.joint.version, "code": self.joint.code, "takes": takes}
        return replace(self, **made, tools=(), wants=(), joint=None)  # type: ignore[arg-type]

    @property
    def differs_by_target(self) -> bool:
        """True where each target has an output of its own, though one run of DVC's may make them all."""
        return DELIVERED in self.folder

    @property
    def is_last(self) -> bool:
        """True where all of the output is for the user, false where it is for the stages after it."""
        return self.folder == DELIVERED

    def origins(self, config: Mapping[str, Any]) -> dict[str, str | None]:
        """Return ``takes``, with None for what this configuration leaves unread."""
        unread = self._hook("unread", lambda config: ())(config)
        return {parameter: None if parameter in unread else origin for parameter, origin in self.takes.items()}

    def sliced(self, section: Slice, rest: Rest) -> Slice:
        """Return what the output depends on: the section of this name, and what else of the configuration."""
        values: Slice = self._hook("sliced", lambda section, rest: section)(section, rest)
        return values

    def localized(self, values: Slice) -> Slice:
        """Return the slice with this machine's processor for `host`, and the digests of the user's own code."""
        here: Slice = self._hook("localized", lambda values: values)(values)
        return here

    def accepts(self, hit: Hit, wanted: Callable[[], Mapping[str, Any]]) -> bool:
        """Tell whether a result that is there already will do; ``wanted`` gives what the stage wants."""
        check = getattr(self.module, "accepts", None)
        return check is None or bool(check(hit, **wanted()))

    def _hook(self, name: str, otherwise: Any) -> Any:
        return getattr(self.module, name, otherwise)


def step(name: str, variant: str) -> str:
    """Return what the step of a stage, or an input, is called that is for one CPU of several."""
    return f"{name}{MARK}{variant}" if variant else name


def stage_and_variant(name: str) -> tuple[str, str]:
    """Return both from a step's name; of a step that is for no one CPU, an empty variant."""
    stage, _, variant = name.partition(MARK)
    return stage, variant


class StageModule(Protocol):
    """What every module in ``forge_pipeline.stages`` offers.

    It may also have ``unread(config)``, ``sliced(section, rest)``, ``localized(values)`` and
    ``accepts(hit, **wanted)``: see the methods of ``Stage`` that ask them.
    """

    Config: type[Any]

    def run(self, config: Any, **inputs: Any) -> Result:
        """Return a new output; touch no file, clock, environment or global random state."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """What ``run`` returns: the output, and a report (plain JSON, deterministic) for people and for the manifest."""

    output: Any
    report: Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Rest:
    """What of the configuration is no stage's own.

    ``inputs``, ``dims`` and ``values`` are conf/model's; ``preparation`` is how samples become inputs; ``form``
    is conf/package's. ``device``: of a board what makes its measurements its own, its name and host key; None without.
    ``verify`` is that of conf/compile.
    """

    inputs: Any
    target: Slice
    preparation: Slice
    has_data: bool
    dims: Mapping[str, Any] = field(default_factory=dict)
    values: Mapping[str, Any] = field(default_factory=dict)
    form: Form = "library"
    device: Slice | None = None
    verify: Mapping[str, Any] = field(default_factory=dict)


class Hit(Protocol):
    """A result in the store, before it is taken."""

    def config(self) -> Mapping[str, Any]:
        """Return the options that it was built with, localized."""

    def report(self) -> Mapping[str, Any]:
        """Return the stage's report."""

    def value(self) -> Any:
        """Return the output."""
