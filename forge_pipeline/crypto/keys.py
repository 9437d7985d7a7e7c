"""Where passwords and private keys come from. Places are named in order of preference; the first that has one wins.

    env:NAME               an environment variable
    file:PATH              a file that only its owner can read
    fd:N                   an open file descriptor (``3<secret``)
    prompt                 the terminal, twice, without echo
    keyring:SERVICE/NAME   the desktop's or the system's keyring

Neither is ever a configuration value or an argument: both can be read by others.
"""

from __future__ import annotations

import errno
import getpass
import importlib
import os
import secrets
import shlex
import stat
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import BinaryIO

from forge_pipeline.errors import ConfigError, SecretError
from forge_runtime.secret import Secret

MAX_PASSWORD = 4096
FORMS = "env:NAME, file:PATH, fd:N, prompt or keyring:SERVICE/NAME"


Reader = Callable[[], Secret | None]
_OPTION = "encrypt.password"


def checked_sources(sources: Sequence[str], option: str = _OPTION) -> list[Reader]:
    """Return what reads each of ``sources``, having read none of them yet.

    Raises ConfigError for one of unknown form, without repeating it: it might be a password put there by mistake.
    """
    return [_reader(source, option) for source in sources]


def read_password(sources: Sequence[str]) -> Secret:
    """Return the password from the first of ``sources`` that has one.

    Raises ConfigError as ``checked_sources`` does, and SecretError where no source has one or one is kept unsafely.
    """
    made = "`forge-pipeline password PATH` makes one"
    return read_secret(
        sources, "password", fix=f"set the variable or write the file ({made}); {_OPTION} lists the places"
    )


def read_secret(sources: Sequence[str], name: str, *, fix: str, option: str = _OPTION) -> Secret:
    """Return what the first of ``sources`` has, as ``read_password`` does; messages call it ``name``.

    ``fix`` says what to do where there is none; ``option`` names the sources.
    """
    secret = find_secret(sources, option)
    if secret is None:
        raise none_found(sources, name, fix)
    return secret


def none_found(sources: Sequence[str], name: str, fix: str) -> SecretError:
    """Return the error of a secret that none of its places has."""
    return SecretError(
        name,
        f"one in {', '.join(sources)}" if sources else "the name of a place that holds it",
        "none there" if sources else "no place named",
        fix,
    )


def find_secret(sources: Sequence[str], option: str = _OPTION) -> Secret | None:
    """Return what the first of ``sources`` has, None where none has any; raises otherwise as ``read_password`` does."""
    for read in checked_sources(sources, option):
        secret = read()
        if secret is not None:
            return secret
    return None


def generate_password_file(path: Path) -> None:
    """Write a new random password (256 bits) to ``path`` with mode 0600; SecretError if anything is there already."""
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor, name = tempfile.mkstemp(dir=path.parent, prefix=path.name)  # O_EXCL, mode 0600
    try:
        with os.fdopen(descriptor, "wb") as stream:
            stream.write(secrets.token_urlsafe(32).encode() + b"\n")
            stream.flush()
            os.fsync(stream.fileno())
        os.link(name, path)  # unlike a rename, never replaces a password that opens something
    except FileExistsError as error:
        raise SecretError(
            str(path), "no file yet", "one that is there already", "use it, or choose another path"
        ) from error
    finally:
        Path(name).unlink()


def _reader(source: str, option: str = _OPTION) -> Reader:
    kind, _, rest = source.partition(":")
    if kind == "prompt" and source == "prompt":
        return _from_prompt
    if kind == "env" and rest:
        return lambda: _from_environment(rest)
    if kind == "file" and rest:
        return lambda: _from_file(Path(rest).expanduser())
    if kind == "fd" and rest.isdecimal():
        return lambda: _from_descriptor(int(rest))
    if kind == "keyring" and all(rest.partition("/")[::2]):
        return lambda: _from_keyring(*rest.split("/", 1))
    raise ConfigError(
        option,
        FORMS,
        "an entry of another form (not shown: it might be a secret)",
        "name the place of the secret, never the secret itself",
    )


def _from_environment(name: str) -> Secret | None:
    value = os.environ.get(name)
    return None if value is None else _checked(Secret(os.fsencode(value)), f"environment variable {name}")


def _from_file(path: Path) -> Secret | None:
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)  # a FIFO must not block
    except FileNotFoundError:
        return None
    except OSError as error:
        raise SecretError(
            str(path), "a readable password file", error.strerror or "an error", "give this user the right to read it"
        ) from error
    status = os.fstat(descriptor)  # of what is open, not of what the name points to by now
    if not stat.S_ISREG(status.st_mode):
        os.close(descriptor)
        raise SecretError(str(path), "a regular file", "something else", "put the password into a file")
    with os.fdopen(descriptor, "rb") as stream:
        if status.st_mode & 0o077:
            raise SecretError(
                str(path),
                "a password file that only its owner can read",
                f"mode {stat.S_IMODE(status.st_mode):04o}",
                f"chmod 600 {shlex.quote(str(path))}",
            )
        return _read(stream, str(path))


def _from_descriptor(number: int) -> Secret | None:
    try:
        with os.fdopen(number, "rb") as stream:
            return _read(stream, f"file descriptor {number}")
    except OverflowError:  # no descriptor has such a number
        return None
    except OSError as error:
        if error.errno == errno.EBADF:
            return None
        raise SecretError(
            f"file descriptor {number}", "readable", error.strerror or "an error", f"open it: {number}<FILE"
        ) from error


def ask(question: str) -> Secret | None:
    """Return what is typed at the terminal, without echo; None where there is no terminal."""
    return _checked(Secret.of_password(getpass.getpass(question)), "prompt") if sys.stdin.isatty() else None


def _from_prompt() -> Secret | None:
    typed = ask("Password for the encrypted model: ")
    if typed is None:
        return None
    if typed != Secret.of_password(getpass.getpass("The same again: ")):  # a slip would be found on the device
        raise SecretError("prompt", "the same password twice", "two different ones", "type it again")
    return typed


def _from_keyring(service: str, name: str) -> Secret | None:
    try:
        keyring = importlib.import_module("keyring")
    except ModuleNotFoundError as error:
        raise SecretError(
            f"keyring:{service}/{name}", "the package keyring", "it is not installed", "pip install keyring"
        ) from error
    try:
        value = keyring.get_password(service, name)
    except keyring.errors.KeyringError as error:
        raise SecretError(
            f"keyring:{service}/{name}", "an unlocked keyring", type(error).__name__, "unlock it, or use another source"
        ) from error
    return None if value is None else _checked(Secret.of_password(value), f"keyring:{service}/{name}")


def _read(stream: BinaryIO, where: str) -> Secret:
    return _checked(Secret(stream.read(MAX_PASSWORD + 2).removesuffix(b"\n").removesuffix(b"\r")), where)


def _checked(password: Secret, where: str) -> Secret:
    length = len(password.reveal())
    if not 1 <= length <= MAX_PASSWORD:
        found = "more than that" if length else "an empty one"
        raise SecretError(where, f"a password of 1 to {MAX_PASSWORD} bytes", found, "put the password there")
    return password
