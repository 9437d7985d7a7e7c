"""What an importer's process may not do: take all memory, run for ever, fill the disk, use the network.

Importers parse files of strangers with millions of lines of code that was not written for that. The limits are the
kernel's, so they hold for compiled code too: RLIMIT_DATA (private memory; PyTorch reserves more address space than it
ever uses, so RLIMIT_AS would not do), RLIMIT_CPU, RLIMIT_FSIZE, and a seccomp filter under which a socket can be made
for this machine's own processes (AF_UNIX) and for nothing else. On processors for which the filter has no numbers,
Python's audit hook refuses connections instead.
"""

from __future__ import annotations

import ctypes
import os
import platform
import resource
import socket
import struct
import sys
from typing import Final

from forge_pipeline.frontends.contract import Limits
from forge_pipeline.limits import end_with_parent, lower

_PR_SET_NO_NEW_PRIVS: Final = 38
_PR_SET_SECCOMP: Final = 22
_SECCOMP_MODE_FILTER: Final = 2

# linux/audit.h and the kernel's tables of system calls: architecture, socket, io_uring_setup.
_NUMBERS: Final = {"x86_64": (0xC000003E, 41, 425), "aarch64": (0xC00000B7, 198, 425)}

# linux/filter.h and linux/seccomp.h
_LOAD, _JUMP_EQUAL, _JUMP_AT_LEAST, _RETURN = 0x20, 0x15, 0x35, 0x06
_ALLOW, _KILL = 0x7FFF0000, 0x80000000
_REFUSE: Final = 0x00050000 | 13  # EACCES
_X32: Final = 0x40000000  # the second numbering of x86-64
_NR, _ARCH, _ARGUMENT = 0, 4, 16  # offsets in struct seccomp_data


def restrict(limits: Limits) -> None:
    """Put this process under ``limits``, for good. To be called before anything large is imported."""
    lower(resource.RLIMIT_CORE, 0)
    lower(resource.RLIMIT_DATA, limits.memory)
    lower(resource.RLIMIT_FSIZE, limits.memory)
    lower(resource.RLIMIT_CPU, limits.seconds * (os.cpu_count() or 1), 1)
    end_with_parent()
    libc = ctypes.CDLL(None, use_errno=True)
    numbers = _NUMBERS.get(platform.machine()) if sys.platform == "linux" else None
    if numbers is None or not _filter_sockets(libc, *numbers):
        sys.addaudithook(_refuse_connections)


def _filter_sockets(libc: ctypes.CDLL, arch: int, socket_call: int, ring_call: int) -> bool:
    """Install the filter; return whether the kernel took it."""
    program = (
        (_LOAD, 0, 0, _ARCH),
        (_JUMP_EQUAL, 1, 0, arch),
        (_RETURN, 0, 0, _KILL),
        (_LOAD, 0, 0, _NR),
        (_JUMP_AT_LEAST, 4, 0, _X32),
        (_JUMP_EQUAL, 3, 0, ring_call),
        (_JUMP_EQUAL, 0, 3, socket_call),
        (_LOAD, 0, 0, _ARGUMENT),
        (_JUMP_EQUAL, 1, 0, socket.AF_UNIX),
        (_RETURN, 0, 0, _REFUSE),
        (_RETURN, 0, 0, _ALLOW),
    )
    code = b"".join(struct.pack("=HBBI", *instruction) for instruction in program)
    content = ctypes.create_string_buffer(code, len(code))
    filters = ctypes.create_string_buffer(struct.pack("@HP", len(program), ctypes.addressof(content)))
    if libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0:
        return False
    return bool(libc.prctl(_PR_SET_SECCOMP, _SECCOMP_MODE_FILTER, ctypes.byref(filters), 0, 0) == 0)


def _refuse_connections(event: str, arguments: tuple[object, ...]) -> None:
    if event in ("socket.connect", "socket.bind", "socket.getaddrinfo", "socket.sendto"):
        raise PermissionError(f"an importer may not use the network ({event})")
