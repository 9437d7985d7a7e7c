"""How much stack kernels take, by the assembly that LLVM makes of them for a Cortex-M: frames along the deepest call.

A frame is all that a function ever takes off its stack pointer, branches or not, and what it is aligned by. What a
function names, it may call: a task that it hands to the runtime, too. Kernels do not call themselves.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cache

_FUNCTION = re.compile(r"^\t\.type\t(\S+),%function\n(.*?)^\t\.size\t\1,", re.MULTILINE | re.DOTALL)
_PUSHED = re.compile(r"^\t(v?)push(?:\.w)?\t\{([^}]*)\}|^\tv?stmdb\tsp!, \{([^}]*)\}", re.MULTILINE)
_TAKEN = re.compile(r"^\tsub(?:\.w|w)?\tsp, (?:sp, )?#(\d+)|^\tstrd?(?:\.w)?\t.*\[sp, #-(\d+)\]!", re.MULTILINE)
_ALIGNED = re.compile(r"^\tbfc\t\w+, #0, #(\d+)", re.MULTILINE)
_NAME = re.compile(r"[\w.$]+")


def deepest(assembly: str) -> int:
    """Return the bytes of stack that the deepest chain of calls takes."""
    bodies = dict(_FUNCTION.findall(assembly))
    frames = {name: _frame(body) for name, body in bodies.items()}
    called = {name: {word for word in _NAME.findall(body) if word in bodies} - {name} for name, body in bodies.items()}
    return _deepest(frames, called)


def _deepest(frames: Mapping[str, int], called: Mapping[str, set[str]]) -> int:
    @cache
    def depth(name: str) -> int:
        return frames[name] + max(map(depth, called[name]), default=0)

    return max(map(depth, frames), default=0)


def _frame(body: str) -> int:
    size = sum(int(first or second) for first, second in _TAKEN.findall(body))
    for wide, pushed, stored in _PUSHED.findall(body):
        size += (8 if wide else 4) * len((pushed or stored).split(","))
    return size + max((1 << int(bits) for bits in _ALIGNED.findall(body)), default=0)
