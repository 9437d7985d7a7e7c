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

ROOT = Path(__file__).resolve().parents[2]
SHARED = ROOT.parent / "shared" / "models"
FEW, MANY, PARTS = 150, 20_000, 10


def inspected(folder: Path, first: int, count: int) -> dict[str, Any]:
    command = [sys.executable, "-W", "ignore", str(Path(__file__).with_name("inspect_mutants.py"))]
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
@pytest.mark.parametrize("kind", ["onnx", "tflite"])
def test_the_command_line_ends_with_a_description_or_a_refusal(tmp_path, kind):
    """Three hundred ONNX models and fifty of TensorFlow Lite, each a process as users start it."""
    sys.path.insert(0, str(Path(__file__).parent))
    import random

    import mutate

    seed = SHARED / "mlperf_tiny_kws_dscnn" / "kws_int8.tflite"
    if kind == "tflite" and not seed.is_file():
        pytest.skip("needs ../shared/models")
    codes: Counter[int] = Counter()
    for number in range(300 if kind == "onnx" else 50):
        content = mutate.mutant(number)
        if kind == "tflite":
            content = seed.read_bytes()
            for _ in range(3):
                content = content[:16] + mutate.change_bytes(random.Random(number), content[16:])
        (tmp_path / "model").write_bytes(content)
        done = subprocess.run(
            [sys.executable, "-m", "forge_pipeline", "inspect", "model", "--json", "--svg", "graph.svg"],
            cwd=tmp_path, env={**os.environ, "PYTHONPATH": str(ROOT)}, capture_output=True, check=False, timeout=120,
        )  # fmt: skip
        codes[done.returncode] += 1
        assert done.returncode in (0, 1), (number, done.stderr)
        assert b"Traceback" not in done.stderr, (number, done.stderr)
        assert done.returncode == 0 or done.stderr.startswith(b"error: "), (number, done.stderr)
        assert {path.name for path in tmp_path.iterdir()} <= {"model", "graph.svg"}, number
    assert codes[1] > 0
    assert kind == "tflite" or codes[0] > 0
