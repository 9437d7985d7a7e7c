"""Where `dvc repro` keeps what: everything below `out/`; what is between the stages is for its owner alone."""

from __future__ import annotations

import stat
from pathlib import Path

from forge_pipeline.errors import ArtifactError
from forge_pipeline.stages import STAGES

OUT, RECEIPTS = Path("out"), Path("out/receipts")


def home(folder: Path) -> Path:
    """Return what a folder of one of DVC's copies stands for in the checkout that was copied; else the folder itself.

    What git ignores is there alone: the store, the password's file. `dvc exp run --temp` and the workers of `dvc queue`
    make their copies somewhere below `.dvc/tmp/exps`.
    """
    copy = next((place for place in (folder, *folder.parents) if (place / ".dvc").is_dir()), folder)
    for place in copy.parents:
        if place.parts[-3:] == (".dvc", "tmp", "exps"):
            return place.parents[2] / folder.relative_to(copy)
    return folder


def folder_of(stage: str, target: str | None) -> Path:
    """Return where a stage's output is: shared by targets, plain per target, or among the target's deliverables."""
    return OUT / STAGES[stage].folder.format(target=target)


def make_private(folder: Path) -> None:
    """Make a folder below `out/` that is for its owner alone, as the store is."""
    for part in reversed([folder, *folder.parents]):
        if OUT in part.parents:
            try:
                part.mkdir(mode=0o700, parents=True, exist_ok=True)
                if stat.S_IMODE(part.stat().st_mode) & 0o077:
                    part.chmod(0o700)
            except OSError as error:
                found = error.strerror or type(error).__name__
                raise ArtifactError(str(part), "a folder that can be written", found, "make room for it") from error
