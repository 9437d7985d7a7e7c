"""The examples in Rust and Java, by the commands that docs/runtime.md shows."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest

from forge_runtime.engine import Engine
from tests.support.native import ROOT


def works(tool: str) -> bool:
    """Whether a tool runs: a `rustc` on the PATH may be the proxy of a toolchain that is not there."""
    return (
        shutil.which(tool) is not None
        and not subprocess.run([tool, "--version"], check=False, capture_output=True).returncode
    )


def command(program: str, library: Path, runtime: Path, java: Path) -> list[str]:
    """Return the words of a command of the page, for this machine and from any folder."""
    found = re.search(rf"^    ({program}.*)$", (ROOT / "docs" / "runtime.md").read_text("utf-8"), re.MULTILINE)
    assert found is not None
    text = found[1].replace("ARCH", runtime.name).replace("JAVA", str(java)).replace("runtime/", f"{ROOT}/runtime/")
    return shlex.split(text.replace("model_library.so", str(library)))


def run(folder: Path, runtime: Path, *words: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "LD_LIBRARY_PATH": str(runtime)}
    return subprocess.run(words, cwd=folder, env=environment, capture_output=True, text=True, timeout=300, check=False)


def assert_runs(folder: Path, library: Path, runtime: Path, *words: str) -> None:
    """Compare what a program writes with an engine, and have it refuse what is no library."""
    done = run(folder, runtime, *words)
    assert done.returncode == 0, done.stderr
    (wanted,) = Engine(library, threads=1)(np.zeros((1, 3, 24, 24), np.float32))
    assert [np.float32(line) for line in done.stdout.split()] == list(wanted[0])
    done = run(folder, runtime, *(str(ROOT / "Makefile") if word == str(library) else word for word in words))
    assert (done.returncode, done.stderr.count("expected a library of forge-pipeline")) == (1, 1)


@pytest.mark.skipif(not works("rustc"), reason="no rustc is installed that runs")
def test_rust(runtime: Path, libraries: Path, tmp_path: Path) -> None:
    library = libraries / "convolutions.so"
    done = run(tmp_path, runtime, *command("rustc ", library, runtime, Path()), "-D", "warnings")
    assert done.returncode == 0, done.stderr
    assert_runs(tmp_path, library, runtime, "./run", str(library))


@pytest.mark.skipif(shutil.which("cc") is None, reason="no C compiler is installed")
@pytest.mark.skipif(not works("javac"), reason="no JDK is installed that runs")
def test_java(runtime: Path, libraries: Path, tmp_path: Path) -> None:
    library, java = libraries / "convolutions.so", Path(str(shutil.which("javac"))).resolve().parents[1]
    for program in ("cc .*jni", "javac "):
        words = command(program, library, runtime, java)
        done = run(tmp_path, runtime, *words, *(["-Wall", "-Wextra", "-Werror"] if words[0] == "cc" else ["-Xlint"]))
        assert done.returncode == 0, done.stderr
    assert_runs(tmp_path, library, runtime, *command("java ", library, runtime, java))
