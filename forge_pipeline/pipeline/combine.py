"""What `forge-pipeline combine` does: one library for several CPUs, of the deliveries of a build for each."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path

from forge_pipeline.config import bind
from forge_pipeline.content import in_memory, open_stream
from forge_pipeline.crypto.envelope import Sealed
from forge_pipeline.crypto.keys import read_password
from forge_pipeline.crypto.signing import SUFFIX, read_trusted
from forge_pipeline.digest import digest_bytes
from forge_pipeline.errors import ArtifactError, ConfigError
from forge_pipeline.pipeline.deliver import MANIFEST, prepare, write_atomically
from forge_pipeline.pipeline.hydra_app import compose
from forge_pipeline.pipeline.trust.delivery import signer
from forge_pipeline.report.figures import size
from forge_pipeline.runtime.bundle import Library
from forge_pipeline.runtime.variants import Combined
from forge_pipeline.runtime.variants import combine as combined
from forge_pipeline.stages import encrypt, giving
from forge_pipeline.stages.artifacts import KEY, METADATA, MODEL_FILES
from forge_pipeline.stages.combine import tried
from forge_runtime.text import shown

FILE = MODEL_FILES["library"]


def combine(sources: Sequence[Path], out: Path, password: Sequence[str], trusted: Sequence[Path] = ()) -> str:
    """Join the plain libraries of ``sources``, files or folders with one, into one in ``out``; return a line for each.

    With ``trusted``, files of public keys, a library that none of them signed is refused before it is opened. With
    ``password``, places of one, it is encrypted, with the costs of conf/encrypt/password.yaml. Every variant that this
    machine runs is opened before anything is written. Raises ForgeError.
    """
    keys = read_trusted(trusted) if trusted else None
    libraries = [_library(path, keys) for path in sources]
    made = combined(libraries)
    lines = [_tried(made, tag) for tag in made.tags]
    sealed = _sealed(made, password)
    if (out / MANIFEST).exists():
        raise ConfigError(
            f"out={out}", "a folder of its own", "one that a build was delivered to", "name another, or a new one"
        )
    with prepare(out):
        for name in (f"{FILE}{SUFFIX}", f"{METADATA}{SUFFIX}", f"{KEY}{SUFFIX}", KEY):  # of what was there before
            (out / name).unlink(missing_ok=True)
        if sealed.key is not None:
            write_atomically(out / KEY, sealed.key)
        write_atomically(out / METADATA, sealed.metadata)
        write_atomically(out / FILE, bytes(in_memory(sealed.model)))
    before = sum(len(library.content()) for library in libraries)
    return "\n".join([*lines, f"{out / FILE}  {size(len(sealed.model))}, {size(before)} apart"])


def _library(path: Path, trusted: Mapping[str, str] | None) -> Library:
    """Read a library once: what is signed is what is taken."""
    file = path / FILE if path.is_dir() else path
    try:
        with open_stream(file) as stream:
            content = stream.read()
    except OSError as error:
        found, fix = error.strerror or "an error", f"name a {FILE}, or the folder that it was delivered to"
        raise ArtifactError(str(file), "a plain library", found, fix) from error
    if trusted is not None:
        signer(file, digest_bytes(content), trusted)
    return Library.from_bytes(content, where=str(file))


def _tried(made: Combined, tag: str) -> str:
    refused = tried(made, tag)
    why = "opens here" if refused is None else f"not tried: this machine is another ({refused})"
    return shown(f"{tag}  {why}", 200)


def _sealed(made: Combined, password: Sequence[str]) -> Sealed:
    """Return what is delivered, by the method's own options but for where the password is."""
    stage = giving("sealed").name
    section = compose([f"{stage}={'password' if password else 'none'}"])[stage]
    values = {name: value for name, value in section.items() if name != "password"}
    config = bind(encrypt.Config, values, where=stage)
    return encrypt.seal(config, made, read_password(password) if password else None, os.urandom)
