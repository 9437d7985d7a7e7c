"""What TAB offers after `forge-pipeline run`: groups, choices, options, their values, files, flags.

Hydra's own completion knows neither choices in folders of a group (``target=raspberry-pi/5``) nor several values
(``target=host,<TAB>``), and wants a shell function of its own for each program.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from forge_pipeline.pipeline.hydra_app import LAUNCHERS, PATH_KEYS, choices, compose, groups, own_folders

FLAGS = ("--multirun", "--dry-run", "--cfg", "--config-dir", "--info", "--help")
FILES = (*PATH_KEYS, "compile.dump")


def offers(before: Sequence[str], word: str) -> Iterator[str]:
    """Yield the words that ``word`` may become, after the words ``before``."""
    if before and before[-1] in ("--config-dir", "-cd"):
        yield from _files("", word)
        return
    if word.startswith("-"):
        yield from (flag for flag in FLAGS if flag.startswith(word))
        return
    own = own_folders(before)
    key, equals, value = word.partition("=")
    if not equals:
        keys = (f"{group}=" for group in groups(own))
        yield from (item for item in (*keys, *_options(compose([]), key)) if item.startswith(word))
        return
    if key in FILES:
        yield from _files(f"{key}=", value)
        return
    several, comma, last = value.rpartition(",")
    head = f"{key}={several}{comma}"
    yield from (head + item for item in _values(key, own) if item.startswith(last))


def _options(node: Mapping[str, Any], word: str) -> Iterator[str]:
    """Yield ``section.`` and ``section.option=`` as far as ``word`` goes into the configuration."""
    *parents, _ = word.split(".")
    for part in parents:
        below = node.get(part)
        if not isinstance(below, Mapping):
            return
        node = below
    prefix = "".join(f"{part}." for part in parents)
    for name, value in node.items():
        yield f"{prefix}{name}." if isinstance(value, Mapping) and value else f"{prefix}{name}="


def _values(key: str, own: Sequence[Path]) -> Iterable[str]:
    """Return the choices of a group, both values of a switch, else the value that an option has."""
    if key in groups(own):
        more = LAUNCHERS if key == "hydra/launcher" else ()
        return [*choices(key, own), *more]
    node: Any = compose([])
    for part in key.split("."):
        node = node.get(part) if isinstance(node, Mapping) else None
    if isinstance(node, bool):
        return ["true", "false"]
    return [str(node)] if isinstance(node, str | int | float) else ["null"]


def _files(head: str, start: str) -> Iterator[str]:
    """Yield the files and folders whose names begin with ``start``, a folder with a slash."""
    folder = Path(start).parent if not start.endswith("/") else Path(start)
    prefix = start[: start.rfind("/") + 1]
    for path in folder.iterdir() if folder.is_dir() else ():
        name = f"{prefix}{path.name}"
        if name.startswith(start) and (start != prefix or not path.name.startswith(".")):
            yield f"{head}{name}{'/' if path.is_dir() else ''}"
