"""Convolutions and products of bytes on NEON, by micro-kernels of four pixels by four filters.

A product of matrices is a convolution of one pixel whose image has a row of pixels. Images are copied where they need
a margin, where steps are longer than a block of channels, and where activations are to be signed once and for all.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from tvm import relax, te
from tvm.s_tir import Schedule
from tvm.s_tir.schedule import SBlockRV

from forge_pipeline.codegen.float32.conv.direct import RESIDENT
from forge_pipeline.codegen.float32.conv.geometry import Geometry
from forge_pipeline.codegen.float32.conv.groups import merge_groups
from forge_pipeline.codegen.int8.isa.micro_kernel import LANES, PIXELS, MicroKernel
from forge_pipeline.codegen.int8.isa.table import instruction_set
from forge_pipeline.codegen.int8.neon import narrow_store
from forge_pipeline.codegen.int8.neon.pack_activations import halves, matrix, pad_rows, schedule_copy
from forge_pipeline.codegen.int8.neon.tile import Plan, choose_plan
from forge_pipeline.codegen.int8.requantize import Epilogue, to_float_if_needed
from forge_pipeline.codegen.layout.builder import Array, Graph, Value
from forge_pipeline.codegen.tir import primitives
from forge_pipeline.codegen.tir.machine import Machine

NAME = "int8_neon"
KERNEL, TILE, STRIDE, LAYOUT = "forge.unit", "forge.tile", "forge.stride", "forge.layout"
"""Annotations of the block that sums: its plan, and how it reads activations."""


def emit(
    graph: Graph, source: Value, zero: int, weight: Array, geometry: Geometry, epilogue: Epilogue
) -> relax.Expr | None:
    """Emit a convolution; the result is blocked. None where single pixels serve as well, or on an x86."""
    if not instruction_set(graph.machine).micro_kernels or graph.machine.lanes != LANES or not geometry.is_static:
        return None
    geometry, weight = merge_groups(geometry, weight, LANES)
    plan = choose_plan(graph.machine, geometry)
    if plan is None:
        return None
    return graph.kernel(
        convolve, graph.blocked(source), graph.constant(pack_weight(weight, plan.kernel)),
        *epilogue.constants(graph, arrange(geometry.filters, plan.kernel)),
        name="conv2d_u8", geometry=geometry, zero=zero, epilogue=epilogue, plan=plan,
    )  # fmt: skip


def emit_product(graph: Graph, flat: relax.Expr, rows: Any, weight: Array, epilogue: Epilogue) -> relax.Expr | None:
    """Emit (.., rows, steps), with ones before, times (steps, columns); None where single rows serve as well."""
    if not isinstance(rows, int):
        return None
    steps, columns = weight.shape
    geometry = Geometry(
        channels=steps, filters=columns, groups=1, size=(1, rows), kernel=(1, 1), strides=(1, 1),
        padding=(0, 0, 0, 0), dilation=(1, 1),
    )  # fmt: skip
    plan = choose_plan(graph.machine, geometry, is_matrix=True)
    if plan is None:
        return None
    return graph.kernel(
        by_rows, flat, graph.constant(pack_weight(weight.T[:, :, None, None], plan.kernel)),
        *epilogue.constants(graph, arrange(geometry.filters, plan.kernel)),
        name="dense_u8", geometry=geometry, epilogue=epilogue, plan=plan,
    )  # fmt: skip


def arrange(filters: int, micro: MicroKernel) -> tuple[int, ...]:
    """Return the form of one number for each filter as vectors."""
    return (-(-filters // LANES), *micro.shape(micro.lane))


def pack_weight(weight: Array, micro: MicroKernel) -> Array:
    """Return weights, missing ones zero, in the order of a micro's instructions."""
    filters, channels, *kernel = weight.shape
    whole = micro.k_inner
    full = np.zeros((-(-filters // LANES) * LANES, -(-channels // whole) * whole, *kernel), np.int8)
    full[:filters, :channels] = weight
    return np.ascontiguousarray(micro.pack(full))


def convolve(
    image: te.Tensor, weight: te.Tensor, bias: te.Tensor, factor: te.Tensor, *float_bias: te.Tensor,
    geometry: Geometry, zero: int, epilogue: Epilogue, plan: Plan,
) -> te.Tensor:  # fmt: skip
    """Describe the convolution of blocked bytes with packed weights, and what is done to its sums."""
    source, layout = image, "raw" if plan.kernel.signed else "image"
    if plan.copies:
        source, layout = pad_rows(image, geometry, zero, plan), "row"
    if plan.kernel.reads_halves:
        source, layout = halves(source, layout), "halves"
    total = _sums(source, layout, weight, geometry, plan, image.shape[0])
    result = _requantize(total, plan, epilogue, (bias, factor, *float_bias))
    shape = (image.shape[0], int(weight.shape[0]), *geometry.output, LANES)
    return te.compute(shape, result, name=f"finish_{to_float_if_needed(epilogue.affine)}")


def by_rows(
    left: te.Tensor, weight: te.Tensor, bias: te.Tensor, factor: te.Tensor, *float_bias: te.Tensor,
    geometry: Geometry, epilogue: Epilogue, plan: Plan,
) -> te.Tensor:  # fmt: skip
    """Describe (.., rows, steps) times packed weights, and what is done to the sums; what comes before is one."""
    source = matrix(left, plan)
    layout = "halves" if plan.kernel.reads_halves else "image"
    result = _requantize(_sums(source, layout, weight, geometry, plan, 1), plan, epilogue, (bias, factor, *float_bias))
    return te.compute(
        (*left.shape[:-1], geometry.filters),
        lambda *at: result(0, at[-1] // LANES, 0, at[-2], at[-1] % LANES),
        name=f"finish_{to_float_if_needed(epilogue.affine)}",
    )


def _sums(source: te.Tensor, layout: str, weight: te.Tensor, geometry: Geometry, plan: Plan, batch: Any) -> te.Tensor:
    micro = plan.kernel
    rows, blocks, height, width = (int(extent) for extent in weight.shape[:4])
    per_group = rows // geometry.groups
    (stride_h, stride_w), (dilation_h, dilation_w) = geometry.strides, geometry.dilation
    extents = {"block": blocks, "kernel_h": height, "kernel_w": width}
    axes = [te.reduce_axis((0, extent), name) for name, extent in extents.items()]
    inner = [te.reduce_axis((0, extent), f"step{at}") for at, extent in enumerate(micro.shape(micro.step))]
    block, kernel_h, kernel_w = axes

    def sums(n: Any, oc_block: Any, h: Any, t: Any, *spatial: Any) -> Any:
        first = oc_block // per_group * blocks if geometry.groups > 1 else 0

        def activation(pixel: Any, *step: Any) -> Any:
            x = (t * PIXELS + pixel) * stride_w + kernel_w * dilation_w
            y = h * stride_h + kernel_h * dilation_h
            at = (x * LANES + step[0],) if layout == "row" else (x, *step)
            byte = source(n, first + block, y, *at)
            return byte.astype("int32") - 128 if layout == "raw" else byte

        def weights(*at: Any) -> Any:
            return weight(oc_block, block, kernel_h, kernel_w, *at)

        return te.sum(micro.term(activation, weights, spatial, tuple(inner)), axis=[*axes, *inner])

    tiles = -(-geometry.output[1] // plan.pixels) * plan.pixels // PIXELS
    shape = (batch, rows, geometry.output[0], tiles, *micro.shape(micro.sums))
    attributes = {
        primitives.FAMILY: NAME, KERNEL: micro.name, TILE: [plan.pixels, plan.vectors], STRIDE: stride_w,
        LAYOUT: layout,
    }  # fmt: skip
    return te.compute(shape, sums, name="sums", attrs=attributes)


def _requantize(total: te.Tensor, plan: Plan, epilogue: Epilogue, constants: tuple[te.Tensor, ...]) -> Any:
    """Return a function from (n, oc_block, h, w, filter of it) to a result; bytes are made by micro-kernels."""
    micro = plan.kernel
    if epilogue.affine is None:

        def value(n: Any, oc_block: Any, h: Any, w: Any, lane: Any) -> Any:
            sums = total(n, oc_block, h, w // PIXELS, *micro.place(w % PIXELS, lane))
            return epilogue.result(
                sums, *(constant(oc_block, *micro.split(micro.lane, lane)) for constant in constants)
            )

        return value

    def narrowed(n: Any, oc_block: Any, h: Any, t: Any, *at: Any) -> Any:
        pixel, lane = at[: len(at) // 2], at[len(at) // 2 :]
        sums = total(n, oc_block, h, t, *(axis for pair in zip(pixel, lane, strict=True) for axis in pair))
        return epilogue.result(sums, *(constant(oc_block, *lane) for constant in constants))

    narrow = narrow_store.narrow(narrowed, total.shape[:4], micro, epilogue)

    def byte(n: Any, oc_block: Any, h: Any, w: Any, lane: Any) -> Any:
        return narrow(
            n, oc_block, h, w // PIXELS, *micro.split(micro.pixel, w % PIXELS), *micro.split(micro.lane, lane)
        )

    return byte


def schedule(sch: Schedule, machine: Machine) -> None:
    """Hold a tile of micro-kernels in registers along the whole reduction; then what follows, then store."""
    anchor = primitives.find(sch, NAME)
    annotations = sch.get(anchor).annotations
    stride, layout = int(annotations[STRIDE]), str(annotations[LAYOUT])
    micro = next(kernel for kernel in instruction_set(machine).micro_kernels if kernel.name == annotations[KERNEL])
    pixels, vectors = (int(extent) for extent in annotations[TILE])
    narrow = narrow_store.find(sch)
    before, last = primitives.split_around(sch, anchor if narrow is None else narrow)
    n, oc, h, t, *rest = sch.get_loops(anchor)
    inside, reduction = rest[: len(micro.sums)], rest[len(micro.sums) : -len(micro.step)]
    oc_blocks, height, tiles = (primitives.static(sch, loop) for loop in (oc, h, t))
    steps = primitives.product(primitives.static(sch, loop) for loop in reduction)
    weight_bytes = LANES * micro.k_inner * oc_blocks * steps
    image_bytes = primitives.static(sch, reduction[0]) * height * tiles * PIXELS * micro.k_inner
    oc_out, oc_in = sch.split(oc, [None, vectors])
    t_out, t_in = sch.split(t, [None, pixels // PIXELS])
    weights_first = weight_bytes > min(image_bytes, RESIDENT)
    shared_loops = [n, oc_out, h] if weights_first else [n, h, oc_out]
    inner = [t_out]
    if height == 1:  # a matrix: its rows are shared out as well
        shared_loops, inner = ([n, h, oc_out, t_out] if weights_first else [n, h, t_out, oc_out]), []
    sch.reorder(*shared_loops, *inner, *reduction, t_in, oc_in, *inside, *rest[-len(micro.step) :])
    shared = primitives.fuse(sch, shared_loops)
    at = inner[-1] if inner else shared
    depth = 1 + len(inner)
    if narrow is not None:
        sch.set_scope(anchor, 0, "local")
        sch.reverse_compute_at(narrow, at)
    sch.reverse_compute_at(last, at)
    for block in before:
        if primitives.family_of(sch, block) != NAME:
            schedule_copy(sch, block, machine)
    primitives.parallel_if_worth(sch, shared, oc_blocks * LANES * height * tiles * PIXELS * steps)
    for loop in (t_in, oc_in, reduction[-1]):
        sch.unroll(loop)
    primitives.vectorize_and_unroll(sch, last, below=depth, lanes=LANES)
    _set_to_zero(sch, sch.decompose_reduction(anchor, reduction[0]), depth, len(micro.sums))
    micro.tensorize(sch, inside[0], stride, layout)
    if narrow is not None:
        narrow_store.store(sch, narrow, depth, len(micro.sums))


def _set_to_zero(sch: Schedule, block: SBlockRV, depth: int, axes: int) -> None:
    loops = sch.get_loops(block)
    vectors, lanes = sch.split(primitives.fuse(sch, loops[-axes:]), [None, LANES])
    sch.vectorize(lanes)
    for loop in (*loops[depth:-axes], vectors):
        sch.unroll(loop)
