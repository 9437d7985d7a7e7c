"""`explain` and `--dry-run`: what would run, why, and where a hit came from; and that looking changes nothing."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from forge_pipeline.pipeline.explain import explain
from forge_pipeline.pipeline.reasons import changes
from forge_pipeline.pipeline.runner import key_parts
from forge_pipeline.stages import STAGES
from tests.support.tiny import write_data, write_model


def _files(folder: Path) -> set[tuple[str, int]]:
    return {(str(path), path.stat().st_mtime_ns) for path in folder.rglob("*") if path.is_file()}


@pytest.fixture
def arguments(finished: Any) -> list[str]:
    """Return the overrides of the finished build."""
    folder = finished.store.parent
    return [f"model.path={folder / 'tiny.onnx'}", f"data.path={folder / 'samples.npz'}", "quantize=static"]


@pytest.fixture
def look(finished: Any, arguments: list[str], monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return a function that explains the finished build with more words: the lines of each stage, by its name."""
    monkeypatch.setenv("FORGE_STORE", str(finished.store))

    def stages(*more: str) -> dict[str, list[str]]:
        found: dict[str, list[str]] = {}
        for line in explain([*arguments, *more]).splitlines():
            name = line[:10].strip()
            found.setdefault(name or list(found)[-1], []).append(line[10:].strip())
        return found

    return stages


def test_what_was_built_is_a_hit_that_says_when_and_for_what(look: Any) -> None:
    found = look()
    assert set(found) == set(STAGES)
    for lines in found.values():
        assert len(lines) == 1 and lines[0].startswith("hit"), lines
        assert "built in" in lines[0] and "for tiny.onnx" in lines[0]


def test_a_changed_option_is_named_with_both_values_and_what_follows_waits_for_it(look: Any) -> None:
    found = look("quantize.per_channel=false")
    assert [found[name][0].split()[0] for name in STAGES] == ["hit"] * 3 + ["run"] * 4
    assert "quantize.per_channel: True -> False" in found["quantize"]
    assert "input model: quantize has to run first" in found["compile"]
    assert not any("quantize." in line for line in found["compile"])


def test_another_target_is_one_change_and_leaves_what_is_shared(look: Any) -> None:
    found = look("riscv64/generic")
    assert found["fold"][0].startswith("hit")
    assert "target: host -> riscv64/generic" in found["compile"]
    assert not any("compile.target" in line for line in found["compile"]), "what a target is follows from its name"


def test_other_samples_and_another_model_are_named(look: Any, tmp_path: Path) -> None:
    samples = dict(np.load(write_data(tmp_path / "other.npz")))
    np.savez(tmp_path / "other.npz", x=samples["x"] + 1, y=samples["y"])
    data = look(f"data.path={tmp_path / 'other.npz'}")
    assert data["load"][0].startswith("hit")
    assert any(line.startswith("input data: the samples to calibrate with ") for line in data["calibrate"])
    model = look(f"model.path={write_model(tmp_path / 'other.onnx', prefix='x/')}")
    assert any(line.startswith("input source: the model's file ") for line in model["load"])


def test_a_version_and_a_tool_are_named() -> None:
    stage = STAGES["load"]
    now = key_parts(stage, {"a": 1}, {"source": None})
    before = {**now, "version": 1, "tools": {"onnx": "0.1"}}
    assert changes(stage, before, now, {}) == [
        f"code of load: version 1 -> {stage.version}",
        f"onnx: 0.1 -> {now['tools']['onnx']}",
    ]


def test_to_look_makes_and_changes_nothing(forge: Any, arguments: list[str], warm: Any, tmp_path: Path) -> None:
    before = _files(tmp_path)
    done = forge("run", "--dry-run", *arguments)
    assert done.returncode == 0 and done.stdout.count("hit") == len(STAGES), done.stderr
    swept = forge(
        "run", "-m", "--dry-run", *arguments, "target=host,x86-64/v2", env={"FORGE_STORE": str(tmp_path / "no")}
    )
    assert swept.stdout.count("no earlier result of this stage") == 2 * len(STAGES), swept.stderr
    assert _files(tmp_path) == before
    assert not (tmp_path / "no").exists()


def test_a_store_that_is_no_section_is_refused(forge: Any, arguments: list[str]) -> None:
    done = forge("run", "--dry-run", *arguments, "store=null")
    assert done.returncode == 1
    assert "store: expected a section with options" in done.stderr


def test_a_dry_run_says_what_the_run_then_does(forge: Any, arguments: list[str], warm: Any, tmp_path: Path) -> None:
    more = [*arguments, "evaluate.latency_runs=3", "encrypt=none"]
    said = [line.split()[:2] for line in forge("run", "--dry-run", *more).stdout.splitlines() if line[0] != " "]
    assert forge("run", *more, f"out={tmp_path / 'out'}").returncode == 0
    rows = json.loads((tmp_path / "out" / "manifest.json").read_text())["stages"]
    assert said == [[row["stage"], "hit" if row["result"] == "hit" else "run"] for row in rows]
    listed = forge("store", "ls").stdout.splitlines()
    assert any("tiny.onnx" in line and "evaluate.latency_runs: 100 -> 3" in line for line in listed), listed


def test_a_word_that_is_no_stage_and_no_target_is_refused(forge: Any) -> None:
    done = forge("explain", "compil")
    assert (done.returncode, "did you mean 'compile'?" in done.stderr) == (2, True), done.stderr
