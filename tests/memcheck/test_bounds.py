"""Compiled code reads and writes no byte outside its tensors, and decides nothing by one that was never written."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from random import Random

import numpy as np
import pytest

from forge_pipeline.codegen.build import build
from forge_pipeline.target import Target
from tests.support.int8.compare import OPTIONS
from tests.support.int8.random_models import grown
from tests.support.paths import ROOT

TARGETS = ("x86-64/v2", "x86-64/v3")
"""What memcheck can run."""

pytestmark = [
    pytest.mark.long,
    pytest.mark.skipif(shutil.which("valgrind") is None, reason="no valgrind, which is Debian's package of that name"),
]


def complaints(folder: Path, spare: int = 0) -> list[str]:
    """Return what memcheck says of compiled code: Python and the loader have complaints of their own."""
    command = ["valgrind", "--error-limit=no", sys.executable, "tests/support/run_libraries.py", folder, spare]
    done = subprocess.run(
        list(map(str, command)), cwd=ROOT, capture_output=True, text=True, check=False,
        env={**os.environ, "PYTHONMALLOC": "malloc", "PYTHONPATH": str(ROOT)},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-4000:]
    reports = re.split(r"==\d+== \n|\n(?=running )", done.stderr)
    return [report for report in reports if "model.so" in report]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Libraries of random quantized models."""
    for seed in range(16):
        net, model = grown(Random(seed))
        target = Target.from_tag(TARGETS[seed % len(TARGETS)])
        (tmp_path / f"{seed}.library").write_bytes(build(model, target, OPTIONS).to_bytes())
        np.savez(tmp_path / f"{seed}.npz", x=(net.random.standard_normal(net.shape) * 30).astype(np.float32))
    return tmp_path


def test_compiled_code_stays_within_its_tensors(folder: Path) -> None:
    assert not complaints(folder)
    assert any("Invalid read" in report for report in complaints(folder, spare=16)), "memcheck would have seen it"
