"""libforge (`runtime/include/forge.h`) by ctypes: where it is, its functions, and its failures as errors."""

from __future__ import annotations

import ctypes
import functools
import os
import re
import sys
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

from forge_runtime.errors import (
    ArtifactError,
    ConfigError,
    DataError,
    ForgeError,
    MachineError,
    SecretError,
    UntrustedError,
)

MAX_RANK, ALIGNMENT, MAX_THREADS = 8, 64, 64
"""Of arrays: axes, and bytes that their first one is to be a multiple of; of a session: threads."""

_NAME = "libforge.so"
_MESSAGE = re.compile(r"(?P<where>.*?): expected (?P<expected>.*), found (?P<found>.*)\nfix: (?P<fix>.*)", re.DOTALL)


class Dtype(ctypes.Structure):
    """`forge_dtype`."""

    _fields_ = (("code", ctypes.c_uint8), ("bits", ctypes.c_uint8), ("lanes", ctypes.c_uint16))


class Port(ctypes.Structure):
    """`forge_port`."""

    _fields_ = (
        ("name", ctypes.c_char_p),
        ("dtype", Dtype),
        ("rank", ctypes.c_int32),
        ("shape", ctypes.c_int64 * MAX_RANK),
    )


class Source(ctypes.Structure):
    """`forge_source`."""

    _fields_ = (
        ("path", ctypes.c_char_p),
        ("file", ctypes.c_void_p),
        ("size", ctypes.c_size_t),
        ("key_path", ctypes.c_char_p),
        ("key", ctypes.c_char_p),
        ("key_size", ctypes.c_size_t),
        ("password", ctypes.c_char_p),
        ("password_size", ctypes.c_size_t),
        ("max_bytes", ctypes.c_size_t),
        ("max_kdf_bytes", ctypes.c_size_t),
        ("trusted", ctypes.c_char_p),
        ("trusted_size", ctypes.c_size_t),
        ("signature_path", ctypes.c_char_p),
        ("signature", ctypes.c_char_p),
        ("signature_size", ctypes.c_size_t),
        ("variant", ctypes.c_char_p),
    )


class ForgeArray(ctypes.Structure):
    """`forge_array`."""

    _fields_ = (("data", ctypes.c_void_p), ("size", ctypes.c_size_t), ("shape", ctypes.c_int64 * MAX_RANK))


class Call(ctypes.Structure):
    """`forge_call`."""

    _fields_ = (("session", ctypes.c_void_p), ("inputs", ctypes.c_void_p), ("outputs", ctypes.c_void_p))


class Kernel(ctypes.Structure):
    """`forge_kernel`."""

    _fields_ = (("name", ctypes.c_char_p), ("calls", ctypes.c_uint64), ("nanoseconds", ctypes.c_uint64))


class NoProgramError(MachineError):
    """A library without a program: it is for another device than a CPU."""


_ERRORS: Mapping[int, type[ForgeError]] = {
    1: ArtifactError,  # no memory
    2: ArtifactError,  # no file that can be read
    3: ArtifactError,
    4: SecretError,
    5: MachineError,
    6: DataError,
    7: DataError,
    8: DataError,  # cancelled
    9: NoProgramError,
    10: ConfigError,
    11: UntrustedError,
}
"""What each code of `forge.h` is here."""

SAME = -1
"""`FORGE_SAME`: no failure."""

_HANDLE, _INDEX = ctypes.c_void_p, ctypes.c_int32
_SIGNATURES: Mapping[str, tuple[Any, ...]] = {
    "forge_open_from": (ctypes.c_int, ctypes.POINTER(Source), ctypes.POINTER(_HANDLE)),
    "forge_close": (None, _HANDLE),
    "forge_inputs": (_INDEX, _HANDLE),
    "forge_outputs": (_INDEX, _HANDLE),
    "forge_input": (ctypes.POINTER(Port), _HANDLE, _INDEX),
    "forge_output": (ctypes.POINTER(Port), _HANDLE, _INDEX),
    "forge_metadata": (_HANDLE, _HANDLE, ctypes.POINTER(ctypes.c_size_t)),
    "forge_start": (ctypes.c_int, _HANDLE, _INDEX, ctypes.POINTER(_HANDLE)),
    "forge_stop": (None, _HANDLE),
    "forge_repeat": (ctypes.c_int, _HANDLE),
    "forge_rewind": (ctypes.c_int, _HANDLE, ctypes.c_int64),
    "forge_length": (ctypes.c_int64, _HANDLE),
    "forge_profile": (ctypes.c_int, _HANDLE, ctypes.c_int),
    "forge_places": (_INDEX, _HANDLE),
    "forge_place_time": (ctypes.c_int, _HANDLE, _INDEX, ctypes.POINTER(Kernel)),
    "forge_message": (ctypes.c_char_p,),
}


@functools.cache
def libforge() -> Any:
    """Load libforge, once. Raises ArtifactError where there is none for this machine."""
    path = _path()
    try:
        library = ctypes.CDLL(str(path))
        for name, (result, *arguments) in _SIGNATURES.items():
            function = getattr(library, name)
            function.restype, function.argtypes = result, arguments
    except (OSError, AttributeError) as error:
        fix = "pip install --force-reinstall forge-runtime"
        raise ArtifactError("forge-runtime", f"{_NAME} of this release for this machine", str(error), fix) from error
    return library


def failure(code: int, names: Mapping[str, str]) -> ForgeError:
    """Return the error for a code, with what libforge says of it; ``names`` are those of what it calls otherwise."""
    text: str = libforge().forge_message().decode("utf-8", "replace")
    said = _MESSAGE.fullmatch(text)
    if said is None:
        return _ERRORS[code]("libforge", "a call that succeeds", text or f"code {code}", "report this message")
    where = said["where"]
    for name, better in names.items():
        if where == name or where.endswith(f" of the {name}"):
            where = where[: -len(name)].removesuffix("the ") + better
            break
    return _ERRORS[code](where, said["expected"], said["found"], said["fix"])


def _path() -> Path:
    """Return the library that is installed beside this package; in the project's own tree, the one of its sources."""
    here = Path(__file__).parent
    script = here.parent / "runtime" / "build.py"
    if (here / _NAME).exists() or not script.exists():
        return here / _NAME
    built: Path = _module(script).built(os.uname().machine)
    return built / _NAME


def _module(script: Path) -> ModuleType:
    from importlib.machinery import SourceFileLoader

    name = "forge_runtime_build"
    module = sys.modules[name] = ModuleType(name)
    module.__file__ = str(script)
    SourceFileLoader(name, str(script)).exec_module(module)
    return module
