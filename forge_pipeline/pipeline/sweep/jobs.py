"""The jobs of a sweep: what each builds and where, and what is said of those that failed, wherever they ran."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from forge_pipeline.digest import digest_bytes
from forge_pipeline.errors import ForgeError
from forge_pipeline.pipeline.targets.spread import running, spread
from forge_pipeline.pipeline.withheld import resolved
from forge_pipeline.target.description import VARIANTS, is_several
from forge_runtime.redact import redacted
from forge_runtime.text import shown

if TYPE_CHECKING:
    from omegaconf import DictConfig

Task = Callable[[dict[str, Any], str | None], object]
"""Called with a configuration and, in a sweep, the folder name of the job; gives what Hydra's sweeper is told."""


class EndedError(BaseException):
    """Carries an error past Hydra, which would print all overrides for any other."""


@dataclass(frozen=True, slots=True)
class Single:
    """The one job of a run without a sweep."""

    task: Task

    def __call__(self, config: DictConfig) -> object:
        """Call the task."""
        try:
            return self.task(_plain(config), None)
        except Exception as error:
            raise EndedError from error


@dataclass(frozen=True, slots=True)
class Job:
    """A job of a sweep. Launchers send it to other processes and machines: it is what it holds, and nothing around it.

    ``swept`` are the keys that differ between the jobs.
    """

    task: Task
    swept: tuple[str, ...]

    def __call__(self, config: DictConfig) -> object:
        """Return what the task gives. Raises ForgeError with the job's name, and says it on this machine at once."""
        name = "a job"
        try:
            plain = _plain(config)
            name = folder_of(plain, self.swept)
            return self.task(plain, name)
        except ForgeError as error:
            print(f"error in {shown(name)}: {error}", file=sys.stderr, flush=True)
            raise ForgeError(f"{name}: {error.where}", error.expected, error.found, error.fix) from error


def _plain(config: DictConfig) -> dict[str, Any]:
    return resolved(spread(config, running()))


def folder_of(config: dict[str, Any], swept: Sequence[str]) -> str:
    """Name a job: its target's tag, then `key=value` for whatever else is swept."""
    from hydra.core.hydra_config import HydraConfig

    choices, parts = HydraConfig.get().runtime.choices, [str(config["target"]["tag"])]
    for key in swept:
        if key != "target":
            value = choices[key] if key in choices else _lookup(config, key)
            parts.append(f"{key}={_file_name(str(value))}")
    return str(Path(*parts))


def below(out: Path, folder: str) -> Path:
    """Return a job's own place: ``out`` may end already in what its folder begins with, such as the target's tag."""
    parts = Path(folder).parts
    known = next(count for count in range(len(parts), -1, -1) if out.parts[len(out.parts) - count :] == parts[:count])
    return out.joinpath(*parts[known:])


def failure(jobs: int, errors: Iterable[BaseException]) -> BaseException | None:
    """Return what a sweep of so many ``jobs`` raises for those that failed; None where there are none."""
    found = list(errors)
    bugs = [error for error in found if not isinstance(error, ForgeError)]
    if bugs:
        return bugs[0]
    if not found:
        return None
    return ForgeError(
        where="sweep",
        expected="every job to succeed",
        found=f"{len(found)} of {jobs} that failed: {'; '.join(dict.fromkeys(map(said, found)))}",
        fix="mend what is said of each; the other jobs are delivered, and are hits when this is run again",
    )


def said(error: BaseException) -> str:
    """Return the first line of what an error says."""
    return shown(str(error).splitlines()[0])


def _file_name(value: str) -> str:
    """Return ``value`` as a part of a file name; another value gives another name."""
    plain = re.sub(r"[^A-Za-z0-9._-]", "_", redacted(value))
    return plain if plain == value else f"{plain}-{digest_bytes(value.encode())[:8]}"


def _lookup(config: Any, key: str) -> Any:
    for part in key.split("."):
        config = config[part] if part in config or not is_several(config) else config[VARIANTS][0][part]
    return config
