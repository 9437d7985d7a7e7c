"""What a stage is: a name, what it takes, what it gives, and everything that can change its output."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

DELIVERED = "{target}"
"""The folder of what is delivered for a target."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """One row of the STAGES table. The code is in the module of the same name, imported when it runs.

    ``takes`` maps a parameter of ``run`` to where it comes from: a stage, or ``source`` (the model's file), ``data``
    (the samples) or ``calibration data`` (the part of them that calibrates). ``version`` is raised by hand when the
    code gives other bytes for the same inputs. ``tools`` names the distributions whose version enters the action
    key. ``wants`` names what the runner hands over beside the inputs: ``key`` (the action key), ``password``,
    ``entropy`` (a source of random bytes), ``progress`` (a callback). ``folder``: where `dvc repro` puts its output,
    below `out/`.
    """

    name: str
    version: int
    takes: Mapping[str, str]
    gives: str
    tools: tuple[str, ...]
    per_target: bool
    folder: str
    wants: tuple[str, ...] = ()

    @property
    def delivers(self) -> bool:
        """True where the output is for the user, false where it is for the stages after it."""
        return self.folder == DELIVERED

    @property
    def module(self) -> StageModule:
        """The stage's code: ``Config`` and ``run``."""
        return importlib.import_module(f"forge_pipeline.stages.{self.name}")


class StageModule(Protocol):
    """What every module in ``forge_pipeline.stages`` offers."""

    Config: type[Any]

    def run(self, config: Any, **inputs: Any) -> Result:
        """Return a new output; touch no file, clock, environment or global random state."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """What ``run`` returns: the output, and a report (plain JSON, deterministic) for people and for the manifest."""

    output: Any
    report: Mapping[str, Any]
