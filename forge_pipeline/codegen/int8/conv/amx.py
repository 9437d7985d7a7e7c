"""Quantized convolutions of one group in AMX's tiles."""

from __future__ import annotations

from tvm import relax, te

from forge_pipeline.codegen.amx.lines import Planes, lines_of_image, taps_in_rows
from forge_pipeline.codegen.amx.operands import BYTES_BY_BYTES, WORDS_OF_BYTES, filled
from forge_pipeline.codegen.amx.products import blocked_shape, is_worth, of_image, sums_of_image, typical_pixels
from forge_pipeline.codegen.amx.tiles import LANES
from forge_pipeline.codegen.float32.conv.geometry import Geometry, pad_image
from forge_pipeline.codegen.int8.conv.words import Entry, pack_int32, quantize_and_pack_int32, word_of
from forge_pipeline.codegen.int8.requantize import Epilogue
from forge_pipeline.codegen.int8.x86 import narrow_store
from forge_pipeline.codegen.layout.builder import Array, Graph, Value
from forge_pipeline.codegen.layout.quantized_values import Rounded

AT_ONCE = BYTES_BY_BYTES.at_once


def emit(
    graph: Graph, source: Value, zero: int, weight: Array, geometry: Geometry, epilogue: Epilogue
) -> relax.Expr | None:
    """Emit a convolution of one group; the result is blocked. None where vectors serve as well."""
    machine = graph.machine
    if not machine.amx or machine.lanes != LANES or geometry.groups != 1:
        return None
    rows, planes = typical_pixels(geometry), None
    entry = source if isinstance(source, Rounded) and source.deferred is not None else None
    if geometry.is_static and geometry.channels < LANES and (entry is not None or not graph.is_blocked(source)):
        planes = Planes.of(geometry, AT_ONCE)
    if planes is None and geometry.channels < LANES:
        return None
    steps = taps_in_rows(weight, LANES) if planes is None else planes.pack(weight)
    pays = (
        is_worth(BYTES_BY_BYTES, rows, steps.shape, geometry.steps) if planes is None else planes.pays(BYTES_BY_BYTES)
    )
    if not pays:
        return None
    if planes is None:
        image = graph.blocked(source)
    else:
        image = graph.kernel(
            planes_of, graph.plain(source) if entry is None else entry.floats, name="to_words",
            geometry=planes.padded, zero=zero, entry=None if entry is None else (entry.affine, entry.axes),
        )  # fmt: skip
    return graph.kernel(
        convolve, image, graph.constant(BYTES_BY_BYTES.pack(steps)),
        *epilogue.constants(graph, (filled(geometry.filters),)),
        name="conv2d_u8", geometry=geometry, zero=zero, epilogue=epilogue, planes=planes,
    )  # fmt: skip


def planes_of(image: te.Tensor, geometry: Geometry, zero: int, entry: Entry | None) -> te.Tensor:
    """Describe an image in plain form, padded, as words of four bytes: (batch, words, height, width).

    With ``entry`` it is the model's input, of floats, which is quantized on the way.
    """
    words = pack_int32(image, AT_ONCE) if entry is None else quantize_and_pack_int32(image, AT_ONCE, *entry)
    return pad_image(words, geometry, word_of(zero, AT_ONCE), by_rows=True)


def convolve(
    image: te.Tensor, panels: te.Tensor, bias: te.Tensor, factor: te.Tensor, *float_bias: te.Tensor,
    geometry: Geometry, zero: int, epilogue: Epilogue, planes: Planes | None,
) -> te.Tensor:  # fmt: skip
    """Describe the convolution of blocked bytes, or of padded ``planes``, with packed weights, and what follows."""
    geometry = geometry.of(image) if planes is None else geometry
    if planes is not None:
        lines, taps, of = planes.lines(image), planes.taps, WORDS_OF_BYTES
    else:
        lines, taps = lines_of_image(image, BYTES_BY_BYTES, geometry, zero)
        of = BYTES_BY_BYTES
    sums = sums_of_image(lines, panels, of, geometry, taps)
    return narrow_store.requantize(
        blocked_shape(image, geometry), epilogue,
        of_image(sums, geometry, taps),
        lambda _n, oc_block, _h, _w, lane: (term(oc_block * LANES + lane) for term in (bias, factor, *float_bias)),
    )  # fmt: skip
