"""From the composed configuration to one slice per stage: exactly what that stage's output may depend on.

A slice is bound to the stage's ``Config`` here, before any work starts, so that a misspelt or ill-typed value is
refused at once; its canonical form enters the action key, and ``resolved/`` holds the same values for DVC.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from forge_pipeline.config import bind
from forge_pipeline.crypto.keys import checked_sources
from forge_pipeline.crypto.token_uri import checked_places
from forge_pipeline.digest import canonical_json
from forge_pipeline.errors import ConfigError, did_you_mean
from forge_pipeline.frontends.contract import Declared
from forge_pipeline.runners.device import Device
from forge_pipeline.stages import STAGES, giving, in_order, stage_of
from forge_pipeline.stages.contract import Form, Rest, Slice, step
from forge_pipeline.target import HOST, Target
from forge_pipeline.target.several import variants_of

DATA_PLACES = ("path", "eval_path")  # file names: their content is an input of its own, never a part of a key
SEALING = next(name for name, stage in STAGES.items() if "password" in stage.wants)
SECTIONS = (
    "model",
    "data",
    "package",
    "store",
    "matrix",
    "track",
    "target",
    "device",
    "out",
    "sign",
    "jobs",
    "experiment",
    *STAGES,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Model:
    """conf/model/*.yaml."""

    path: str | None
    inputs: tuple[Declared, ...] = ()
    dims: dict[str, int | list[int]] = field(default_factory=dict)
    values: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Sign:
    """conf/sign/*.yaml."""

    key: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Package:
    """conf/package/*.yaml."""

    form: Form


def slices(config: Mapping[str, Any]) -> dict[str, Slice]:
    """Return the portable slice of every step for the target that ``config`` names.

    A step is a stage, for one CPU. For several, stages with a joint have a step for each, with the very slice that it
    has in a build for that CPU alone, and one that joins these. Portable: the target `host` is still called `host`, so
    that the slices are the same on every machine; `localized` puts this machine's processor in. Raises ConfigError for
    an unknown section, option or type.
    """
    for section in config:
        if section not in SECTIONS:
            raise ConfigError(
                where=section,
                expected="a section: " + ", ".join(sorted(SECTIONS)),
                found=f"unknown section {section!r}",
                fix=f"{did_you_mean(section, SECTIONS)}correct the name or remove it",
            )
    several = variants_of(_section(config, "target"))
    if not several:
        return _slices(config)
    form = bind(Package, _section(config, "package"), where="package").form
    if form != "library":
        fix = "choose package=library, or build for each of them"
        raise ConfigError("package.form", "library, for several CPUs", form, fix)
    alone = {tag: _slices({**config, "target": section}, is_one_of_several=True) for tag, section in several.items()}
    first = next(iter(alone.values()))
    joint = {"target": {"tag": str(config["target"]["tag"]), "variants": list(several)}}
    parts: dict[str, Slice] = {}
    for name, stage in STAGES.items():
        if stage.joint is not None:
            parts |= {step(name, tag): own[name] for tag, own in alone.items()}
        parts[name] = first[name] if stage.joint is None else joint
    return parts


def _slices(config: Mapping[str, Any], *, is_one_of_several: bool = False) -> dict[str, Slice]:
    """Return the portable slices for the one CPU that ``config`` names."""
    target, data = dict(_section(config, "target")), _section(config, "data")
    Target.from_config(target)  # refused here, before any work starts
    model = bind(Model, _section(config, "model"), where="model")
    rest = Rest(
        inputs=dataclasses.asdict(model)["inputs"],
        dims=model.dims,
        values=model.values,
        target=target,
        preparation={key: value for key, value in data.items() if key not in DATA_PLACES},
        has_data=data.get("path") is not None,
        form=bind(Package, _section(config, "package"), where="package").form,
        device=_known(
            Device.of(config.get("device")),
            is_sealed=bool(password_sources(config)),
            is_one_of_several=is_one_of_several,
        ),
        verify=_section(_section(config, giving("library").name), "verify"),
    )
    password_sources(config)
    key_sources(config)
    dump_folder(config)
    raw = {name: stage.sliced(dict(_section(config, name)), rest) for name, stage in STAGES.items()}
    checked = {name: localized(name, values) for name, values in raw.items()}
    portable = {name: raw[name] if _mentions_host(raw[name]) else checked[name] for name in raw}
    plain: dict[str, Slice] = json.loads(canonical_json(portable))  # tuples become lists: what YAML can hold
    return plain


def localized(stage: str, portable: Slice) -> Slice:
    """Return the slice of a step as it holds on this machine and as the stage's Config understands it."""
    row = stage_of(stage, portable)
    return dataclasses.asdict(bind(row.module.Config, row.localized(portable), where=stage))


def plan(parts: Mapping[str, Slice]) -> dict[str, dict[str, str | None]]:
    """Return the steps that lead to what is delivered, in their order, each with where it reads its inputs from."""
    stages = {name: stage_of(name, parts[name]) for name in in_order(parts)}
    origins = {name: stage.origins(parts[name]) for name, stage in stages.items()}
    needed: set[str | None] = set()
    for name in reversed(origins):
        if stages[name].is_last or name in needed:
            needed |= {name, *origins[name].values()}
    return {name: read for name, read in origins.items() if name in needed}


def _known(device: Device | None, *, is_sealed: bool, is_one_of_several: bool) -> Slice | None:
    """Return what makes a board's measurements its own; how it is reached makes no difference.

    What is delivered encrypted goes there encrypted, and takes longer to open. A board need not run every variant.
    """
    if device is None:
        return None
    settings = {"prefix": list(device.prefix), "cpus": list(device.cpus), "cool_down": device.cool_down}
    sealed = {"is_sealed": True} if is_sealed else {}
    several = {"is_one_of_several": True} if is_one_of_several else {}
    return {"name": device.name, "fingerprint": device.fingerprint(), **settings, **sealed, **several}


def _mentions_host(values: Slice) -> bool:
    target = values.get("target")
    named = target.get("tag") if isinstance(target, Mapping) else None
    return HOST in (values.get("machine"), named) or "runner" in values


def password_sources(config: Mapping[str, Any]) -> tuple[str, ...]:
    """Return where the password may be found, most preferred first; empty when the artifact stays plain."""
    sources = _section(config, SEALING).get("password", ())
    if isinstance(sources, str):
        sources = [sources]
    if not isinstance(sources, list | tuple) or not all(isinstance(source, str) for source in sources):
        raise ConfigError(
            f"{SEALING}.password", "a list of places such as env:NAME or file:PATH", type(sources).__name__,
            "name where the password is, never the password itself",
        )  # fmt: skip
    checked_sources(sources)  # a password pasted here goes no further, into a file or an error
    return tuple(sources)


def key_sources(config: Mapping[str, Any]) -> tuple[str, ...]:
    """Return where the key that signs what is delivered may be, most preferred first; empty to sign nothing."""
    sources = bind(Sign, config.get("sign", {}), where="sign").key
    checked_places(sources, "sign.key")
    return sources


def dump_folder(config: Mapping[str, Any]) -> Path | None:
    """Return where the stage that can is to leave what each of its steps makes; None for nowhere."""
    stage = next(stage.name for stage in STAGES.values() if "dump" in stage.wants)
    folder = _section(config, stage).get("dump")
    if folder is None:
        return None
    if not isinstance(folder, str) or not folder:
        raise ConfigError(f"{stage}.dump", "a folder name, or null", repr(folder), f"give {stage}.dump=FOLDER")
    return Path(folder).absolute()


def _section(config: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    section = config.get(name)
    if not isinstance(section, Mapping):
        raise ConfigError(
            where=name,
            expected=f"the options of `{name}`",
            found="nothing" if section is None else repr(section),
            fix=f"choose one of conf/{name}/*.yaml, such as `{name}=default`",
        )
    return section
