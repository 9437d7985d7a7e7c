"""A target for several CPUs, spread: in place of each tag that it lists, what a build for that CPU alone would have.

Such a target is a list on the command line (`target=[x86-64/v2,x86-64/v3]`, which Hydra by itself takes for files to be
merged into one), or a file of conf/target with `variants`. Each CPU's section is composed as it would be alone, with
the other overrides; so `+target.cores=2` holds for each, and groups of the user's own are found.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from forge_pipeline.errors import ConfigError, UsageError
from forge_pipeline.target.description import VARIANTS, is_several, section_of
from forge_pipeline.target.several import name_of

if TYPE_CHECKING:
    from omegaconf import DictConfig

GROUP = "target"


def spread(config: DictConfig, hydra: Any) -> DictConfig:
    """Return ``config`` with the sections of all CPUs that its target lists; as it is where that is one CPU.

    ``hydra`` is Hydra's own part of the configuration, None where that did not compose it. Raises ConfigError, and what
    Hydra raises for a tag that it does not find.
    """
    from omegaconf import OmegaConf, flag_override

    overrides = [] if hydra is None else [str(each) for each in hydra.overrides.task]
    section = config.get(GROUP)
    named = _listed(overrides)
    if named is not None:
        described: dict[str, Any] = {"tag": name_of(named), "description": f"any of {', '.join(named)}"}
    elif is_several(section) and not OmegaConf.is_missing(section, VARIANTS):
        described = dict(OmegaConf.to_container(section))  # type: ignore[arg-type]
        named = described.pop(VARIANTS)
    else:
        return config
    where = f"{GROUP} {described.get('tag') or '[]'}"
    if isinstance(named, list) and named and all(isinstance(each, dict) for each in named):
        return config  # it is spread already
    if not isinstance(named, list) or not named or not all(isinstance(each, str) for each in named):
        raise ConfigError(where, f"{VARIANTS}: a list of tags", repr(named), "write `variants: [TAG, TAG]`")
    sections = [_alone(tag, hydra, overrides, where) for tag in named]
    with flag_override(config, ["struct", "readonly"], False):
        config[GROUP] = {**described, VARIANTS: sections}
    return config


def running() -> Any:
    """Return Hydra's own part of the configuration of the job that runs in this process; None outside of one."""
    from hydra.core.hydra_config import HydraConfig

    return HydraConfig.get() if HydraConfig.initialized() else None


def _listed(overrides: Iterable[str]) -> list[str] | None:
    """Return the tags of a list that an override gives; None where none is one."""
    from hydra.core.override_parser.overrides_parser import OverridesParser

    found = None
    for override in OverridesParser.create().parse_overrides([each for each in overrides if each.startswith(GROUP)]):
        if override.key_or_group == GROUP and override.package is None:
            value = override.value()
            found = [str(each) for each in value] if isinstance(value, list) else None
    return found


def _alone(tag: str, hydra: Any, overrides: Sequence[str], where: str) -> Any:
    """Return the section of a single CPU, by the composition that is going on, or by this package's own groups."""
    from hydra import compose
    from hydra.core.global_hydra import GlobalHydra
    from omegaconf import OmegaConf

    if hydra is None or not GlobalHydra.instance().is_initialized():
        section = section_of(tag)
    else:
        kept = [_set(each) for each in overrides if each.lstrip("+").partition("=")[0] != GROUP]
        search = [str(each) for each in hydra.overrides.hydra if str(each).startswith("hydra.searchpath")]
        composed = compose(hydra.job.config_name, overrides=[*search, *kept, f"{GROUP}={tag}"])
        section = OmegaConf.to_container(composed[GROUP], resolve=True)
    if is_several(section):
        raise ConfigError(
            where, "tags of single CPUs", f"{tag}, which lists several itself", "name those that it lists"
        )
    if not isinstance(section, dict):
        raise UsageError(where, "the description of a CPU", type(section).__name__, f"look at {GROUP}={tag}")
    return section


def _set(override: str) -> str:
    """Return what is added to a target that lists several as what is changed of a single one."""
    plain = override.lstrip("+")
    return plain if plain.startswith(f"{GROUP}.") else override
