"""Kernels of one build in the next one, by the command line: it says what was damaged, and delivers the same bytes."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.tiny import write_model

Forge = Callable[..., subprocess.CompletedProcess[str]]

OTHER_WEIGHTS = 3


def kernels(tmp_path: Path) -> dict[str, int]:
    folder = tmp_path / "store/kernels/v1"
    return {str(path): path.stat().st_ino for path in folder.rglob("*") if path.is_file()}


@pytest.fixture
def build(forge: Forge, model: Path, tmp_path: Path) -> Forge:
    """Return a function that builds a model of the same layers with other weights, in a store that has the first."""
    other = write_model(tmp_path / "other.onnx", seed=OTHER_WEIGHTS)

    def build(*arguments: str, **options: object) -> object:
        done = forge("run", f"model.path={other}", "target=host", "quantize=none", *arguments, **options)
        assert done.returncode == 0, done.stderr
        return done

    first = forge("run", f"model.path={model}", "target=host", "quantize=none", "out=first")
    assert first.returncode == 0, first.stderr
    return build  # type: ignore[return-value]


def test_a_model_with_other_weights_takes_them_and_is_delivered_as_without(build: Forge, tmp_path: Path) -> None:
    before = kernels(tmp_path)
    assert before
    assert build("out=with").stderr == ""
    assert kernels(tmp_path) == before
    build("out=without", env={"FORGE_STORE": str(tmp_path / "another")})
    one, two = ((tmp_path / "work" / out / "model_library.so").read_bytes() for out in ("with", "without"))
    assert one == two


def test_a_damaged_one_is_told_and_made_again(build: Forge, forge: Forge, tmp_path: Path) -> None:
    for path in map(Path, kernels(tmp_path)):
        path.chmod(0o600)
        path.write_bytes(path.read_bytes()[:-1])
    said = build("out=with").stderr
    assert (
        said.count("damaged in the store") == said.count("expected a kernel with its digest") == len(kernels(tmp_path))
    )
    assert forge("store", "verify").returncode == 0
    assert forge("store", "gc", "--plaintext").returncode == 0
    assert kernels(tmp_path) == {}
