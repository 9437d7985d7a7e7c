"""The tests of integer code, compiled for CPUs that this machine may not be, and run by an emulated one."""

from __future__ import annotations

import os
import re
import subprocess
import sys

import pytest

from tests.support.emulated import aarch64, x86
from tests.support.paths import ROOT

CODEGEN = ROOT / "tests/codegen"
X86 = ("intel/sapphire-rapids", "intel/sapphire-rapids+amx", "x86-64/v4", "intel/alder-lake")
ARM = ("raspberry-pi/5", "arm/cortex-a72", "arm/neoverse-v1", "arm/generic")
"""Of each way in which an ARM multiplies bytes one, and LLVM's tables for the least of them."""
ELSEWHERE = {"tests/x86_emulated": "neon", "tests/aarch64": "x86"}
"""The folder with what is about another architecture."""
LEAST = 5
"""Cases that pass, at the very least, in a file that has not been left out by mistake."""

pytestmark = pytest.mark.long


@pytest.mark.parametrize("tag", [*X86, *ARM])
def test_integer_code_of_an_emulated_cpu_stores_what_onnx_runtime_stores(tag: str) -> None:
    folder = "tests/x86_emulated" if tag in X86 else "tests/aarch64"
    if tag in X86 and not (x86.EMULATED / "ready").exists():
        pytest.skip(f"nothing emulates {tag} in {x86.EMULATED}: run {folder}/setup.sh")
    if tag in ARM and aarch64.QEMU is None:
        pytest.skip("qemu-aarch64 is not installed: apt-get install qemu-user")
    files = [*sorted((CODEGEN / "int8").rglob("test_*.py")), CODEGEN / "layout/test_signed_to_unsigned.py"]
    files = [path for path in files if path.parent.name != ELSEWHERE[folder]]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-m", "not long", *files],
        env={**os.environ, "FORGE_TEST_TARGET": tag}, cwd=ROOT, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-20000:] + done.stderr[-2000:]
    passed = re.search(r"(\d+) passed", done.stdout)
    assert passed is not None
    assert int(passed[1]) >= LEAST * len(files)
