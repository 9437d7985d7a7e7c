"""Signed records: what this machine sends to a remote, and what it takes from there."""

from __future__ import annotations

import hashlib
from collections.abc import Container, Sequence
from dataclasses import dataclass
from pathlib import Path

from forge_pipeline.crypto import signing
from forge_pipeline.errors import ArtifactError
from forge_pipeline.store.notary import Notary, divided, untrusted


@dataclass(frozen=True, slots=True)
class SigningNotary(Notary):
    """Signs with ``key``, if there is one, and takes what one of the keys ``trusted`` signed, or anything for None."""

    key: signing.PrivateKey | None
    trusted: Container[str] | None

    def sealed(self, record: bytes) -> bytes:
        """Return the record with its signature."""
        if self.key is None:
            return record
        return record + signing.sign(hashlib.sha256(record).digest(), self.key, signing.RECORDS)

    def opened(self, sealed: bytes) -> bytes:
        """Return the record of a trusted key. Raises UntrustedError."""
        record, signature = divided(sealed)
        if self.trusted is None:
            return record
        if not signature:
            raise untrusted("one without a signature")
        try:
            key = signing.signer(hashlib.sha256(record).digest(), signature, signing.RECORDS)
        except ArtifactError as error:
            raise untrusted(f"a signature that is {error.found}") from error
        if key not in self.trusted:
            raise untrusted(f"a signature of {key}")
        return record


def notary(sources: Sequence[str], trusted: Sequence[str]) -> Notary:
    """Return the notary for `store.sign` and `store.trusted`. Raises ConfigError and SecretError."""
    if not sources and not trusted:
        return Notary()
    key = signing.read_key(sources, option="store.sign") if sources else None
    keys = signing.read_trusted([Path(path) for path in trusted], option="store.trusted") if trusted else None
    return SigningNotary(key, keys)
