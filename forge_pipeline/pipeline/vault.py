"""The key of a store that is sealed at rest."""

from __future__ import annotations

import os
import resource
from collections.abc import Sequence

from forge_pipeline import scratch
from forge_pipeline.crypto.keys import checked_sources, read_secret
from forge_pipeline.crypto.objects import MIN_SECRET, SealedObjects
from forge_pipeline.errors import SecretError
from forge_pipeline.limits import lower
from forge_pipeline.pipeline.console import warn
from forge_pipeline.store.vault import Plain, Vault

KEY = "FORGE_STORE_KEY"
"""The environment variable that names the place of the key, such as file:PATH, where `store.key` names none."""


def key_places(places: Sequence[str]) -> tuple[str, ...]:
    """Return the places that `store.key`, else FORGE_STORE_KEY, names. Raises ConfigError for what is no place."""
    named = tuple(places) or tuple(filter(None, [os.environ.get(KEY)]))
    checked_sources(named, "store.key" if places else KEY)
    return named


def vault(places: Sequence[str]) -> Vault:
    """Return what `store.key`, else FORGE_STORE_KEY, asks for. Raises ConfigError and SecretError."""
    named, option = key_places(places), "store.key" if places else KEY
    if not named:
        return Plain()
    fix = "make one with `forge-pipeline password PATH`"
    secret = read_secret(named, "key of the store", option=option, fix=fix)
    if len(secret.reveal()) < MIN_SECRET:
        raise SecretError(", ".join(named), f"a random key of {MIN_SECRET} bytes or more", "a shorter one", fix)
    lower(resource.RLIMIT_CORE, 0)
    scratch.keep_in_memory(warn)
    return SealedObjects(secret)
