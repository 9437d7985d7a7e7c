"""Mutated models through `inspect`: a description or a ForgeError, soon, and nothing written but what was asked for."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from tests.support.paths import ROOT, SHARED, SUPPORT

TFLITE = SHARED / "models" / "mlperf_tiny_kws_dscnn" / "kws_int8.tflite"
FEW, MANY, PARTS = 150, 20_000, 10


def inspected(folder: Path, first: int, count: int) -> dict[str, Any]:
    command = [sys.executable, "-W", "ignore", str(SUPPORT / "frontends/inspect_mutants.py")]
    done = subprocess.run(
        [*command, str(folder / "work"), str(first), str(count)],
        env={**os.environ, "PYTHONPATH": str(ROOT)}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def check(found: dict[str, Any], count: int) -> None:
    assert found["wrong"] == []
    assert sum(found["answers"].values()) == count
    assert found["answers"]["described"] > count / 20  # most are refused, and not all for the same reason
    assert len(found["answers"]) > 5


def test_a_mutated_model_is_described_or_refused_and_nothing_else_happens(tmp_path):
    check(inspected(tmp_path, 0, FEW), FEW)


@pytest.mark.long
@pytest.mark.parametrize("part", range(PARTS))
def test_twenty_thousand_mutated_models_are_described_or_refused(tmp_path, part):
    share = MANY // PARTS
    check(inspected(tmp_path, part * share, share), share)


@pytest.mark.long
@pytest.mark.parametrize(("kind", "count"), [("onnx", 200), ("tflite", 20)])
def test_the_command_line_ends_with_a_description_or_a_refusal(tmp_path, kind, count):
    """Each model is inspected by a process of its own, as users start it."""
    if kind == "tflite" and not TFLITE.is_file():
        pytest.skip("needs ../shared/models")
    mutants = tmp_path / "mutants"
    mutants.mkdir()
    script = str(SUPPORT / "frontends/mutate.py")
    subprocess.run(
        [
            sys.executable,
            "-W",
            "ignore",
            script,
            str(mutants),
            str(count),
            *([str(TFLITE)] if kind == "tflite" else []),
        ],
        check=True,
    )
    codes: Counter[int] = Counter()
    folder = tmp_path / "work"
    folder.mkdir()
    for path in sorted(mutants.iterdir()):
        done = subprocess.run(
            [sys.executable, "-m", "forge_pipeline", "inspect", str(path), "--json", "--svg", "graph.svg"],
            cwd=folder, env={**os.environ, "PYTHONPATH": str(ROOT)}, capture_output=True, check=False, timeout=120,
        )  # fmt: skip
        codes[done.returncode] += 1
        assert done.returncode in (0, 1), (path, done.stderr)
        assert b"Traceback" not in done.stderr, (path, done.stderr)
        assert done.returncode == 0 or done.stderr.startswith(b"error: "), (path, done.stderr)
        assert {found.name for found in folder.iterdir()} <= {"graph.svg"}, path
    assert sum(codes.values()) == len(list(mutants.iterdir())) == count
    assert codes[1] > 0
    assert codes[0] > 0
