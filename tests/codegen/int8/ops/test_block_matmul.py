"""Rows quantized in blocks times weights in the same blocks, in integers, against ONNX Runtime."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import onnx
import pytest

from forge_pipeline.codegen.int8.isa.table import INSTRUCTION_SETS
from forge_pipeline.codegen.int8.ops import block_matmul
from forge_pipeline.codegen.tir.machine import Machine
from forge_pipeline.ir.qdq.block_activations import in_blocks
from forge_pipeline.target import Target
from tests.support.int8.compare import ELSEWHERE, HERE, OTHERS, assembly_of, compiled, reference
from tests.support.int8.net import Net

ANYWHERE = 2e-6
"""Of the largest result: what adding up blocks in another order may change."""
LENGTHS = (1, 2, 7, 8, 13, 40)


class Blocks(Net):
    """Adds weights in blocks, which operator set 21 knows."""

    def finish(self, *outputs: str) -> onnx.ModelProto:
        model = super().finish(*outputs)
        del model.graph.value_info[:]
        model.opset_import[0].version = 21
        return model

    def weight_in_blocks(self, shape: tuple[int, int], bits: int, size: int, zero: int = 0) -> str:
        """Append weights (steps, columns) with extremes, and zero points up to ``zero`` from the middle."""
        low, high, kind = (-8, 8, ml_dtypes.int4) if bits == 4 else (-128, 128, np.int8)
        codes = self.random.integers(low, high, shape)
        codes[:size, 0], codes[-size:, -1] = low, high - 1
        scales = (shape[0] // size, shape[1])
        names = [self.tensor(codes.astype(kind)), self.tensor(self.random.random(scales).astype(np.float32) + 0.5)]
        if zero:
            names.append(self.tensor(self.random.integers(-zero, zero + 1, scales).astype(kind)))
        return self.node("DequantizeLinear", *names, axis=0, block_size=size)


class Emitter:
    """What ``in_blocks`` writes to."""

    def __init__(self, net: Net) -> None:
        self.net = net

    def node(self, operator: str, inputs: list[str], base: str, name: str = "", **attributes: Any) -> str:
        return self.net.node(operator, *inputs, **attributes)

    def constant(self, array: Any, base: str) -> str:
        return self.net.tensor(array)


def product(
    *leading: Any, steps: int = 128, columns: int = 40, bits: int = 4, size: int = 32, zero: int = 0
) -> onnx.ModelProto:
    """Return x in blocks times weights, and a bias."""
    net = Blocks(*leading, steps)
    left = in_blocks(Emitter(net), "x", steps, size)
    result = net.node("MatMul", left, net.weight_in_blocks((steps, columns), bits, size, zero))
    return net.finish(net.node("Add", result, net.tensor(np.arange(columns).astype(np.float32))))


def expect_same(model: onnx.ModelProto, shapes: list[tuple[int, ...]], tag: str = HERE) -> None:
    engine, random = compiled(model, tag), np.random.default_rng(7)
    for shape in shapes:
        x = random.standard_normal(shape).astype(np.float32)
        x[..., :32] = 0  # a block whose scale is as good as none
        x[0, ..., -1] = 1e4
        wanted = reference(model, x, optimized=False)[0]
        error = np.abs(engine(x)[0] - wanted).max() / np.abs(wanted).max()
        assert error < ANYWHERE, shape


FORMS = {
    "four bits": {},
    "four bits with zero points": {"zero": 3},
    "eight bits": {"bits": 8, "columns": 24},
    "eight bits with zero points": {"bits": 8, "zero": 100},
    "blocks of sixteen": {"size": 16, "columns": 130},
    "a block for each row": {"size": 128},
}


@pytest.mark.every(10)
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("rows", [1, 5, 16])
def test_products_in_blocks_are_what_onnx_runtime_computes(form: str, rows: int) -> None:
    expect_same(product(rows, **FORMS[form]), [(rows, 128)])


@pytest.mark.every(10)
@pytest.mark.parametrize("tag", [tag for tag in (*OTHERS, "amd/zen4") if tag != HERE])
@pytest.mark.parametrize("form", ["four bits", "eight bits", "eight bits with zero points"])
def test_every_x86_multiplies_blocks_alike(form: str, tag: str) -> None:
    expect_same(product("rows", **FORMS[form]), [(rows, 128) for rows in LENGTHS], tag)


@pytest.mark.every(3)
@pytest.mark.parametrize("leading", [("rows",), ("batch", "rows"), (2, "rows")])
def test_any_number_of_rows_is_multiplied_in_blocks(leading: tuple[Any, ...]) -> None:
    sizes = [{"batch": 3, "rows": rows} for rows in LENGTHS]
    expect_same(product(*leading), [(*(size.get(name, name) for name in leading), 128) for size in sizes])


def test_sums_in_a_block_are_exact() -> None:
    """Scales are powers of two, and so is nothing rounded: what 8 bits hold at most, in a block as long as a row."""
    net = Blocks(3, 4096)
    ones = net.tensor(np.full((1, 24), 2.0**-10, np.float32))
    codes = net.random.choice([-128, 127], (4096, 24)).astype(np.int8)
    weight = net.node("DequantizeLinear", net.tensor(codes), ones, axis=0, block_size=4096)
    scale = net.tensor(np.full((3, 1), 1.0, np.float32))
    named = net.node("Mul", scale, net.node("ReduceMax", net.node("Abs", "x"), net.tensor(np.array([1]))))
    scale = net.node("Min", named, scale)
    where = {"axis": 1, "block_size": 4096}
    steps = net.node("QuantizeLinear", "x", scale, output_dtype=onnx.TensorProto.INT8, **where)
    model = net.finish(net.node("MatMul", net.node("DequantizeLinear", steps, scale, **where), weight))
    x = np.random.default_rng(0).choice([-128, 127, 3], (3, 4096)).astype(np.float32)
    wanted = (x.astype(np.int64) @ codes.astype(np.int64)).astype(np.float64) / 1024
    np.testing.assert_array_equal(compiled(model)(x)[0], wanted.astype(np.float32))


@pytest.mark.every(3)
@pytest.mark.parametrize("tag", ELSEWHERE)
def test_blocks_are_multiplied_by_the_instructions_of_the_target(tag: str) -> None:
    dot = {"i8mm": "usdot"}.get(Target.from_tag(tag).dot_product)
    text = assembly_of(product(16, columns=64), tag)
    word = {"neon.sdot": "sdot", "neon.smull": "smull", "neon.usmmla": "usdot", "pmaddw.d.512": "pmaddubsw"}
    assert (dot or word.get(ELSEWHERE[tag], ELSEWHERE[tag])) in text


def test_a_tile_of_rows_and_its_panel_find_room_in_registers() -> None:
    for tag in (*OTHERS, *ELSEWHERE):
        machine = Machine.of(Target.from_tag(tag))
        isa = INSTRUCTION_SETS[machine.dot_product]
        for dot in (isa.nibbles, isa.signed):
            assert dot is not None
            for rows in (1, 2, 13, 197, "rows"):
                mr, nr = block_matmul.choose_tile(machine, dot, rows, 16, 8, 256)
                assert mr == 1 or 2 * mr * nr + nr < machine.registers
