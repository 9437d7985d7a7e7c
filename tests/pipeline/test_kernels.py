"""Kernels of one build in the next one, by the command line: it says what was damaged, and delivers the same bytes."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

Forge = Callable[..., subprocess.CompletedProcess[str]]
UUID = "compile.uuid=123e4567-e89b-12d3-a456-426614174000"
"""Another build of the same kernels."""


def kernels(store: Path) -> dict[Path, int]:
    return {path: path.stat().st_ino for path in (store / "kernels/v1").rglob("*") if path.is_file()}


@pytest.fixture
def store(warm: Any, tmp_path: Path) -> Path:
    """Return the store of a finished build."""
    return tmp_path / "store"


@pytest.fixture
def again(warm: Any, forge: Forge) -> Callable[[str], str]:
    """Return a function that compiles that model once more, as what was built before does not do: what is told."""
    given = [
        f"{name}.path={warm.out.parent / file}" for name, file in (("model", "tiny.onnx"), ("data", "samples.npz"))
    ]

    def again(out: str) -> str:
        done = forge("run", *given, "quantize=static", UUID, f"out={out}")
        assert done.returncode == 0, done.stderr
        return done.stderr

    return again


def test_a_build_takes_those_of_another_and_is_delivered_as_without(again: Any, store: Path, tmp_path: Path) -> None:
    before = kernels(store)
    assert before
    shutil.copytree(store, tmp_path / "copy")
    assert again("with") == ""
    assert kernels(store) == before
    shutil.rmtree(store)
    (tmp_path / "copy").rename(store)
    shutil.rmtree(store / "kernels")
    again("without")
    assert kernels(store).keys() == before.keys()
    one, two = ((tmp_path / "work" / out / "model_library.so").read_bytes() for out in ("with", "without"))
    assert one == two


def test_a_damaged_one_is_told_and_made_again(again: Any, forge: Forge, store: Path) -> None:
    for path in kernels(store):
        path.chmod(0o600)
        path.write_bytes(path.read_bytes()[:-1])
    said = again("with")
    assert said.count("damaged in the store") == said.count("expected a kernel with its digest") == len(kernels(store))
    assert forge("store", "verify").returncode == 0
    assert forge("store", "gc", "--plaintext").returncode == 0
    assert kernels(store) == {}
