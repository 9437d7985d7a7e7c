"""Matrix products of bytes by constant weights, packed into panels; what follows up to the next QuantizeLinear."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from tvm import relax, te, tirx
from tvm.s_tir import Schedule

from forge_pipeline.codegen.int8 import weights
from forge_pipeline.codegen.int8.algorithm import Algorithm, first_result
from forge_pipeline.codegen.int8.deferred_sums import DeferredSums, quantized_operands
from forge_pipeline.codegen.int8.isa.dot_product import BYTES, WEIGHTS, DotProduct, products, tensorize, to_int16
from forge_pipeline.codegen.int8.isa.table import dot_product
from forge_pipeline.codegen.int8.neon import kernels
from forge_pipeline.codegen.int8.ops import amx_matmul
from forge_pipeline.codegen.int8.requantize import Epilogue, to_float_if_needed
from forge_pipeline.codegen.int8.x86 import pmaddubsw
from forge_pipeline.codegen.layout.affine import Affine, Clip
from forge_pipeline.codegen.layout.builder import Array, Extent, Graph, Value, has_known_shape, shape_of
from forge_pipeline.codegen.layout.quantized_values import (
    IntegerWeight,
    deferred_result,
)
from forge_pipeline.codegen.tir import primitives
from forge_pipeline.codegen.tir.edges.tail_tiles import (
    MARGIN,
    TILES,
    is_narrow,
    most_pixels,
    split_blocks,
    tiles_of_block,
)
from forge_pipeline.codegen.tir.elementwise_blocks import schedule_elementwise
from forge_pipeline.codegen.tir.flatten_pixels import ANY_ORDER
from forge_pipeline.codegen.tir.machine import Machine, divisors
from forge_pipeline.codegen.tir.prefetch.weights import FEWEST_ROWS, ask_for_next

NAME = "int8_matmul"
ROWS = "forge.rows"
"""The annotation with the rows of the tile that a template was laid out for."""

ROWS_OF_CALLS = (8, 20, 50, 128, 197)
"""Numbers of rows that tiles are chosen for where a call brings them."""

VECTORS = 4
"""Vectors in a panel, where there are as many: a row of sums side by side hides the latency of the additions."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Product(DeferredSums):
    """A product of integers; ``weight`` is (steps, columns), ``shape`` the result's."""

    shape: tuple[Extent, ...]

    def _emit(self, graph: Graph, affine: Affine | None) -> Value:
        weight, times = weights.split_into_parts(graph.machine, self.weight, axis=0)
        if times > 1:
            repeated = weights.again(graph, graph.plain(self.source), times, axis=-1)
            return replace(self, source=Value(plain=repeated), weight=weight)._emit(graph, affine)
        epilogue = self.epilogue(graph.machine, affine, self.weight.astype(np.int64).sum(axis=0))
        is_open = not all(isinstance(extent, int) for extent in self.shape[:-1])
        together = self.shape[:-1][-2:] if is_open else self.shape[:-1]  # what flatten_pixels makes one axis of
        rows = next((extent for extent in together if not isinstance(extent, int)), primitives.product(together))
        left = graph.plain(self.source)
        is_read_whole = _is_matrix(self.shape)
        keeps_axes = len(self.shape) == 2 or is_open or is_read_whole
        if not keeps_axes:
            left = graph.emit(relax.op.reshape(left, (rows, self.weight.shape[0])))
        result = first_result(ALGORITHMS, graph, left, rows, self.weight, epilogue)
        return Value(plain=result if keeps_axes else graph.emit(relax.op.reshape(result, self.shape)))


def emit_panels(graph: Graph, left: relax.Expr, rows: Any, weight: Array, epilogue: Epilogue) -> relax.Expr:
    """Emit any product by constant weights."""
    steps, columns = weight.shape
    dot = dot_product(graph.machine)
    mr, nr = choose_tile(graph.machine, rows, -(-columns // graph.machine.lanes), -(-steps // dot.k_inner))
    width = nr * graph.machine.lanes
    packed = pack_weight(weight, width, dot.k_inner)
    constants = epilogue.constants(graph, (packed.shape[0] * width,))
    return graph.kernel(
        by_panels, left, graph.constant(packed), *constants,
        name="dense_u8", columns=columns, epilogue=epilogue, mr=mr, dot=dot,
    )  # fmt: skip


ALGORITHMS = (
    Algorithm("amx", "`compile.amx`, and a third of the tiles would be filled", amx_matmul.emit),
    Algorithm("micro_kernel", "NEON, where four rows share what they load in fewer cycles", kernels.emit_product),
    Algorithm(
        "pmaddubsw",
        "x86 without VNNI, four rows at least, and steps that pair, or need few masks",
        pmaddubsw.emit_product,
    ),
    Algorithm("panels", "always", emit_panels),
)
"""Asked in this order, with (.., rows, steps), ones before, the number of rows, and weights (steps, columns)."""


def _is_matrix(shape: tuple[Extent, ...]) -> bool:
    """Return whether only the last two axes have more than one element, so that a kernel may leave the others be."""
    return len(shape) > 2 and all(extent == 1 for extent in shape[:-2])


def multiply(graph: Graph, call: relax.Call) -> Value | None:
    """Take a dequantized matrix, of any number of rows, times dequantized constant weights that fit int8."""
    weight = graph.look(call.args[1])
    if not isinstance(weight, IntegerWeight) or weight.integers.ndim != 2:
        return None
    if weight.scale.size > 1 and weight.axis != 1:
        return None
    rank = len(shape_of(call.args[0])) if has_known_shape(call.args[0], symbolic_axes=range(8)) else 0
    if rank < 2 or not has_known_shape(call.args[0], symbolic_axes=range(rank - 1)):
        return None
    operands = quantized_operands(graph, call, np.transpose)
    if operands is None:
        return None
    return Value(deferred=Product(**{**operands, "weight": operands["weight"].T}, shape=shape_of(call)))


def add_bias(graph: Graph, call: relax.Call) -> Value | None:
    """Start sums at a constant for each column: exactly, if it is stored in their unit."""
    for image, other in (call.args, reversed(call.args)):
        deferred, term = deferred_result(graph, image), graph.look(other)
        if not isinstance(deferred, Product) or term.constant is None or deferred.clip != Clip():
            continue
        columns = deferred.shape[-1]
        if term.constant.size != columns or term.constant.shape[-1:] != (columns,) or deferred.float_bias is not None:
            continue
        if term.constant.ndim > len(deferred.shape):
            continue
        return Value(deferred=deferred.with_constant(term))
    return None


def choose_tile(machine: Machine, rows: Any, vectors: int, steps: int, least: int = 1) -> tuple[int, int]:
    """Return rows, ``least`` of them if there are, and vectors of a tile; the last panel's are computed in any case.

    A number of rows that a call brings is taken for any of a few.
    """
    lengths = (rows,) if isinstance(rows, int) else ROWS_OF_CALLS
    best: tuple[float, int, int] | None = None
    dot = dot_product(machine)
    apart = steps * dot.k_inner * (2 if dot.widens else 1)
    for nr in range(1, min(VECTORS, vectors) + 1):
        panels = -(-vectors // nr)
        for mr in range(min(least, *lengths), min(max(lengths), machine.registers) + 1):
            if not dot.fits(machine, mr, nr):
                break
            step = dot.step_cycles(machine, mr, nr) + machine.conflict_cycles(mr, apart)
            tile = (step * steps + 5) * panels
            cycles = sum(-(-length // mr) * tile / length for length in lengths)
            if best is None or cycles <= best[0]:
                best = (cycles, mr, nr)
    assert best is not None  # noqa: S101 - a few by one always fit
    return best[1:]


def pack_weight(weight: Array, width: int, k_inner: int) -> Array:
    """Return (steps, columns) as (panels, steps / k_inner, width, k_inner); missing ones are zero."""
    steps, columns = weight.shape
    groups, panels = -(-steps // k_inner), -(-columns // width)
    full = np.zeros((groups * k_inner, panels * width), weight.dtype)
    full[:steps, :columns] = weight
    return np.ascontiguousarray(full.reshape(groups, k_inner, panels, width).transpose(2, 0, 3, 1))


def by_panels(
    left: te.Tensor, panels: te.Tensor, bias: te.Tensor, factor: te.Tensor, *float_bias: te.Tensor,
    columns: int, epilogue: Epilogue, mr: int, dot: DotProduct,
) -> te.Tensor:  # fmt: skip
    """Describe (.., rows, steps) times packed weights, and what is done to the sums.

    Where all extents are numbers, those before rows are ones.
    """
    count, groups, width, _ = (int(extent) for extent in panels.shape)
    *leading, rows, steps = left.shape
    is_open = not all(isinstance(extent, tirx.IntImm | int) for extent in left.shape)
    padded_rows = rows if is_open else -(-int(rows) // mr) * mr
    k_outer, k_inner = te.reduce_axis((0, groups), "k_outer"), te.reduce_axis((0, dot.k_inner), "k_inner")
    source = left
    if str(padded_rows) != str(rows) or int(steps) != groups * dot.k_inner:
        padded = (*leading, padded_rows, groups * dot.k_inner)
        source = te.compute(padded, lambda *at: _inside(left, *at, pads_rows=not is_open), name="pad")
    if dot.widens:
        source = to_int16(source)

    def sums(*at: Any) -> Any:
        *row, panel, column = at if is_open else (*(0 for _ in leading), *at)
        return te.sum(
            products(source(*row, k_outer * dot.k_inner + k_inner), panels(panel, k_outer, column, k_inner)),
            axis=[k_outer, k_inner],
        )

    attributes = {primitives.FAMILY: NAME, ROWS: mr, WEIGHTS: panels.dtype}
    if is_open and leading:
        attributes[ANY_ORDER] = len(leading) - 1
    before = leading if is_open else []
    total = te.compute((*before, padded_rows, count, width), sums, name="sums", attrs=attributes)

    def element(*at: Any) -> Any:
        *row, n = at
        own = row if is_open else row[-1:]
        constants = [term(n) for term in (bias, factor, *float_bias)]
        return epilogue.result(total(*own, n // width, n % width), *constants)

    return te.compute((*leading, rows, columns), element, name=f"finish_{to_float_if_needed(epilogue.affine)}")


def _inside(left: te.Tensor, *at: Any, pads_rows: bool) -> Any:
    rows, steps = left.shape[-2:]
    inside = tirx.all(at[-2] < rows, at[-1] < steps) if pads_rows else at[-1] < steps
    return tirx.if_then_else(inside, left(*at), tirx.const(0, left.dtype))


def schedule(sch: Schedule, machine: Machine) -> None:
    """Hold a tile of rows by a panel in registers along all steps."""
    anchor = primitives.find(sch, NAME)
    mr = int(sch.get(anchor).annotations[ROWS])
    before, last = primitives.split_around(sch, anchor)
    for block in before[:-1]:
        sch.compute_inline(block)
    for block in before[-1:]:
        schedule_elementwise(sch, block, machine)
    *leading, m, panel, column, k_outer, k_inner = sch.get_loops(anchor)
    extents = [primitives.extent(sch, loop) for loop in (*leading, m, panel, column, k_outer)]
    is_open, rows = None in extents, primitives.extent(sch, m)
    mr = most_pixels(sch, mr)
    size = int(extents[-1] or 1) * dot_product(machine).k_inner * mr
    tiles = tiles_of_block(machine, size, [primitives.extent(sch, loop) for loop in (*leading, panel)])
    if rows is not None and not is_open:
        tiles = max(divisors(rows // mr, tiles))
    m_block, m_out, m_in = split_blocks(sch, m, tiles, mr)
    if is_open and mr > 1:
        sch.annotate(m_out, TILES, mr)
    if is_open:
        sch.annotate(m_out, MARGIN, mr)
    if mr >= FEWEST_ROWS and not is_narrow(sch):
        ask_for_next(sch, m_out, machine, None if is_open else tiles, shared=True)
    vector, lane = sch.split(column, [None, machine.lanes])
    sch.reorder(*leading, m_block, panel, m_out, k_outer, m_in, vector, lane, k_inner)
    shared = primitives.fuse(sch, [*leading, m_block, panel])
    sch.reverse_compute_at(last, m_out)
    work = primitives.product(primitives.UNKNOWN if extent is None else extent for extent in extents)
    primitives.parallel_if_worth(sch, shared, work)
    sch.unroll(m_in)
    sch.unroll(vector)
    primitives.vectorize_where_filled(sch, last, machine.lanes)
    start = sch.decompose_reduction(anchor, k_outer)
    primitives.vectorize_and_unroll(sch, start, below=2, lanes=machine.lanes)
    weights_kind = str(sch.get(anchor).annotations[WEIGHTS])
    tensorize(sch, lane, machine, dot_product(machine), BYTES, weights_kind, later=is_open)


HANDLERS = {"relax.matmul": multiply, "relax.add": add_bias}
