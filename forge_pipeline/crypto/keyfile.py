"""The key file, ``modelKey.bin``: the model's data key, wrapped under a password. Always 164 bytes.

The password goes through Argon2id (RFC 9106) into a wrapping key and a MAC key; AES-256-GCM wraps the data key
and an HMAC-SHA256 over the whole file commits to the password, which GCM alone does not.
"""

from __future__ import annotations

import hmac
import struct
from collections.abc import Callable
from dataclasses import dataclass

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.kdf.argon2 import Argon2id

from forge_pipeline.errors import ArtifactError, SecretError
from forge_runtime.secret import Secret

MAGIC = b"\x89MLKEY\r\n"
VERSION = 1
ARGON2ID = 1
AES_256_GCM = 1
SIZE = 164

_HEAD = struct.Struct(">8sHBBIII16s16s16s12s")  # all up to the wrapped key: also the AAD of the wrapping
_MAC = 32
WRONG_PASSWORD = "Corrupted chunk encountered while decrypting the key, wrong password or corrupted key file"  # noqa: S105

Entropy = Callable[[int], bytes]
"""A source of random bytes: ``os.urandom``, or a fixed one for golden vectors."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pair:
    """What ties a model file to its key file: both are random and 16 bytes long."""

    key_id: bytes
    uuid: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Kdf:
    """The cost of trying one password: Argon2id's memory in KiB, passes over it, and lanes."""

    memory_kib: int
    passes: int
    lanes: int

    def problem(self) -> str | None:
        """Say which limit is broken, or None. The limits keep a forged file from asking for a machine's memory."""
        if not 19 << 10 <= self.memory_kib <= 1 << 20:
            return f"memory of {self.memory_kib} KiB, outside 19456..1048576"
        if not (1 <= self.passes <= 16 and 1 <= self.lanes <= 16):
            return f"{self.passes} passes and {self.lanes} lanes, outside 1..16"
        if self.memory_kib * self.passes > 1 << 20:
            return f"{self.passes} passes over {self.memory_kib} KiB, more than 1 GiB together"
        return None


def wrap(data_key: Secret, password: Secret, pair: Pair, kdf: Kdf, entropy: Entropy) -> bytes:
    """Return a key file that gives ``data_key`` to whoever knows ``password``."""
    salt, nonce = entropy(16), entropy(12)
    head = _HEAD.pack(
        MAGIC, VERSION, ARGON2ID, AES_256_GCM,
        kdf.memory_kib, kdf.passes, kdf.lanes, salt, pair.key_id, pair.uuid, nonce,
    )  # fmt: skip
    wrapping, authenticating = _derive(password, salt, kdf)
    body = head + AESGCM(wrapping.reveal()).encrypt(nonce, data_key.reveal(), head)
    return body + _mac(authenticating, body)


def unwrap(
    data: bytes,
    password: Secret,
    *,
    pair: Pair | None = None,
    where: str = "key file",
    max_bytes: int | None = None,
) -> Secret:
    """Return the data key in the key file ``data``, after checking that it belongs to ``pair``, if one is given.

    Raises SecretError for a wrong password or an altered file (the two cannot be told apart), and ArtifactError
    for what is no key file, another model's, or asks for a cost outside the limits of ``Kdf``, or for more memory
    than ``max_bytes``; in all of these nothing is derived.
    """
    head, kdf, salt, nonce, found = _parse(data, where)
    if pair is not None and pair != found:
        raise ArtifactError(
            where,
            f"the key of model {pair.uuid.hex()}",
            f"the key of model {found.uuid.hex()}, or of another encryption of the same model",
            "take modelKey.bin from the folder that this model_library.so was delivered in",
        )
    if max_bytes is not None and kdf.memory_kib << 10 > max_bytes:
        raise _too_much_memory(where, kdf, f"{max_bytes >> 10} KiB, what this device gives for it")
    try:
        wrapping, authenticating = _derive(password, salt, kdf)
    except MemoryError:
        raise _too_much_memory(where, kdf, "what the system gives") from None
    body, mac = data[:-_MAC], data[-_MAC:]
    if not hmac.compare_digest(_mac(authenticating, body), mac):
        raise _wrong_password(where)
    try:
        return Secret(AESGCM(wrapping.reveal()).decrypt(nonce, body[len(head) :], head))
    except InvalidTag as error:
        raise _wrong_password(where) from error


def _parse(data: bytes, where: str) -> tuple[bytes, Kdf, bytes, bytes, Pair]:
    fix = "copy modelKey.bin again from where the model was encrypted"
    if len(data) != SIZE or data[:8] != MAGIC:
        found = f"more than {SIZE} bytes" if len(data) > SIZE else f"{len(data)} bytes"  # readers stop after SIZE + 1
        if len(data) >= len(MAGIC) and data[: len(MAGIC)] != MAGIC:
            found = "a file of another kind"
        raise ArtifactError(where, f"a key file of {SIZE} bytes", found, fix)
    head = data[: _HEAD.size]
    _, version, kdf_kind, wrapping, memory, passes, lanes, salt, key_id, uuid, nonce = _HEAD.unpack(head)
    if (version, kdf_kind, wrapping) != (VERSION, ARGON2ID, AES_256_GCM):
        raise ArtifactError(
            where,
            f"key file format {VERSION} (Argon2id, AES-256-GCM)",
            f"format {version}, derivation {kdf_kind}, wrapping {wrapping}",
            "use the release of forge-pipeline that encrypted the model, or copy the file again",
        )
    kdf = Kdf(memory_kib=memory, passes=passes, lanes=lanes)
    problem = kdf.problem()
    if problem is not None:
        raise ArtifactError(where, "a key derivation within the limits of the format", problem, fix)
    return head, kdf, salt, nonce, Pair(key_id=key_id, uuid=uuid)


def _derive(password: Secret, salt: bytes, kdf: Kdf) -> tuple[Secret, Secret]:
    argon = Argon2id(salt=salt, length=64, iterations=kdf.passes, lanes=kdf.lanes, memory_cost=kdf.memory_kib)
    keys = Secret(argon.derive(password.reveal()))
    return Secret(keys.reveal()[:32]), Secret(keys.reveal()[32:])


def _mac(key: Secret, data: bytes) -> bytes:
    return hmac.digest(key.reveal(), data, "sha256")


def _too_much_memory(where: str, kdf: Kdf, limit: str) -> ArtifactError:
    return ArtifactError(
        where,
        f"a key derivation within {limit}",
        f"one that takes {kdf.memory_kib} KiB",
        "free some memory, raise Engine(..., max_kdf_bytes=N), or encrypt the model with less encrypt.kdf.memory_kib",
    )


def _wrong_password(where: str) -> SecretError:
    return SecretError(
        where,
        "the password that this key was made with",
        WRONG_PASSWORD,
        "check the password; if it is right, copy modelKey.bin again from where the model was encrypted",
    )
