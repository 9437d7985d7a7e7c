"""Earlier builds of a model, as the store has them: what they scored, and how quick and large they were."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

from forge_pipeline.errors import StoreError
from forge_pipeline.report.build import Earlier
from forge_pipeline.report.figures import day
from forge_pipeline.stages import giving
from forge_pipeline.store import Action, Note, Store

MOST = 12
"""Builds that are told of each target."""


def earlier(store: Store, model: str, targets: Sequence[str]) -> list[Earlier]:
    """Return the builds for ``targets`` of models in a file of this name, the newest first, at most MOST of each.

    What came from a remote counts from the day it came. A record that cannot be read is left out.
    """
    stage = giving("metrics").name
    noted = [(store.note(action.key), action) for action in store.actions() if action.report.get("stage") == stage]
    own = [(note, action) for note, action in noted if note is not None and note.model == model]
    own.sort(key=lambda item: -item[0].when)
    found: dict[str, list[Earlier]] = {target: [] for target in targets}
    for note, action in own:
        with suppress(StoreError, OSError, ValueError, LookupError, TypeError):
            told = _told(store, note, action)
            if len(found.get(told.target, [None] * MOST)) < MOST:
                found[told.target].append(told)
    return [each for target in targets for each in found[target]]


def _told(store: Store, note: Note, action: Action) -> Earlier:
    files = (action.outputs[name] for name in ("metrics.json", "latency.json"))
    metrics: Mapping[str, Any] = {
        key: value for digest in files for key, value in json.loads(store.read(digest)).items()
    }
    inputs = action.report["inputs"]
    compiled = metrics.get("compiled")
    return Earlier(
        action_key=action.key,
        day=day(note.when),
        target=action.report["config"]["target"]["tag"],
        is_float=inputs["model"] == inputs["reference"],
        metric=metrics["metric"],
        score=metrics.get("quantized") if compiled is None else compiled,
        latency_ms=metrics.get("latency_median_ms"),
        cpu=metrics.get("cpu", ""),
        library_bytes=metrics["size_library_bytes"],
    )
