"""Where configuration and sources are that are no Python: beside the package in a checkout, inside it in a wheel."""

from __future__ import annotations

from pathlib import Path

PACKAGE = Path(__file__).resolve().parent


def conf_dir() -> Path:
    """Return the folder that holds ``config.yaml`` and the groups."""
    packaged = PACKAGE / "conf"
    return packaged if packaged.is_dir() else PACKAGE.parent / "conf"


def pipeline_file(name: str) -> Path:
    """Return this project's own `dvc.yaml` or `params.yaml`, which those of others begin as."""
    packaged = PACKAGE / "pipeline" / "files" / name
    return packaged if packaged.is_file() else PACKAGE.parent / name


def example(name: str) -> str:
    """Return a file of the bundled example: below the current folder where it is there, else as installed."""
    here = Path("examples") / name
    packaged = PACKAGE / "examples" / name
    if here.is_file():
        return str(here)
    return str(packaged if packaged.is_file() else PACKAGE.parent / here)


def runtime_dir() -> Path:
    """Return the folder of the native runtime: `build.py`, and its sources in `src`."""
    packaged = PACKAGE / "native"
    return packaged if packaged.is_dir() else PACKAGE.parent / "runtime"
