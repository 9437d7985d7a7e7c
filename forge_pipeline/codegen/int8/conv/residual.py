"""The sum of two deferred convolutions of int8: one kernel, whose tiles hold the sums of one, then of the other.

Where a quantized model rounds neither branch of a residual block, both have float results. A tile of sums of the first
stays in registers, or beside them, while that of the second is computed; what is added, clipped and stored is a tile,
so that no branch is in memory as a whole. Images are read and multiplied as in ``direct``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from tvm import relax, te
from tvm.s_tir import Schedule

from forge_pipeline.codegen.float32.conv.direct import PIXELS, RESIDENT, VECTORS
from forge_pipeline.codegen.float32.conv.geometry import Geometry
from forge_pipeline.codegen.int8.conv import winograd
from forge_pipeline.codegen.int8.conv.direct import pack_weight, rows_of_block, spread_copy, sums_of
from forge_pipeline.codegen.int8.conv.match import Conv2d, Convolution
from forge_pipeline.codegen.int8.isa.dot_product import BYTES, WEIGHTS, DotProduct, tensorize
from forge_pipeline.codegen.int8.isa.table import dot_product, instruction_set
from forge_pipeline.codegen.int8.register_tile import STEPS, EvenTile, choose_even_tile
from forge_pipeline.codegen.int8.requantize import RESULT_LIMIT, Epilogue, to_float_if_needed
from forge_pipeline.codegen.int8.x86 import narrow_store
from forge_pipeline.codegen.layout.affine import Affine, Clip, clipped_float, quotient, stored
from forge_pipeline.codegen.layout.builder import Array, Graph, Value, shape_of
from forge_pipeline.codegen.layout.quantized_values import DeferredKernel, deferred_result
from forge_pipeline.codegen.tir import primitives
from forge_pipeline.codegen.tir.machine import Machine

NAME = "int8_residual"
STEP = "steps"
"""The name of the block that adds two tiles."""

SPATIAL, REDUCED = 5, 5
"""Axes of sums (image, vector of filters, row, pixel, lane), and axes that are summed over."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Branch:
    """What the kernel knows of one of its convolutions."""

    geometry: Geometry
    zero: int
    epilogue: Epilogue


@dataclass(frozen=True, slots=True, kw_only=True)
class Residual(DeferredKernel):
    """Two convolutions, of equal extents, whose sum is a ``DeferredResult``."""

    branches: tuple[tuple[Convolution, Conv2d], tuple[Convolution, Conv2d]]
    clip: Clip

    def _emit(self, graph: Graph, affine: Affine | None) -> Value:
        machine = graph.machine
        lanes, dot = machine.lanes, dot_product(machine)
        parts = [plane.prepared(graph, convolution, None) for convolution, plane in self.branches]
        packed = [pack_weight(part.weight, lanes, lanes, dot.k_inner) for part in parts]
        rows, blocks = packed[0].shape[0], sum(weight.shape[1] for weight in packed)
        steps = sum(int(np.prod(weight.shape[1:5])) for weight in packed)
        tile = choose_even_tile(machine, parts[0].geometry, rows, steps, blocks, may_share=False)
        tensors: list[relax.Expr] = []
        for part, weight in zip(parts, packed, strict=True):
            constants = part.epilogue.constants(graph, (rows, lanes))
            tensors += [graph.blocked(part.source), graph.constant(weight), *constants]
        most: Array = sum((part.epilogue.largest(part.weight) for part in parts), np.zeros(()))
        bounded = (
            affine is not None and instruction_set(machine).packs and bool((most < RESULT_LIMIT * affine.scale).all())
        )
        blocked = graph.kernel(
            add, *tensors, name="conv2d_u8_sum",
            branches=tuple(Branch(geometry=part.geometry, zero=part.zero, epilogue=part.epilogue) for part in parts),
            tile=tile, dot=dot, affine=affine, clip=self.clip, fused=machine.fused,
            bounded=bounded,
        )  # fmt: skip
        return Value(blocked=blocked, channels=self.branches[0][0].filters)


def add(
    *tensors: te.Tensor, branches: tuple[Branch, Branch], tile: EvenTile, dot: DotProduct,
    affine: Affine | None, clip: Clip, fused: bool, bounded: bool,
) -> te.Tensor:  # fmt: skip
    """Describe the sum of two convolutions; ``tensors`` are image, weights and constants of each."""
    terms, rest = [], list(tensors)
    for branch in branches:
        image, weight, *constants = rest[: 4 if branch.epilogue.float_bias is None else 5]
        rest = rest[2 + len(constants) :]
        total = sums_of(image, weight, branch.geometry, branch.zero, tile, dot, family=NAME)
        terms.append((branch.epilogue, total, constants))
    batch, *_, lanes = terms[0][1].shape
    geometry = branches[0].geometry

    def steps(*at: Any) -> Any:
        _, oc_block, _, _, out = at
        first, second = (
            epilogue.result(total(*at), *(constant(oc_block, out) for constant in constants))
            for epilogue, total, constants in terms
        )
        return first + second if affine is None else quotient(first + second, affine.scale, fused=fused)

    wide = te.compute(terms[0][1].shape, steps, name=STEP)
    attributes = {} if affine is None or not bounded else narrow_store.packing(affine, clip, int(lanes))
    return te.compute(
        (batch, -(-geometry.filters // lanes), *geometry.output, lanes),
        lambda *at: clipped_float(wide(*at), clip) if affine is None else stored(wide(*at), affine, clip),
        name=f"finish_{to_float_if_needed(affine)}",
        attrs=attributes,
    )


def schedule(sch: Schedule, machine: Machine) -> None:
    """Hold a tile of the first convolution's sums, then of the second's; add them, then what follows, then store."""
    anchors = [block for block in primitives.blocks(sch) if primitives.family_of(sch, block) == NAME]
    annotations = [sch.get(anchor).annotations for anchor in anchors]
    pixels, vectors = int(annotations[0][PIXELS]), int(annotations[0][VECTORS])
    copies = [primitives.ancestors(sch, anchor) for anchor in anchors]
    steps = sch.get_sblock(STEP)
    names = {sch.get(block).name_hint for block in (*anchors, *copies[0], *copies[1], steps)}
    *between, last = (block for block in primitives.blocks(sch) if sch.get(block).name_hint not in names)
    for block in (*between, *(block for before in copies for block in before[:-1])):
        sch.compute_inline(block)
    for block in (*anchors, steps):
        sch.set_scope(block, 0, "local")
    n, oc, h, w, out = sch.get_loops(steps)
    oc_blocks, height, width, lanes = (primitives.static(sch, loop) for loop in (oc, h, w, out))
    blocks, per_result = 0, 0
    for anchor in anchors:
        block, *others = (primitives.static(sch, loop) for loop in sch.get_loops(anchor)[SPATIAL:-1])
        blocks, per_result = blocks + block, per_result + block * primitives.product(others)
    weight_bytes = dot_product(machine).k_inner * lanes * oc_blocks * per_result
    oc_out, oc_in = sch.split(oc, [None, vectors])
    w_out, w_in = sch.split(w, [None, pixels])
    weights_first = weight_bytes > min(blocks * height * width * lanes, RESIDENT)
    in_row_blocks = dot_product(machine).widens and not weights_first
    if in_row_blocks:
        h_out, h_in = sch.split(h, [None, rows_of_block(machine, height, blocks * width * lanes)])
        inner, shared_loops = [oc_out, h_in, w_out], [n, h_out]
    else:
        inner, shared_loops = [w_out], [n, oc_out, h] if weights_first else [n, h, oc_out]
    sch.reorder(*shared_loops, *inner, w_in, oc_in, out)
    for anchor in anchors:
        sch.compute_at(anchor, w_out, preserve_unit_loops=True)
    sch.reverse_compute_at(last, w_out)
    shared = primitives.fuse(sch, shared_loops)
    for block in (before[-1] for before in copies if before):
        if in_row_blocks:
            sch.compute_at(block, shared)
            sch.vectorize(sch.get_loops(block)[-1])
        else:
            spread_copy(sch, block, machine)
    primitives.parallel_if_worth(sch, shared, oc_blocks * lanes * height * width * per_result // STEPS)
    depth = 1 + len(inner)
    for block in (steps, last):
        primitives.vectorize_and_unroll(sch, block, below=depth, lanes=lanes)
    for anchor, notes in zip(anchors, annotations, strict=True):
        _, oc_in, _, w_in, out, *reduction, k_inner = sch.get_loops(anchor)[-SPATIAL - REDUCED :]
        sch.reorder(*reduction, w_in, oc_in, out, k_inner)
        for loop in (w_in, oc_in, reduction[-1]):
            sch.unroll(loop)
        start = sch.decompose_reduction(anchor, reduction[0])
        primitives.vectorize_and_unroll(sch, start, below=depth, lanes=lanes)
        tensorize(sch, out, machine, dot_product(machine), BYTES, str(notes[WEIGHTS]))


def add_deferred(graph: Graph, call: relax.Call) -> Value | None:
    """Take the sum of two convolutions over images that nobody else reads, where vectors compute both directly."""
    branches = []
    for argument in call.args:
        convolution = deferred_result(graph, argument)
        if not isinstance(convolution, Convolution) or not _is_direct(graph.machine, convolution):
            return None
        assert isinstance(convolution.strategy, Conv2d)  # noqa: S101 - as _is_direct says
        branches.append((convolution, convolution.strategy))
    first, second = branches
    left, right = (shape_of(argument) for argument in call.args)
    if left != right:  # one may be repeated over the other's images, pixels or filters
        return None
    return Value(deferred=Residual(branches=(first, second), clip=Clip()), channels=first[0].filters)


def _is_direct(machine: Machine, convolution: Convolution) -> bool:
    """Return whether ``direct`` would compute it as this kernel does."""
    strategy = convolution.strategy
    if not isinstance(strategy, Conv2d) or convolution.dynamic is not None:
        return False
    if not strategy.geometry.is_static:
        return False
    geometry = strategy.geometry
    if instruction_set(machine).micro_kernels or machine.amx:
        return False
    if geometry.groups > 1 or geometry.channels < machine.lanes:
        return False
    return winograd.choose(machine, geometry, convolution.weight) is None


HANDLERS = {"relax.add": add_deferred}
