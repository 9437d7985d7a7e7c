"""Ed25519 keys and signatures in OpenSSH's forms, so that `ssh-keygen` reads and makes the same (PROTOCOL.sshsig).

A signature is over a SHA-256, for a purpose, OpenSSH's namespace: one for another purpose proves nothing.
"""

from __future__ import annotations

import base64
import binascii
import os
import re
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Protocol

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from forge_pipeline.crypto import token_key, token_uri
from forge_pipeline.crypto.keys import find_secret, none_found
from forge_pipeline.errors import ArtifactError, ConfigError, SecretError
from forge_runtime.secret import Secret

RELEASES, RECORDS = "forge-release", "forge-records"
"""The purposes: files that are delivered, and records of a store. Of one length, as libforge knows it."""
SUFFIX = ".sig"
MAX_SIGNATURE = 4096
"""Bytes of a signature's file, as libforge takes it."""

_BEGIN, _END = b"-----BEGIN SSH SIGNATURE-----", b"-----END SSH SIGNATURE-----"
_KIND = b"ssh-ed25519"
_MAKE = "make one with `forge-pipeline keygen PATH`"
_DATED = re.compile(r'((?:(?:,|^)valid-(?:after|before)="[0-9]+Z")+)[ \t]+')
_DATE = re.compile(r'valid-(after|before)="([0-9]+)Z"')
_TIMES = {8: "%Y%m%d", 12: "%Y%m%d%H%M", 14: "%Y%m%d%H%M%S"}


class PrivateKey(Protocol):
    """What signs: a key in memory, or one on a token."""

    def public_key(self) -> Ed25519PublicKey:
        """Return the public key."""

    def sign(self, data: bytes, /) -> bytes:
        """Return the Ed25519 signature of ``data``, 64 bytes."""


def _field(content: bytes) -> bytes:
    return len(content).to_bytes(4, "big") + content


_BEFORE_KEY = b"SSHSIG" + (1).to_bytes(4, "big") + (51).to_bytes(4, "big") + _field(_KIND) + (32).to_bytes(4, "big")
_BEFORE_SIGNATURE = (83).to_bytes(4, "big") + _field(_KIND) + (64).to_bytes(4, "big")
_SIZE = 183


def _scope(purpose: str) -> bytes:
    return _field(purpose.encode()) + _field(b"") + _field(b"sha256")


def make_key(place: str | Path, comment: str) -> str:
    """Make a key in a file, as `generate_key` does, or on the token of a PKCS#11 URI; return the public line."""
    if isinstance(place, str) and token_uri.is_token(place):
        public = token_key.make_key(token_uri.parse(place, "keygen"))
        return f"{public_line(public)} {comment}".rstrip()
    return generate_key(Path(place), comment)


def generate_key(path: Path, comment: str) -> str:
    """Write a new private key to ``path`` (mode 0600) and its public key to ``path``.pub; return the public line.

    Raises SecretError where either is there already.
    """
    key = Ed25519PrivateKey.generate()
    line = f"{public_line(key.public_key())} {comment}".rstrip()
    form = serialization.Encoding.PEM, serialization.PrivateFormat.OpenSSH, serialization.NoEncryption()
    public = path.with_name(f"{path.name}.pub")
    for place, content, mode in ((path, key.private_bytes(*form), 0o600), (public, f"{line}\n".encode(), 0o644)):
        try:
            place.parent.mkdir(parents=True, exist_ok=True)
            descriptor = os.open(place, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode)
        except FileExistsError as error:
            raise SecretError(
                str(place), "no file yet", "one that is there already", "use it, or choose another path"
            ) from error
        except OSError as error:
            found = error.strerror or "an error"
            raise SecretError(str(place), "a place that can be written", found, "choose another path") from error
        with os.fdopen(descriptor, "wb") as stream:
            stream.write(content)
            stream.flush()
            os.fsync(stream.fileno())
    return line


def read_key(sources: Sequence[str], option: str = "--key") -> PrivateKey:
    """Return the private key from the first of ``sources`` (see `keys` and `token_uri`) that has one.

    A token that is named and not there is an error: the next place might have a key that was not meant.
    Raises ConfigError and SecretError as `keys.read_secret` does, and SecretError for what is no such key.
    """
    token_uri.checked_places(sources, option)
    for source in sources:
        if token_uri.is_token(source):
            return token_key.open_key(token_uri.parse(source, option))
        secret = find_secret([source], option)
        if secret is not None:
            return _read_openssh(secret, source)
    raise none_found(sources, "private key", _MAKE)


def _read_openssh(secret: Secret, where: str) -> Ed25519PrivateKey:
    try:
        key = serialization.load_ssh_private_key(secret.reveal() + b"\n", password=None)
    except (ValueError, TypeError) as error:  # neither says anything of the key itself; the cause is not shown
        raise SecretError(
            where, "an Ed25519 key in OpenSSH's form, without a passphrase", "something else",
            _MAKE,
        ) from error  # fmt: skip
    if not isinstance(key, Ed25519PrivateKey):
        raise SecretError(where, "an Ed25519 key", "one of another kind", _MAKE)
    return key


def public_line(key: Ed25519PublicKey) -> str:
    """Return the key as .pub files have it, without a comment."""
    return key.public_bytes(serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH).decode()


def read_trusted(
    paths: Sequence[Path], option: str = "--trusted", *, at: datetime | None = None, dated: bool = True
) -> dict[str, str]:
    """Return the comments of the keys in files of lines `ssh-ed25519 AAAA... COMMENT`, by key. Raises ConfigError.

    A line may begin with the dates of ssh-keygen's ALLOWED SIGNERS, `valid-after="20260101Z",valid-before="20270101Z"`,
    in UTC: outside of them, ``at`` that time (by default now), its key is none of those returned, unless not ``dated``.
    """
    now = at or datetime.now(UTC)
    trusted: dict[str, str] = {}
    out_of_date = 0
    for path in paths:
        try:
            lines = path.read_text("utf-8").splitlines()
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError(str(path), "a file of public keys", type(error).__name__, "correct the path") from error
        for line in map(str.strip, lines):
            if not line or line.startswith("#"):
                continue
            key, comment, valid = _trusted_line(line, path, now)
            if valid or not dated:
                trusted[key] = comment
            out_of_date += not valid
    if not trusted:
        found = f"none ({out_of_date} outside of their dates of validity)" if out_of_date else "none"
        raise ConfigError(option, "at least one public key", found, "give the .pub file of who built it")
    return trusted


def _trusted_line(line: str, path: Path, now: datetime) -> tuple[str, str, bool]:
    """Return the key, its comment, and whether ``now`` is within its dates. Raises ConfigError."""
    dates = _DATED.match(line)
    words = line[dates.end() if dates else 0 :].split(maxsplit=2)
    try:
        bounds = [(bound, _time(digits)) for bound, digits in _DATE.findall(dates[1] if dates else "")]
        key = serialization.load_ssh_public_key(" ".join(words[:2]).encode())
    except Exception as error:  # ValueError, UnsupportedAlgorithm, and what damaged fields raise
        raise _no_key(path) from error
    if not isinstance(key, Ed25519PublicKey):
        raise _no_key(path)
    valid = all(time <= now if bound == "after" else now <= time for bound, time in bounds)
    return public_line(key), words[2] if len(words) > 2 else "", valid


def _time(digits: str) -> datetime:
    """Return the time in ``YYYYMMDD[HHMM[SS]]``, UTC. Raises ValueError, and KeyError for another length."""
    return datetime.strptime(digits, _TIMES[len(digits)]).replace(tzinfo=UTC)


def sign(digest: bytes, key: PrivateKey, purpose: str = RELEASES) -> bytes:
    """Return the signature's file for what has this SHA-256. Equal keys and digests give equal bytes."""
    public = key.public_key().public_bytes(serialization.Encoding.Raw, serialization.PublicFormat.Raw)
    blob = _BEFORE_KEY + public + _scope(purpose) + _BEFORE_SIGNATURE + key.sign(_signed(digest, purpose))
    text = base64.b64encode(blob)
    lines = [text[at : at + 70] for at in range(0, len(text), 70)]
    return b"\n".join([_BEGIN, *lines, _END, b""])


def signer(digest: bytes, signature: bytes, purpose: str = RELEASES) -> str:
    """Return the public line of the key that signed what has this SHA-256. Raises ArtifactError where none did."""
    text = signature.strip()
    if len(text) > MAX_SIGNATURE or not (text.startswith(_BEGIN) and text.endswith(_END)):
        raise _unsigned("another kind of file")
    try:
        coded = b"".join(text[len(_BEGIN) : -len(_END)].split())
        blob = base64.b64decode(coded, validate=True) if len(coded) == 4 * _SIZE // 3 else b""
    except binascii.Error as error:
        raise _unsigned("another kind of file") from error
    place = len(_BEFORE_KEY)
    if (
        len(blob) != _SIZE
        or not blob.startswith(_BEFORE_KEY)
        or blob[place + 32 : -64] != _scope(purpose) + _BEFORE_SIGNATURE
    ):
        raise _unsigned("one of another kind of key, or for another purpose")
    key = Ed25519PublicKey.from_public_bytes(blob[place : place + 32])
    try:
        key.verify(blob[-64:], _signed(digest, purpose))
    except InvalidSignature as error:
        raise _unsigned("one of another file") from error
    return public_line(key)


def _signed(digest: bytes, purpose: str) -> bytes:
    return b"SSHSIG" + _scope(purpose) + _field(digest)


def _unsigned(found: str) -> ArtifactError:
    return ArtifactError("signature", "that of this file", found, "take both files anew from who built them")


def _no_key(path: Path) -> ConfigError:
    return ConfigError(
        str(path),
        'lines `ssh-ed25519 AAAA... COMMENT`, with dates such as valid-before="20270101Z" before, if any',
        "another line",
        "give the .pub file of an Ed25519 key",
    )
