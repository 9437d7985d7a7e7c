"""The runtime of other CPUs, run by qemu-user, on libraries for them: no C library of theirs is needed."""

from __future__ import annotations

import importlib.util
import platform
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

from forge_runtime.engine import Engine
from tests.support.delivery import deliver
from tests.support.native import RUNTIME, Runner, branches, built, convolutions, library_of, open_sizes, sequences
from tests.support.once import once
from tests.support.sums import assert_close

TARGETS = {"aarch64": "raspberry-pi/5", "riscv64": "riscv64/generic"}
CPU = {"aarch64": ("-cpu", "max")}  # of riscv64 the usual one does
RANDOM = np.random.default_rng(13)


def floats(*shape: int) -> np.ndarray:
    return RANDOM.standard_normal(shape).astype(np.float32)


MODELS = {
    "convolutions": (convolutions, [floats(2, 3, 24, 24)]),
    "open_sizes": (open_sizes, [floats(2, 3, 48), floats(2, 3, 48)]),
    "branches": (branches, [floats(4), np.array(True)]),
    "sequences": (sequences, [np.maximum(floats(5, 4), 0), np.array([2, 3]), np.array(4), np.array(False)]),
}


@dataclass(frozen=True, slots=True)
class Machine:
    """forge-run for a CPU, and a folder with libraries for it."""

    runner: Runner
    libraries: Path


@pytest.fixture(params=["aarch64", pytest.param("riscv64", marks=pytest.mark.long)])
def machine(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Machine:
    arch: str = request.param
    if importlib.util.find_spec("ziglang") is None:
        pytest.skip("the ziglang wheel is not installed")
    qemu = shutil.which(f"qemu-{arch}") or shutil.which(f"qemu-{arch}-static")
    if qemu is None and platform.machine() != arch:
        pytest.skip(f"qemu-{arch} is not installed: apt-get install qemu-user")

    def make(folder: Path) -> None:
        shutil.copy(built(arch) / "forge-run", folder)
        if arch == "aarch64":
            (folder / "android.so").write_bytes(library_of(convolutions(), "android/cpu").to_bytes())
        for name, (model, _) in MODELS.items():
            (folder / f"{name}.so").write_bytes(library_of(model(), TARGETS[arch]).to_bytes())

    folder = once(tmp_path_factory, f"native-{arch}", make)
    return Machine(Runner(folder / "forge-run", () if qemu is None else (qemu, *CPU.get(arch, ()))), folder)


@pytest.mark.every(3)
@pytest.mark.parametrize("name", MODELS)
def test_it_computes_what_an_engine_does_here(machine: Machine, libraries: Path, tmp_path: Path, name: str) -> None:
    _, inputs = MODELS[name]
    library = Path(shutil.copy(machine.libraries / f"{name}.so", tmp_path))
    wanted = Engine(libraries / f"{name}.so", threads=1)(*inputs)
    for threads in ("1", "2"):
        found = machine.runner.call(library, inputs, "--threads", threads)
        for one, other in zip(found, wanted, strict=True):
            assert_close(one, other, within=1e-4)


def test_a_library_for_android_runs_on_the_static_program(machine: Machine, libraries: Path) -> None:
    if not (machine.libraries / "android.so").exists():
        pytest.skip("Android's CPUs are aarch64")
    _, inputs = MODELS["convolutions"]
    (found,) = machine.runner.call(machine.libraries / "android.so", inputs)
    (wanted,) = Engine(libraries / "convolutions.so", threads=1)(*inputs)
    assert_close(found, wanted, within=1e-5)


def test_it_opens_what_is_encrypted(machine: Machine, tmp_path: Path) -> None:
    delivery = deliver((machine.libraries / "convolutions.so").read_bytes(), 3)
    (tmp_path / "model.so").write_bytes(delivery.model)
    (tmp_path / "key.bin").write_bytes(delivery.key)
    (tmp_path / "password").write_bytes(b"correct horse")
    options = ["--key", tmp_path / "key.bin", "--password-file", tmp_path / "password"]
    done = machine.runner.start(tmp_path / "model.so", *options)
    assert done.returncode == 0, done.stderr
    (tmp_path / "password").write_bytes(b"wrong horse")
    assert (
        "expected the password that this key was made with"
        in machine.runner.start(tmp_path / "model.so", *options).stderr
    )


def test_a_library_for_another_cpu_is_refused(machine: Machine, libraries: Path) -> None:
    done = machine.runner.start(libraries / "convolutions.so")
    assert done.returncode == 1
    assert "expected a library for this machine" in done.stderr


BIONIC = """
#define _GNU_SOURCE
#include <errno.h>
#include <sys/mman.h>
int *__errno(void) { return &errno; }
void *mmap64(void *at, unsigned long size, int may, int how, int file, long from) {
    return mmap(at, size, may, how, file, from);
}
"""
"""What bionic names otherwise than musl, of what libforge calls."""


@pytest.mark.long
@pytest.mark.parametrize("build", ["aarch64", "aarch64-android"])
def test_a_program_with_libforge_knows_the_cpu(machine: Machine, tmp_path: Path, build: str) -> None:
    """A C library starts it: what the system says of the CPU comes from there."""
    if not (machine.libraries / "android.so").exists():
        pytest.skip("Android's CPUs are aarch64")
    (tmp_path / "bionic.c").write_text(BIONIC if "android" in build else "")
    sources = [RUNTIME / "examples" / "run.c", tmp_path / "bionic.c", built(build) / "libforge.a"]
    options = ["-target", "aarch64-linux-musl", "-static", f"-I{RUNTIME / 'include'}", "-o", tmp_path / "run"]
    command = [sys.executable, "-m", "ziglang", "cc", *options, *sources]
    subprocess.run(list(map(str, command)), check=True, capture_output=True, timeout=1800)
    done = Runner(tmp_path / "run", machine.runner.emulator).start(machine.libraries / "android.so")
    assert done.returncode == 0, done.stderr
    found = [float.fromhex(line) for line in done.stdout.split()]
    assert found == pytest.approx([0.2] * 5)  # of zeros
