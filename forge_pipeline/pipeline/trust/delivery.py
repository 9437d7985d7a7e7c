"""Keys, signatures, and what is signed of a delivery: who built a file, and whether a build is whole."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from forge_pipeline.content import open_stream
from forge_pipeline.crypto import dsse, signing
from forge_pipeline.crypto.signing import MAX_SIGNATURE, SUFFIX
from forge_pipeline.digest import digest_bytes, digest_file
from forge_pipeline.errors import ArtifactError, ForgeError, UntrustedError
from forge_pipeline.pipeline.cards.bom import BOM, described
from forge_pipeline.pipeline.deliver import BUNDLE, MANIFEST, write_atomically
from forge_pipeline.pipeline.provenance import ENVELOPE, PROVENANCE
from forge_pipeline.pipeline.trust.statements import MAX_STATEMENT, Statement, parse
from forge_pipeline.stages import STAGES, giving
from forge_pipeline.stages.artifacts import MODEL_FILES
from forge_runtime.text import shown

_NAMES = {name for stage in STAGES.values() for name in stage.deliverables}
MAX_MANIFEST = 16 << 20
"""Bytes of a manifest; what is larger is none."""


def keygen(place: str | Path, comment: str) -> str:
    """Make a key pair in a file, or on the token of a PKCS#11 URI; return the public line."""
    return signing.make_key(place, comment)


def sign(path: Path, key: signing.PrivateKey) -> str:
    """Sign a file, or what was delivered into a folder: models, manifest and provenance. Return a line for each."""
    files = [path]
    if path.is_dir():
        files = [path / name for name in (*MODEL_FILES.values(), BOM, MANIFEST) if os.path.lexists(path / name)]
        if path / MANIFEST not in files:
            raise _no_manifest(path)
    signatures = {_beside(file): signing.sign(bytes.fromhex(_digest(file)), key) for file in files}
    if path.is_dir() and os.path.lexists(path / PROVENANCE):
        signatures[path / ENVELOPE] = dsse.enclose(_read(path / PROVENANCE, MAX_STATEMENT), key)
        files.append(path / PROVENANCE)
    for file, signature in signatures.items():
        write_atomically(file, signature, private=file.name == ENVELOPE and _is_private(path / PROVENANCE))
    return "\n".join(shown(f"signed    {file}") for file in files)


def _is_private(path: Path) -> bool:
    return not path.stat().st_mode & 0o077


@dataclass(frozen=True, slots=True, kw_only=True)
class Verified:
    """What was found sound: a line for each file, and what is attested of a folder, by whom, if anything is."""

    lines: tuple[str, ...]
    statement: Statement | None = None
    signer: str = ""


def verify(path: Path, trusted: Mapping[str, str]) -> Verified:
    """Return what is sound of a file or a folder, which is all of it.

    A file must be signed by a trusted key. Of a folder, manifest, models, and provenance and bill of materials if there
    are any, must be, and every deliverable must be what the manifest says: all of one build, none missing, none added.
    Files that no build delivers are named. ``trusted`` has the keys as `signing.read_trusted` returns them. Raises
    ForgeError.
    """
    if not path.is_dir():
        digest = _digest(path)
        return Verified(lines=(_line(path, digest, signer(path, digest, trusted)),))
    return _verify_folder(path, trusted)


def _verify_folder(folder: Path, trusted: Mapping[str, str]) -> Verified:
    strange = _strange(folder)
    if not os.path.lexists(folder / MANIFEST):
        raise _no_manifest(folder)
    content = _read(folder / MANIFEST, MAX_MANIFEST)
    vouching = signer(folder / MANIFEST, digest_bytes(content), trusted)
    lines = [_line(folder / MANIFEST, digest_bytes(content), vouching)]
    wanted = _deliverables(folder / MANIFEST, content)
    statement, builder = None, ""
    if os.path.lexists(folder / PROVENANCE):
        statement, builder = attested(folder, trusted)
        if not _is_of(statement, wanted):
            raise _another(folder / PROVENANCE, "the provenance of this build", "that of another")
        lines.append(_line(folder / PROVENANCE, _digest(folder / PROVENANCE), builder))
    if os.path.lexists(folder / BOM):
        bill = _read(folder / BOM, MAX_STATEMENT)
        vouching = signer(folder / BOM, digest_bytes(bill), trusted)
        if described(bill, str(folder / BOM)).items() - wanted.items():
            raise _another(folder / BOM, "the bill of materials of this build", "that of another")
        lines.append(_line(folder / BOM, digest_bytes(bill), vouching))
    for name in sorted(_NAMES | wanted.keys()):
        file, digest = folder / name, wanted.get(name)
        if digest is None:
            if os.path.lexists(file):
                raise _another(file, "nothing: this build gave no such file", "one")
            continue
        found = _digest(file)
        if found != digest:
            raise _another(file, f"the file of this build, with digest {digest}", found)
        lines.append(
            _line(file, found, signer(file, found, trusted) if name in MODEL_FILES.values() else "by the manifest")
        )
    lines += [shown(f"{name:<18} not of the build, and not checked", 200) for name in strange]
    return Verified(lines=tuple(lines), statement=statement, signer=builder)


def _strange(folder: Path) -> list[str]:
    """Return the names of what no build delivers. Raises ArtifactError for a link that leads out of the folder.

    What it leads to may be written by others, and be another file when it is used.
    """
    with _told(folder):
        names = sorted(path.name for path in folder.iterdir())
    inside = os.path.realpath(folder)
    for name in names:
        if not Path(os.path.realpath(folder / name)).is_relative_to(inside):
            raise _another(folder / name, "a file in the folder", "a link that leads out of it")
    own = {f"{name}{suffix}" for name in (*_NAMES, MANIFEST, PROVENANCE, BOM) for suffix in ("", SUFFIX)}
    return [name for name in names if name not in own | {ENVELOPE, BUNDLE}]


def _is_of(statement: Statement, delivered: Mapping[str, str]) -> bool:
    """Tell whether a statement is about the very files that a manifest names, not only about the same library."""
    artifact = giving("sealed").deliverables
    given = {
        name: digest
        for stage, made in statement.stages.items()
        for name, digest in made.outputs.items()
        if stage in STAGES and name in STAGES[stage].deliverables and name in delivered
    }
    return (
        statement.subject == {name: digest for name, digest in delivered.items() if name in artifact}
        and not given.items() - delivered.items()
    )


def attested(folder: Path, trusted: Mapping[str, str]) -> tuple[Statement, str]:
    """Return what a trusted key signed of how the delivery in a folder came to be, and what to call the key.

    Raises UntrustedError where none did, and ArtifactError where that is another statement than the file of
    it, or none of what it is about.
    """
    content = _read(folder / PROVENANCE, MAX_STATEMENT)
    if not os.path.lexists(folder / ENVELOPE):
        raise _untrusted(folder / PROVENANCE, f"no {ENVELOPE} beside it")
    try:
        signed, key = dsse.disclose(_read(folder / ENVELOPE, 2 * MAX_STATEMENT), trusted)
    except ArtifactError as error:
        raise _untrusted(folder / PROVENANCE, error.found) from error
    if signed != content:
        raise _another(folder / PROVENANCE, "the statement that was signed", "another")
    statement = parse(content, str(folder / PROVENANCE))
    if not statement.is_consistent:
        raise _another(folder / PROVENANCE, "stages that gave what is delivered", "some that gave something else")
    return statement, trusted[key] or key


def _deliverables(path: Path, content: bytes) -> dict[str, str]:
    """Return the digests of what a build delivered, by name."""
    try:
        manifest = json.loads(content)
        stages, kept = manifest["stages"], manifest.get("kept", ())
        outputs = {entry["stage"]: entry["outputs"] for entry in stages if "variant" not in entry}
        return {
            name: str(given[name])
            for stage, given in outputs.items()
            for name in STAGES.pick(stage, where=str(path)).deliverables
            if name in given and name not in kept
        }
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise ArtifactError(
            str(path), "a manifest of forge-pipeline", "another form", "deliver the build again"
        ) from error


def signer(file: Path, digest: str, trusted: Mapping[str, str]) -> str:
    """Return what to call the trusted key that signed a file. Raises UntrustedError."""
    place = _beside(file)
    if not os.path.lexists(place):
        raise _untrusted(file, "no signature beside it")
    try:
        key = signing.signer(bytes.fromhex(digest), _read(place, MAX_SIGNATURE))
    except ArtifactError as error:
        raise _untrusted(file, f"a signature that is {error.found}") from error
    if key not in trusted:
        raise _untrusted(file, f"a signature of {key}")
    return trusted[key] or key


def _beside(file: Path) -> Path:
    return file.with_name(f"{file.name}{SUFFIX}")


def _read(path: Path, limit: int) -> bytes:
    with _told(path), open_stream(path) as stream:
        content = stream.read(limit + 1)
    if len(content) > limit:
        raise _another(path, f"at most {limit} bytes", "more")
    return content


def _digest(path: Path) -> str:
    with _told(path):
        return digest_file(path)


@contextmanager
def _told(path: Path) -> Iterator[None]:
    """Turn what the file system refuses into an ArtifactError."""
    try:
        yield
    except OSError as error:
        found = error.strerror or "an error"
        raise ArtifactError(str(path), "a file that can be read", found, "correct the path") from error


def _line(file: Path, digest: str, signer: str) -> str:
    return shown(f"{file.name:<18} {digest}  {signer}", 200)


def _untrusted(file: Path, found: str) -> UntrustedError:
    fix = "take the file and its .sig from who built it; trust a key only if you know whose it is"
    return UntrustedError(str(file), "one that a trusted key signed", found, fix)


def _another(file: Path, expected: str, found: str) -> ArtifactError:
    return ArtifactError(
        str(file), expected, found, "deliver the build again, or take the folder anew from who built it"
    )


def _no_manifest(folder: Path) -> ForgeError:
    return ForgeError(
        str(folder), f"a folder that `forge-pipeline run` delivered to, with {MANIFEST}", "none",
        "name the file itself, or deliver the build again",
    )  # fmt: skip
