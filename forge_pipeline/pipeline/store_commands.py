"""What `forge-pipeline store` does: list, verify and tidy the kept build results."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from datetime import date
from pathlib import Path
from typing import TYPE_CHECKING, Any

from forge_pipeline.config import bind
from forge_pipeline.errors import StoreError
from forge_pipeline.pipeline.build import REMOTE, StoreOptions, store_root, terms_of
from forge_pipeline.pipeline.console import progress_for, warn
from forge_pipeline.pipeline.hydra_app import compose
from forge_pipeline.pipeline.notary import notary
from forge_pipeline.pipeline.vault import vault
from forge_pipeline.report.figures import day, size
from forge_pipeline.stages import STAGES
from forge_pipeline.stages.artifacts import KINDS
from forge_pipeline.store import Action, Note, Store
from forge_pipeline.store.disk import refusing
from forge_runtime.text import shown

if TYPE_CHECKING:
    from forge_pipeline.store.remote import Remote

DAY = 86_400
WHERE = "store.remote"


def list_actions(path: Path | None) -> str:
    """Return a line per action: stage, key, size, seconds of its build, date, target, model, and why it was built.

    The target is there where the stage has one, the rest where the store noted it.
    """
    with _existing(path) as store:
        rows = [_row(action, store.note(action.key)) for action in store.actions()]
    return "\n".join(rows) if rows else "empty"


def _row(action: Action, note: Note | None = None) -> str:
    """Describe an action. What its record says beside the outputs may be anything: whoever wrote it chose it."""
    stage, tag = (_text(action.report, *keys) for keys in (("stage",), ("config", "target", "tag")))
    kept = size(max(0, min(sum(action.sizes.values()), 1 << 60)))
    row = f"{stage:<10}{action.key[:16]}  {kept:>9}{min(action.seconds, 1e9):>9.2f} s"
    if note is not None:
        why = note.reason if note.came == "built" else "from the remote"
        return shown(f"{row}  {day(note.when)}  {tag:<15} {note.model:<20}  {why}", 300)
    return shown(f"{row}  {tag}".rstrip(), 200)


def _text(report: object, *keys: str) -> str:
    for key in keys:
        report = report.get(key) if isinstance(report, Mapping) else None
    return report if isinstance(report, str) else ""


def verify_store(path: Path | None) -> str:
    """Return how much is sound; StoreError where something was not, each named on stderr."""
    with _existing(path) as store:
        damages = store.verify()
        count = len(store.actions())
        root = _root(path)
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


def collect_garbage(path: Path | None, *, keep_mb: int | None, keep_days: float | None, plaintext: bool) -> str:
    """Remove what the limits do not keep; without limits, only what no action refers to. Return what was freed.

    ``plaintext``: all that shows a model or samples as well, so that of builds only what is sealed stays.
    """
    with _existing(path) as store:
        done = store.gc(
            keep_bytes=None if keep_mb is None else keep_mb * 1_000_000,
            keep_seconds=None if keep_days is None else keep_days * DAY,
            keep=_is_sealed if plaintext else lambda action: True,
            keep_kernels=not plaintext,
        )
    return f"freed {size(done.freed)}: {done.actions} actions, {done.objects} objects"


def _is_sealed(action: Action) -> bool:
    stage = _text(action.report, "stage")
    return stage in STAGES and not KINDS[STAGES[stage].gives].discloses(action.outputs)


def push_store(path: Path | None, url: str | None, sign: Sequence[str] = ()) -> str:
    """Send to the remote what it lacks, signed with the key in the first of the places ``sign`` that has one.

    Without places, with that of `store.sign` in the configuration here. StoreError where it fails.
    """
    from forge_pipeline.store import transfer

    with closing(remote_of(url)) as remote, _existing(path, remote, sign=sign) as store:
        withheld = len(store.actions()) - len(store.to_send())
        moved = transfer.push(store, remote, progress_for("push"))
    stay = f"; {withheld} stay here: damaged, or of builds that are encrypted" if withheld else ""
    return f"sent {moved.moved} of {moved.asked} actions, {size(moved.bytes)}; the remote has the others{stay}"


def pull_store(path: Path | None, url: str | None, trusted: Sequence[str] = ()) -> str:
    """Fetch from the remote what is not here and what a key in one of the files ``trusted`` signed.

    Without files, those of `store.trusted` in the configuration here; without these, anything that is whole. StoreError
    where it fails.
    """
    from forge_pipeline.store import transfer

    with closing(remote_of(url)) as remote, _opened(path, remote, trusted=trusted) as store:
        moved = transfer.pull(store, remote, progress_for("pull"))
    return f"fetched {moved.moved} of {moved.asked} actions, {size(moved.bytes)}"


def list_remote(url: str | None) -> str:
    """Return a line per action of the remote, the newest first, each with the day it was written."""
    from forge_pipeline.store import transfer

    with closing(remote_of(url)) as remote:
        kept = transfer.listed(remote, progress_for("ls"))
    rows = [f"{date.fromtimestamp(item.written).isoformat()}  {_row(item.action)}" for item in kept]
    return "\n".join(rows) if rows else "empty"


def collect_remote(url: str | None, *, keep_mb: int | None, keep_days: float | None) -> str:
    """Remove from the remote what the limits do not keep, and what no record names; return what was freed."""
    from forge_pipeline.store import transfer

    with closing(remote_of(url)) as remote:
        actions, files, freed = transfer.collect(
            remote,
            progress_for("gc"),
            keep_bytes=None if keep_mb is None else keep_mb * 1_000_000,
            keep_seconds=None if keep_days is None else keep_days * DAY,
        )
    return f"freed {size(freed)}: {actions} actions, {files} objects; objects of the last day stay until the next time"


def remote_of(url: str | None) -> Remote:
    """Open the remote that is named, else `store.remote`, else FORGE_STORE_REMOTE's, for work in parallel."""
    from forge_pipeline.store.remote import Remote
    from forge_pipeline.store.transfer import WIDTH

    section = {**compose([])["store"], **_section()}
    chosen = {**section, "remote": url or section["remote"], "remote_required": True}
    terms = terms_of(bind(StoreOptions, chosen, where="store"))
    if terms is None:
        raise StoreError(WHERE, "a URL", "none", f"name it with --url or in {REMOTE}")
    return Remote(replace(terms, patience=math.inf, wait=0.0), warn, width=WIDTH)


def _existing(path: Path | None, remote: Remote | None = None, *, sign: Sequence[str] = ()) -> Store:
    root = _root(path)
    with refusing(root):
        if not root.is_dir():
            raise StoreError(f"store {root}", "a folder", "none", "name it with --path or FORGE_STORE")
    return _opened(path, remote, sign=sign)


def _opened(
    path: Path | None, remote: Remote | None, *, sign: Sequence[str] = (), trusted: Sequence[str] = ()
) -> Store:
    """Open the store with the keys that are named, else with those of the configuration here."""
    own = _section()
    vouched = notary(sign or own.get("sign", ()), trusted or own.get("trusted", ()))
    return Store(_root(path), remote, on_damage=warn, notary=vouched, vault=vault(own.get("key", ())))


def _root(path: Path | None) -> Path:
    own = _section().get("path")
    return store_root(path or (Path(own) if own else None))


def _section() -> dict[str, Any]:
    """Return the section `store` of the configuration in this folder, as `dvc repro` takes it; empty without one."""
    own = Path("conf")
    return dict(compose([], own)["store"]) if (own / "config.yaml").is_file() else {}
