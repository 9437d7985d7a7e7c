"""Where values between kernels lie: never over one another, in as little memory as they need at once."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper

from forge_pipeline.codegen.backend import planned
from forge_pipeline.codegen.build import build
from forge_pipeline.codegen.lowering import lower
from forge_pipeline.codegen.memory.blocks import shared
from forge_pipeline.codegen.memory.offsets import ALIGNMENT, Concat, Life, most_at_once, nest, plan
from forge_pipeline.codegen.memory.planner import allocated
from forge_pipeline.codegen.onnx_import.importer import import_model
from forge_pipeline.codegen.options import Options
from forge_pipeline.target import Target
from forge_runtime.engine import Engine
from tests.support.int8.net import OUT, Net, exact_scales

OPTIONS = Options(generator="tiled", opt_level=3, float16=False, channel_layout=None)
CHANNELS, EXTENT = 16, 20
LIVES = st.lists(
    st.builds(
        lambda size, first, length: Life(size=size, first=first, last=first + length),
        st.integers(1, 5000), st.integers(0, 30), st.integers(0, 8),
    ),
    min_size=1, max_size=30,
)  # fmt: skip


@given(LIVES)
@settings(deadline=None)
def test_values_that_are_needed_at_once_lie_apart(lives: list[Life]) -> None:
    found = plan(lives)
    for index, (life, offset) in enumerate(zip(lives, found.offsets, strict=True)):
        assert offset % ALIGNMENT == 0
        assert offset + life.size <= found.size
        for other, place in zip(lives[:index], found.offsets, strict=False):
            if life.meets(other):
                assert offset + life.size <= place or place + other.size <= offset


@given(LIVES)
@settings(deadline=None)
def test_a_plan_takes_no_less_than_is_needed_at_once_and_no_more_than_all(lives: list[Life]) -> None:
    assert most_at_once(lives) <= plan(lives).size <= sum(-(-life.size // ALIGNMENT) * ALIGNMENT for life in lives)


@given(LIVES)
@settings(deadline=None)
def test_a_block_holds_one_value_at_a_time_and_the_largest_first(lives: list[Life]) -> None:
    blocks = shared(lives)
    assert sorted(index for block in blocks for index in block) == list(range(len(lives)))
    for block in blocks:
        held = [lives[index] for index in block]
        assert max(life.size for life in held) == held[0].size
        assert not any(life.meets(other) for at, life in enumerate(held) for other in held[:at])


def pooled(*reads: tuple[str, ...], outputs: tuple[str, ...], batch: int | str = 1) -> onnx.ModelProto:
    """Return a model of images: a node that reads one is a maximum of windows, one that reads more a concatenation.

    Results are called y0, y1 and so on; "reshaped" before a name asks for a view of it.
    """
    shape = numpy_helper.from_array(np.array([batch, -1, 2 * EXTENT, EXTENT // 2]), "shape")
    nodes: list[onnx.NodeProto] = []
    for index, names in enumerate(reads):
        used = [name.removeprefix("reshaped ") for name in names]
        for place, name in enumerate(names):
            if name != used[place]:
                used[place] = f"view{len(nodes)}"
                nodes.append(helper.make_node("Reshape", [name.removeprefix("reshaped "), "shape"], [used[place]]))
        if len(used) == 1:
            nodes.append(
                helper.make_node("MaxPool", used, [f"y{index}"], kernel_shape=[3, 3], pads=[1] * 4, strides=[1, 1])
            )
        else:
            nodes.append(helper.make_node("Concat", used, [f"y{index}"], axis=1))
    image = helper.make_tensor_value_info("x", TensorProto.FLOAT, [batch, CHANNELS, EXTENT, EXTENT])
    values = [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in outputs]
    graph = helper.make_graph(nodes, "net", [image], values, [shape])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=10)
    return onnx.shape_inference.infer_shapes(model, strict_mode=True)


def needed(model: onnx.ModelProto) -> int:
    target = Target.from_tag("x86-64/v3")
    with target.tvm():
        return allocated(planned(lower(import_model(model), target, OPTIONS).module, target)["main"])


IMAGE = CHANNELS * EXTENT * EXTENT * 4


def test_a_chain_takes_two_buffers() -> None:
    chain = [("x",), *((f"y{index}",) for index in range(5))]
    assert needed(pooled(*chain, outputs=("y5",))) == 2 * IMAGE


def test_values_of_unknown_size_share_blocks_and_survive_until_they_are_last_read() -> None:
    chain = [("x",), *((f"y{index}",) for index in range(5)), ("y1", "y5"), ("y6",)]
    model = pooled(*chain, outputs=("y7",), batch="N")
    target = Target.from_tag("x86-64/v3")
    with target.tvm():
        text = planned(lower(import_model(model), target, OPTIONS).module, target)["main"].script()
    assert text.count("alloc_storage") == 3  # y1, and two in turns, one of which the result has later
    assert matches(model)


def test_a_value_that_is_read_again_keeps_its_place_until_then() -> None:
    model = pooled(("x",), ("y0",), ("y1",), ("y2",), ("y0", "y3"), outputs=("y4",))
    assert needed(model) == 4 * IMAGE


def matches(model: onnx.ModelProto) -> list[str]:
    """Compare with ONNX Runtime, twice; return the names of the kernels that ran."""
    import onnxruntime as ort

    shape = [extent.dim_value or 3 for extent in model.graph.input[0].type.tensor_type.shape.dim]
    x = np.random.default_rng(0).standard_normal(shape).astype(np.float32)
    session = ort.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    engine = Engine(build(model, Target.from_tag("host"), OPTIONS).to_bytes(), threads=1)
    for _ in range(2):
        for found, wanted in zip(engine(x), session.run(None, {"x": x}), strict=True):
            np.testing.assert_array_equal(found, wanted)
    return [kernel.name for kernel in engine.profile(x, runs=1) for _ in range(kernel.calls)]


@pytest.mark.every(2)
@pytest.mark.parametrize(
    ("reads", "outputs"),
    [
        ((("x",), ("y0",), ("y1",), ("y2",), ("y0", "y3"), ("y1",), ("y4", "y5")), ("y6", "y2", "y0")),
        ((("x",), ("reshaped y0",), ("y0",), ("y2",), ("y3",), ("reshaped y0", "y1"), ("reshaped y4",)), ("y5", "y6")),
    ],
)
def test_values_survive_until_they_are_last_read(reads: Any, outputs: tuple[str, ...]) -> None:
    assert matches(pooled(*reads, outputs=outputs))


@pytest.mark.every(6)
@pytest.mark.parametrize(
    ("reads", "copies"),
    [
        ((("x",), ("y0",), ("y0",), ("y1", "y2"), ("y3",)), 0),
        ((("x",), ("y0",), ("y0", "y1"), ("y2",), ("y2", "y3"), ("y4",)), 0),
        ((("x",), ("y0",), ("y0", "y1"), ("y2",), ("y0", "y3"), ("y4",)), 1),
        ((("x",), ("y0",), ("y1", "y1"), ("y2",)), 1),
    ],
    ids=["side by side", "nested", "in two places", "twice"],
)
def test_parts_are_written_where_they_are_put_side_by_side_but_only_one_place_is_theirs(
    reads: Any, copies: int
) -> None:
    kernels = matches(pooled(*reads, outputs=(f"y{len(reads) - 1}",)))
    assert sum(name.startswith("join") for name in kernels) == copies


def test_parts_of_several_images_are_copied_as_they_alternate() -> None:
    matches(pooled(("x",), ("y0",), ("y0",), ("y1", "y2"), ("y3",), outputs=("y4",), batch=2))


@pytest.mark.parametrize(("between", "copies"), [(500, 0), (1000, 1)])
def test_a_whole_that_would_take_more_by_being_there_early_is_a_copy(between: int, copies: int) -> None:
    lives = {
        "early": Life(size=64, first=0, last=9),
        "between": Life(size=between, first=3, last=4),
        "late": Life(size=640, first=8, last=9),
        "whole": Life(size=704, first=9, last=10),
    }
    nested, saved = nest(lives, [Concat(binding=9, parts=("early", "late"), whole="whole")])
    assert len(saved) == 1 - copies
    assert nested.place("late") == (("late", 0) if copies else ("whole", 64))
    assert most_at_once(list(nested.lives(lives).values())) <= most_at_once(list(lives.values()))


@given(st.lists(st.sampled_from([1, 60, 64, 100, 128, 640]), min_size=2, max_size=4))
@settings(deadline=None)
def test_parts_lie_in_their_whole_where_each_of_them_starts_at_a_cache_line(sizes: list[int]) -> None:
    end = len(sizes)
    lives = {part: Life(size=size, first=part, last=end) for part, size in enumerate(sizes)}
    lives[end] = Life(size=sum(sizes), first=end, last=end + 1)
    nested, saved = nest(lives, [Concat(binding=end, parts=tuple(range(end)), whole=end)])
    starts = [sum(sizes[:part]) for part in range(end)]
    if any(start % ALIGNMENT for start in starts):
        assert not saved
        assert not nested.inside
    else:
        assert saved == {end}
        assert [nested.place(part) for part in range(end)] == [(end, start) for start in starts]


def test_an_input_that_is_quantized_and_bytes_that_are_resized_are_no_floats_in_memory() -> None:
    net = Net(1, 3, 32, 32)
    scale = exact_scales(16)
    read = net.node("Conv", net.pair("x", (0.5, 113)), net.weight((16, 3, 3, 3), scale), net.bias(scale * 0.5))
    larger = net.node("Resize", net.pair(read, OUT), "", net.tensor(np.array([1, 1, 2, 2], np.float32)), mode="linear")
    small = net.node("MaxPool", net.pair(larger, OUT), kernel_shape=[60, 60])
    assert needed(net.finish(small)) == 16 * 30 * 30 + 16 * 60 * 60
