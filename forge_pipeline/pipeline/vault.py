"""The key of a store that is sealed at rest, and who cannot have one."""

from __future__ import annotations

import os
import resource
from collections.abc import Sequence

from forge_pipeline.crypto.keys import checked_sources, read_secret
from forge_pipeline.crypto.objects import MIN_SECRET, SealedObjects
from forge_pipeline.errors import ConfigError, SecretError
from forge_pipeline.limits import lower
from forge_pipeline.store.vault import Plain, Vault

KEY = "FORGE_STORE_KEY"
"""The environment variable that names the place of the key, such as file:PATH, where `store.key` names none."""


def vault(places: Sequence[str]) -> Vault:
    """Return what `store.key`, else FORGE_STORE_KEY, asks for. Raises ConfigError and SecretError."""
    named = tuple(places) or tuple(filter(None, [os.environ.get(KEY)]))
    option = "store.key" if places else KEY
    checked_sources(named, option)
    if not named:
        return Plain()
    fix = "make one with `forge-pipeline password PATH`"
    secret = read_secret(named, "key of the store", option=option, fix=fix)
    if len(secret.reveal()) < MIN_SECRET:
        raise SecretError(", ".join(named), f"a random key of {MIN_SECRET} bytes or more", "a shorter one", fix)
    lower(resource.RLIMIT_CORE, 0)
    return SealedObjects(secret)


def refuse_key(places: Sequence[str]) -> None:
    """Raise ConfigError where the store is to be sealed: for DVC, which keeps what is between stages in clear."""
    if places or os.environ.get(KEY):
        raise ConfigError(
            where="store.key" if places else KEY,
            expected="no key with DVC, which keeps what is between stages in out/ and in its cache, in clear",
            found="one",
            fix="build with `forge-pipeline run`, or keep the repository on an encrypted disk",
        )
