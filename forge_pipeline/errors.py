"""What goes wrong, said so that its reader can act: the errors of the runtime, and those that only a build has."""

from __future__ import annotations

from typing import ClassVar

from forge_runtime.errors import (
    ArtifactError,
    ConfigError,
    DataError,
    ForgeError,
    MachineError,
    SecretError,
    UntrustedError,
    did_you_mean,
)

__all__ = [
    "ArtifactError",
    "CompileError",
    "ConfigError",
    "DataError",
    "DeviceError",
    "ForgeError",
    "LimitError",
    "MachineError",
    "ModelError",
    "SecretError",
    "StoreError",
    "TargetError",
    "UntrustedError",
    "UsageError",
    "VerificationError",
    "did_you_mean",
]


class UsageError(ForgeError):
    """The command line itself is wrong: an unknown command, option, override or choice. A value is a ConfigError."""

    exit_code: ClassVar[int] = 2


class ModelError(ForgeError):
    """A model file or graph is damaged, invalid, unsafe or outside what is supported."""


class TargetError(ForgeError):
    """A hardware target is unknown, or a tool that it needs is not on this machine."""


class CompileError(ForgeError):
    """The compiler, the linker or the check of the compiled model failed."""


class DeviceError(ForgeError):
    """A board cannot be reached, is not the one that it was, or does not do what is asked of it."""


class VerificationError(ForgeError):
    """A rewritten or compiled model does not compute what its source computes."""


class LimitError(ForgeError):
    """Memory, processor time or open files ran out, under a limit of this process if there is one."""


class StoreError(ForgeError):
    """The store cannot be read or written."""
