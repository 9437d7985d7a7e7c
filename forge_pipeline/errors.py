"""What goes wrong, said so that its reader can act: place, expectation, finding, next step."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from typing import ClassVar

from forge_pipeline.text import shown

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


class UsageError(ForgeError):
    """The command line itself is wrong: an unknown command, option, override or choice."""

    exit_code: ClassVar[int] = 2


class ConfigError(ForgeError):
    """A configuration value is misspelt, missing, of the wrong type or out of range."""


class ModelError(ForgeError):
    """A model file or graph is damaged, invalid, unsafe or outside what is supported."""


class DataError(ForgeError):
    """Calibration or evaluation data is missing, inconsistent or does not fit the model."""


class TargetError(ForgeError):
    """A hardware target is unknown, or a tool that it needs is not on this machine."""


class CompileError(ForgeError):
    """The compiler, the linker or the check of the compiled model failed."""


class VerificationError(ForgeError):
    """A rewritten or compiled model does not compute what its source computes."""


class ArtifactError(ForgeError):
    """An artifact is damaged, incomplete, tampered with or made for another machine."""


class SecretError(ForgeError):
    """A password or key is missing, wrong or kept unsafely. Never holds the secret itself."""


class LimitError(ForgeError):
    """Memory, processor time or open files ran out, under a limit of this process if there is one."""


class StoreError(ForgeError):
    """The store cannot be read or written."""


def did_you_mean(name: str, choices: Iterable[str]) -> str:
    """Return ``"did you mean 'x'? "`` when a choice is close to ``name``, else the empty string."""
    close = difflib.get_close_matches(name, list(choices), n=1, cutoff=0.6)
    return f"did you mean {close[0]!r}? " if close else ""
