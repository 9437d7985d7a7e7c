"""Why a stage runs: what of its action key is not as it was in the nearest earlier action of the store."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from forge_pipeline.digest import canonical_json
from forge_pipeline.stages.contract import Stage
from forge_pipeline.store import Action, Store

RECENT = 500
"""Actions, the most recently used, among which the nearest is looked for."""

TARGET = "target"
SHOWN = 60  # characters of a value


@dataclass(frozen=True, slots=True)
class Reason:
    """What changed, a line each, since ``action`` (None: there is none of this stage)."""

    changes: tuple[str, ...]
    action: Action | None = None

    def __str__(self) -> str:
        return "; ".join(self.changes)


def reason_for(
    stage: Stage, parts: Mapping[str, Any], store: Store, model: str, pending: Mapping[str, str] | None = None
) -> Reason:
    """Compare what an action's key is made of with the store's earlier actions of ``stage``; take the nearest.

    ``model`` is the model's name. ``pending`` maps an input that is not known yet to the stage that has to run for it.
    """
    parts = json.loads(canonical_json(parts))  # lists for tuples, as a record has them
    earlier = [action for action in store.actions(RECENT) if action.report.get("stage") == stage.does]
    pending = pending or {}
    waits = [f"input {name}: {origin} has to run first" for name, origin in sorted(pending.items())]

    def distance(action: Action) -> tuple[bool, bool, int]:
        note = store.note(action.key)
        before = _leaves(action.report.get("config"))
        tag = before.get(f"{TARGET}.tag") != _leaves(parts["config"]).get(f"{TARGET}.tag")
        return note is None or note.model != model, tag, len(changes(stage, action.report, parts, pending))

    if not earlier:
        return Reason(("no earlier result of this stage", *waits))
    nearest = min(earlier, key=distance)
    found = changes(stage, nearest.report, parts, pending)
    if not found and not waits:
        found = ["the result that is there is damaged, or is refused"]
    return Reason((*found, *waits), nearest)


def changes(stage: Stage, before: Mapping[str, Any], after: Mapping[str, Any], pending: Mapping[str, str]) -> list[str]:
    """Return what differs between the ingredients of two keys, a line each: code, tools, options, inputs."""
    found = []
    if before.get("version") != after["version"]:
        found.append(f"code of {stage.does}: version {before.get('version')} -> {after['version']}")
    for tool, old, new in _differences(before.get("tools"), after["tools"]):
        found.append(f"{tool}: {old} -> {new}")
    options = _differences(before.get("config"), after["config"])
    tags = [(old, new) for key, old, new in options if key == f"{TARGET}.tag"]
    found += [f"target: {old} -> {new}" for old, new in tags]
    found += [
        f"{stage.name}.{key}: {old} -> {new}"
        for key, old, new in options
        if not (tags and key.startswith(f"{TARGET}."))  # what a target is follows from its name
    ]
    inputs = before.get("inputs")
    for name, digest in after["inputs"].items():
        known = inputs.get(name) if isinstance(inputs, Mapping) else None
        if name not in pending and known != digest:
            found.append(_input(stage.takes[name], name, known, digest))
    return found


def _input(origin: str, name: str, old: Any, new: Any) -> str:
    if old is None or new is None:
        return f"input {name}: {'none' if old is None else 'one'} -> {'one' if old is None else 'none'}"
    what = {"source": "the model's file", "data": "the samples", "calibration data": "the samples to calibrate with"}
    return f"input {name}: {what.get(origin, f'what {origin} gave')} {_short(old)} -> {_short(new)}"


def _short(digest: Any) -> str:
    """Return the beginning of the first digest in an input's identity."""
    while isinstance(digest, Mapping | list) and digest:
        digest = next(iter(digest.values() if isinstance(digest, Mapping) else digest))
    return str(digest)[:12]


def _differences(before: Any, after: Any) -> Sequence[tuple[str, str, str]]:
    old, new = _leaves(before), _leaves(after)
    return [(key, _value(old, key), _value(new, key)) for key in sorted({*old, *new}) if old.get(key) != new.get(key)]


def _value(leaves: Mapping[str, Any], key: str) -> str:
    text = "null" if leaves.get(key) is None else str(leaves[key])
    return text if len(text) <= SHOWN else f"{text[: SHOWN - 2]}.."


def _leaves(tree: Any, prefix: str = "") -> dict[str, Any]:
    """Return the values of nested mappings by dotted key; a list is one value."""
    if not isinstance(tree, Mapping):
        return {prefix: tree} if prefix else {}
    found: dict[str, Any] = {}
    for key, value in tree.items():
        found |= _leaves(value, f"{prefix}.{key}" if prefix else str(key))
    return found
