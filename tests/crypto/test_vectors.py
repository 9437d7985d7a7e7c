"""Golden vectors: format version 1 means these bytes, for ever. And a second reader, written from docs/format.md."""

from __future__ import annotations

import hashlib
import hmac
import json
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.argon2 import Argon2id
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from forge_pipeline.content import in_memory
from forge_pipeline.crypto import envelope
from forge_pipeline.crypto.keyfile import Kdf
from forge_runtime.secret import Secret

VECTORS = sorted((Path(__file__).parent / "vectors").glob("*.json"))


def stream(entropy: str) -> Callable[[int], bytes]:
    """Give out the bytes of ``entropy`` in order; it is an error to ask for more."""
    left = bytearray.fromhex(entropy)

    def take(count: int) -> bytes:
        taken = bytes(left[:count])
        assert len(taken) == count
        del left[:count]
        return taken

    return take


def payload_of(vector: dict[str, Any]) -> bytes:
    """``size`` bytes: 0, 1, 2 ... 250, 0, 1 ..."""
    return bytes(index % 251 for index in range(vector["size"]))


@pytest.fixture(params=VECTORS, ids=[path.stem for path in VECTORS])
def vector(request: pytest.FixtureRequest) -> dict[str, Any]:
    loaded: dict[str, Any] = json.loads(request.param.read_text())
    return loaded


def test_there_are_vectors() -> None:
    assert len(VECTORS) >= 3


def sealed(vector: dict[str, Any]) -> tuple[bytes, bytes]:
    """Return the model file and its key file."""
    model, key, _ = envelope.seal(
        payload_of(vector),
        Secret(vector["password"].encode()),
        meta=vector["meta"],
        confirmable=vector["confirmable"],
        kdf=Kdf(**vector["kdf"]),
        chunk_bits=vector["chunk_bits"],
        entropy=stream(vector["entropy"]),
    )
    return bytes(in_memory(model)), key


def test_sealing_gives_the_recorded_bytes(vector: dict[str, Any]) -> None:
    model, key = sealed(vector)
    header = int.from_bytes(model[16:20], "big")
    assert key.hex() == vector["key"]
    assert model[:header].hex() == vector["header"]
    assert hashlib.sha256(model).hexdigest() == vector["model_sha256"]


def test_the_recorded_bytes_open_with_nothing_but_the_format_document(vector: dict[str, Any]) -> None:
    model, _ = sealed(vector)
    assert hashlib.sha256(model).hexdigest() == vector["model_sha256"]
    assert read(model, bytes.fromhex(vector["key"]), vector["password"].encode()) == payload_of(vector)


def read(model: bytes, key: bytes, password: bytes) -> bytes:
    """Open a model as docs/format.md says, without the package."""
    memory, passes, lanes = struct.unpack(">III", key[12:24])
    keys = Argon2id(salt=key[24:40], length=64, iterations=passes, lanes=lanes, memory_cost=memory).derive(password)
    assert hmac.digest(keys[32:], key[:132], "sha256") == key[132:]
    data_key = AESGCM(keys[:32]).decrypt(key[72:84], key[84:132], key[:84])

    bits = model[12]
    header_length, meta_length, length = struct.unpack(">IIQ", model[16:32])
    salt, ids = model[32:64], model[64:96]
    assert ids == key[40:72]
    assert header_length == 96 + meta_length + 32
    header, mac = model[: header_length - 32], model[header_length - 32 : header_length]
    header_key = HKDF(SHA256(), 32, salt, b"mlenc/v1/header").derive(data_key)
    assert hmac.digest(header_key, header, "sha256") == mac

    bound = hashlib.sha256(header + mac).digest()
    cipher = AESGCM(HKDF(SHA256(), 32, salt, b"mlenc/v1/payload" + bound).derive(data_key))
    chunks = max(1, (length + (1 << bits) - 1) >> bits)
    assert len(model) == header_length + length + 16 * chunks
    step = (1 << bits) + 16
    body = model[header_length:]
    return b"".join(
        cipher.decrypt(index.to_bytes(11, "big") + bytes([index == chunks - 1]), body[index * step :][:step], None)
        for index in range(chunks)
    )
