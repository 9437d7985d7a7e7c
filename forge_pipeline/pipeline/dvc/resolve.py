"""conf/ and params.yaml -> resolved/: what each stage of `dvc repro` depends on, one small canonical YAML each.

DVC sees edited values in a file, but not a changed choice in a defaults list; so the choice is made here, once per
target, and every later stage depends on its slice alone. A slice also names the stage's version and its tools, so
that a new compiler reruns `compile` and nothing before it. `resolved/` is committed: `git diff` shows what an edit
comes to. An edit of `resolved/` itself would be undone here without a word: it is refused.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from forge_pipeline.config import bind
from forge_pipeline.crypto.keys import checked_sources
from forge_pipeline.digest import digest_json
from forge_pipeline.errors import ConfigError
from forge_pipeline.frontends.table import tools_for
from forge_pipeline.pipeline.build import REMOTE, REMOTE_OPTIONS
from forge_pipeline.pipeline.deliver import write_atomically
from forge_pipeline.pipeline.dvc.params import overrides
from forge_pipeline.pipeline.hydra_app import compose
from forge_pipeline.pipeline.runner import tool_version
from forge_pipeline.pipeline.stage_configs import password_sources, slices
from forge_pipeline.stages import STAGES, stage_of, tags_of
from forge_pipeline.stages.contract import Slice, step
from forge_pipeline.target.description import VARIANTS

RESOLVED = Path("resolved")
INPUTS = RESOLVED / "inputs.yaml"
_NOTED = re.compile(r"# Written by `resolve` .* (\S+)\n")


@dataclass(frozen=True, slots=True, kw_only=True)
class Matrix:
    """conf/config.yaml, section `matrix`: what `dvc repro` builds, and on which boards of conf/device it is run."""

    experiment: str | None
    targets: tuple[str, ...]
    devices: dict[str, str] = field(default_factory=dict)


def configurations(root: Path = Path()) -> tuple[Matrix, dict[str, dict[str, Any]]]:
    """Return the matrix, and the configuration of each of its targets; ConfigError where one is wrong.

    The configuration is ``root``/conf if that has a `config.yaml`, with the groups of this package behind it, and
    ``root``/params.yaml over it.
    """
    refuse_edits(root)
    asked = overrides(root)
    own = root / "conf"
    conf = own if (own / "config.yaml").is_file() else None
    first = compose([], conf)
    matrix = bind(Matrix, first["matrix"], where="matrix")
    chosen = [] if matrix.experiment is None else [f"experiment={matrix.experiment}"]
    for target in matrix.targets:
        if target.startswith("["):
            fix = "write conf/target/NAME.yaml with tag: NAME and variants: [...], and name that"
            raise ConfigError("matrix.targets", "targets that have names", target, fix)
    for target in matrix.devices.keys() - set(matrix.targets):
        raise ConfigError("matrix.devices", "targets of the matrix", target, "name it in matrix.targets, too")
    configs = {target: compose([*chosen, *_chosen(matrix, target), *asked], conf) for target in matrix.targets}
    if not configs:
        raise ConfigError("matrix.targets", "at least one target", "an empty list", "name targets in conf/config.yaml")
    return matrix, configs


def resolve(root: Path = Path()) -> Sequence[str]:
    """Write ``root``/resolved for every target of the matrix and return the targets; see `configurations`."""
    matrix, configs = configurations(root)
    parts = {target: slices(config) for target, config in configs.items()}
    inputs = inputs_of(next(iter(configs.values())))
    inputs["sealed"] = any(password_sources(config) for config in configs.values())
    inputs["targets"] = sorted(configs)
    if matrix.devices:
        inputs["devices"] = {target: dict(configs[target]["device"]) for target in matrix.devices}
    files = {INPUTS: inputs}
    if (model := inputs["files"]["model"]) is None:
        raise ConfigError("model.path", "a model file", "null", "name it in conf/, or in params.yaml")
    importer = importer_tools(root, model)
    for name, stage in STAGES.items():
        by_target = {target: _described(name, own) for target, own in parts.items()}
        if "password" in stage.wants:  # another place may hold another password
            by_target = {target: {**values, "password": inputs["password"]} for target, values in by_target.items()}
        if stage.per_target:
            files |= {slice_path(name, target): content for target, content in by_target.items()}
        elif stage.differs_by_target:
            files[slice_path(name)] = by_target
        else:
            shared = _shared(name, by_target)
            if "source" in stage.takes.values():
                shared = {**shared, "tools": {**shared["tools"], **importer}}
            files[slice_path(name)] = shared
    for path, content in files.items():
        write_atomically(root / path, _written(content))
    for path in (root / RESOLVED).rglob("*.yaml"):  # a target that left the matrix leaves nothing behind
        if path.relative_to(root) not in files:
            path.unlink()
    return tuple(configs)


def refuse_edits(root: Path = Path()) -> None:
    """Raise ConfigError where a file of ``root``/resolved no longer says what was written into it.

    `dvc exp run -S resolved/...` and an editor end here, and not in a build without the edit.
    """
    for path in sorted((root / RESOLVED).rglob("*.yaml")):
        if _is_edited(path):
            raise ConfigError(
                where=str(path.relative_to(root)),
                expected="what `resolve` wrote",
                found="an edit, which it would undo",
                fix="edit conf/, or params.yaml (`dvc exp run -S quantize.per_channel=false`); `git checkout resolved`",
            )


def _is_edited(path: Path) -> bool:
    try:
        text = path.read_text()
        noted = _NOTED.match(text)  # none: an earlier version wrote it
        return noted is not None and noted[1] != digest_json(yaml.safe_load(text))
    except (OSError, ValueError, TypeError, yaml.YAMLError):
        return True


def _written(content: Any) -> bytes:
    """Return a file's bytes: a line that says who writes it, with the digest of the values, and the values."""
    note = f"# Written by `resolve` from conf/ and params.yaml; edit those. {digest_json(content)}\n"
    return (note + yaml.safe_dump(content, sort_keys=True, allow_unicode=True)).encode()


def _chosen(matrix: Matrix, target: str) -> list[str]:
    device = matrix.devices.get(target)
    return [f"target={target}", *([] if device is None else [f"device={device}"])]


def slice_path(stage: str, target: str | None = None) -> Path:
    """Return where a stage's slice is: resolved/fold.yaml, resolved/raspberry-pi/5/compile.yaml."""
    return RESOLVED / (target or "") / f"{stage}.yaml"


def _described(stage: str, parts: Mapping[str, Slice]) -> dict[str, Any]:
    """Return a stage's slice with versions; with those of the steps for single CPUs by tag, where it joins these."""
    several = tags_of(parts[stage]) if STAGES[stage].joint is not None else ()
    alone = {tag: with_versions(step(stage, tag), parts[step(stage, tag)]) for tag in several}
    return {**with_versions(stage, parts[stage]), **({VARIANTS: alone} if alone else {})}


def slice_of(described: Mapping[str, Any], variant: str) -> Slice:
    """Return the slice that a file of ``resolved`` holds; with a ``variant``, that of the step for this CPU."""
    portable: Slice = (described[VARIANTS][variant] if variant else described)["config"]
    return portable


def with_versions(name: str, values: Slice) -> dict[str, Any]:
    """Return the slice of a step with the version of what it does, and the versions of its tools."""
    entry = stage_of(name, values)
    return {"config": values, "version": entry.version, "tools": {tool: tool_version(tool) for tool in entry.tools}}


def importer_tools(root: Path, model: str) -> dict[str, str]:
    """Return the versions of what reads the model, for the kind of file that it is; ONNX needs nothing.

    A model that is not there yet (``dvc pull`` brings it) has no kind: `load` refuses it by name if it stays away.
    Raises ModelError where the extra for its kind is missing.
    """
    if not (root / model).exists():
        return {}
    return {tool: tool_version(tool) for tool in tools_for(root / model)}


def inputs_of(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return where things are on this machine: files, the store and the password's place. No part of any key.

    What is returned is committed, and a remote's URL may hold a key: ConfigError where the configuration names one.
    """
    store = dict(config["store"])
    for name, outside in (("remote", REMOTE), ("remote_options", REMOTE_OPTIONS)):
        if store.pop(name, None):
            raise ConfigError(
                where=f"store.{name}",
                expected="nothing, since resolved/ is committed and this may hold a key",
                found="a value",
                fix=f"give it in the environment variable {outside}",
            )
    checked_sources(store["key"], "store.key")
    model, data = config["model"]["path"], config["data"]
    samples = data.get("path") or model  # DVC must be given a file, where there are no samples too
    return {
        "files": {"model": model, "calibration": samples, "evaluation": data.get("eval_path") or samples},
        "data": data,
        "store": store,
        "password": list(password_sources(config)),
    }


def _shared(stage: str, by_target: Mapping[str, dict[str, Any]]) -> dict[str, Any]:
    (first, values), *rest = by_target.items()
    for target, other in rest:
        if other != values:
            raise ConfigError(
                where=f"target {target}",
                expected=f"the `{stage}` options of {first}: {values['config']}",
                found=str(other["config"]),
                fix=f"`{stage}` runs once for all targets; choose its options in conf/{stage}/, not in a target",
            )
    return values


def targets(root: Path = Path()) -> tuple[str, ...]:
    """Return the targets for which ``root``/resolved was written, sorted."""
    path = root / INPUTS
    try:
        content = yaml.safe_load(path.read_text())["targets"]
    except FileNotFoundError as error:
        raise ConfigError(str(path), "resolved options", "no such file", "run `dvc repro`") from error
    return tuple(content)
