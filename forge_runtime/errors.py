"""What goes wrong on a device, said so that its reader can act: place, expectation, finding, next step."""

from __future__ import annotations

from collections.abc import Iterable
from typing import ClassVar

from forge_runtime.text import shown

FIX = 400


class ForgeError(Exception):
    """Says where it went wrong, what was expected, what was found, and what to do next.

    Its text is two printable lines of bounded length, whatever the names in it; the attributes are as they were given.
    """

    exit_code: ClassVar[int] = 1

    def __init__(self, where: str, expected: str, found: str, fix: str) -> None:
        super().__init__(where, expected, found, fix)  # all four in args, so it pickles
        self.where, self.expected, self.found, self.fix = where, expected, found, fix

    def __str__(self) -> str:
        said = f"{self.where}: expected {self.expected}, found {self.found}"
        first, second = (text.replace("\n", " ") for text in (said, self.fix))  # tools have messages of several lines
        return f"{shown(first)}\nfix: {shown(second, FIX)}"


class ConfigError(ForgeError):
    """A configuration value is misspelt, missing, of the wrong type or out of range."""


class DataError(ForgeError):
    """Calibration or evaluation data is missing, inconsistent or does not fit the model."""


class ArtifactError(ForgeError):
    """An artifact is damaged, incomplete, tampered with or made for another machine."""


class MachineError(ArtifactError):
    """An artifact is whole, and made for another machine than this one."""


class UntrustedError(ArtifactError):
    """An artifact is signed by no key that is trusted, or was changed since."""


class SecretError(ForgeError):
    """A password or key is missing, wrong or kept unsafely. Never holds the secret itself."""


def did_you_mean(name: str, choices: Iterable[str]) -> str:
    """Return ``"did you mean 'x'? "`` when a choice is close to ``name``, else the empty string."""
    import difflib

    close = difflib.get_close_matches(name, list(choices), n=1, cutoff=0.6)
    return f"did you mean {close[0]!r}? " if close else ""
