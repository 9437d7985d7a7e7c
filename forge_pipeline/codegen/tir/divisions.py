"""Divisions of what is never negative: then rounding down is rounding to zero, as the machine does.

A dividend that may be -1, as the number of the last of no rows is, is made so by adding the divisor once.

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


def towards_zero(function: Any, _module: Any, _context: Any) -> Any:
    """Return a kernel, ready for LLVM but for this, with divisions as the machine has them where that is the same."""
    known = _Known()
    steps = [(tirx.For, known.counts), (tirx.Bind, known.names)]
    tvm_ffi.structural_walk(function.body, steps, order="pre")

    def quotient(division: Any) -> Any:
        added = known.added(division)
        if added is None:
            return division
        return tirx.Div(division.a, division.b) if added == 0 else tirx.Div(division.a + added, division.b) - 1

    def remainder(division: Any) -> Any:
        added = known.added(division)
        if added is None:
            return division
        return tirx.Mod(division.a, division.b) if added == 0 else tirx.Mod(division.a + added, division.b)

    return function.with_body(
        tvm_ffi.structural_map(function.body, [(tirx.FloorDiv, quotient), (tirx.FloorMod, remainder)])
    )


class _Known:
    """The least that variables are known to be."""

    def __init__(self) -> None:
        self._variables: dict[Any, int] = {}

    def counts(self, loop: tirx.For) -> None:
        """Note a loop's variable, which begins somewhere and counts up."""
        self._note(loop.loop_var, loop.min)

    def names(self, bind: tirx.Bind) -> None:
        """Note a variable that stands for a tensor's extent, or for a value of which as much is known."""
        self._note(bind.var, bind.value)

    def added(self, division: Any) -> Any:
        """Return what makes the dividend never negative, once more the divisor at most; None where none is known.

        A quotient of the sum is larger by one then, and the remainder is the same. A shift is neither.
        """
        divisor = division.b.value if isinstance(division.b, tirx.Broadcast) else division.b
        number = int(divisor) if isinstance(divisor, tirx.IntImm) else None
        is_shift = number is not None and number.bit_count() == 1
        least, of_divisor = self.least(division.a), self.least(division.b)
        if is_shift or least is None or of_divisor is None or of_divisor < 0:
            return None
        if least >= 0:
            return 0
        is_within = least == -1 or (number is not None and -least <= number)  # what divides is at least one
        return division.b if is_within and not isinstance(division.b, tirx.Broadcast) else None

    def least(self, value: Any) -> int | None:
        """Return a number that a value, or no element of a vector, is below; None where none is known."""
        if isinstance(value, Var):
            return self._variables.get(value)
        if isinstance(value, tirx.IntImm):
            return int(value)
        if isinstance(value, tirx.Broadcast):
            return self.least(value.value)
        if isinstance(value, tirx.Cast):
            return self.least(value.value) if str(value.ty.dtype).startswith("int64") else None
        if isinstance(value, tirx.Sub):
            return self._sum(value.a, -int(value.b)) if isinstance(value.b, tirx.IntImm) else None
        if isinstance(value, Call):
            return 0 if _is_extent(value) else None
        return self._of_two(value)

    def _of_two(self, value: Any) -> int | None:
        pair = (value.base, value.stride) if isinstance(value, tirx.Ramp) else _operands(value)
        if pair is None:
            return None
        first, second = map(self.least, pair)
        if isinstance(value, tirx.Max):
            return max((one for one in (first, second) if one is not None), default=None)
        if isinstance(value, tirx.FloorMod) and second is not None and second >= 0:
            return 0
        if first is None or second is None:
            return None
        if isinstance(value, tirx.Add):
            return first + second
        if isinstance(value, tirx.Min):
            return min(first, second)
        if isinstance(value, tirx.Mul) and isinstance(value.b, tirx.IntImm) and second >= 0:
            return first * second
        if isinstance(value, tirx.FloorDiv) and second >= 0:
            return min(first, 0)  # by one at least
        return 0 if first >= 0 and second >= 0 else None

    def _sum(self, value: Any, number: int) -> int | None:
        least = self.least(value)
        return None if least is None else least + number

    def _note(self, variable: Any, value: Any) -> None:
        least = self.least(value)
        if least is not None:
            self._variables[variable] = least


def _operands(value: Any) -> tuple[Any, Any] | None:
    kinds = (tirx.Add, tirx.Mul, tirx.Div, tirx.Mod, tirx.FloorDiv, tirx.FloorMod, tirx.Min, tirx.Max)
    return (value.a, value.b) if isinstance(value, kinds) else None


def _is_extent(call: Call) -> bool:
    return getattr(call.op, "name", "") == "tirx.tvm_struct_get" and int(call.args[2]) == SHAPE
