"""Instruction sets: what is emitted computes what its pattern says, on any machine, and the documents list them all."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, get_args

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from forge_pipeline.codegen.amx import tiles
from forge_pipeline.codegen.int8.conv import convolution
from forge_pipeline.codegen.int8.isa import chain, dot_product, pmaddubsw
from forge_pipeline.codegen.int8.isa.instruction import Instruction
from forge_pipeline.codegen.int8.isa.table import INSTRUCTION_SETS
from forge_pipeline.codegen.int8.ops import matmul
from forge_pipeline.target.description import DotProduct
from tests.support.paths import ROOT
from tests.support.tir_interpreter import Interpreter, buffers_of, numbers

DOCUMENT = ROOT / "docs" / "integer_code.md"
ENDS = np.array([0, 1, 127, 128, 254, 255])


def expect_same(
    name: str, instructions: tuple[Instruction, ...], seed: int, least: int = -127, mask: int = -1, offset: int = 0
) -> None:
    """Compute an intrinsic both ways on values of which many are at the ends of their ranges.

    ``mask`` has the bits of an int32 that hold activations, of which instructions take ``offset`` less.
    """
    from tvm.s_tir import TensorIntrin

    intrinsic, results = TensorIntrin.get(name), []
    for function in (intrinsic.desc, intrinsic.impl):
        random = np.random.default_rng(seed)

        def fill(buffer: str, dtype: str, shape: tuple[int, ...], random: Any = random) -> Any:
            if buffer == "C":
                return random.integers(-(1 << 31), 1 << 31, shape)
            if dtype == "int32":
                return random.integers(-(1 << 31), 1 << 31, shape) & (mask if buffer == "A" else -1)
            is_end = random.random(shape) < 0.5
            if buffer == "B":
                return np.where(is_end, random.choice([least, -1, 127], shape), random.integers(least, 128, shape))
            some = np.where(is_end, random.choice(ENDS, shape), random.integers(0, 256, shape))
            return some - 128 if dtype == "int8" else some

        buffers = buffers_of(function, fill, gap=64)
        Interpreter(buffers, numbers(instructions)).run(function)
        results.append(buffers["C"].memory)
    if offset:
        results[0] -= offset * buffers["B"].memory.reshape(results[0].size, -1).sum(axis=1, dtype=np.int32)
    np.testing.assert_array_equal(*results)


def dot_products() -> Iterator[Any]:
    for name, isa in INSTRUCTION_SETS.items():
        for dot in {isa.dot.name: isa.dot, **({isa.int16.name: isa.int16} if isa.int16 is not None else {})}.values():
            llvm = dot.instructions[0].llvm
            for lanes in [4] if isinstance(llvm, str) else [bits // 32 for bits in llvm]:
                for reads in ("bytes", "packed", "transposed"):
                    yield pytest.param(dot, lanes, reads, id=f"{name} {dot.name} {lanes} {reads}")


@pytest.mark.every(10)
@pytest.mark.parametrize(("dot", "lanes", "reads"), [*dot_products()])
def test_the_instructions_of_a_dot_product_add_what_its_pattern_adds(dot: Any, lanes: int, reads: str) -> None:
    given = {"seed": lanes, "mask": 0x00FF00FF if dot.widens else -1, "offset": dot.activation_offset}
    for full in (False, True):
        name = dot_product.intrinsic(dot, lanes, reads, "int8", full=full)
        expect_same(name, dot.instructions, least=-128 if full or not dot.adds_int16 else -127, **given)
    if dot.widens:
        expect_same(dot_product.intrinsic(dot, lanes, reads, "int16", full=False), dot.instructions, **given)


def signed_dot_products() -> Iterator[Any]:
    """Return what serves activations with a sign: for weights of how many bits, of each width of a vector."""
    for name, isa in INSTRUCTION_SETS.items():
        for bits, dot in ((4, isa.nibbles), (8, isa.signed)):
            if dot is not None:
                llvm = dot.instructions[0].llvm
                for lanes in [4] if isinstance(llvm, str) else [width // 32 for width in llvm]:
                    yield pytest.param(dot, lanes, bits, id=f"{name} {dot.name} {lanes} {bits}")


@pytest.mark.every(10)
@pytest.mark.parametrize("scope", ["global", "local"])
@pytest.mark.parametrize(("dot", "lanes", "bits"), [*signed_dot_products()])
def test_products_of_activations_with_a_sign_are_added_exactly_at_both_ends(
    dot: Any, lanes: int, bits: int, scope: str
) -> None:
    from tvm.s_tir import TensorIntrin

    name = dot_product.intrinsic(dot, lanes, "bytes", dot.weights, full=True, scope=scope)
    low, high = (0, 15) if bits == 4 else (0, 255) if dot.weights == "uint8" else (-128, 127)
    random = np.random.default_rng(lanes)
    for _ in range(20):
        contents = {
            "A": random.choice([-128, -127, -1, 0, 5, 127], (dot.k_inner,)),
            "B": random.choice([low, low + 1, 3, high], (lanes, dot.k_inner)),
            "C": random.integers(-(1 << 31), 1 << 31, (lanes,)),
        }
        wanted = contents["C"] + (contents["A"] * contents["B"]).sum(axis=1)
        for function in (TensorIntrin.get(name).desc, TensorIntrin.get(name).impl):
            buffers = buffers_of(function, lambda buffer, *_, filled=contents: filled[buffer].copy())
            Interpreter(buffers, numbers(dot.instructions)).run(function)
            np.testing.assert_array_equal(buffers["C"].memory, wanted.astype(np.int32))


CHAINS = {name: isa.chain for name, isa in INSTRUCTION_SETS.items() if isa.chain is not None}


@pytest.mark.every(2)
@pytest.mark.parametrize("lanes", [4, 8, 16])
@pytest.mark.parametrize("name", CHAINS)
def test_a_chain_of_steps_is_added_exactly_in_int16(name: str, lanes: int) -> None:
    """Where all weights are the largest, and all activations at one end, too, and none has room for a step more."""
    from tvm.s_tir import TensorIntrin

    random, isa = np.random.default_rng(lanes), CHAINS[name]
    step, widen = chain.intrinsics(isa, lanes)
    instructions = (isa.multiply, isa.widen)
    for activations, weights in (([-128], [15]), ([127], [15]), ([-128, -1, 0, 5, 127], [0, 1, 7, 15])):
        given = random.choice(activations, (isa.steps, 4)), random.choice(weights, (isa.steps, lanes, 4))
        wanted = (given[0][:, None].astype(np.int64) * given[1]).reshape(isa.steps, lanes, 2, 2).sum(axis=(0, 3))
        start = random.integers(-(1 << 20), 1 << 20, lanes)
        for kind in ("desc", "impl"):
            sums = np.zeros((lanes, 2), np.int16)
            for a, b in zip(*given, strict=True):
                sums = _computed(getattr(TensorIntrin.get(step), kind), instructions, A=a, B=b, C=sums)
            np.testing.assert_array_equal(sums.reshape(lanes, 2), wanted)
            total = _computed(getattr(TensorIntrin.get(widen), kind), instructions, B=sums, C=start)
            np.testing.assert_array_equal(total, start + wanted.sum(axis=1))
    assert (isa.steps + 1) * 2 * 15 * 128 > np.iinfo(np.int16).max


def _computed(function: Any, instructions: tuple[Instruction, ...], **given: np.ndarray) -> np.ndarray:
    buffers = buffers_of(function, lambda buffer, _, shape: given[buffer].reshape(shape))
    Interpreter(buffers, numbers(instructions)).run(function)
    return buffers["C"].memory.copy()


MICRO_KERNELS = {kernel.name: kernel for isa in INSTRUCTION_SETS.values() for kernel in isa.micro_kernels}


@pytest.mark.every(8)
@pytest.mark.parametrize("stride", [1, 2, 3])
@pytest.mark.parametrize("name", MICRO_KERNELS)
def test_the_instructions_of_a_micro_kernel_add_what_its_pattern_adds(name: str, stride: int) -> None:
    kernel = MICRO_KERNELS[name]
    layouts = ["halves"] if kernel.reads_halves else ["image", "row", *(["raw"] if kernel.signed else [])]
    for layout in layouts:
        expect_same(kernel.intrinsic(stride, layout), kernel.instructions, seed=stride)


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("lanes", [4, 8, 16])
@settings(max_examples=20, deadline=None)
@given(seed=st.integers(0, 1 << 30))
def test_saturating_pairs_add_what_their_pattern_adds_for_packed_weights(lanes: int, masked: bool, seed: int) -> None:
    from tvm.s_tir import TensorIntrin

    random = np.random.default_rng(seed)
    panels = pmaddubsw.pack(random.integers(-127, 128, (lanes, 1, pmaddubsw.K_INNER)).astype(np.int8), lanes)
    assert panels is not None
    if bool(panels.parts.masks) != masked:
        return
    activations = random.choice(ENDS, (pmaddubsw.K_INNER,))
    contents = {"A": activations, "B": panels.weights[0, 0], "M": panels.masks[0, 0] if masked else 0, "C": 0}
    results = []
    intrinsic = TensorIntrin.get(pmaddubsw.intrinsic(lanes, masked=masked))
    for function in (intrinsic.desc, intrinsic.impl):
        buffers = buffers_of(function, lambda buffer, *_: contents[buffer])
        Interpreter(buffers, numbers(pmaddubsw.INSTRUCTIONS)).run(function)
        results.append(buffers["C"].memory)
    np.testing.assert_array_equal(*results)


def test_a_target_names_one_of_the_instruction_sets_or_none() -> None:
    assert set(get_args(DotProduct)) == {*INSTRUCTION_SETS, "none"}


def described() -> Iterator[tuple[str, ...]]:
    """Return the rows of the table of instructions."""
    for name, isa in INSTRUCTION_SETS.items():
        dot, int16 = isa.dot, isa.int16
        every = [("every kernel", dot, dot.activation, f"{dot.multiplies + dot.others}")]
        if int16 is not None:
            every.append(("Winograd's tiles", int16, int16.activation, f"{int16.multiplies + int16.others}"))
        for serves, other in (("blocks of four bits", isa.nibbles), ("blocks of eight bits", isa.signed)):
            if other is not None:
                every.append((serves, other, other.activation, f"{other.multiplies + other.others}"))
        for kernel in isa.micro_kernels:
            dtype, count = "int8" if kernel.signed else "uint8", kernel.multiplies + kernel.moves
            every.append(("micro-kernel", kernel, dtype, f"{count} for 4"))
        for serves, entry, dtype, count in every:
            yield f"`{name}`", serves, listed(entry.instructions), str(entry.k_inner), dtype, count
        if isa.saturating_pairs:
            yield f"`{name}`", "one group", listed(pmaddubsw.INSTRUCTIONS), str(pmaddubsw.K_INNER), "uint8", "3"
    used = (tiles.TILEZERO, tiles.TILELOADD, tiles.TDPBUSD, tiles.TILESTORED)
    yield "any, `compile.amx`", "tiles", listed(used), str(tiles.BYTES), "uint8", "1 for 16"


def listed(instructions: tuple[Instruction, ...]) -> str:
    return ", ".join(f"`{instruction.name}`" for instruction in instructions)


def table(heads: str, rows: Iterator[tuple[str, ...]]) -> str:
    columns = heads.split(", ")
    lines = [columns, ["---"] * len(columns), *rows]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines).replace("| --- |", "|---|").replace(" --- |", "---|")


def test_the_document_lists_every_instruction_set_and_every_algorithm_in_its_order() -> None:
    heads = "`dot_product`, serves, instructions, `k_inner`, activations, instructions a vector of sums"
    tables = [table(heads, described())]
    for algorithms in (convolution.ALGORITHMS, matmul.ALGORITHMS):
        tables.append(table("algorithm, serves", ((f"`{entry.name}`", entry.serves) for entry in algorithms)))
    text = DOCUMENT.read_text()
    for expected in tables:
        assert [line for line in expected.splitlines() if line not in text] == []
        assert expected in text
