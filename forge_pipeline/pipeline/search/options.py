"""The options of a search, conf/hydra/sweeper/budget.yaml, and what its overrides ask for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from forge_pipeline.config import bind
from forge_pipeline.errors import ConfigError, UsageError
from forge_pipeline.pipeline.search import experiment, measures, proposing, space
from forge_pipeline.pipeline.search.choosing import Rules

if TYPE_CHECKING:
    from hydra.core.override_parser.types import Override

WHERE = "hydra.sweeper"
CONF = Path("conf")
"""The folder, of the repository that a search is started in, that an experiment of a name of its own goes to."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """conf/hydra/sweeper/budget.yaml."""

    method: str
    trials: int
    minutes: float | None
    want: Any
    hold: Any
    enough: Any
    keep_float: int
    seed: int
    folder: str
    experiment: str | None
    devices: dict[str, str]

    def __post_init__(self) -> None:
        proposing.check(self.method)
        if self.trials < 1 or self.keep_float < 0:
            found = f"trials={self.trials}, keep_float={self.keep_float}"
            raise ConfigError(WHERE, "one trial or more, and no less than 0 layers", found, "give such numbers")
        if self.minutes is not None and not 0 < self.minutes < float("inf"):
            raise ConfigError(
                f"{WHERE}.minutes", "a number above 0, or null", str(self.minutes), "give minutes, or null for no limit"
            )
        if self.experiment is None:
            return
        where = f"{WHERE}.experiment={self.experiment}"
        if not self.experiment.replace("-", "_").isidentifier():
            raise ConfigError(where, "a name of letters, digits, - and _", "another", "choose another")
        if not (CONF / "config.yaml").is_file():
            raise ConfigError(where, f"{CONF}/config.yaml below the current folder", "none", "start it in a repository")


@dataclass(frozen=True, slots=True)
class Asked:
    """What is searched: overrides that all trials have, parameters, the first trial's values, and the rules."""

    base: tuple[Override, ...]
    space: tuple[space.Parameter, ...]
    rules: Rules
    devices: Mapping[str, str]

    def shared(self) -> list[str]:
        """Return the overrides that all trials have, but for their targets and places."""
        own = (item for item in self.base if item.key_or_group != "out")
        return [f"{item.get_key_element()}={item.get_value_element_as_str()}" for item in own]


def asked(options: Options, overrides: Sequence[Override], target: str) -> Asked:
    """Return what the overrides of a search ask for; ``target`` where they name none. Raises ForgeError."""
    base, varied, own = [], {}, [target]
    devices = dict(options.devices)
    device = None
    for item in overrides:
        if item.key_or_group == "target":
            own = list(item.sweep_string_iterator()) if item.is_sweep_override() else [item.get_value_element_as_str()]
            if any(tag.startswith("[") for tag in own):
                fix = "name a file of conf/target with `variants`, or a CPU"
                raise UsageError(f"target={','.join(own)}", "targets that have names", "a list", fix)
        elif item.key_or_group == "device" and not item.is_sweep_override():
            device = item.value()
        elif item.is_sweep_override():
            found = space.parameter(item)
            varied[found.key] = found
        else:
            base.append(item)
    if options.keep_float:
        if space.KEEP_FLOAT in varied:
            raise UsageError(f"{WHERE}.keep_float", f"it, or values of {space.KEEP_FLOAT}", "both", "give one of them")
        varied[space.KEEP_FLOAT] = space.kept(options.keep_float)
    rules = Rules(
        want=measures.wanted(options.want),
        hold=measures.bounds(options.hold, "hold"),
        enough=measures.bounds(options.enough, "enough"),
        own=tuple(dict.fromkeys(own)),
    )
    if not varied:
        fix = "give several values of something, such as quantize.per_channel=true,false, or hydra.sweeper.keep_float=N"
        raise UsageError("search", "something that varies", "nothing", fix)
    if options.method == "grid" and space.size(varied.values()) is None:
        raise UsageError(f"{WHERE}.method=grid", "values that can be listed", "an interval of numbers", "list some")
    if device is not None:
        if len(own) > 1:
            raise UsageError(f"device={device}", "one target", ", ".join(own), f"give {WHERE}.devices={{TARGET: NAME}}")
        devices[own[0]] = str(device)
    experiment.kept(base)
    return Asked(
        tuple(base), tuple(varied.values()), rules, {tag: devices[tag] for tag in rules.targets() if tag in devices}
    )


def options_of(section: Mapping[str, Any]) -> Options:
    """Return the options. Raises ConfigError."""
    return bind(Options, section, where=WHERE)
