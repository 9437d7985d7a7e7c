"""`forge-run` for a CPU: of the wheel of forge-pipeline-runtime, else built by ziglang from this package's sources."""

from __future__ import annotations

import platform
import subprocess
import sys
import sysconfig
from pathlib import Path
from typing import Final

from forge_pipeline import children
from forge_pipeline.errors import CompileError
from forge_pipeline.locate import runtime_dir

SECONDS: Final = 900


def native_runner(arch: str) -> Path:
    """Return the path of `forge-run` for a CPU, which is built unless it is there. Raises CompileError."""
    installed = Path(sysconfig.get_path("scripts")) / "forge-run"
    if arch == platform.machine() and installed.exists():
        return installed
    folder = runtime_dir()
    command = [sys.executable, str(folder / "build.py"), arch]
    try:
        done = subprocess.run(
            command, env=children.environment(), capture_output=True, text=True, timeout=SECONDS, check=False
        )
        if done.returncode == 0:
            return folder / "out" / arch / "forge-run"
        said = " ".join(done.stderr.split())[-300:]
    except (OSError, subprocess.TimeoutExpired) as error:
        said = str(error)
    raise CompileError(
        where=f"forge-run for {arch}",
        expected="the native runtime to be built",
        found=said,
        fix="run `python runtime/build.py`, and see what it says",
    )
