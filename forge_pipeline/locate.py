"""Where configuration and sources are that are no Python: beside the package in a checkout, inside it in a wheel."""

from __future__ import annotations

from pathlib import Path

PACKAGE = Path(__file__).resolve().parent


def conf_dir() -> Path:
    """Return the folder that holds ``config.yaml`` and the groups."""
    packaged = PACKAGE / "conf"
    return packaged if packaged.is_dir() else PACKAGE.parent / "conf"


def runtime_dir() -> Path:
    """Return the folder of the native runtime: `build.py`, and its sources in `src`."""
    packaged = PACKAGE / "native"
    return packaged if packaged.is_dir() else PACKAGE.parent / "runtime"
