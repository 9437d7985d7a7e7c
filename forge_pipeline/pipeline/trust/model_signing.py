"""A delivery as an OpenSSF model signature (OMS), which that project's own tools verify.

It is one bundle for all files of a folder. Its format wants an elliptic curve of NIST's (P-256, P-384, P-521), so its
key is another one than that of the other signatures: a PEM file, such as OpenSSL's `genpkey` writes, or on a token.
"""

from __future__ import annotations

import importlib
import os
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from urllib.parse import quote, quote_from_bytes

from forge_pipeline.crypto.keys import find_secret, none_found
from forge_pipeline.crypto.token_key import locate, told
from forge_pipeline.crypto.token_uri import KeyUri, checked_places, is_token, parse
from forge_pipeline.errors import ConfigError, SecretError
from forge_pipeline.pipeline.deliver import BUNDLE, write_atomically
from forge_runtime.secret import Secret

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
    checked_places(sources, option)
    with ExitStack() as stack:
        signer = _signer(signing.Config(), sources, option, stack)
        (folder / BUNDLE).unlink(missing_ok=True)
        place = stack.enter_context(TemporaryDirectory(prefix="forge-oms-"))
        ignored = hashing.Config().set_ignored_paths(paths=[], ignore_git_paths=False)
        signer.set_hashing_config(ignored).sign(folder, Path(place, BUNDLE))
        write_atomically(folder / BUNDLE, Path(place, BUNDLE).read_bytes())
    return folder / BUNDLE


def _signer(config: Any, places: Sequence[str], option: str, stack: ExitStack) -> Any:
    """Return the package's configuration with the key from the first of ``places`` that has one.

    What a token refuses while ``stack`` is open is told as an error of ours.
    """
    for place in places:
        if is_token(place):
            uri = parse(place, option)
            stack.enter_context(told(uri))
            return _with_token(config, uri)
        secret = find_secret([place], option)
        if secret is not None:
            return _with_pem(config, secret, place)
    raise none_found(places, "private key", _MAKE)


def _with_pem(config: Any, secret: Secret, place: str) -> Any:
    made = os.memfd_create("key", os.MFD_CLOEXEC)  # the package takes a file's name; this one is on no disk
    try:
        os.write(made, secret.reveal() + b"\n")
        return config.use_elliptic_key_signer(private_key=f"/proc/self/fd/{made}")
    except (ValueError, TypeError, AttributeError) as error:
        # neither the key nor the library's words about it
        raise _another_kind(place, "a PEM key of P-256, P-384 or P-521") from error
    finally:
        os.close(made)


def _with_token(config: Any, uri: KeyUri) -> Any:
    """Have the package sign by the token, in words that it understands: slot and id."""
    slot, key, pin = locate(uri)
    found = f"slot-id={slot};id={quote_from_bytes(key, safe='')}"
    query = f"module-path={quote(str(uri.module))}&pin-value={quote_from_bytes(pin.reveal(), safe='')}"
    try:
        return config.use_pkcs11_signer(pkcs11_uri=f"pkcs11:{found}?{query}")
    except (ValueError, TypeError, KeyError) as error:
        raise _another_kind(uri.name, "a key on P-256, P-384 or P-521") from error


def _another_kind(where: str, expected: str) -> SecretError:
    return SecretError(where, expected, "something else", _MAKE)
