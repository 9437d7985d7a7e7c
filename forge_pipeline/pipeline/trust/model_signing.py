"""A delivery as an OpenSSF model signature (OMS), which that project's own tools verify.

It is one bundle for all files of a folder. Its format wants an elliptic curve of NIST's (P-256, P-384, P-521), so its
key is another one than that of the other signatures: a PEM file, such as OpenSSL's `genpkey` writes.
"""

from __future__ import annotations

import importlib
import os
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from forge_pipeline.crypto.keys import read_secret
from forge_pipeline.errors import ConfigError, SecretError
from forge_pipeline.pipeline.deliver import BUNDLE, write_atomically

_MAKE = "make one with `openssl genpkey -algorithm EC -pkeyopt ec_paramgen_curve:P-256`"


def sign_folder(folder: Path, sources: Sequence[str]) -> Path:
    """Write the bundle for all files that are in ``folder``; return its path. Raises ConfigError and SecretError."""
    option = "--model-signing-key"
    try:
        signing: Any = importlib.import_module("model_signing.signing")
        hashing: Any = importlib.import_module("model_signing.hashing")
    except ImportError as error:
        fix = "pip install 'forge-pipeline[sign]'"
        raise ConfigError(option, "the package model-signing", f"no module {error.name}", fix) from error
    key = read_secret(sources, "private key", option=option, fix=_MAKE).reveal()
    made = os.memfd_create("key", os.MFD_CLOEXEC)  # the package takes a file's name; this one is on no disk
    try:
        os.write(made, key + b"\n")
        signer = signing.Config().use_elliptic_key_signer(private_key=f"/proc/self/fd/{made}")
    except (ValueError, TypeError, AttributeError) as error:
        found = "something else"  # neither the key nor the library's words about it
        raise SecretError(", ".join(sources), "a PEM key of P-256, P-384 or P-521", found, _MAKE) from error
    finally:
        os.close(made)
    (folder / BUNDLE).unlink(missing_ok=True)
    with TemporaryDirectory(prefix="forge-oms-") as place:
        ignored = hashing.Config().set_ignored_paths(paths=[], ignore_git_paths=False)
        signer.set_hashing_config(ignored).sign(folder, Path(place, BUNDLE))
        write_atomically(folder / BUNDLE, Path(place, BUNDLE).read_bytes())
    return folder / BUNDLE
