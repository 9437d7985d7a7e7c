"""Products by an instruction that saturates, with weights and activations for which it does not."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from tvm import s_tir, te

from forge_pipeline.codegen.build import build
from forge_pipeline.codegen.float32 import fallback
from forge_pipeline.codegen.int8.isa import pmaddubsw
from forge_pipeline.codegen.int8.isa.pmaddubsw import K_INNER, Parts
from forge_pipeline.codegen.int8.requantize import Epilogue
from forge_pipeline.codegen.int8.x86.pmaddubsw import by_rows, continue_sums
from forge_pipeline.codegen.layout.affine import Affine, Clip
from forge_pipeline.codegen.tir.machine import Machine
from forge_pipeline.target import Target
from tests.support.int8.compare import OPTIONS, PLAIN, assembly_of, compiled, reference
from tests.support.int8.net import OUT, Net

UNIT = (1.0, 0)
LEVELS = 255


def by_halves(values: Any) -> Any:
    """Make the weights of the second half of the channels small: more steps with masks would be widened."""
    channels = np.moveaxis(values, 1 if values.ndim == 4 else 0, 0)
    channels[len(channels) // 2 :] //= 3
    return values


class Tails:
    """Draws weights of which few are large, and biases as they come."""

    def __init__(self) -> None:
        self.random: Any = np.random.default_rng(0)

    def integers(self, low: int, high: int, shape: Any) -> Any:
        return by_halves(np.clip(np.rint(self.random.standard_t(3, shape) * high / 6), low, high - 1))


class Constant:
    """Draws one number only: the largest or the smallest."""

    def __init__(self, *, largest: bool) -> None:
        self.largest = largest

    def integers(self, low: int, high: int, shape: Any) -> Any:
        return by_halves(np.full(shape, high - 1 if self.largest else low))


class Signs:
    """Draws the largest and the smallest number in turns of two, four and so on: every pair of signs occurs."""

    def integers(self, low: int, high: int, shape: Any) -> Any:
        at = np.arange(np.prod(shape)).reshape(shape)
        return by_halves(np.where((at ^ at >> 1 ^ at >> 2 ^ at >> 5) & 1, low, high - 1))


def convolved(
    random: Any, channels: int, filters: int, kernel: int, stride: int, size: int, dilation: tuple[int, int] = (1, 1)
) -> Net:
    net = Net(1, channels, size, size)
    net.random = random
    weight = net.weight((filters, channels, kernel, kernel), np.full(filters, 2.0**-6))
    image = net.pair("x", UNIT)
    padding = [kernel // 2] * 4
    net.node("Conv", image, weight, strides=[stride] * 2, pads=padding, dilations=dilation)
    return net


ENDS = st.sampled_from([-128, 1, 127])


@settings(max_examples=60, deadline=None)
@given(
    arrays.arrays(np.int8, (9, 9, K_INNER), elements=st.integers(-127, 127) | st.integers(-40, 40) | ENDS),
    st.randoms(use_true_random=False),
)
def test_no_pair_of_packed_weights_can_saturate_and_sums_are_the_same(weight: Any, random: Any) -> None:
    panels = pmaddubsw.pack(weight, 8)
    if panels is None:
        assert (weight.reshape(-1, 2) == -128).all(axis=1).any()
        return
    parts, together = panels.parts, []
    paired = 2 * (parts.pairs + parts.masked_pairs)
    by_pairs = panels.weights.astype(np.int64).reshape(len(panels.weights), 9, -1, 2)
    together.append(np.concatenate([by_pairs[:, 0:paired:2], by_pairs[:, 1:paired:2]], axis=-1).reshape(-1, 4))
    together.append(by_pairs[:, paired:].reshape(-1, 2))
    for added in together:  # in one int16
        for one_sign in (np.maximum(added, 0), -np.minimum(added, 0)):
            assert (LEVELS * one_sign.sum(axis=1)).max(initial=0) <= np.iinfo(np.int16).max
    image = np.array([[random.choice((0, 1, 254, 255)) for _ in range(K_INNER)] for _ in range(9)], np.int64)
    masked = [*range(2 * parts.pairs + 1, paired, 2), *range(9 - parts.masked, 9)]
    assert sorted(panels.order[0]) == list(range(9))
    found = np.zeros(16, np.int64)
    for panel, order in enumerate(panels.order):
        read = np.broadcast_to(image[order][:, None], (9, 8, K_INNER)).copy()
        read[masked] ^= panels.masks[panel]
        found[panel * 8 : panel * 8 + 8] = (read * panels.weights[panel]).sum(axis=(0, 2))
    np.testing.assert_array_equal(found[:9] + panels.bias, (image * weight).sum(axis=(1, 2)))


@pytest.mark.parametrize(("spread", "share"), [(8, 1.0), (25, 0.9), (40, 0.6)])
def test_most_steps_of_usual_weights_are_added_up_two_by_two(spread: int, share: float) -> None:
    drawn = np.random.default_rng(0).standard_normal((64, 256, K_INNER)) * spread
    parts = pmaddubsw.pack(np.clip(np.rint(drawn), -127, 127).astype(np.int8), 8).parts
    assert 2 * (parts.pairs + parts.masked_pairs) >= share * 256
    assert (parts.pairs == 128) == (share == 1.0)


def test_of_a_pair_with_the_least_byte_the_other_one_is_negated_and_of_two_none_can_be() -> None:
    weight = np.zeros((8, 1, K_INNER), np.int8)
    weight[0, 0, :2] = -1, -128
    panels = pmaddubsw.pack(weight, 8)
    assert panels is not None
    assert panels.weights[0, 0, 0, :2].tolist() == [1, -128]
    weight[0, 0, :2] = -128
    assert pmaddubsw.pack(weight, 8) is None


def test_weights_that_need_no_complement_have_no_masks() -> None:
    weight = np.full((8, 64, K_INNER), 32, np.int8)
    assert pmaddubsw.pack(weight, 8).parts == Parts(pairs=32, masked_pairs=0, single=0, masked=0)
    weight[:] = 64  # two of them fit, and four where signs are flipped
    assert pmaddubsw.pack(weight, 8).parts == Parts(pairs=0, masked_pairs=32, single=0, masked=0)
    weight[:, :, 1:] = 0, 127, 0  # 64 and 127 fit each by itself, and nothing fits with them
    panels = pmaddubsw.pack(weight, 8)
    assert panels.parts == Parts(pairs=0, masked_pairs=32, single=0, masked=0)
    weight[:] = -128, 0, 0, 0  # no sign can be flipped
    assert pmaddubsw.pack(weight, 8).parts == Parts(pairs=0, masked_pairs=0, single=64, masked=0)
    weight[3, 5, 1] = -1
    panels = pmaddubsw.pack(weight, 8)
    assert panels.parts == Parts(pairs=0, masked_pairs=0, single=62, masked=2)  # a whole part of the steps
    assert panels.order[0, -1] == 5
    assert np.count_nonzero(panels.masks) == 1


@pytest.mark.parametrize("steps", [16, 33, 47])
def test_every_step_may_have_a_mask_whatever_their_number(steps: int) -> None:
    panels = pmaddubsw.pack(np.full((8, steps, K_INNER), 127, np.int8), 8)
    assert panels is not None
    assert panels.parts.masked == steps


@pytest.mark.every(8)
@pytest.mark.parametrize(
    ("shape", "random"),
    [
        *(
            (shape, random)
            for shape in ((32, 16, 1, 1, 7), (16, 24, 3, 2, 9))
            for random in (Tails(), Constant(largest=True), Constant(largest=False), Signs())
        ),
        ((16, 8, 3, 1, 9, (2, 3)), Tails()),
    ],
)
def test_convolutions_are_exact_at_the_ends_of_both_ranges(shape: Any, random: Any) -> None:
    net = convolved(random, *shape)
    model = net.finish(net.pair(net.nodes[-1].output[0], (256.0, 128)))
    engine = compiled(model, PLAIN)
    for fill in (0.0, 255.0, None):
        x = np.full(net.shape, fill, np.float32) if fill is not None else np.zeros(net.shape, np.float32)
        if fill is None:
            x.reshape(-1)[::3] = LEVELS
        np.testing.assert_array_equal(engine(x)[0], reference(model, x, optimized=False)[0])


class Normal:
    """Draws weights of which most steps go in pairs."""

    def __init__(self, seed: int, spread: int) -> None:
        self.random: Any = np.random.default_rng(seed)
        self.spread = spread

    def integers(self, low: int, high: int, shape: Any) -> Any:
        return np.clip(np.rint(self.random.standard_normal(shape) * self.spread), low, high - 1)


@pytest.mark.every(6)
@pytest.mark.parametrize("tag", ["x86-64/v2", PLAIN])
@pytest.mark.parametrize("spread", [12, 40])
def test_steps_in_pairs_are_exact_at_the_ends_of_both_ranges(tag: str, spread: int) -> None:
    net = convolved(Normal(spread, spread), 128, 40, 3, 2, 9)
    model = net.finish(net.pair(net.nodes[-1].output[0], (256.0, 128)))
    engine = compiled(model, tag)
    for levels in (np.full(net.shape, LEVELS), net.random.random.integers(0, 2, net.shape) * LEVELS):
        x = levels.astype(np.float32)
        np.testing.assert_array_equal(engine(x)[0], reference(model, x, optimized=False)[0])


@pytest.mark.every(6)
@pytest.mark.parametrize(
    ("random", "rows", "steps"), [(Tails(), 8, 64), (Signs(), 8, 64), (Tails(), 8, 30), (Tails(), 23, 64)]
)
def test_products_are_exact_at_the_ends_of_both_ranges(random: Any, rows: int, steps: int) -> None:
    net = Net(rows, steps)
    net.random = random
    weight = net.weight((steps, 40), np.full(40, 2.0**-6), axis=1)
    model = net.finish(net.pair(net.node("MatMul", net.pair("x", UNIT), weight), (256.0, 128)))
    x = np.where(np.arange(rows * steps).reshape(rows, steps) % 5 < 3, LEVELS, 0).astype(np.float32)
    np.testing.assert_array_equal(compiled(model, PLAIN)(x)[0], reference(model, x, optimized=False)[0])


@pytest.mark.every(3)
@pytest.mark.parametrize("tag", ["x86-64/v2", PLAIN, "x86-64/v4"])
def test_both_parts_of_the_steps_keep_their_sums_in_registers(tag: str) -> None:
    net = Net(96, 256)
    net.random = Tails()
    weight = net.weight((256, 64), np.full(64, 2.0**-6), axis=1)
    assembly = assembly_of(net.finish(net.pair(net.node("MatMul", net.pair("x", UNIT), weight), OUT)), tag)
    blocks = re.split(r"\n\.?\w+:|\tj\w+\t", assembly)  # at labels and jumps
    loops = [block for block in blocks if block.count("pmaddubsw") >= 6]
    kinds = {(block.count("pmaddubsw") // block.count("pmaddwd"), bool(block.count("xor"))) for block in loops}
    assert kinds >= {(1, True), (2, True)}
    for loop in loops:
        assert loop.count("pmaddubsw") % loop.count("pmaddwd") == 0
        assert not re.findall(r"\tv?paddd\t-?\d*\(%r", loop)


def test_where_plain_loops_serve_each_part_of_the_steps_starts_for_itself() -> None:
    shapes = {"uint8": [(8, 16), (1, 3, 8, 4)], "int8": [(1, 4, 8, 4)], "int32": [(1, 4), (8,)], "float32": [(8,)]}
    named = {(shape, dtype): te.placeholder(shape, dtype) for dtype, listed in shapes.items() for shape in listed}
    left, masks, weight, places, bias, factor = named.values()
    tensors = [left, weight, places, masks, bias, factor]
    epilogue = Epilogue.of(np.ones(8), np.zeros(8), None, Affine(scale=1.0, zero=0), Clip())
    parts = Parts(pairs=0, masked_pairs=1, single=0, masked=2)
    result = by_rows(*tensors, columns=8, epilogue=epilogue, pixels=2, parts=parts, lanes=8)
    sch = s_tir.Schedule(te.create_prim_func([*tensors, result]))
    fallback.schedule(sch, Machine.of(Target.from_tag(PLAIN)))
    plain = sch.mod["main"]
    assert continue_sums(plain).same_as(plain)


def test_masks_are_bits_until_the_library_is_loaded() -> None:
    sizes = {}
    for largest in (32, 127):
        net = Net(8, 1024)
        stored = np.ones((1024, 512), np.int8)
        stored[:512] = largest
        scale = np.full(512, 2.0**-6, np.float32)
        weight = net.node(
            "DequantizeLinear", net.tensor(stored), net.tensor(scale), net.tensor(np.zeros(512, np.int8)), axis=1
        )
        model = net.finish(net.pair(net.node("MatMul", net.pair("x", UNIT), weight), (2048.0, 0)))
        sizes[largest] = len(build(model, Target.from_tag(PLAIN), OPTIONS).to_bytes())
        x = np.full(net.shape, 255, np.float32)
        x[:, ::3] = 1
        np.testing.assert_array_equal(compiled(model, PLAIN)(x)[0], reference(model, x, optimized=False)[0])
    masks = 512 * 512  # half of the steps
    assert masks // 8 <= sizes[127] - sizes[32] < masks // 4


def test_what_follows_a_product_is_computed_in_vectors_erf_too() -> None:
    net = Net(96, 256)
    net.random = Tails()
    weight = net.weight((256, 64), np.full(64, 2.0**-6), axis=1)
    y = net.node("MatMul", net.pair("x", UNIT), weight)
    curve = net.node("Mul", y, net.node("Erf", net.node("Mul", y, net.tensor(np.float32(0.5**0.5)))))
    assembly = assembly_of(net.finish(net.pair(curve, OUT)), PLAIN)
    assert re.search(r"vdivps\t.*%ymm", assembly)
    assert not re.search(r"\tv(fn?m(add|sub)\w+|div)ss\t", assembly)


def test_where_most_steps_would_need_masks_bytes_are_widened() -> None:
    net = Net(96, 256)
    weight = net.weight((256, 64), np.full(64, 2.0**-6), axis=1)
    assembly = assembly_of(net.finish(net.pair(net.node("MatMul", net.pair("x", UNIT), weight), OUT)), PLAIN)
    assert "pmaddubsw" not in assembly
    assert "pmaddwd" in assembly


@pytest.mark.parametrize("tag", ["intel/sapphire-rapids", "intel/alder-lake"])
def test_targets_with_an_instruction_for_the_purpose_do_not_use_it(tag: str) -> None:
    net = Net(96, 256)
    weight = net.weight((256, 64), np.full(64, 2.0**-6), axis=1)
    assembly = assembly_of(net.finish(net.pair(net.node("MatMul", net.pair("x", UNIT), weight), OUT)), tag)
    assert "pmaddubsw" not in assembly
    assert "vpdpbusd" in assembly
