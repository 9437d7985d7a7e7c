"""A choice as a file for conf/experiment/: what `dvc repro` and `experiment=NAME` then build."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from typing import TYPE_CHECKING, Any

import yaml

from forge_pipeline.errors import UsageError
from forge_pipeline.pipeline.withheld import is_secretive

if TYPE_CHECKING:
    from hydra.core.override_parser.types import Override

ELSEWHERE = ("target", "device", "out", "jobs", "store", "matrix", "hydra", "sign.key", "encrypt.password")
"""Options that an experiment leaves to whoever builds it: the matrix, the command line, the environment."""


def kept(overrides: Iterable[Override]) -> list[Override]:
    """Return the overrides that belong into the file. Raises UsageError for one that no file can hold."""
    own = [item for item in overrides if not _is_elsewhere(item.key_or_group)]
    for item in own:
        given = item.input_line or item.key_or_group
        if item.is_delete() or item.package is not None:
            raise UsageError(given, "OPTION=VALUE or GROUP=CHOICE", "another form of override", "leave it out")
        if is_secretive(given):
            expected = "no secret: the choice is written to a file"
            raise UsageError(item.key_or_group, expected, "one (not shown)", "leave it out")
    return own


def _is_elsewhere(key: str) -> bool:
    return any(key == name or key.startswith((f"{name}.", f"{name}/")) for name in ELSEWHERE)


def text(overrides: Sequence[Override], groups: Collection[str], about: Sequence[str]) -> str:
    """Return the file: ``overrides`` as choices of ``groups`` and as values, under comments that say what it is."""
    first: list[Any] = []
    defaults: list[Any] = []
    values: dict[str, Any] = {}
    for item in overrides:
        if item.key_or_group == "experiment":
            if item.value() is not None:
                first = [item.value()]
        elif item.key_or_group in groups:
            defaults.append({f"override /{item.key_or_group}": item.value()})
        else:
            _put(values, item.key_or_group.split("."), item.value())
    body = {**({"defaults": [*first, *defaults, "_self_"]}), **values}
    comments = "".join(f"# {line}\n" for line in about)
    return f"# @package _global_\n{comments}{yaml.safe_dump(body, sort_keys=False, allow_unicode=True)}"


def _put(values: dict[str, Any], path: Sequence[str], value: Any) -> None:
    for part in path[:-1]:
        below = values.setdefault(part, {})
        if not isinstance(below, dict):  # an earlier override gave the whole of it
            below = values[part] = {}
        values = below
    values[path[-1]] = value
