"""TVM's schedules for GPUs, kept from what they fail on and from what they get wrong."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tvm_ffi
from tvm import tirx
from tvm.error import InternalError
from tvm.ir import Var
from tvm.s_tir.dlight.gpu.base import GPUScheduleRule
from tvm.s_tir.schedule import ScheduleError

from forge_pipeline.codegen.tir.broadcasting import is_one
from forge_pipeline.codegen.tir.rewriting import realizes


class Tried(GPUScheduleRule):  # type: ignore[misc]
    """A rule of TVM's that is passed over where it fails.

    Its GEMV does for a reduction of one step, its last resort where it cannot tell loops over computed extents apart.
    """

    def __init__(self, rule: GPUScheduleRule) -> None:
        self._rule = rule

    def apply(self, func: Any, target: Any, tunable: bool) -> Any:
        """Return the rule's schedule, or None."""
        try:
            return self._rule.apply(func, target, tunable)
        except (ScheduleError, AssertionError, AttributeError, InternalError):  # of open extents it asks values
            return None


class Orderly(Tried):
    """GEMV, for kernels whose results are in the order in which it walks: axes that all tensors have, then others.

    It hands a thread's sums to the thread that counts results in their own order, without a look at which that is: for
    `y[n, c] += x[n, c, k] * w[c, k]` it walks c before n, and writes one result in the place of another.
    """

    def apply(self, func: Any, target: Any, tunable: bool) -> Any:
        """Return the rule's schedule, or None."""
        if not isinstance(func, tirx.PrimFunc) or not all(map(_is_orderly, realizes(func.body))):
            return None
        return super().apply(func, target, tunable)


def _is_orderly(realize: Any) -> bool:
    """Return whether a block's tensors have its axes of results in its own order; of a sum's, all have the first."""
    block = realize.block
    axes = [
        axis.var
        for axis in block.iter_vars
        if axis.iter_type != tirx.IterVar.CommReduce and not is_one(axis.dom.extent)
    ]
    tensors = [_places(region, axes) for region in (*block.reads, *block.writes)]
    shared = [all(place in places for places in tensors) for place in range(len(axes))]
    sums = block.init is not None
    return all(places == sorted(places) for places in tensors) and not (sums and shared != sorted(shared, reverse=True))


def _places(region: Any, axes: Sequence[Any]) -> list[int]:
    """Return which of ``axes`` a tensor's indices have, in their order."""
    found: list[int] = []

    def note(seen: Any) -> None:
        found.extend(place for place, axis in enumerate(axes) if seen.same_as(axis) and place not in found)

    for extent in region.region:
        tvm_ffi.structural_walk(extent.min, [(Var, note)])
    return found
