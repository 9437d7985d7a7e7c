"""What `forge-pipeline store` does: list, verify and tidy the kept build results."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from forge_pipeline.errors import StoreError
from forge_pipeline.pipeline.build import store_root
from forge_pipeline.pipeline.console import warn
from forge_pipeline.report.figures import size
from forge_pipeline.store import Action, Store
from forge_pipeline.store.disk import refusing
from forge_runtime.text import shown

DAY = 86_400


def list_actions(path: Path | None) -> str:
    """Return a line per action: stage, key, size, seconds of its build, and the target where it has one."""
    with _existing(path) as store:
        rows = [_row(action) for action in store.actions()]
    return "\n".join(rows) if rows else "empty"


def _row(action: Action) -> str:
    """Describe an action. What its record says beside the outputs may be anything: whoever wrote it chose it."""
    stage, tag = (_text(action.report, *keys) for keys in (("stage",), ("config", "target", "tag")))
    kept = size(max(0, min(sum(action.sizes.values()), 1 << 60)))
    return shown(f"{stage:<10}{action.key[:16]}  {kept:>9}{min(action.seconds, 1e9):>9.2f} s  {tag}".rstrip(), 200)


def _text(report: object, *keys: str) -> str:
    for key in keys:
        report = report.get(key) if isinstance(report, Mapping) else None
    return report if isinstance(report, str) else ""


def verify_store(path: Path | None) -> str:
    """Return how much is sound; StoreError where something was not, each named on stderr."""
    with _existing(path) as store:
        damages = store.verify()
        count = len(store.actions())
        root = store_root(path)
    for damage in damages:
        warn(str(damage))
    if damages:
        raise StoreError(
            where=f"store {root}",
            expected="objects and records as they were written",
            found=f"{len(damages)} damaged, such as {damages[0].path.name}",
            fix="nothing to do: what was moved is built again when asked for; suspect the disk"
            if any(damage.moved_to for damage in damages)
            else "what is missing is built again when asked for; where this store can only be read, mend it there",
        )
    return f"{count} actions, all sound"


def collect_garbage(path: Path | None, *, keep_mb: int | None, keep_days: float | None) -> str:
    """Remove what the limits do not keep; without limits, only what no action refers to. Return what was freed."""
    with _existing(path) as store:
        done = store.gc(
            keep_bytes=None if keep_mb is None else keep_mb * 1_000_000,
            keep_seconds=None if keep_days is None else keep_days * DAY,
        )
    return f"freed {size(done.freed)}: {done.actions} actions, {done.objects} objects"


def _existing(path: Path | None) -> Store:
    root = store_root(path)
    with refusing(root):
        if not root.is_dir():
            raise StoreError(f"store {root}", "a folder", "none", "name it with --path or FORGE_STORE")
    return Store(root, on_damage=warn)
