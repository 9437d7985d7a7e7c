"""Sealed payloads, made with the cheapest derivation that the format allows, and how to open them."""

from __future__ import annotations

import io
import random
from dataclasses import dataclass

from forge_pipeline.content import in_memory
from forge_pipeline.crypto import envelope, keyfile
from forge_pipeline.crypto.keyfile import Entropy, Kdf
from forge_runtime.secret import Secret

CHEAP = Kdf(memory_kib=19 << 10, passes=1, lanes=1)
CHUNK_BITS = 16
PASSWORD = Secret(b"correct horse")
META = {"payload": "forge-library/2", "target": {"tag": "x86-64/v3", "triple": "x86_64-linux-gnu"}}
CONFIRMABLE = {"fingerprint": "f" * 64, "stage_key": "5" * 64}


@dataclass(frozen=True, slots=True, kw_only=True)
class Delivery:
    """A model file, its key file and the password, as an attacker would change them."""

    model: bytes
    key: bytes
    password: Secret

    def open(self) -> bytes:
        """Return the payload, by way of the key file."""
        return self._decrypt(lambda pair: keyfile.unwrap(self.key, self.password, pair=pair))

    def open_with(self, data_key: Secret) -> bytes:
        """Return the payload with a data key that is known already: no derivation."""
        return self._decrypt(lambda pair: data_key)

    def _decrypt(self, unlock: envelope.Unlock) -> bytes:
        parts: list[bytes] = []
        envelope.decrypt(io.BytesIO(self.model), len(self.model), unlock, lambda part: parts.append(bytes(part)))
        return b"".join(parts)


def seeded(seed: int) -> Entropy:
    return random.Random(seed).randbytes


def deliver(payload: bytes, seed: int) -> Delivery:
    model, key, _ = envelope.seal(
        payload,
        PASSWORD,
        meta=META,
        confirmable=CONFIRMABLE,
        kdf=CHEAP,
        chunk_bits=CHUNK_BITS,
        entropy=seeded(seed),
    )
    return Delivery(model=bytes(in_memory(model)), key=key, password=PASSWORD)
