"""From the composed configuration to one slice per stage: exactly what that stage's output may depend on.

A slice is bound to the stage's ``Config`` here, before any work starts, so that a misspelt or ill-typed value is
refused at once; its canonical form enters the action key, and ``resolved/`` holds the same values for DVC.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from forge_pipeline.config import bind
from forge_pipeline.crypto.keys import checked_sources
from forge_pipeline.digest import canonical_json, digest_module
from forge_pipeline.errors import ConfigError, did_you_mean
from forge_pipeline.evaluation import scores
from forge_pipeline.frontends.contract import Declared
from forge_pipeline.passes.table import user_modules
from forge_pipeline.stages import STAGES
from forge_pipeline.target import HOST, Target

DATA_PLACES = ("path", "eval_path")  # file names: their content is an input of its own, never a part of a key
ANY = "any"  # a method of conf/quantize that the data decides about
SECTIONS = ("model", "data", "store", "matrix", "target", "out", "experiment", *STAGES)

Slice = dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Model:
    """conf/model/*.yaml."""

    path: str | None
    inputs: tuple[Declared, ...] = ()


def slices(config: Mapping[str, Any]) -> dict[str, Slice]:
    """Return the portable slice of every stage for the one target that ``config`` names.

    Portable: the target `host` is still called `host`, so that the slices are the same on every machine;
    `localized` puts this machine's processor in. Raises ConfigError for an unknown section, option or type.
    """
    for section in config:
        if section not in SECTIONS:
            raise ConfigError(
                where=section,
                expected="a section: " + ", ".join(sorted(SECTIONS)),
                found=f"unknown section {section!r}",
                fix=f"{did_you_mean(section, SECTIONS)}correct the name or remove it",
            )
    target = dict(_section(config, "target"))
    Target.from_config(target)  # refused here, before any work starts
    data = {key: value for key, value in _section(config, "data").items() if key not in DATA_PLACES}
    raw: dict[str, Slice] = {name: dict(_section(config, name)) for name in STAGES}
    raw["load"]["inputs"] = dataclasses.asdict(bind(Model, _section(config, "model"), where="model"))["inputs"]
    raw["calibrate"]["data"] = data
    raw["evaluate"]["data"] = data
    raw["compile"]["target"] = target
    dump_folder(config)
    raw["compile"].pop("dump", None)  # for who debugs: a part of no key
    password_sources(config)
    raw["encrypt"].pop("password", None)  # where the secret is: a part of no key
    if raw["quantize"].get("method") == ANY:
        raw["quantize"]["method"] = "dynamic" if _section(config, "data").get("path") is None else "static"
    raw["quantize"]["data"] = data if uses_ranges(raw) else None
    checked = {name: localized(name, values) for name, values in raw.items()}
    portable = {name: raw[name] if _mentions_host(raw[name]) else checked[name] for name in raw}
    plain: dict[str, Slice] = json.loads(canonical_json(portable))  # tuples become lists: what YAML can hold
    return plain


def uses_ranges(parts: Mapping[str, Mapping[str, Any]]) -> bool:
    """Tell whether quantization will ask for calibrated ranges, and for the data that they were calibrated with."""
    return bool(parts["quantize"].get("method") == "static")


def localized(stage: str, portable: Slice) -> Slice:
    """Return the slice with `host` replaced by this machine's processor, as the stage's Config understands it."""
    values = dict(portable)
    if stage == "compile":
        values["target"] = dataclasses.asdict(Target.from_config(values["target"]))
    if stage == "fold" and isinstance(values.get("imports"), list):
        modules = user_modules(_pass_names(values.get("passes")), values["imports"])
        values["import_sources"] = [digest_module(str(name)) for name in modules]
    if stage == "evaluate" and values.get("machine") == HOST:
        values["machine"] = Target.from_tag(HOST).description
    if stage == "evaluate" and isinstance(values.get("metric"), str):
        values["metric_source"] = scores.source_digest(values["metric"])  # a user's own code, as it is now
    return dataclasses.asdict(bind(STAGES[stage].module.Config, values, where=stage))


def _pass_names(entries: object) -> Iterator[str]:
    """Walk conf/fold's list: names, `name: {option: value}`, `repeat: [...]`."""
    for entry in entries if isinstance(entries, list | tuple) else ():
        if isinstance(entry, str):
            yield entry
        elif isinstance(entry, Mapping):
            for name, options in entry.items():
                yield from _pass_names(options) if name == "repeat" else (str(name),)


def _mentions_host(values: Slice) -> bool:
    target = values.get("target")
    named = target.get("tag") if isinstance(target, Mapping) else None
    return HOST in (values.get("machine"), named)


def password_sources(config: Mapping[str, Any]) -> tuple[str, ...]:
    """Return where the password may be found, most preferred first; empty when the artifact stays plain."""
    sources = _section(config, "encrypt").get("password", ())
    if isinstance(sources, str):
        sources = [sources]
    if not isinstance(sources, list | tuple) or not all(isinstance(source, str) for source in sources):
        raise ConfigError(
            "encrypt.password", "a list of places such as env:NAME or file:PATH", type(sources).__name__,
            "name where the password is, never the password itself",
        )  # fmt: skip
    checked_sources(sources)  # a password pasted here goes no further, into a file or an error
    return tuple(sources)


def dump_folder(config: Mapping[str, Any]) -> Path | None:
    """Return where the compiler is to leave what each of its steps makes; None for nowhere."""
    folder = _section(config, "compile").get("dump")
    if folder is None:
        return None
    if not isinstance(folder, str) or not folder:
        raise ConfigError("compile.dump", "a folder name, or null", repr(folder), "give compile.dump=FOLDER")
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
