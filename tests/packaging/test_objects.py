"""A C program that is linked with the archive computes what forge-run does, to the bit."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest

from tests.support.native import ROOT, Runner, built
from tests.support.packaged import Packaged

EXAMPLE = ROOT / "examples" / "linked" / "main.c"


@pytest.fixture(scope="module")
def program(packaged: Packaged, tmp_path_factory: pytest.TempPathFactory) -> Path:
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("no C compiler is installed")
    folder = tmp_path_factory.mktemp("linked")
    (folder / "libmodel.a").write_bytes(packaged.objects.archive)
    (folder / "model.h").write_bytes(packaged.objects.header)
    words = ["-std=c11", "-Wall", "-Werror", f"-I{folder}", EXAMPLE, folder / "libmodel.a", "-Wl,--gc-sections"]
    subprocess.run([compiler, *map(str, words), "-o", str(folder / "program")], check=True, timeout=120)
    return folder / "program"


def test_it_computes_what_forge_run_does(packaged: Packaged, program: Path, tmp_path: Path) -> None:
    x = np.random.default_rng(5).standard_normal((1, 3, 24, 24)).astype(np.float32)
    done = subprocess.run([str(program)], input=x.tobytes(), capture_output=True, timeout=60, check=True)
    (tmp_path / "model.so").write_bytes(packaged.library.to_bytes())
    (expected,) = Runner(built(packaged.target.arch) / "forge-run").call(tmp_path / "model.so", [x])
    assert done.stdout == expected.tobytes()


def test_a_short_input_is_an_error_of_the_example(program: Path) -> None:
    assert subprocess.run([str(program)], input=b"", capture_output=True, timeout=60, check=False).returncode != 0


def test_the_header_names_ports_and_sizes(packaged: Packaged) -> None:
    text = packaged.objects.header.decode()
    for line in (
        '#define FORGE_MODEL_INPUT_0_NAME "x"',
        "#define FORGE_MODEL_INPUT_0_TYPE float",
        "#define FORGE_MODEL_INPUT_0_SHAPE {1, 3, 24, 24}",
        "#define FORGE_MODEL_INPUT_0_ELEMENTS 1728",
        "#define FORGE_MODEL_OUTPUT_0_BYTES 20",
    ):
        assert line in text
