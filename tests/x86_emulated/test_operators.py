"""The tests of integer code, compiled for CPUs that this machine may not be, and run by an emulated one."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.x86_emulated.machine import EMULATED, ROOT

CODEGEN = ROOT / "tests/codegen"
FILES = [path for path in sorted(CODEGEN.glob("test_integer*.py")) if "neon" not in path.name]
TARGETS = ("intel/sapphire-rapids", "intel/sapphire-rapids+amx", "x86-64/v4", "intel/alder-lake")
LEAST = 5
"""Cases that pass, at the very least, in a file that has not been left out by mistake."""

pytestmark = [
    pytest.mark.long,
    pytest.mark.skipif(
        not (EMULATED / "ready").exists(), reason=f"no emulated x86 in {EMULATED}: run tests/x86_emulated/setup.sh"
    ),
]


@pytest.mark.parametrize("tag", TARGETS)
def test_integer_code_of_an_emulated_cpu_stores_what_onnx_runtime_stores(tag: str) -> None:
    files: list[Path] = [*FILES, CODEGEN / "test_qoperator.py"]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-m", "not long", *map(str, files)],
        env={**os.environ, "FORGE_TEST_TARGET": tag}, cwd=ROOT, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-20000:] + done.stderr[-2000:]
    passed = re.search(r"(\d+) passed", done.stdout)
    assert passed is not None
    assert int(passed[1]) >= LEAST * len(files)
