"""Who vouches for what a remote says: its records may be signed, and a store may take only those of keys it trusts."""

from __future__ import annotations

from forge_pipeline.errors import UntrustedError

_SIGNATURE = b"-----BEGIN SSH SIGNATURE-----"


class Notary:
    """Signs no record, and takes all, signed or not: for a remote that is written by whom one trusts."""

    def sealed(self, record: bytes) -> bytes:
        """Return what a remote gets for a record: the record, and a signature behind it where there is a key."""
        return record

    def opened(self, sealed: bytes) -> bytes:
        """Return the record in what a remote gave. Raises UntrustedError where nobody who is trusted signed it."""
        return divided(sealed)[0]


def divided(sealed: bytes) -> tuple[bytes, bytes]:
    """Return the record and the signature behind it, which may be empty. A record's last byte is an end of line."""
    record, mark, rest = sealed.partition(b"\n" + _SIGNATURE)
    return (record + b"\n", _SIGNATURE + rest) if mark else (sealed, b"")


def untrusted(found: str) -> UntrustedError:
    """Return the refusal of a record."""
    return UntrustedError("record", "one that a key of store.trusted signed", found, "see who writes to the remote")
