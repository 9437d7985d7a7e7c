"""The wheel of `forge-pipeline-runtime`: what a device installs, beside numpy."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
import zipfile
from pathlib import Path

import numpy as np
import pytest

from forge_pipeline.runtime.bundle import Library
from tests.support.paths import ROOT

RUN = """
import sys
import numpy as np
import forge_runtime
from forge_runtime.library import libforge
product, relu = forge_runtime.Engine(sys.argv[1])(np.ones((2, 8), np.float32))
print(forge_runtime.__file__, libforge()._name, product.sum())
"""


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder)]
    subprocess.run(command, cwd=ROOT / "runtime", check=True, capture_output=True)
    (path,) = folder.glob("*.whl")
    return path


def test_a_wheel_is_for_any_python_and_any_c_library_on_one_kind_of_machine(wheel: Path) -> None:
    name, version, python, abi, platforms = wheel.stem.split("-")
    assert (name, python, abi) == ("forge_pipeline_runtime", "py3", "none")
    assert version in (ROOT / "pyproject.toml").read_text()
    assert {"manylinux_2_17", "musllinux_1_1"} <= {
        word.removesuffix(f"_{platform.machine()}") for word in platforms.split(".")
    }
    assert wheel.stat().st_size < 1 << 20


def test_an_engine_and_forge_run_work_from_the_wheel_alone(wheel: Path, bound_library: Library, tmp_path: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(tmp_path)
    library = tmp_path / "model_library.so"
    library.write_bytes(bound_library.to_bytes())
    done = subprocess.run(
        [sys.executable, "-c", RUN, str(library)],
        cwd=tmp_path, env={**os.environ, "PYTHONPATH": str(tmp_path)}, capture_output=True, text=True, check=True,
    )  # fmt: skip
    package = tmp_path / "forge_runtime"
    total = (np.ones((2, 8), "f") @ np.arange(32, dtype="f").reshape(8, 4)).sum()
    assert done.stdout.split() == [str(package / "__init__.py"), str(package / "libforge.so"), str(total)]
    (program,) = tmp_path.glob("*.data/scripts/forge-run")
    program.chmod(0o755)
    done = subprocess.run([program, library], capture_output=True, text=True, check=True)
    assert "opened in" in done.stdout


def wheel_for(arch: str, folder: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder)]
    env = {**os.environ, "FORGE_ARCH": arch}
    return subprocess.run(command, cwd=ROOT / "runtime", env=env, capture_output=True, text=True, check=False)


@pytest.mark.parametrize("arch", ["z80", "aarch64-android"])
def test_a_wheel_for_a_cpu_without_a_runtime_is_refused(arch: str, tmp_path: Path) -> None:
    done = wheel_for(arch, tmp_path)
    said = f"FORGE_ARCH: expected a CPU that there is a runtime for: x86_64, aarch64, riscv64, found {arch!r}"
    assert (done.returncode != 0, said in done.stderr) == (True, True), done.stderr
    assert list(tmp_path.iterdir()) == []
    assert not (ROOT / "runtime/out/z80").exists()


@pytest.mark.long
def test_a_wheel_for_another_cpu_says_so(tmp_path: Path) -> None:
    assert wheel_for("riscv64", tmp_path).returncode == 0
    (path,) = tmp_path.glob("*.whl")
    assert path.stem.endswith("musllinux_1_1_riscv64")
