"""An executable runs the artifact that is inside, plain or encrypted, and refuses what a damaged one has."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from forge_pipeline.content import FileRange, OpenFile, in_memory
from forge_pipeline.errors import TargetError
from forge_pipeline.packaging.executable import attached, inside, package_executable
from forge_pipeline.target import Target
from tests.support.delivery import deliver
from tests.support.native import Runner, built
from tests.support.packaged import Packaged


@pytest.fixture
def x(tmp_path: Path) -> Path:
    np.save(tmp_path / "x.npy", np.random.default_rng(5).standard_normal((1, 3, 24, 24)).astype(np.float32))
    return tmp_path / "x.npy"


def write(content: object, path: Path) -> Runner:
    path.write_bytes(in_memory(content))  # type: ignore[arg-type]
    path.chmod(0o755)
    return Runner(path)


def test_it_runs_without_naming_a_model(packaged: Packaged, x: Path, tmp_path: Path) -> None:
    (tmp_path / "model.so").write_bytes(packaged.library.to_bytes())
    (expected,) = Runner(built(packaged.target.arch) / "forge-run").call(tmp_path / "model.so", [np.load(x)])
    np.save(tmp_path / "y.npy", expected)
    model = write(package_executable(packaged.library.to_bytes(), packaged.target), tmp_path / "model")
    done = model.start(x, "--expect", tmp_path / "y.npy", "--rtol", "0", "--atol", "0")
    assert (done.returncode, done.stderr) == (0, "")


def test_an_encrypted_one_asks_for_key_and_password(packaged: Packaged, x: Path, tmp_path: Path) -> None:
    delivery = deliver(packaged.library.to_bytes(), 3)
    model = write(package_executable(delivery.model, packaged.target), tmp_path / "model")
    (tmp_path / "key").write_bytes(delivery.key)
    (tmp_path / "password").write_bytes(b"correct horse\n")
    (tmp_path / "wrong").write_bytes(b"battery staple\n")
    assert model.start(x, "--key", tmp_path / "key", "--password-file", tmp_path / "password").returncode == 0
    assert "password" in model.start(x, "--key", tmp_path / "key", "--password-file", tmp_path / "wrong").stderr
    assert "expected its key file and password" in model.start(x).stderr


def test_an_altered_artifact_is_refused(packaged: Packaged, tmp_path: Path) -> None:
    program = bytearray(in_memory(package_executable(packaged.library.to_bytes(), packaged.target)))
    program[-200] ^= 1
    done = write(bytes(program), tmp_path / "model").start()
    assert done.returncode == 1
    assert "altered or damaged" in done.stderr


def test_the_artifact_is_found_in_the_file(packaged: Packaged, tmp_path: Path) -> None:
    artifact = packaged.library.to_bytes()
    write(package_executable(artifact, packaged.target), tmp_path / "model")
    file = OpenFile.of(tmp_path / "model")
    assert in_memory(inside(FileRange(file, 0, file.size))) == artifact
    assert in_memory(inside(artifact)) == artifact


def test_equal_artifacts_give_equal_bytes(packaged: Packaged) -> None:
    program = (built(packaged.target.arch) / "forge-run").read_bytes()
    assert in_memory(attached(program, b"a")) == in_memory(attached(program, b"a"))


@pytest.mark.parametrize("tag", ["apple/m1", "arm/cortex-m7", "cuda/sm_86"])
def test_other_systems_are_refused(tag: str) -> None:
    with pytest.raises(TargetError, match="package=executable"):
        package_executable(b"", Target.from_tag(tag))
