"""Earlier builds as the report tells them, from the store of a real one."""

from __future__ import annotations

import json
from typing import Any

import pytest

from forge_pipeline.pipeline.dvc.history import earlier
from forge_pipeline.store import Store


def test_a_build_in_the_store_is_told_as_it_was_delivered(finished: Any) -> None:
    metrics = json.loads((finished.out / "metrics.json").read_text())
    stages = json.loads((finished.out / "manifest.json").read_text())["stages"]
    with Store(finished.store) as store:
        (told,) = earlier(store, "tiny.onnx", ["android/cpu", "host"])
    assert told.action_key == next(stage["action_key"] for stage in stages if stage["stage"] == "evaluate")
    assert (told.target, told.is_float, told.metric) == ("host", False, "top1")
    assert told.library_bytes == metrics["size_library_bytes"]


@pytest.mark.parametrize(("model", "targets"), [("other.onnx", ["host"]), ("tiny.onnx", ["android/cpu"])])
def test_builds_of_others_are_not(finished: Any, model: str, targets: list[str]) -> None:
    with Store(finished.store) as store:
        assert earlier(store, model, targets) == []
