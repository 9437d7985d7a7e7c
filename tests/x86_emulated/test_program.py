"""An emulator of one's own: `program.py` runs an artifact for `evaluate` on a CPU that no QEMU plays."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.emulated.bochs import EMULATED
from tests.support.paths import ROOT

PROGRAM = Path(__file__).with_name("program.py")

pytestmark = [
    pytest.mark.long,
    pytest.mark.skipif(
        not (EMULATED / "ready").exists(), reason=f"no emulated x86 in {EMULATED}: run tests/x86_emulated/setup.sh"
    ),
]


def test_an_artifact_for_amx_is_evaluated_in_a_machine_of_ones_own(tmp_path: Path) -> None:
    tag = "intel/sapphire-rapids-amx"
    command = [
        str(Path(sys.executable).with_name("forge-pipeline")),
        "run",
        "model=digits",
        "data=digits",
        "quantize=static",
        f"target={tag}",
    ]
    words = ", ".join([sys.executable, str(PROGRAM), "sapphire_rapids"])
    own = ["evaluate.runner=emulator", f"evaluate.emulators={{{tag}: [{words}]}}", "evaluate.samples=100"]
    subprocess.run(
        [*command, *own, f"out={tmp_path / 'out'}", f"store.path={tmp_path / 'store'}"], check=True, cwd=ROOT
    )
    metrics = json.loads(next(tmp_path.rglob("metrics.json")).read_text())
    assert metrics["ran_in"] == f"{Path(sys.executable).name} {PROGRAM} sapphire_rapids"
    assert (metrics["samples"], metrics["compiled"]) == (100, metrics["quantized"])
