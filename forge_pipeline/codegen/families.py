"""The operator families: which operators each takes over in the graph, and how its kernels are scheduled.

A family is one module and one entry here. docs/codegen.md says what it offers.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from tvm.s_tir import Schedule

from forge_pipeline.codegen.amx import products
from forge_pipeline.codegen.amx.operands import BYTES_BY_BYTES, PAIRS
from forge_pipeline.codegen.float32 import (
    concat,
    elementwise,
    linear_resize,
    nearest,
    pad,
    pool_rows,
    resample,
    softmax,
    weight_decode,
)
from forge_pipeline.codegen.float32 import pool as float32_pool
from forge_pipeline.codegen.float32.conv import channels_last, convolution, expand_depthwise
from forge_pipeline.codegen.float32.conv import conv3d as float32_conv3d
from forge_pipeline.codegen.float32.conv import conv_transpose as float32_conv_transpose
from forge_pipeline.codegen.float32.conv import depthwise as float32_depthwise
from forge_pipeline.codegen.float32.conv import direct as float32_direct
from forge_pipeline.codegen.float32.conv.winograd import fixed_size, open_size, weights
from forge_pipeline.codegen.float32.normalization import group_norm
from forge_pipeline.codegen.float32.products import amx_attention, attention, open_matmul, row_matmul, scores
from forge_pipeline.codegen.float32.products import matmul as float32_matmul
from forge_pipeline.codegen.int8 import dynamic_quantize, rounded_lstm
from forge_pipeline.codegen.int8.conv import conv3d as int8_conv3d
from forge_pipeline.codegen.int8.conv import conv_transpose as int8_conv_transpose
from forge_pipeline.codegen.int8.conv import depthwise as int8_depthwise
from forge_pipeline.codegen.int8.conv import direct as int8_direct
from forge_pipeline.codegen.int8.conv import match, residual
from forge_pipeline.codegen.int8.conv import winograd as int8_winograd
from forge_pipeline.codegen.int8.neon import kernels
from forge_pipeline.codegen.int8.ops import attention as int8_attention
from forge_pipeline.codegen.int8.ops import (
    attention_kernel,
    batched_matmul,
    binary,
    block_matmul,
    block_schedule,
    data_movement,
    int32_results,
    lookup_table,
    panels,
    quantize_dequantize,
    resize,
    weight_only_matmul,
)
from forge_pipeline.codegen.int8.ops import matmul as int8_matmul
from forge_pipeline.codegen.int8.ops import pool as int8_pool
from forge_pipeline.codegen.int8.x86 import pmaddubsw
from forge_pipeline.codegen.layout import empty_rows
from forge_pipeline.codegen.layout.builder import Handler
from forge_pipeline.codegen.tir.machine import Machine
from forge_pipeline.codegen.trees import kernel as trees

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
    "int8": Family(handlers=quantize_dequantize.HANDLERS),
    "int8_data_movement": Family(handlers=data_movement.HANDLERS),
    dynamic_quantize.NAME: Family(
        handlers=dynamic_quantize.HANDLERS, schedule=dynamic_quantize.schedule, continues=False
    ),
    lookup_table.NAME: Family(handlers=lookup_table.HANDLERS, schedule=lookup_table.schedule, continues=False),
    "int8_match": Family(handlers=match.HANDLERS),
    "int8_conv3d": Family(handlers=int8_conv3d.HANDLERS),
    "int8_conv_transpose": Family(handlers=int8_conv_transpose.HANDLERS),
    int8_direct.NAME: Family(schedule=int8_direct.schedule),
    BYTES_BY_BYTES.name: Family(schedule=products.schedule),
    PAIRS.name: Family(schedule=products.schedule),
    amx_attention.NAME: Family(schedule=amx_attention.schedule),
    kernels.NAME: Family(schedule=kernels.schedule),
    pmaddubsw.NAME: Family(schedule=pmaddubsw.schedule),
    int8_winograd.NAME: Family(schedule=int8_winograd.schedule),
    int8_depthwise.NAME: Family(schedule=int8_depthwise.schedule),
    int8_matmul.NAME: Family(handlers=int8_matmul.HANDLERS, schedule=int8_matmul.schedule),
    attention_kernel.NAME: Family(
        handlers=batched_matmul.HANDLERS, schedule=attention_kernel.schedule, continues=False
    ),
    attention_kernel.SOFTMAX: Family(schedule=attention_kernel.schedule, continues=False),
    attention_kernel.ATTENTION: Family(schedule=int8_attention.schedule, continues=False),
    panels.PACK: Family(schedule=panels.schedule_pack, continues=False),
    panels.SUMS: Family(schedule=panels.schedule_sums, continues=False),
    "int8_rounded_lstm": Family(handlers=rounded_lstm.HANDLERS),
    "int32_results": Family(handlers=int32_results.HANDLERS),
    "int8_pool": Family(handlers=int8_pool.HANDLERS),
    residual.NAME: Family(handlers=residual.HANDLERS, schedule=residual.schedule),
    "int8_binary": Family(handlers=binary.HANDLERS),
    "int8_resize": Family(handlers=resize.HANDLERS),
    "convolution": Family(handlers=convolution.HANDLERS),
    "conv3d": Family(handlers=float32_conv3d.HANDLERS),
    float32_conv_transpose.NAME: Family(
        handlers=float32_conv_transpose.HANDLERS, schedule=float32_conv_transpose.schedule
    ),
    channels_last.NAME: Family(schedule=channels_last.schedule),
    float32_direct.NAME: Family(schedule=float32_direct.schedule),
    fixed_size.NAME: Family(schedule=fixed_size.schedule),
    open_size.NAME: Family(schedule=open_size.schedule),
    weights.NAME: Family(schedule=weights.schedule, continues=False),
    weight_decode.NAME: Family(schedule=weight_decode.schedule, continues=False),
    expand_depthwise.NAME: Family(schedule=expand_depthwise.schedule, continues=False),
    float32_depthwise.NAME: Family(schedule=float32_depthwise.schedule),
    float32_pool.NAME: Family(handlers=float32_pool.HANDLERS, schedule=float32_pool.schedule),
    pool_rows.NAME: Family(handlers=pool_rows.HANDLERS, schedule=pool_rows.schedule),
    nearest.NAME: Family(handlers=nearest.HANDLERS, schedule=nearest.schedule, continues=False),
    nearest.SPREAD: Family(schedule=nearest.schedule_spread, continues=False),
    linear_resize.NAME: Family(handlers=linear_resize.HANDLERS, schedule=linear_resize.schedule, continues=False),
    resample.NAME: Family(handlers=resample.HANDLERS, schedule=resample.schedule),
    block_schedule.NAME: Family(handlers=block_matmul.HANDLERS, schedule=block_schedule.schedule),
    block_matmul.TOTALS: Family(schedule=block_schedule.schedule_totals, continues=False),
    "weight_only": Family(handlers=weight_only_matmul.HANDLERS),
    "empty_rows": Family(handlers=empty_rows.HANDLERS),
    attention.NAME: Family(handlers=scores.HANDLERS, schedule=attention.schedule, continues=False),
    float32_matmul.NAME: Family(handlers=float32_matmul.HANDLERS, schedule=float32_matmul.schedule),
    open_matmul.NAME: Family(schedule=open_matmul.schedule),
    row_matmul.NAME: Family(schedule=row_matmul.schedule),
    "softmax": Family(handlers=softmax.HANDLERS),
    "group_norm": Family(handlers=group_norm.HANDLERS),
    trees.NAME: Family(schedule=trees.schedule, continues=False),
    concat.NAME: Family(schedule=elementwise.schedule, continues=False),
    pad.NAME: Family(handlers=pad.HANDLERS, schedule=elementwise.schedule, continues=False),
    "elementwise": Family(handlers=elementwise.HANDLERS),
}
"""For an operator that several families know, the first that does not decline emits it."""


ANCHORS = frozenset(name for name, family in FAMILIES.items() if family.schedule is not None and family.continues)
"""Families whose kernels go on with what follows them."""


def handlers_of(operator: str) -> list[Handler]:
    """Return all handlers of an operator, in the order in which they are asked."""
    return [family.handlers[operator] for family in FAMILIES.values() if operator in family.handlers]
