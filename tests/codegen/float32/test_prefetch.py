"""Tiles ask for all the lines that come next, and a long product is a sum of parts whose rows stay in a cache."""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from typing import Any

import numpy as np
import onnx
import pytest
import tvm_ffi
from onnx import helper
from tvm import DataType, tirx
from tvm.ir import Call, TensorLoad
from tvm.sym.analyzer import Analyzer

from forge_pipeline.codegen.float32.products.matmul import SHORTEST_PART, TYPICAL_ROWS, cuts
from forge_pipeline.codegen.lowering import lower
from forge_pipeline.codegen.onnx_import.importer import import_model, prepare
from forge_pipeline.codegen.tir import primitives, rewriting
from forge_pipeline.codegen.tir.machine import Machine
from forge_pipeline.target import Target
from tests.support.tiled import TILED, Shape, assert_same, compiled, kernels_of, model

LINE = 16
"""Float32 values in a line of the cache."""

BYTES = 64
"""Bytes in one."""


def dense(rows: Shape, steps: int, columns: int) -> onnx.ModelProto:
    weights = {"w": np.random.default_rng(1).standard_normal((steps, columns)).astype(np.float32)}
    nodes = [helper.make_node("MatMul", ["x", "w"], ["p"]), helper.make_node("Erf", ["p"], ["y"])]
    return model(nodes, {"x": (*rows, steps)}, weights)


def dense_of_bytes(rows: int, steps: int, columns: int) -> onnx.ModelProto:
    weight = np.random.default_rng(1).integers(-127, 128, (steps, columns)).astype(np.int8)
    scales = {"w": weight, "s": np.float32(0.02), "t": np.full(columns, 0.01, np.float32), "z": np.uint8(128)}
    nodes = [
        helper.make_node("QuantizeLinear", ["x", "s", "z"], ["q"]),
        helper.make_node("DequantizeLinear", ["q", "s", "z"], ["d"]),
        helper.make_node("DequantizeLinear", ["w", "t"], ["f"], axis=1),
        helper.make_node("MatMul", ["d", "f"], ["y"]),
    ]
    return model(nodes, {"x": (rows, steps)}, scales)


def convolution_of_bytes(size: int, channels: int) -> onnx.ModelProto:
    weight = np.random.default_rng(1).integers(-127, 128, (channels, channels, 3, 3)).astype(np.int8)
    scales = {"w": weight, "s": np.float32(0.02), "t": np.full(channels, 0.01, np.float32), "z": np.uint8(128)}
    nodes = [
        helper.make_node("QuantizeLinear", ["x", "s", "z"], ["q"]),
        helper.make_node("DequantizeLinear", ["q", "s", "z"], ["d"]),
        helper.make_node("DequantizeLinear", ["w", "t"], ["f"], axis=0),
        helper.make_node("Conv", ["d", "f"], ["y"], strides=[2, 2], pads=[1, 1, 1, 1]),
    ]
    return model(nodes, {"x": (1, channels, size, size)}, scales)


def convolution(size: int, kernel: int, channels: int = 32) -> onnx.ModelProto:
    rng = np.random.default_rng(1)
    weights = {"w": (rng.standard_normal((64, channels, kernel, kernel)) / channels).astype(np.float32)}
    nodes = [helper.make_node("Conv", ["x", "w"], ["y"], pads=[kernel // 2] * 4)]
    return model(nodes, {"x": (1, channels, size, size)}, weights)


def kernels(source: onnx.ModelProto, tag: str) -> list[tirx.PrimFunc]:
    module = lower(import_model(prepare(source)), replace(Target.from_tag(tag), cores=2), TILED).module
    return [function for _, function in module.functions_items() if isinstance(function, tirx.PrimFunc)]


def found(tree: Any, kind: type) -> list[Any]:
    seen: list[Any] = []
    tvm_ffi.structural_walk(tree, [(kind, seen.append)])
    return seen


def offset(buffer: Any, indices: Any) -> Any:
    flat: Any = 0
    for at, extent in zip(indices, buffer.ty.shape, strict=True):
        flat = flat * extent + at
    return flat


def lines(flat: Any, loops: list[tirx.For], around: tirx.For, turn: int, line: int) -> set[int]:
    """Return the lines that ``flat`` names in all turns of ``loops``, in one turn of the loop around them."""
    used = [loop for loop in loops if rewriting.reads(flat, loop.loop_var)]
    seen = set()
    for values in product(*(range(int(loop.extent)) for loop in used)):
        places = dict(zip((loop.loop_var for loop in used), values, strict=True)) | {around.loop_var: turn}
        at = rewriting.substitute(flat, lambda variable, places=places: places.get(variable, 0))
        seen.add(int(Analyzer().simplify(at)) // line)
    return seen


@pytest.mark.every(3)
@pytest.mark.parametrize("tag", ["intel/cascade-lake", "x86-64/v4", "x86-64/v3"])
@pytest.mark.parametrize(
    "source",
    [
        dense((1, 20), 40, 160),
        dense((1, 6), 24, 160),
        convolution(7, 1),
        convolution(28, 1),
        convolution(14, 3),
        dense_of_bytes(96, 64, 640),
        dense_of_bytes(97, 64, 640),
        convolution_of_bytes(14, 128),
    ],
    ids=[
        "rows",
        "few rows",
        "few pixels",
        "pixels",
        "winograd",
        "bytes",
        "bytes and a smaller tile",
        "pixels of bytes",
    ],
)
def test_tiles_ask_for_all_lines_of_the_next_panel(source: onnx.ModelProto, tag: str) -> None:
    checked = 0
    for kernel in kernels(source, tag):
        asked = [call for call in found(kernel.body, Call) if is_prefetch(call)]
        if not asked:
            continue
        loops = sorted(rewriting.loops(kernel.body), key=lambda loop: -len(rewriting.loops(loop.body)))
        update, *_ = (  # a smaller last tile of a row has another one
            realize for realize in rewriting.realizes(kernel.body) if any(map(is_reduced, realize.block.iter_vars))
        )
        values = dict(zip((axis.var for axis in update.block.iter_vars), update.iter_values, strict=True))
        buffer, asks = None, []
        for call in asked:
            (load,) = found(call, TensorLoad)
            buffer, asks = load.source, [*asks, offset(load.source, load.indices)]
        (at,) = {  # an instruction reads a run of weights, which begins on a line
            str(indices): indices
            for indices in (
                *(load.indices for load in found(update.block.body, TensorLoad) if load.source.same_as(buffer)),
                *(
                    [part.min for part in matched.source.region]
                    for matched in update.block.match_buffers
                    if matched.source.source.same_as(buffer)
                ),
            )
        }.values()
        reads = rewriting.substitute(offset(buffer, at), values.get)
        line = BYTES * 8 // DataType(str(buffer.ty.dtype)).bits
        (tiles,) = (  # what is read is the same in each turn, what is asked for is not
            loop
            for loop in loops
            if rewriting.reads(asks[0], loop.loop_var) and not rewriting.reads(reads, loop.loop_var)
        )
        around = next(
            loop
            for loop in reversed(loops)
            if any(inner.loop_var.same_as(tiles.loop_var) for inner in rewriting.loops(loop.body))
        )
        inside = rewriting.loops(around.body)
        have = set().union(*(lines(flat, inside, around, 0, line) for flat in asks))
        assert have >= lines(reads, inside, around, 1, line)
        assert len(have) <= len(lines(reads, inside, around, 1, line)) + 1
        checked += 1
    assert checked


@pytest.mark.parametrize("tag", ["x86-64/v4", "x86-64/v3"])
@pytest.mark.parametrize("rows", [16, 50, 400])
def test_tiles_of_any_number_of_rows_share_what_they_ask_for(rows: int, tag: str) -> None:
    """All lines of the next panel but for the last one, where shares are rounded; each tile asks for some."""
    (kernel,) = (kernel for kernel in kernels(dense(("rows",), 40, 160), tag) if asks(kernel))
    sizes = {kernel.params[0].ty.shape[0]: rows}
    first = next(call for call in found(kernel.body, Call) if is_prefetch(call))
    around = [loop for loop in found(kernel.body, tirx.For) if any(map(first.same_as, found(loop.body, Call)))]
    panels, tiles, steps = sorted(around, key=lambda loop: -len(rewriting.loops(loop.body)))
    loads = [load for call in found(steps.body, Call) if is_prefetch(call) for load in found(call, TensorLoad)]
    size = int(loads[0].source.ty.shape[1]) * int(loads[0].source.ty.shape[2]) // LINE

    def number(value: Any, tile: int, step: int) -> int:
        known = {**sizes, panels.loop_var: 0, tiles.loop_var: tile, steps.loop_var: step}
        return int(Analyzer().simplify(rewriting.substitute(value, known.get)))

    count, places = number(tiles.extent, 0, 0), [offset(load.source, load.indices) for load in loads]
    turns = range(int(steps.extent))
    each = [{number(at, tile, step) // LINE for step in turns for at in places} for tile in range(count)]
    asked = set().union(*each)
    assert {*range(size, 2 * size - 1)} <= asked <= {*range(size, 2 * size)}
    assert max(map(len, each)) <= -(-size // count) + len(loads)


@pytest.mark.parametrize(
    ("tag", "size", "is_asked"),
    [("x86-64/v4", 96, True), ("x86-64/v4", 14, False), ("x86-64/v3", 96, False), ("arm/neoverse-v1", 96, False)],
)
def test_a_tile_asks_for_pixels_of_later_channels_of_an_image_that_outgrows_the_second_cache(
    tag: str, size: int, is_asked: bool
) -> None:
    (kernel,) = (each for each in kernels(convolution(size, 1, channels=128), tag) if updates(each))
    image = kernel.params[0]
    asked = [load for call in found(kernel.body, Call) if is_prefetch(call) for load in found(call, TensorLoad)]
    of_image = [load for load in asked if load.source.same_as(image)]
    assert bool(of_image) == is_asked
    if is_asked:
        update = updates(kernel)[0]
        read = next(load for load in rewriting.loads(update.block.body) if load.source.same_as(image))
        values = dict(zip((axis.var for axis in update.block.iter_vars), update.iter_values, strict=True))
        channels = rewriting.substitute(read.indices[1], values.get)
        distances = {int(Analyzer().simplify(load.indices[1] - channels)) for load in of_image}
        assert distances == {2}
        assert len({str(load.indices[2:4]) for load in of_image}) == len(of_image) > 1  # one for each pixel of a tile


def updates(kernel: tirx.PrimFunc) -> list[Any]:
    """Return the blocks of a convolution that add to a sum."""
    return [each for each in rewriting.realizes(kernel.body) if each.block.name_hint == "sums_update"]


def asks(kernel: tirx.PrimFunc) -> bool:
    return any(map(is_prefetch, found(kernel.body, Call)))


def is_prefetch(call: Call) -> bool:
    return "llvm.prefetch" in str(call)


def is_reduced(axis: Any) -> bool:
    return int(axis.iter_type) == primitives.REDUCTION


def test_nothing_is_asked_for_on_arm_and_none_of_few_rows() -> None:
    for tag, rows in (("raspberry-pi/5", (1, 20)), ("x86-64/v3", (1, 1))):
        assert not any("llvm.prefetch" in str(kernel) for kernel in kernels(dense(rows, 40, 160), tag))


@pytest.mark.every(3)
@pytest.mark.parametrize("rows", [(1, 130), ("rows",), ("batch", "rows")])
def test_products_of_many_steps_are_sums_of_parts(rows: Shape) -> None:
    machine = Machine.of(Target.from_tag("host"))
    steps = 3 * machine.l2 // 4 // (4 * TYPICAL_ROWS) * 2  # three halves of what a half of the second cache holds
    source = dense(rows, steps, 48)
    parts = cuts(machine, rows, steps)
    assert len(parts) == min(3, steps // SHORTEST_PART)
    assert [first for first, _ in parts[1:]] == [end for _, end in parts[:-1]]
    assert (parts[0][0], parts[-1][1]) == (0, steps)
    assert sum("dense" in name for name in kernels_of(compiled(source))) == len(parts)
    sizes = [{"rows": n, "batch": 2} for n in (1, 5, 131)] if isinstance(rows[-1], str) else [{}]
    assert_same(source, sizes, terms=steps)
