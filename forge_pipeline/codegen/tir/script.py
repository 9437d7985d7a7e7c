"""Kernels written in TVMScript: its decorators, without the search that TVM's make on the way.

TVM's own ask Python for the source lines of every frame on the stack, with each kernel and with each use of a function
that is inlined: two thirds of the time that kernels of an ArgMax took to compile. They look for a class around the
kernel, and for the parser; here there is no such class, and the parser is found by the frames alone.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import cached_property
from typing import Any

from tvm import tirx
from tvm.script.parser._core import parse, scan_macro, utils
from tvm.tirx.script.parser.entry import TIRInline

KERNEL, INLINED = "tirx", "tir.inline"
"""By an attribute ``dispatch_token`` of these values TVM's parser knows the two decorators. A function that is defined
inside a kernel it reads itself."""


def prim_func(*, s_tir: bool, private: bool = False) -> Callable[[Callable[..., Any]], Any]:
    """Return what makes a function a kernel; TVM's parser reads both arguments where they are written, and asks for
    the name of a module before that of the decorator."""

    def parsed(function: Callable[..., Any]) -> Any:
        return parse(function, utils.inspect_function_capture(function), s_tir=s_tir)

    parsed.dispatch_token = KERNEL  # type: ignore[attr-defined]
    return parsed


def inline(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function whose body stands, in kernels, wherever it is called."""
    inlined = _Inlined(*scan_macro(function, utils.inspect_function_capture(function)), function)

    def call(*arguments: Any, **named: Any) -> Any:
        return inlined(*arguments, **named)

    return call


inline.dispatch_token = INLINED  # type: ignore[attr-defined]


def over_lanes(buffer: Any, lanes: int, combine: Callable[[Any, Any], Any]) -> Any:
    """Return what ``lanes`` numbers of a buffer make together: the halves of them, then the halves of these."""
    found: list[Any] = [tirx.BufferLoad(buffer, [tirx.const(lane, "int64")]) for lane in range(lanes)]
    while len(found) > 1:
        half = len(found) // 2
        found = [combine(found[lane], found[lane + half]) for lane in range(half)]
    return found[0]


class _Inlined(TIRInline):  # type: ignore[misc]
    @cached_property
    def _definition(self) -> Any:
        return super().get_macro_def()

    def get_macro_def(self) -> Any:
        """Return the syntax tree of the function, which is made once."""
        return self._definition

    def _find_parser_def(self) -> Any:
        """Return the parser of the kernel that is being read: the nearest one on the stack."""
        frame = sys._getframe(1)
        while frame.f_back is not None:
            frame = frame.f_back
            if (parser := frame.f_globals.get(self.parser_object_name)) is not None:
                return parser
        raise RuntimeError("a function of kernels is called outside of any")
