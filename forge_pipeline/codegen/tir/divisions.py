"""Divisions of what is never negative: then rounding down is rounding to zero, as the machine does.

TVM knows no extent that a call brings to be one, and has a remainder's sign compared with the divisor's after each
division. A place in several axes of unknown extent has divisions in divisions, of which it then looks for the bounds so
often that a kernel of a few lines takes half a minute.
"""

from __future__ import annotations

from typing import Any, Final

import tvm_ffi
from tvm import tirx
from tvm.ir import Call, Var

SHAPE: Final = 17
"""What TVM calls an element of an array of int64 in a tensor's head: extents, and strides, which no kernel takes."""
_BOTH: Final = (tirx.Add, tirx.Mul, tirx.Div, tirx.Mod, tirx.FloorDiv, tirx.FloorMod, tirx.Min)
"""What is not negative where neither operand is."""


def towards_zero(function: Any, _module: Any, _context: Any) -> Any:
    """Return a kernel, ready for LLVM but for this, with divisions as the machine has them where that is the same."""
    known = _Known()
    steps = [(tirx.For, known.counts), (tirx.Bind, known.names)]
    tvm_ffi.structural_walk(function.body, steps, order="pre")

    def quotient(division: Any) -> Any:
        return tirx.Div(division.a, division.b) if known.allows(division) else division

    def remainder(division: Any) -> Any:
        return tirx.Mod(division.a, division.b) if known.allows(division) else division

    return function.with_body(
        tvm_ffi.structural_map(function.body, [(tirx.FloorDiv, quotient), (tirx.FloorMod, remainder)])
    )


class _Known:
    """Variables that are never negative."""

    def __init__(self) -> None:
        self._variables: set[Any] = set()

    def counts(self, loop: tirx.For) -> None:
        """Note a loop's variable, which begins at no negative number and counts up."""
        if self.covers(loop.min):
            self._variables.add(loop.loop_var)

    def names(self, bind: tirx.Bind) -> None:
        """Note a variable that stands for a tensor's extent, or a value that is not negative."""
        if self.covers(bind.value):
            self._variables.add(bind.var)

    def allows(self, division: Any) -> bool:
        """Return whether both are not negative, and it is no shift."""
        divisor = division.b.value if isinstance(division.b, tirx.Broadcast) else division.b
        is_shift = isinstance(divisor, tirx.IntImm) and int(divisor).bit_count() == 1
        return not is_shift and self.covers(division.a, division.b)

    def covers(self, *values: Any) -> bool:
        """Return whether no such value, or element of a vector, is negative."""
        return all(map(self._covers, values))

    def _covers(self, value: Any) -> bool:
        if isinstance(value, Var):
            return value in self._variables
        if isinstance(value, tirx.IntImm):
            return int(value) >= 0
        if isinstance(value, _BOTH):
            return self.covers(value.a, value.b)
        if isinstance(value, tirx.Max):
            return self._covers(value.a) or self._covers(value.b)
        if isinstance(value, tirx.Broadcast):
            return self._covers(value.value)
        if isinstance(value, tirx.Cast):
            return str(value.ty.dtype).startswith("int64") and self._covers(value.value)
        if isinstance(value, tirx.Ramp):
            return self.covers(value.base, value.stride)
        return isinstance(value, Call) and _is_extent(value)


def _is_extent(call: Call) -> bool:
    return getattr(call.op, "name", "") == "tirx.tvm_struct_get" and int(call.args[2]) == SHAPE
