"""A store that is sealed at rest: its objects are AES-256-GCM under a key that comes from elsewhere.

An object's file is 8 bytes that name the format, a random salt of 32, and chunks of 1 MiB with a tag of 16 bytes each,
in STREAM order (see `crypto.envelope`): the nonce is the chunk's number and whether it is the last, the key HKDF-SHA256
of the store's key with the salt. Its name is the digest of its bytes, which is checked as in any store. A record's file
is the record in clear, and a line with its HMAC-SHA256 in hexadecimal, under a key that HKDF makes of the store's: only
who has that key says which object answers an action.
"""

from __future__ import annotations

import errno
import fcntl
import hmac
import os
from collections.abc import Callable, Iterator
from typing import BinaryIO

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from forge_pipeline.content import Buffer
from forge_runtime.secret import Secret

MIN_SECRET = 32
"""Bytes of a key: it is not stretched, so it is to be random."""

_MAGIC, _MARK = b"\x89FORGEO\n", b"\x89FORGEK\n"
_SALT, _TAG, _CHUNK = 32, 16, 1 << 20
_CODE = 65
"""Bytes of the line behind a record."""
_SEALS = fcntl.F_SEAL_SEAL | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_WRITE


class SealedObjects:
    """Seals objects under a key, opens them in memory alone, and vouches for records: a store's `Vault`."""

    seals = True

    def __init__(self, secret: Secret) -> None:
        self._secret = secret

    def mark(self) -> bytes:
        """Return a salt, and what only the key makes of it."""
        salt = os.urandom(_SALT)
        return _MARK + salt + self._derived(salt, b"forge store mark")

    def admits(self, mark: bytes) -> bool:
        """Say whether the mark is one of this key."""
        salt = mark[len(_MARK) :][:_SALT]
        return hmac.compare_digest(mark, _MARK + salt + self._derived(salt, b"forge store mark"))

    def writer(self, write: Callable[[Buffer], None]) -> Sealing:
        """Return what seals, and gives ``write`` what is to lie on the disk."""
        salt = os.urandom(_SALT)
        write(_MAGIC + salt)
        return Sealing(self._cipher(salt), write)

    def plain(self, descriptor: int) -> int:
        """Exchange an open file for one in memory with the object's bytes, which nobody can write to any more.

        Raises OSError, having closed it, where this key sealed no such file.
        """
        with (
            os.fdopen(descriptor, "rb") as sealed,
            os.fdopen(os.memfd_create("object", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING), "w+b") as opened,
        ):
            opened.writelines(self._pieces(sealed))
            opened.seek(0)
            os.fchmod(opened.fileno(), 0o400)
            fcntl.fcntl(opened, fcntl.F_ADD_SEALS, _SEALS)
            return os.dup(opened.fileno())

    def length(self, size: int) -> int:
        """Return how long the file of an object of ``size`` bytes is: an empty one is one empty chunk."""
        return len(_MAGIC) + _SALT + size + _TAG * max(1, -(-size // _CHUNK))

    def vouched(self, record: bytes) -> bytes:
        """Return the record, with a line behind it that only the key makes."""
        return record + self._code(record)

    def record(self, vouched: bytes) -> bytes:
        """Return the record. Raises ValueError where this key did not write it as it is."""
        record, code = vouched[:-_CODE], vouched[-_CODE:]
        if not hmac.compare_digest(code, self._code(record)):
            raise ValueError("one that the store's key did not write, or not as it is")
        return record

    def _code(self, record: bytes) -> bytes:
        key = self._derived(b"", b"forge store record")
        return hmac.digest(key, record, "sha256").hex().encode() + b"\n"

    def _pieces(self, stream: BinaryIO) -> Iterator[bytes]:
        """Yield an object's bytes. Raises OSError where this key sealed no such file."""
        head = stream.read(len(_MAGIC) + _SALT)
        cipher, number = self._cipher(head[len(_MAGIC) :]), 0
        sealed, following = stream.read(_CHUNK + _TAG), b""
        try:
            while head.startswith(_MAGIC):
                following = stream.read(_CHUNK + _TAG)
                yield cipher.decrypt(_nonce(number, last=not following), sealed, None)
                if not following:
                    return
                sealed, number = following, number + 1
        except InvalidTag:
            pass
        raise OSError(errno.EBADMSG, "not sealed by the store's key, or damaged")

    def _cipher(self, salt: bytes) -> AESGCM:
        return AESGCM(self._derived(salt, b"forge store object"))

    def _derived(self, salt: bytes, purpose: bytes) -> bytes:
        return HKDF(SHA256(), 32, salt, purpose).derive(self._secret.reveal())


class Sealing:
    """Seals chunk after chunk. One is held back, as the last is sealed as such."""

    def __init__(self, cipher: AESGCM, write: Callable[[Buffer], None]) -> None:
        self._cipher, self._write = cipher, write
        self._held, self._number = bytearray(), 0

    def write(self, piece: Buffer) -> None:
        """Take the next bytes."""
        rest = memoryview(piece).cast("B")
        while rest:
            if len(self._held) == _CHUNK:
                self._seal(last=False)
            taken = rest[: _CHUNK - len(self._held)]
            self._held += taken
            rest = rest[len(taken) :]

    def end(self) -> None:
        """Seal the last chunk."""
        self._seal(last=True)

    def _seal(self, *, last: bool) -> None:
        self._write(self._cipher.encrypt(_nonce(self._number, last=last), self._held, None))
        self._held.clear()
        self._number += 1


def _nonce(number: int, *, last: bool) -> bytes:
    return number.to_bytes(11, "big") + bytes([last])
