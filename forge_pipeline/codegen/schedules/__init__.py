"""The operator families: which operators each takes over in the graph, and how its kernels are scheduled.

A family is one module and one row here. docs/codegen.md says what it offers.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from forge_pipeline.codegen.graph import Handler
from forge_pipeline.codegen.machine import Machine
from forge_pipeline.codegen.schedules import (
    channels_last,
    convolution,
    depthwise,
    direct,
    elementwise,
    integer_amx,
    integer_bands,
    integer_batched,
    integer_boundary,
    integer_conv,
    integer_depthwise,
    integer_dynamic,
    integer_forms,
    integer_matmul,
    integer_moves,
    integer_neon,
    integer_ordered,
    integer_ordered_step,
    integer_pair,
    integer_pool,
    integer_residual,
    integer_resize,
    integer_sums,
    integer_table,
    integer_transposed,
    integer_volume,
    integer_winograd,
    joining,
    matmul,
    pool,
    pool_rows,
    resample,
    stored_weight,
    transposed,
    volume,
    weight_only,
    winograd,
    winograd_weight,
)

if TYPE_CHECKING:
    from tvm.s_tir import Schedule

Scheduler = Callable[["Schedule", Machine], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """``handlers`` maps Relax operators to what emits them; ``schedule`` takes the kernels of its own templates.

    ``continues``: it also takes what is computed of their results element by element.
    """

    handlers: Mapping[str, Handler] = field(default_factory=dict)
    schedule: Scheduler | None = None
    continues: bool = True


FAMILIES: Mapping[str, Family] = {
    "integer": Family(handlers=integer_boundary.HANDLERS),
    "integer_moves": Family(handlers=integer_moves.HANDLERS),
    integer_dynamic.NAME: Family(handlers=integer_dynamic.HANDLERS, schedule=integer_dynamic.schedule, continues=False),
    integer_table.NAME: Family(handlers=integer_table.HANDLERS, schedule=integer_table.schedule, continues=False),
    "integer_forms": Family(handlers=integer_forms.HANDLERS),
    "integer_volume": Family(handlers=integer_volume.HANDLERS),
    "integer_transposed": Family(handlers=integer_transposed.HANDLERS),
    integer_conv.NAME: Family(schedule=integer_conv.schedule),
    integer_amx.NAME: Family(schedule=integer_amx.schedule),
    integer_neon.NAME: Family(schedule=integer_neon.schedule),
    integer_ordered_step.NAME: Family(schedule=integer_ordered.schedule),
    integer_winograd.NAME: Family(schedule=integer_winograd.schedule),
    integer_depthwise.NAME: Family(schedule=integer_depthwise.schedule),
    integer_matmul.NAME: Family(handlers=integer_matmul.HANDLERS, schedule=integer_matmul.schedule),
    integer_bands.NAME: Family(handlers=integer_batched.HANDLERS, schedule=integer_bands.schedule),
    integer_bands.SOFTMAX: Family(schedule=integer_bands.schedule, continues=False),
    integer_bands.SUMS: Family(schedule=integer_bands.schedule_sums, continues=False),
    "integer_sums": Family(handlers=integer_sums.HANDLERS),
    "integer_pool": Family(handlers=integer_pool.HANDLERS),
    integer_residual.NAME: Family(handlers=integer_residual.HANDLERS, schedule=integer_residual.schedule),
    "integer_pair": Family(handlers=integer_pair.HANDLERS),
    "integer_resize": Family(handlers=integer_resize.HANDLERS),
    "convolution": Family(handlers=convolution.HANDLERS),
    "volume": Family(handlers=volume.HANDLERS),
    transposed.NAME: Family(handlers=transposed.HANDLERS, schedule=transposed.schedule),
    channels_last.NAME: Family(schedule=channels_last.schedule),
    direct.NAME: Family(schedule=direct.schedule),
    winograd.NAME: Family(schedule=winograd.schedule),
    winograd_weight.NAME: Family(schedule=winograd_weight.schedule, continues=False),
    stored_weight.NAME: Family(schedule=stored_weight.schedule, continues=False),
    depthwise.NAME: Family(schedule=depthwise.schedule),
    pool.NAME: Family(handlers=pool.HANDLERS, schedule=pool.schedule),
    pool_rows.NAME: Family(handlers=pool_rows.HANDLERS, schedule=pool_rows.schedule),
    resample.NAME: Family(handlers=resample.HANDLERS, schedule=resample.schedule),
    "weight_only": Family(handlers=weight_only.HANDLERS),
    matmul.NAME: Family(handlers=matmul.HANDLERS, schedule=matmul.schedule),
    joining.NAME: Family(schedule=elementwise.schedule, continues=False),
    "elementwise": Family(handlers=elementwise.HANDLERS),
}
"""For an operator that several families know, the first that does not decline emits it."""


ANCHORS = frozenset(name for name, family in FAMILIES.items() if family.schedule is not None and family.continues)
"""Families whose kernels go on with what follows them."""


def handlers_of(operator: str) -> list[Handler]:
    """Return all handlers of an operator, in the order in which they are asked."""
    return [family.handlers[operator] for family in FAMILIES.values() if operator in family.handlers]
