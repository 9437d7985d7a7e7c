"""params.yaml: what `dvc repro` changes of conf/, in the file that DVC's users expect it in.

`dvc exp run -S quantize.per_channel=false` writes there, `dvc params diff` reads it, `dvc exp show` has a column for
each value. A name chooses a file of that group (`quantize: none`), a mapping sets options of what is chosen.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml

from forge_pipeline.errors import ConfigError, did_you_mean
from forge_pipeline.pipeline.hydra_app import admitted, in_quotes
from forge_pipeline.pipeline.stage_configs import SECTIONS

PARAMS = Path("params.yaml")
ELSEWHERE = ("experiment", "target", "device", "matrix", "out")
"""Sections that conf/config.yaml decides in `matrix`, or that `dvc repro` has no use for."""


def overrides(root: Path = Path()) -> list[str]:
    """Return ``root``/params.yaml as Hydra's overrides; none where there is no such file.

    Raises ConfigError for a file that is no mapping of sections to choices or options.
    """
    try:
        content = yaml.safe_load((root / PARAMS).read_text())
    except FileNotFoundError:
        return []
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise ConfigError(
            str(PARAMS), "plain YAML in UTF-8", " ".join(str(error).split()), "correct the file"
        ) from error
    if content is None:
        return []
    if not isinstance(content, Mapping):
        raise ConfigError(str(PARAMS), "a mapping of sections", type(content).__name__, "write `quantize: {...}` lines")
    return [override for name, value in content.items() for override in _section(str(name), value)]


def _section(name: str, value: Any) -> Iterator[str]:
    known = sorted(set(SECTIONS) - set(ELSEWHERE))
    if name not in known:
        fix = "set it in conf/config.yaml" if name in ELSEWHERE else f"{did_you_mean(name, known)}correct the name"
        raise ConfigError(f"{PARAMS}: {name}", "a section: " + ", ".join(known), f"{name!r}", fix)
    if isinstance(value, str):
        yield f"{name}={in_quotes(value)}"
    elif isinstance(value, Mapping):
        yield from _options(name, value)
    else:
        found = f"{value!r} ({type(value).__name__})"
        raise ConfigError(f"{PARAMS}: {name}", "a choice, or options of one", found, f"give `{name}: none`, such as")


def _options(place: str, options: Mapping[Any, Any]) -> Iterator[str]:
    for key, value in options.items():
        if isinstance(value, Mapping) and value:
            yield from _options(f"{place}.{key}", value)
        else:
            yield admitted(f"{place}.{key}={_literal(value)}")


def _literal(value: Any) -> str:
    """Return a value in the grammar of Hydra's overrides."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, list):
        return f"[{','.join(map(_literal, value))}]"
    if isinstance(value, Mapping):
        return "{" + ",".join(f"{_literal(key)}:{_literal(item)}" for key, item in value.items()) + "}"
    return in_quotes(value) if isinstance(value, str) else str(value)
