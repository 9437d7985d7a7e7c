"""A target that stands for several CPUs of a family, for which one library is built: a list of tags under one name."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import PurePosixPath
from typing import Any, Final

from forge_pipeline.errors import ConfigError
from forge_pipeline.target.description import HOST, VARIANTS, Target, is_several

LIMIT: Final = 16
"""Of variants in a library."""
LONGEST: Final = 47
"""Bytes of a variant's name in a library."""


def variants_of(section: Mapping[str, Any]) -> dict[str, Mapping[str, Any]]:
    """Return the sections of the single CPUs by tag; nothing for a target that is one CPU. Raises ConfigError."""
    if not is_several(section):
        return {}
    where, listed = f"target {section.get('tag')}", section[VARIANTS]
    if not isinstance(listed, Sequence) or not all(isinstance(each, Mapping) and "tag" in each for each in listed):
        raise ConfigError(where, f"{VARIANTS}: a list of tags", repr(listed), "write `variants: [TAG, TAG]`")
    found = {str(each["tag"]): each for each in listed}
    if len(found) != len(listed):
        raise ConfigError(where, "each CPU once", ", ".join(str(each["tag"]) for each in listed), "name each once")
    if not 2 <= len(found) <= LIMIT:
        raise ConfigError(where, f"2 to {LIMIT} CPUs", str(len(found)), "a target for one CPU is named by itself")
    targets = [Target.from_config(each, where=f"target {tag}") for tag, each in found.items()]
    if wrong := next((target for target in targets if target.kind != "llvm" or target.libc in ("apple", "none")), None):
        fix = "name CPUs that run Linux or Android"
        raise ConfigError(where, "CPUs whose libraries this project's runtime opens", wrong.tag, fix)
    if len(families := {target.arch for target in targets}) > 1:
        fix = "build a library for each family: no machine runs both"
        raise ConfigError(where, "CPUs of one family", " and ".join(sorted(families)), fix)
    if long := next((tag for tag in found if len(tag.encode()) > LONGEST), None):
        raise ConfigError(where, f"tags of at most {LONGEST} bytes", long, "give that target a shorter one")
    return found


def name_of(tags: Sequence[str]) -> str:
    """Return what a list of tags is called, in folders: `x86-64/v2+v3`, or `arm-generic+raspberry-pi-5`."""
    folders = {PurePosixPath(tag).parent for tag in tags}
    if len(folders) == 1 and HOST not in tags:
        return str(folders.pop() / "+".join(PurePosixPath(tag).name for tag in tags))
    return "+".join(tag.replace("/", "-") for tag in tags)
