"""The encrypted model file, format version 1: a header that commits to the key, then chunks in STREAM order.

Each chunk is AES-256-GCM under a key bound to the whole header; its nonce is the chunk's number and whether it is
the last (STREAM: Hoang, Reyhanitabar, Rogaway and Vizar, "Online Authenticated-Encryption and its Nonce-Reuse
Misuse-Resistance", CRYPTO 2015). So no chunk can be dropped, repeated, moved, taken from elsewhere or cut off.
"""

from __future__ import annotations

import hashlib
import hmac
import io
import struct
import uuid
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from forge_pipeline.content import Buffer, Content, FileRange, Made, in_memory, opened, pieces
from forge_pipeline.crypto import keyfile
from forge_pipeline.crypto.keyfile import Entropy, Kdf, Pair
from forge_pipeline.digest import canonical_json
from forge_pipeline.errors import ArtifactError, SecretError
from forge_runtime.secret import Secret

MAGIC = b"\x89MLENC\r\n"
VERSION = 1
SUITE = 1
CHUNK_BITS = range(16, 23)
MAX_META = 32 << 10
MAX_PLAINTEXT = 64 << 30

_HEAD = struct.Struct(">8sHHBBHIIQ32s16s16s")
_MAC = 32
_TAG = 16
_RECOPY = "copy the file again from where it was encrypted, or encrypt the model anew"

Unlock = Callable[[Pair], Secret]
Sink = Callable[[memoryview], object]


@dataclass(frozen=True, slots=True, kw_only=True)
class Sealed:
    """What is delivered for one target. ``key`` is None where the model was left plain.

    ``form``: what ``model`` is, a library, a program with it, or an archive for a linker, which has a ``header``.
    """

    model: Content
    key: bytes | None
    metadata: bytes
    form: str = "library"
    header: bytes | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Header:
    """The head of an encrypted model, MAC not included. ``meta`` is canonical JSON."""

    chunk_bits: int
    plaintext: int
    salt: bytes
    pair: Pair
    meta: bytes

    @property
    def size(self) -> int:
        """Bytes before the first chunk."""
        return _HEAD.size + len(self.meta) + _MAC

    @property
    def chunks(self) -> int:
        """Number of chunks: an empty payload is one empty chunk."""
        return max(1, -(-self.plaintext >> self.chunk_bits))

    def problem(self) -> str | None:
        """Say which limit of the format is broken, or None."""
        if self.chunk_bits not in CHUNK_BITS:
            return f"chunks of 2^{self.chunk_bits} bytes, outside 2^16..2^22"
        if self.plaintext > MAX_PLAINTEXT:
            return f"{self.plaintext} bytes of plaintext, more than 64 GiB"
        if len(self.meta) > MAX_META:
            return f"{len(self.meta)} bytes of metadata, more than 32 KiB"
        return None

    def to_bytes(self) -> bytes:
        """Return all that the MAC covers."""
        fixed = _HEAD.pack(
            MAGIC, VERSION, SUITE, self.chunk_bits, 0, 0, self.size, len(self.meta), self.plaintext,
            self.salt, self.pair.key_id, self.pair.uuid,
        )  # fmt: skip
        return fixed + self.meta


def is_encrypted(head: Buffer) -> bool:
    """Tell from its first 8 bytes whether a file is an encrypted model."""
    return bytes(head[: len(MAGIC)]) == MAGIC


def seal(
    payload: Content,
    password: Secret,
    *,
    meta: Mapping[str, Any],
    confirmable: Mapping[str, str],
    kdf: Kdf,
    chunk_bits: int,
    entropy: Entropy,
) -> tuple[Content, bytes, Mapping[str, Any]]:
    """Encrypt ``payload`` under a new data key; return the model file, its key file, and the header's metadata.

    What is not in memory is encrypted while it is read, a chunk at a time, and the same at every reading.

    ``meta`` is readable by anybody and protected from change. ``confirmable`` values would let anybody who guesses
    the model confirm the guess, so only an HMAC of each, under a key that comes with the password, is written.
    """
    data_key, salt = Secret(entropy(32)), entropy(32)
    artifact = uuid.UUID(bytes=entropy(16), version=4)
    pair = Pair(key_id=entropy(16), uuid=artifact.bytes)
    keyed = {name: _keyed(data_key, salt, name, value) for name, value in confirmable.items()}
    public = {**meta, **keyed, "uuid": str(artifact)}
    header = Header(chunk_bits=chunk_bits, plaintext=len(payload), salt=salt, pair=pair, meta=canonical_json(public))
    problem = header.problem()
    if problem is not None:
        raise ArtifactError("encryption", "a model within the limits of the format", problem, "make it smaller")
    size = header.size + header.plaintext + _TAG * header.chunks
    made = Made(size, lambda: _encrypted(payload, header, data_key))
    model = made if isinstance(payload, FileRange | Made) else bytes(in_memory(made))
    return model, keyfile.wrap(data_key, password, pair, kdf, entropy), public


def opens(sealed: Sealed, password: Secret) -> bool:
    """Tell whether ``password`` opens ``sealed``'s key file, and that key its header. Plain models need none."""
    if sealed.key is None:
        return not is_encrypted(opened(sealed.model).read(len(MAGIC)))
    key = sealed.key
    try:
        read_header(opened(sealed.model), len(sealed.model), lambda pair: keyfile.unwrap(key, password, pair=pair))
    except (ArtifactError, SecretError):
        return False
    return True


def read_header(
    source: io.BufferedIOBase, size: int, unlock: Unlock, *, where: str = "encrypted model"
) -> tuple[Header, AESGCM]:
    """Read and authenticate the head of ``source``, ``size`` bytes long; return it with the cipher of its chunks.

    ``unlock`` gives the data key for the ids in the header. Every limit is checked before it is called. Raises
    ArtifactError, and whatever ``unlock`` raises.
    """
    header = _parse(source, size, where)
    mac = _read(source, _MAC, where)
    data_key = unlock(header.pair)
    if not hmac.compare_digest(_header_mac(header, data_key), mac):
        raise ArtifactError(
            where, "a header that its key authenticates", "another: the header or the key file was altered", _RECOPY
        )
    return header, _cipher(header, mac, data_key)


def decrypt(
    source: io.BufferedIOBase, size: int, unlock: Unlock, sink: Sink, *, where: str = "encrypted model"
) -> None:
    """Give the payload of ``source`` to ``sink``, a chunk at a time, each authenticated.

    Memory use is two chunks. The payload as a whole is authentic only when this function returns: until then the
    sink must keep it from having any effect. Raises what ``read_header`` raises.
    """
    header, cipher = read_header(source, size, unlock, where=where)
    chunk = 1 << header.chunk_bits
    sealed, plain = memoryview(bytearray(chunk + _TAG)), memoryview(bytearray(chunk))
    left = header.plaintext
    for index in range(header.chunks):
        length = min(chunk, left)
        left -= length
        _fill(source, sealed[: length + _TAG], where)
        try:
            cipher.decrypt_into(_nonce(index, header), sealed[: length + _TAG], None, plain[:length])
        except InvalidTag as error:
            raise ArtifactError(
                f"{where}, chunk {index + 1} of {header.chunks}",
                "the contents that were encrypted",
                "others: bytes were altered, moved or taken from another file",
                _RECOPY,
            ) from error
        sink(plain[:length])


def _encrypted(payload: Content, header: Header, data_key: Secret) -> Iterator[bytes]:
    head = header.to_bytes()
    mac = _header_mac(header, data_key)
    yield head + mac
    cipher = _cipher(header, mac, data_key)
    for index, part in enumerate(_chunks(payload, 1 << header.chunk_bits)):
        yield cipher.encrypt(_nonce(index, header), part, None)


def _chunks(payload: Content, size: int) -> Iterator[Buffer]:
    """Yield ``payload`` in chunks of ``size`` bytes, the last one shorter; an empty one for no bytes."""
    if not len(payload):
        yield b""
    elif not isinstance(payload, FileRange | Made):
        view = memoryview(payload)
        yield from (view[start : start + size] for start in range(0, len(view), size))
    else:
        chunk = bytearray()
        for piece in pieces(payload):
            chunk += piece
            while len(chunk) >= size:
                yield chunk[:size]
                del chunk[:size]
        if chunk:
            yield chunk


def _parse(source: io.BufferedIOBase, size: int, where: str) -> Header:
    fixed = _read(source, _HEAD.size, where)
    magic, version, suite, bits, flags, reserved, header_size, meta_size, plaintext, salt, key_id, artifact = (
        _HEAD.unpack(fixed)
    )
    if magic != MAGIC:
        raise ArtifactError(where, "an encrypted model", "a file of another kind", "load it without key and password")
    if (version, suite, flags, reserved) != (VERSION, SUITE, 0, 0):
        raise ArtifactError(
            where,
            f"encrypted model format {VERSION}, suite {SUITE}",
            f"format {version}, suite {suite}, flags {flags}, reserved {reserved}",
            "use the release of forge-pipeline that encrypted the model, or copy the file again",
        )
    if meta_size > MAX_META or header_size != _HEAD.size + meta_size + _MAC:
        raise ArtifactError(where, "a header whose lengths agree", f"{header_size} and {meta_size}", _RECOPY)
    meta = _read(source, meta_size, where)
    header = Header(chunk_bits=bits, plaintext=plaintext, salt=salt, pair=Pair(key_id=key_id, uuid=artifact), meta=meta)
    problem = header.problem()
    if problem is not None:
        raise ArtifactError(where, "a header within the limits of the format", problem, _RECOPY)
    expected = header.size + header.plaintext + _TAG * header.chunks
    if size != expected:
        raise ArtifactError(where, f"{expected} bytes, as its header says", f"{size}: cut off or extended", _RECOPY)
    return header


def _read(source: io.BufferedIOBase, length: int, where: str) -> bytes:
    buffer = bytearray(length)
    _fill(source, memoryview(buffer), where)
    return bytes(buffer)


def _fill(source: io.BufferedIOBase, buffer: memoryview, where: str) -> None:
    filled = 0
    while filled < len(buffer):
        count = source.readinto(buffer[filled:])
        if count == 0:
            raise ArtifactError(where, f"{len(buffer)} more bytes", f"{filled}: the file is cut off", _RECOPY)
        filled += count


def _nonce(index: int, header: Header) -> bytes:
    return index.to_bytes(11, "big") + bytes([index == header.chunks - 1])


def _subkey(data_key: Secret, salt: bytes, info: bytes) -> Secret:
    return Secret(HKDF(SHA256(), 32, salt, info).derive(data_key.reveal()))


def _header_mac(header: Header, data_key: Secret) -> bytes:
    key = _subkey(data_key, header.salt, b"mlenc/v1/header")
    return hmac.digest(key.reveal(), header.to_bytes(), "sha256")


def _cipher(header: Header, mac: bytes, data_key: Secret) -> AESGCM:
    bound = hashlib.sha256(header.to_bytes() + mac).digest()
    return AESGCM(_subkey(data_key, header.salt, b"mlenc/v1/payload" + bound).reveal())


def _keyed(data_key: Secret, salt: bytes, name: str, value: str) -> str:
    key = _subkey(data_key, salt, b"mlenc/v1/confirm/" + name.encode())
    return hmac.digest(key.reveal(), value.encode(), "sha256").hex()
