"""The native runtime for this CPU, and libraries for it."""

from __future__ import annotations

import importlib.util
from functools import partial
from pathlib import Path

import pytest

from tests.support.native import (
    HERE,
    Runner,
    branches,
    built,
    convolutions,
    library_of,
    open_sizes,
    recurrent,
    sequences,
)
from tests.support.once import once

MODELS = {
    "convolutions": convolutions,
    "open_sizes": open_sizes,
    "recurrent": recurrent,
    "branches": branches,
    "sequences": sequences,
}


@pytest.fixture(scope="session")
def runtime(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder with forge-run and libforge."""
    if importlib.util.find_spec("ziglang") is None:
        pytest.skip("the ziglang wheel is not installed")
    if HERE not in ("x86_64", "aarch64", "riscv64"):
        pytest.skip(f"there is no native runtime for {HERE}")
    once(tmp_path_factory, "native-runtime", lambda _: built(HERE) and None)
    return built(HERE)


@pytest.fixture(scope="session")
def runner(runtime: Path) -> Runner:
    return Runner(runtime / "forge-run")


@pytest.fixture(scope="session")
def libraries(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with a library of each model."""
    return once(tmp_path_factory, "native-libraries", write_libraries)


@pytest.fixture(scope="session")
def checking(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with the same for any program to call: kernels compare their arguments in each call."""
    return once(tmp_path_factory, "checking-libraries", partial(write_libraries, argument_checks=True))


def write_libraries(folder: Path, **options: bool) -> None:
    for name, model in MODELS.items():
        (folder / f"{name}.so").write_bytes(library_of(model(), **options).to_bytes())
