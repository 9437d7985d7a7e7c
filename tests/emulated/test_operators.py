"""The tests of integer code, compiled for CPUs that this machine may not be, and run by an emulated one."""

from __future__ import annotations

import os
import re
import subprocess
import sys

import pytest

from tests.aarch64 import machine as aarch64
from tests.emulated.machine import ROOT
from tests.x86_emulated import machine as x86

CODEGEN = ROOT / "tests/codegen"
X86 = ("intel/sapphire-rapids", "intel/sapphire-rapids+amx", "x86-64/v4", "intel/alder-lake")
ARM = ("raspberry-pi/5", "arm/cortex-a72", "arm/neoverse-v1", "arm/generic")
"""Of each way in which an ARM multiplies bytes one, and LLVM's tables for the least of them."""
ELSEWHERE = {"tests/x86_emulated": ("neon",), "tests/aarch64": ("vnni", "ordered")}
"""Words in the names of files that are about another architecture."""
LEAST = 5
"""Cases that pass, at the very least, in a file that has not been left out by mistake."""

pytestmark = pytest.mark.long


@pytest.mark.parametrize("tag", [*X86, *ARM])
def test_integer_code_of_an_emulated_cpu_stores_what_onnx_runtime_stores(tag: str) -> None:
    emulated, folder = (x86.EMULATED, "tests/x86_emulated") if tag in X86 else (aarch64.EMULATED, "tests/aarch64")
    if not (emulated / "ready").exists():
        pytest.skip(f"nothing emulates {tag} in {emulated}: run {folder}/setup.sh")
    names = [path.name for path in sorted(CODEGEN.glob("test_integer*.py"))]
    names = [name for name in names if not any(word in name for word in ELSEWHERE[folder])]
    files = [str(CODEGEN / name) for name in (*names, "test_qoperator.py")]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-m", "not long", *files],
        env={**os.environ, "FORGE_TEST_TARGET": tag}, cwd=ROOT, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-20000:] + done.stderr[-2000:]
    passed = re.search(r"(\d+) passed", done.stdout)
    assert passed is not None
    assert int(passed[1]) >= LEAST * len(files)
