"""Killed processes, races and damaged objects: the same final bytes, and never a partial file."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from forge_pipeline.runtime.bundle import Library
from tests.support.paths import ROOT

MEASURED = "evaluate"  # holds latencies, which are measured anew


def _arguments(model: Path, data: Path, out: Path) -> list[str]:
    return ["run", f"model.path={model}", f"data.path={data}", "quantize=static", f"out={out}"]


def _manifest(out: Path) -> dict[str, dict[str, Any]]:
    return {row["stage"]: row for row in json.loads((out / "manifest.json").read_text())["stages"]}


def _digests(out: Path) -> dict[str, Any]:
    return {name: row["outputs"] for name, row in _manifest(out).items() if name != MEASURED}


def _start(arguments: list[str], store: Path, cwd: Path) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, "-m", "forge_pipeline", *arguments],
        cwd=cwd,
        env={**os.environ, "FORGE_STORE": str(store), "PYTHONPATH": str(ROOT)},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )


@pytest.mark.parametrize("moments", [1, pytest.param(20, marks=pytest.mark.long)])
def test_a_build_killed_at_random_moments_ends_with_the_same_bytes(
    forge: Any, model: Path, data: Path, tmp_path: Path, moments: int, finished: Any
) -> None:
    expected = _digests(finished.out)
    source = random.Random(moments)
    for moment in range(moments):
        store, out = tmp_path / f"store-{moment}", tmp_path / f"out-{moment}"
        process = _start(_arguments(model, data, out), store, tmp_path)
        time.sleep(source.uniform(0.1, finished.seconds))
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        for path in out.glob("*"):
            assert not path.name.startswith("model_library") or Library.from_bytes(path.read_bytes())
        done = forge(*_arguments(model, data, out), env={"FORGE_STORE": str(store)})
        assert done.returncode == 0, done.stderr
        assert _digests(out) == expected
        assert [path.name for path in out.iterdir() if path.name.startswith(".")] == []


@pytest.mark.long
def test_four_processes_that_ask_for_one_build_make_one(model: Path, data: Path, tmp_path: Path) -> None:
    outs = [tmp_path / f"out-{index}" for index in range(4)]
    processes = [_start(_arguments(model, data, out), tmp_path / "store", tmp_path) for out in outs]
    assert [process.wait() for process in processes] == [0] * 4
    manifests = [_manifest(out) for out in outs]
    for stage in manifests[0]:
        assert sum(manifest[stage]["result"] == "built" for manifest in manifests) == 1, stage
    assert len({json.dumps({name: row["outputs"] for name, row in manifest.items()}) for manifest in manifests}) == 1


@pytest.mark.parametrize("positions", [pytest.param(3, id="3"), pytest.param(200, marks=pytest.mark.long, id="200")])
def test_a_flipped_byte_in_any_stored_object_is_noticed_and_rebuilt(
    forge: Any, model: Path, data: Path, tmp_path: Path, positions: int, warm: Any
) -> None:
    arguments = _arguments(model, data, tmp_path / "out")
    expected = _digests(warm.out)
    objects: dict[str, str] = {}  # digest -> the first stage that gives it: a plain library is encrypt's output too
    for stage, outputs in expected.items():
        for digest in outputs.values():
            objects.setdefault(digest, stage)
    source = random.Random(0)

    def stored(digest: str) -> Path:
        (path,) = [found for found in (tmp_path / "store").rglob(digest[2:]) if "objects" in found.parts]
        return path

    largest = sorted(objects, key=lambda digest: -stored(digest).stat().st_size)
    firsts = list(dict.fromkeys(objects.values()))  # one of each stage before others
    firsts = [next(digest for digest in largest if objects[digest] == stage) for stage in firsts]
    order = list(dict.fromkeys([*firsts, *largest]))
    for index in range(positions):
        digest = order[index % len(order)]
        path = stored(digest)
        content = bytearray(path.read_bytes())
        content[source.randrange(len(content))] ^= 1 << source.randrange(8)
        path.chmod(0o644)
        path.write_bytes(content)
        done = forge(*arguments)
        assert done.returncode == 0, done.stderr
        assert digest[:12] in done.stderr, "the warning names the damaged object"
        assert _manifest(tmp_path / "out")[objects[digest]]["result"] == "built"
        assert _digests(tmp_path / "out") == expected
