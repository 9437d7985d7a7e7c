"""A stage's row owns its facts: what it says agrees with its artifact, with dvc.yaml, and with no second copy."""

from __future__ import annotations

import ast
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import yaml

from forge_pipeline.stages import STAGES
from forge_pipeline.stages.artifacts import KINDS

ROOT = Path(__file__).parent.parent.parent
RELAX_OPERATORS = {"quantize"}


def rows() -> dict[str, Any]:
    """Return dvc.yaml's stages."""
    return dict(yaml.safe_load((ROOT / "dvc.yaml").read_text())["stages"])


def tracked(row: dict[str, Any]) -> set[str]:
    """Return the paths that DVC tracks as the stage's outputs."""
    entries = [entry for key in ("outs", "metrics", "plots") for entry in row.get(key, ())]
    return {path for entry in entries for path in entry}


@pytest.mark.parametrize("name", STAGES)
def test_what_a_stage_delivers_is_all_of_an_artifact_for_the_user_and_a_part_of_any_other(name: str) -> None:
    stage = STAGES[name]
    files = set(KINDS[stage.gives].files)
    assert set(stage.deliverables) <= files
    if stage.is_last:
        assert set(stage.deliverables) == files, "a deliverable is missing in the stage's row"


def test_no_two_stages_deliver_a_file_of_the_same_name() -> None:
    counts = Counter(name for stage in STAGES.values() for name in stage.deliverables)
    assert [name for name, count in counts.items() if count > 1] == []


def test_a_stage_that_nobody_reads_delivers_all_that_it_gives() -> None:
    read = {origin for stage in STAGES.values() for origin in stage.takes.values()}
    assert [name for name, stage in STAGES.items() if name not in read and not stage.is_last] == []


@pytest.mark.parametrize("name", STAGES)
def test_dvc_tracks_the_folder_of_a_stage_or_its_receipt_and_what_is_the_same_each_time(name: str) -> None:
    stage, row = STAGES[name], rows()[name]
    folder = stage.folder.format(target="${item.target}" if stage.per_target else "").rstrip("/")
    kind = KINDS[stage.gives]
    same = set(kind.files) - set(kind.fresh) - set(kind.optional)
    names = {f"out/receipts/{folder}/{name}.action.json", *(f"out/{folder}/{file}" for file in same)}
    assert tracked(row) == (names if stage.is_last else {f"out/{folder}"})
    assert ("matrix" in row) == stage.per_target


@pytest.mark.parametrize("name", STAGES)
def test_dvc_has_a_stage_depend_on_the_identity_of_what_it_takes_and_on_nothing_in_clear(name: str) -> None:
    stage, row = STAGES[name], rows()[name]
    origins = [STAGES[origin] for origin in stage.takes.values() if origin in STAGES]
    folders = {
        origin.folder.format(target="${item.target}" if stage.per_target else "").rstrip("/") for origin in origins
    }
    between = {path for path in row["deps"] if path.startswith(("out/shared", "out/plain"))}
    assert between == {f"out/{folder}/identity.json" for folder in folders}


def test_stages_are_named_in_their_own_rows_and_modules_alone() -> None:
    found = [
        f"{path.relative_to(ROOT)}:{node.lineno}: {node.value}"
        for package in ("pipeline", "api", "report", "store")
        for path in sorted((ROOT / "forge_pipeline" / package).rglob("*.py"))
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Constant) and node.value in set(STAGES)
        and not (path.name == "relax_module.py" and node.value in RELAX_OPERATORS)
    ]  # fmt: skip
    assert found == []
