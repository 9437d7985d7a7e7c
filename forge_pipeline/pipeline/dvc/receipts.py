"""What says that a stage has delivered: a receipt, which DVC tracks, and a record, which it does not.

`dvc.lock` is committed, so it must be the same wherever the same is built. A receipt therefore holds what follows from
the content alone: the action key, all that the key is made of, and the digest of each output, or null for one that is
new each time it is built (sealed under a new salt, measured on this machine). The record, below `out/delivered`, has
the digests of those as well, and how long the build took. DVC does not look at a file that it does not track:
`withdraw` does, and removes the receipt where one is not as it was delivered, so that DVC has it delivered again.

What is for other stages is in the store, and not here: beside the receipt, `identity.json` has the digests that the
stages after it depend on. It stays the same where a stage that runs again gives the same.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from forge_pipeline.content import open_stream
from forge_pipeline.digest import canonical_json, digest_file
from forge_pipeline.errors import ArtifactError
from forge_pipeline.pipeline.deliver import write_atomically
from forge_pipeline.pipeline.dvc.work_tree import OUT, RECEIPTS, folder_of, make_private
from forge_pipeline.pipeline.runner import Output
from forge_pipeline.stages import STAGES
from forge_pipeline.stages.artifacts import KINDS, REPORT
from forge_pipeline.store.disk import is_digest

PAGE = OUT / "report.html"
PAGE_RECEIPT = PAGE.with_suffix(".action.json")


def receipt_path(stage: str, target: str | None = None) -> Path:
    """Return where a stage's receipt is: among its outputs, or with those of all stages that give what is delivered."""
    folder = RECEIPTS / str(target) if STAGES[stage].is_last else folder_of(stage, target)
    return folder / f"{stage}.action.json"


def record_of(receipt: Path) -> Path:
    """Return where the record beside a receipt is."""
    return OUT / "delivered" / receipt.relative_to(OUT)


def identity_path(stage: str, target: str | None = None) -> Path:
    """Return where the digests are of what a stage gives to others."""
    return folder_of(stage, target) / "identity.json"


def clear(stage: str, target: str | None = None) -> None:
    """Remove the receipt, and those of an earlier run's files that DVC does not: a failure leaves none of them."""
    entry = STAGES[stage]
    kind, folder = KINDS[entry.gives], folder_of(stage, target)
    files = kind.fresh if entry.is_last else (*kind.files, REPORT)  # those of earlier versions, in clear
    for path in (receipt_path(stage, target), identity_path(stage, target), *(folder / file for file in files)):
        path.unlink(missing_ok=True)


def delivered(stage: str, target: str | None) -> tuple[str, dict[str, str]]:
    """Return the action key of a stage whose output is for others, and its digests. Raises ArtifactError."""
    receipt, identity = receipt_path(stage, target), identity_path(stage, target)
    key, digests = _said(receipt).get("action_key"), _said(identity)
    if not isinstance(key, str) or not is_digest(key):
        raise ArtifactError(str(receipt), "an action key", "none", "run `dvc repro`")
    return key, digests


def _said(path: Path) -> dict[str, Any]:
    try:
        with open_stream(path) as stream:
            content = json.loads(stream.read())
    except OSError as error:
        found = "no such file" if isinstance(error, FileNotFoundError) else str(error.strerror)
        raise ArtifactError(str(path), "what an earlier stage says of its output", found, "run `dvc repro`") from error
    except (ValueError, RecursionError) as error:
        raise ArtifactError(str(path), "JSON", "something else", "remove the file, and run `dvc repro`") from error
    if not isinstance(content, dict):
        raise ArtifactError(str(path), "a JSON object", "something else", "remove the file, and run `dvc repro`")
    return content


def write_receipt(output: Output, target: str | None, *, private: bool) -> None:
    """Say that ``output`` is delivered. The page about the build is written anew if this is news."""
    receipt, outputs = receipt_path(output.stage.name, target), dict(sorted(output.action.outputs.items()))
    described = {"stage": output.stage.name, "action_key": output.action.key}
    came = {"seconds": output.action.seconds, "result": "hit" if output.hit else "built"}
    news = _write_record(receipt, {**described, **came, "outputs": outputs})
    if news:
        PAGE_RECEIPT.unlink(missing_ok=True)
    pinned = {file: None if file in output.kind.fresh else digest for file, digest in outputs.items()}
    write_atomically(receipt, _pretty({**output.action.report, **described, "outputs": pinned}), private=private)
    if not output.stage.is_last:
        write_atomically(identity_path(output.stage.name, target), _pretty(output.digest()), private=True)


def write_page_receipt(targets: Sequence[str]) -> None:
    """Say that the page is written, about the builds for these targets."""
    _write_record(PAGE_RECEIPT, {"targets": list(targets), "outputs": {PAGE.name: digest_file(PAGE)}})
    told = (path for target in targets for stage in STAGES if (path := receipt_path(stage, target)).exists())
    receipt = {"inputs": {str(path): digest_file(path) for path in told}, "outputs": {PAGE.name: None}}
    write_atomically(PAGE_RECEIPT, _pretty(receipt))


def withdraw(targets: Sequence[str], root: Path = Path()) -> None:
    """Remove the receipts below ``root`` that no longer say the truth about a file that DVC does not track.

    And those of targets that are built no longer, which the page about the build would wait for; and the page's, where
    it tells of other targets, or of these in another order.
    """
    places = {receipt_path(stage, target): folder_of(stage, target) for target in targets for stage in STAGES}
    for receipt, folder in (*places.items(), (PAGE_RECEIPT, PAGE.parent)):
        if (root / receipt).exists() and not _is_delivered(root / receipt, root / record_of(receipt), root / folder):
            (root / receipt).unlink()
    if _told(root / record_of(PAGE_RECEIPT)) != list(targets):
        (root / PAGE_RECEIPT).unlink(missing_ok=True)
    for path in (root / RECEIPTS).rglob("*.json"):
        if path.relative_to(root) not in places:
            path.unlink()


def _is_delivered(receipt: Path, record: Path, folder: Path) -> bool:
    try:
        said, delivered = _outputs(receipt), _outputs(record)
        untracked = [file for file, digest in said.items() if digest is None]
        return all(digest_file(folder / file) == delivered[file] for file in untracked)
    except (OSError, ValueError, LookupError, TypeError):
        return False


def _told(record: Path) -> Any:
    try:
        with open_stream(record) as stream:
            return json.loads(stream.read())["targets"]
    except (OSError, ValueError, LookupError, TypeError):
        return None


def _outputs(path: Path) -> Mapping[str, Any]:
    with open_stream(path) as stream:
        outputs: Mapping[str, Any] = json.loads(stream.read())["outputs"]
    return outputs


def _write_record(receipt: Path, record: Any) -> bool:
    """Write the record beside a receipt, and tell whether it differs from the one that was there."""
    path, content = record_of(receipt), canonical_json(record) + b"\n"
    try:
        with open_stream(path) as stream:
            if stream.read() == content:
                return False
    except OSError:
        pass
    make_private(path.parent)
    write_atomically(path, content, private=True)
    return True


def _pretty(receipt: Any) -> bytes:
    return json.dumps(receipt, indent=1, sort_keys=True).encode() + b"\n"
