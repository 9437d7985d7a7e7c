"""A secret that shows itself only when asked by name."""

from __future__ import annotations

from typing import NoReturn

from forge_runtime.errors import SecretError


class Secret:
    """Bytes that no repr, log line, traceback with locals, pickle or format string gives away.

    CPython cannot promise to erase them from memory; what it can promise is that they are never printed.
    """

    __slots__ = ("_value",)

    def __init__(self, value: bytes) -> None:
        self._value = value

    @classmethod
    def of_password(cls, password: Secret | bytes | str) -> Secret:
        """Wrap a password; text stands for its UTF-8 bytes. SecretError if it is empty, or nothing of the kind.

        Neither the error nor a local of this function holds the password then.
        """
        if isinstance(password, Secret):
            return password
        secret, found = None, type(password).__name__
        try:
            if isinstance(password, str):
                secret = cls(password.encode())
            elif isinstance(password, bytes | bytearray | memoryview):
                secret = cls(bytes(password))
        except UnicodeEncodeError:  # has the password in it: let go of before ours is raised
            found = "text with a lone surrogate, which UTF-8 cannot express"
        password = b""
        if secret is None:
            raise SecretError("password", "text or bytes", found, "give the password of this model")
        if not secret.reveal():
            raise SecretError("password", "at least one character", "an empty one", "give the password of this model")
        return secret

    def reveal(self) -> bytes:
        """Return the bytes. Pass them straight on: a local variable would show in a traceback."""
        return self._value

    def __repr__(self) -> str:
        return "Secret(hidden)"

    def __eq__(self, other: object) -> bool:
        import hmac  # brings OpenSSL, which a device may do without

        return isinstance(other, Secret) and hmac.compare_digest(self._value, other._value)

    __hash__ = None  # type: ignore[assignment]  # a hash would end up in tables that outlive the secret's use

    def __reduce__(self) -> NoReturn:
        raise TypeError("a secret is not pickled")
