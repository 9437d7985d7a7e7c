"""Products of two quantized activations, and the softmax of their rows, against ONNX Runtime."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from forge_pipeline.codegen.build import build
from forge_pipeline.codegen.int8.isa.dot_product import SIGN_BIT
from forge_pipeline.codegen.int8.isa.table import INSTRUCTION_SETS
from forge_pipeline.codegen.int8.ops.attention_kernel import by_row_blocks, crop
from forge_pipeline.codegen.int8.ops.batched_matmul import Batched
from forge_pipeline.codegen.int8.ops.panels import Operand, column_terms, pack, row_terms
from forge_pipeline.codegen.layout.builder import Value
from forge_pipeline.codegen.layout.rearranged import Rearranged
from forge_pipeline.codegen.lowering import lower
from forge_pipeline.codegen.onnx_import.importer import import_model, prepare
from forge_pipeline.codegen.tir.machine import Machine
from forge_pipeline.target import Target
from tests.support.emulated.choice import load
from tests.support.int8.compare import HERE, OPTIONS, OTHERS, PLAIN, VNNI, check, compiled, reference
from tests.support.int8.net import Net, unsized

LEFT, RIGHT = (0.5, 113), (0.25, 71)
PROBABILITY = (1 / 256, 0)

SHAPES = {
    "one matrix": (20, 30, 24),
    "a batch": (3, 33, 30, 17),
    "heads": (1, 4, 16, 64, 128),
    "a batch of heads": (2, 3, 7, 40, 10),
    "one row": (1, 2, 1, 24, 40),
}
"""The leading axes, rows, depth and columns."""


def product(*shape: int) -> tuple[Net, str]:
    """Return a net, and the product in it of the first rows of its input by the others, turned."""
    *leading, rows, depth, columns = shape
    net = Net(*leading, rows + columns, depth)
    ends = [net.tensor(np.array([end])) for end in (0, rows, rows + columns)]
    axis, turn = net.tensor(np.array([len(leading)])), [*range(len(leading)), len(leading) + 1, len(leading)]
    left = net.node("Slice", net.pair("x", LEFT), ends[0], ends[1], axis)
    right = net.node("Slice", net.pair("x", RIGHT), ends[1], ends[2], axis)
    return net, net.node("MatMul", left, net.node("Transpose", right, perm=turn))


@pytest.mark.every(6)
@pytest.mark.parametrize("case", SHAPES)
def test_a_product_of_two_activations_stores_what_onnx_runtime_stores(case: str) -> None:
    net, result = product(*SHAPES[case])
    check(net, net.pair(result, (512.0, 88)))


def test_a_product_of_two_activations_is_exact_where_floats_are_asked_for() -> None:
    net, result = product(2, 9, 20, 30)
    model = net.finish(net.node("Neg", net.node("Div", result, net.tensor(np.float32(8)))))
    x = (net.random.standard_normal(net.shape) * 40).astype(np.float32)
    (found,), (wanted,) = compiled(model, in_float="crop")(x), reference(model, x, optimized=False)
    np.testing.assert_array_equal(found, wanted)


@pytest.mark.parametrize("tag", [tag for tag in OTHERS if tag != HERE])
def test_other_instructions_multiply_activations_alike(tag: str) -> None:
    net, result = product(2, 13, 20, 19)
    check(net, net.pair(result, (512.0, 88)), tag=tag)


def attention(
    net: Net, heads: int, *, mask: bool = False, empty: int | None = None, computed: bool = False, every: int = 1
) -> tuple[str, str]:
    """Return the scores after the softmax, and what they mix: self-attention, (1, rows, heads * depth) in and out.

    ``empty``: a row whose mask leaves nothing, as exporters write it; there, a tensor is added to what is mixed, too.
    ``computed``: a mask for each sample, by its columns. ``every``: which rows are keys and values.
    """
    _, rows, width = net.shape
    shape = net.tensor(np.array([0, 0, heads, width // heads]))
    sides = []
    read = "x"
    if every > 1:
        bounds = [net.tensor(np.array([bound])) for bound in (0, 1 << 40, 1, every)]
        read = net.node("Slice", "x", *bounds)
    for number, perm in enumerate(([0, 2, 1, 3], [0, 2, 3, 1], [0, 2, 1, 3])):
        weight = net.weight((width, width), np.float32(1 / 512), axis=1)
        part = net.pair(net.node("MatMul", net.pair(read if number else "x", (1 / 32, 120)), weight), (1 / 16, 117))
        sides.append(net.node("Transpose", net.node("Reshape", part, shape), perm=perm))
    scores = net.node("Div", net.node("MatMul", *sides[:2]), net.tensor(np.float32(4)))
    if mask:
        scores = net.node("Add", scores, net.tensor(np.where(np.arange(rows) < rows - 3, 0, -1e4).astype(np.float32)))
    if computed:
        each = net.node("ReduceMean", read, axes=[2], keepdims=1)
        turned = net.node("Transpose", net.node("Mul", each, net.tensor(np.float32(8))), perm=[0, 2, 1])
        scores = net.node("Add", scores, net.node("Unsqueeze", turned, net.tensor(np.array([1]))))
    if empty is not None:
        hidden = np.where((np.arange(rows)[:, None] == empty) | np.eye(rows, dtype=bool)[0], -np.inf, 0)
        scores = net.node("Add", scores, net.tensor(hidden.astype(np.float32)[None, None]))
    shares = net.node("Softmax", scores, axis=-1)
    if empty is not None:
        shares = net.node("Where", net.node("IsNaN", shares), net.tensor(np.float32(0)), shares)
    likely = net.pair(shares, PROBABILITY)
    mixed = net.node("MatMul", likely, sides[2])
    if empty is not None:
        added = np.linspace(0, 1, rows * width // heads).reshape(rows, -1) * (np.arange(rows) != empty)[:, None]
        mixed = net.node("Add", mixed, net.tensor(added.astype(np.float32)))
    mixed = net.pair(mixed, (1 / 64, 121))
    joined = net.node("Reshape", net.node("Transpose", mixed, perm=[0, 2, 1, 3]), net.tensor(np.array([0, 0, width])))
    return likely, joined


@pytest.mark.every(2)
@pytest.mark.parametrize(("rows", "mask"), [(32, False), (37, False), (32, True), (1100, False)])
def test_attention_is_within_a_step_of_onnx_runtime(rows: int, mask: bool) -> None:
    net = Net(1, rows, 32)
    model = net.finish(*attention(net, 2, mask=mask))
    x = net.random.standard_normal(net.shape).astype(np.float32)
    found, wanted = compiled(model)(x), reference(model, x, optimized=False)
    for ours, theirs, step in zip(found, wanted, (PROBABILITY[0], 1 / 64), strict=True):
        steps = np.rint((ours - theirs) / step)
        assert len(np.unique(theirs)) > min(20, 4000 // rows)
        assert abs(steps).max() <= 1
        assert np.count_nonzero(steps) <= steps.size // 500


def kernels_of(model: Any, tag: str) -> list[str]:
    """Return the calls of kernels in a lowered model."""
    lowered = lower(import_model(prepare(model)), Target.from_tag(tag), OPTIONS)
    return [line for line in lowered.module["main"].script(show_meta=False).splitlines() if "call_tir" in line]


@pytest.mark.parametrize("tag", [HERE, *(tag for tag in OTHERS if tag != HERE)])
@pytest.mark.parametrize(("rows", "width", "empty"), [(32, 32, None), (37, 20, 5), (70, 36, 0), (2, 16, None)])
def test_shares_that_nobody_else_reads_are_multiplied_where_they_are_made(
    tag: str, rows: int, width: int, empty: int | None
) -> None:
    net = Net(1, rows, width)
    model = net.finish(attention(net, 2, mask=True, empty=empty)[1])
    kernels = kernels_of(model, tag)
    assert any("attention_u8" in kernel for kernel in kernels)
    assert not any("softmax" in kernel or "matmul_u8" in kernel for kernel in kernels)
    x = net.random.standard_normal(net.shape).astype(np.float32)
    (found,), (wanted,) = compiled(model, tag)(x), reference(model, x, optimized=False)
    steps = np.rint((found - wanted) * 64)
    assert len(np.unique(wanted)) > min(20, rows * 4)
    assert abs(steps).max() <= 1
    assert np.count_nonzero(steps) <= steps.size // 200
    if empty is not None:
        assert not found[0, empty].any()


@pytest.mark.parametrize("every", [1, 2])
@pytest.mark.parametrize("tag", list(dict.fromkeys([HERE, PLAIN])))
def test_attention_of_any_batch_and_length_is_one_kernel(tag: str, every: int) -> None:
    net = Net(1, 32, 40)
    model = unsized(net.finish(attention(net, 2, computed=True, every=every)[1]), 0, 1)
    kernels = kernels_of(model, tag)
    assert any("attention_u8" in kernel for kernel in kernels)
    assert not any("softmax" in kernel or "matmul" in kernel for kernel in kernels)
    engine = load(build(model, Target.from_tag(tag), OPTIONS).to_bytes(), Target.from_tag(tag))
    for shape in ((1, 1), (1, 37), (3, 5), (2, 70)):
        x = net.random.standard_normal((*shape, 40)).astype(np.float32)
        (found,), (wanted,) = engine(x), reference(model, x, optimized=False)
        steps = np.rint((found - wanted) * 64)
        assert len(np.unique(wanted)) > 10
        assert abs(steps).max() <= 1
        assert np.count_nonzero(steps) <= steps.size // 200


@pytest.mark.parametrize("rows", [32, 1100])
def test_attention_keeps_no_floats_in_memory(rows: int) -> None:
    net = Net(1, rows, 32)
    model = net.finish(attention(net, 2)[1])
    for tag in (HERE, VNNI, "arm/cortex-a76"):
        written = [kernel.split("out_ty=")[1] for kernel in kernels_of(model, tag)]
        assert len(written) > 8
        assert sum("float32" in line for line in written) == 1  # the result


@pytest.mark.parametrize("name", ["vnni", "pmaddwd"])
def test_zero_points_of_both_sides_are_taken_from_sums_of_rows_and_columns(name: str) -> None:
    import tvm
    from tvm import te, tirx

    dot, machine = INSTRUCTION_SETS[name].dot, Machine.of(Target.from_tag(VNNI))
    made = Batched(sources=(Value(), Value()), zeros=(5, 250), scale=0.5, depth=21, shape=(1, 3, 7, 13))
    axes = tuple(tirx.Var(name, "int64") for name in ("batch", "row", "column"))
    sides = [
        Operand(place=Rearranged(axes=axes, place=(0, *axes)), rows=rows, columns=columns, batches=(3,))
        for rows, columns in ((7, 21), (21, 13))
    ]
    left, right = (te.placeholder((1, 3, *ends), "uint8") for ends in ((7, 21), (21, 13)))
    packed = pack(right, sides[1], -(-21 // dot.k_inner), 16, dot.k_inner)
    terms = {"row": row_terms(left, sides[0], (5, 250 - SIGN_BIT))}
    if not dot.widens:
        terms["column"] = column_terms(packed, made.zeros[0])
    tiles = by_row_blocks(
        left, packed, *terms.values(), product=made, operand=sides[0], affine=None, names=list(terms), mr=2, dot=dot,
        machine=machine,
    )  # fmt: skip
    run = tvm.compile(te.create_prim_func([left, right, crop(tiles, (1, 3, 7, 13))]), target="llvm")
    random: Any = np.random.default_rng(0)
    a, b = (random.integers(0, 256, (1, 3, *ends)).astype(np.uint8) for ends in ((7, 21), (21, 13)))
    out = tvm.runtime.tensor(np.zeros((1, 3, 7, 13), np.float32))
    run(tvm.runtime.tensor(a), tvm.runtime.tensor(b), out)
    wanted = (a.astype(np.int64) - 5) @ (b.astype(np.int64) - 250)
    np.testing.assert_array_equal(out.numpy(), wanted.astype(np.float32) * np.float32(0.5))
