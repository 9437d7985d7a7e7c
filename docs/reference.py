"""Write the reference of the public API, from its docstrings: `python docs/reference.py FOLDER` (`make docs`)."""

from __future__ import annotations

import sys
import warnings
from pathlib import Path

import pdoc

import forge_pipeline


def write(folder: Path) -> None:
    """Write HTML that needs no network. What pdoc cannot document is an error."""
    warnings.simplefilter("error")
    for name in forge_pipeline.__all__:  # pdoc reads what is there, and these are imported when they are first used
        public = getattr(forge_pipeline, name)
        setattr(forge_pipeline, name, public)
        if isinstance(public, type):
            _take_over(public)
    pdoc.pdoc("forge_pipeline", output_directory=folder)


def _take_over(public: type) -> None:
    """Give a class as its own what it inherits from classes that have no page."""
    for base in public.__mro__[1:]:
        if base.__module__.startswith(forge_pipeline.__name__):
            for name, member in vars(base).items():
                if not name.startswith("_") and name not in vars(public):
                    setattr(public, name, member)


if __name__ == "__main__":
    write(Path(sys.argv[1]))
