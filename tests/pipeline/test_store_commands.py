"""`forge-pipeline store`: what it lists, what it finds damaged, what it frees."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from forge_pipeline.frontends import Source
from forge_pipeline.locate import conf_dir
from forge_pipeline.pipeline.runner import External, Runner
from forge_pipeline.store import Store


@pytest.fixture
def filled(tmp_path: Path, model: Path) -> Path:
    """Return a store in which one model was loaded."""
    options = yaml.safe_load((conf_dir() / "load" / "default.yaml").read_text())
    with Store(tmp_path / "store") as store:
        Runner(store=store).run("load", options, {"source": External(Source(model))})
    return tmp_path / "store"


def test_the_list_names_the_stage_and_its_key(forge: Any, filled: Path) -> None:
    with Store(filled) as store:
        (action,) = store.actions()
    done = forge("store", "ls")
    assert done.returncode == 0
    assert done.stdout.split()[:2] == ["load", action.key[:16]]


def test_a_sound_store_verifies_and_a_damaged_one_exits_with_one(forge: Any, filled: Path) -> None:
    assert forge("store", "verify").stdout == "1 actions, all sound\n"
    with Store(filled) as store:
        (action,) = store.actions()
        path = store.path(action.outputs["model.onnx"])
    path.chmod(0o644)
    path.write_bytes(b"damaged")
    done = forge("store", "verify")
    assert done.returncode == 1
    assert path.name in done.stderr
    assert "\nfix: " in done.stderr


def test_collection_keeps_what_the_limit_allows(forge: Any, filled: Path) -> None:
    assert forge("store", "gc", "--keep-days", "1").stdout == "freed 0 B: 0 actions, 0 objects\n"
    assert "1 actions" in forge("store", "gc", "--keep-mb", "0").stdout
    assert forge("store", "ls").stdout == "empty\n"


def test_a_store_that_is_not_there_is_refused(forge: Any) -> None:
    done = forge("store", "ls")
    assert done.returncode == 1
    assert "FORGE_STORE" in done.stderr
