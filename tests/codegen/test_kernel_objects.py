"""Kernels as objects of their own: made once, in threads, under any name, and the library is the same each time."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx.parser
import onnxruntime
import pytest
from onnx import numpy_helper

from forge_pipeline.codegen import kernel_objects
from forge_pipeline.codegen.build import build
from forge_pipeline.codegen.compile_process import Job, compile_in_subprocess
from forge_pipeline.codegen.kernel_objects import KernelObject, without_names
from forge_pipeline.codegen.options import Options
from forge_pipeline.errors import StoreError
from forge_pipeline.target import Target
from forge_runtime.engine import Engine
from tests.support.sums import assert_same_sums

LINKERS = ("host", "raspberry-pi/5", "apple/m1")
WIDE, NARROW = (12, 9), (9,)
TILED = Options(generator="tiled", opt_level=3, float16=False, channel_layout=None)


class Kept(dict[str, bytes]):
    """A shelf that counts."""

    taken = 0

    def take(self, digests: Sequence[str]) -> Mapping[str, bytes]:
        found = {digest: self[digest] for digest in digests if digest in self}
        self.taken = len(found)
        return found

    def keep(self, made: Mapping[str, bytes]) -> None:
        self.update(made)


def layers(*widths: int, seed: int = 1) -> onnx.ModelProto:
    """Return products of that many columns each, with a function behind each: of no two widths is a kernel alike."""
    nodes = [f"h{place} = MatMul(x{place}, w{place})  x{place + 1} = Tanh(h{place})" for place in range(len(widths))]
    text = f"""<ir_version: 10, opset_import: ["": 18]> net (float[3, 16] x0) => (float[3, {widths[-1]}] x{len(widths)})
        {{ {"  ".join(nodes)} }}"""
    model, random = onnx.parser.parse_model(text), np.random.default_rng(seed)
    for place, shape in enumerate(zip((16, *widths), widths, strict=False)):
        weight = random.standard_normal(shape).astype(np.float32)
        model.graph.initializer.append(numpy_helper.from_array(weight, f"w{place}"))
    return model


@pytest.fixture(scope="module", params=LINKERS)
def target(request: pytest.FixtureRequest) -> Target:
    return Target.from_tag(request.param)


def test_a_library_is_the_same_with_kernels_of_a_shelf(target: Target, stock: Options) -> None:
    model, shelf = layers(8, 8, 5), Kept()
    alone, first, again = (build(model, target, stock, shelf=lent).to_bytes() for lent in (None, shelf, shelf))
    assert alone == first == again
    assert shelf.taken == len(shelf) > 0


def test_so_it_is_with_one_thread(stock: Options, monkeypatch: pytest.MonkeyPatch) -> None:
    model, target = layers(8, 7, 6, 5), Target.from_tag("host")
    several = build(model, target, stock).to_bytes()
    monkeypatch.setattr(kernel_objects, "THREADS", 1)
    assert build(model, target, stock).to_bytes() == several


def test_a_model_takes_what_another_left_under_another_name() -> None:
    """The second layer of the one is the first of the other, and kernels are numbered."""
    shelf, target, model = Kept(), Target.from_tag("host"), layers(16, *WIDE)
    build(layers(*WIDE), target, TILED, shelf=shelf)
    before = len(shelf)
    library = build(model, target, TILED, shelf=shelf)
    assert shelf.taken == before > 0
    assert len(shelf) > before
    x = np.random.default_rng(4).standard_normal((3, 16)).astype(np.float32)
    expected = onnxruntime.InferenceSession(model.SerializeToString()).run(None, {"x0": x})
    assert_same_sums(Engine(library.to_bytes()).run(x)["x3"], expected[0], terms=16)


def test_other_weights_need_no_other_kernels() -> None:
    shelf, target = Kept(), Target.from_tag("host")
    for seed in (1, 2):
        build(layers(*WIDE, seed=seed), target, TILED, shelf=shelf)
    assert shelf.taken == len(shelf) > 0


def test_what_depends_on_the_target_is_not_shared_between_targets(stock: Options) -> None:
    shelf, target = Kept(), Target.from_tag("x86-64/v3")
    build(layers(*NARROW), target, stock, shelf=shelf)
    build(layers(*NARROW), Target.from_tag("x86-64/v2"), stock, shelf=shelf)
    assert shelf.taken == 0
    build(layers(*NARROW), dataclasses.replace(target, tag="mine/board"), stock, shelf=shelf)
    assert shelf.taken > 0


def test_what_is_shown_is_made(tmp_path: Path, stock: Options) -> None:
    shelf, target = Kept(), Target.from_tag("x86-64/v3")
    build(layers(*NARROW), target, stock, shelf=shelf)
    build(layers(*NARROW), target, stock, shelf=shelf, dump=tmp_path)
    (assembly,) = tmp_path.glob("*-code.txt")
    assert ".globl\t__tvm_ffi_kernel_" in assembly.read_text()


def test_a_kernel_is_told_by_all_but_the_names_of_its_values() -> None:
    import tvm
    from tvm import te

    def nodes(value: str, factor: float, note: str = "a note") -> list[Any]:
        x = te.placeholder((8,), name=value)
        kernel = te.create_prim_func(
            [x, te.compute((8,), lambda i: x[i] * tvm.tirx.const(factor, "float32"), name="y")]
        )
        return without_names(tvm.ir.save_json(kernel.with_attr("note", note)))

    assert nodes("x", 0.1) == nodes("other", 0.1)
    assert nodes("x", 0.1) != nodes("x", float(np.nextafter(np.float32(0.1), np.float32(1))))
    assert "x" in [node.get("data") for node in nodes("x", 0.1, note="x")]  # one string is both
    assert "x" not in [node.get("data") for node in nodes("x", 0.1)]


def test_what_is_kept_comes_back_as_it_was() -> None:
    made = KernelObject(elf=b"\x7fELF", workspace=1 << 33, stack=7)
    assert KernelObject.of(made.to_bytes()) == made


def job(model: onnx.ModelProto, options: Options) -> Job:
    return Job(model=model, target=Target.from_tag("host"), options=options, checks=None, relax_text=False)


def test_a_compiler_of_its_own_process_reaches_the_shelf(stock: Options) -> None:
    shelf, model = Kept(), layers(*NARROW)
    first, again = (compile_in_subprocess(job(model, stock), shelf).library.to_bytes() for _ in range(2))
    assert first == again == build(model, Target.from_tag("host"), stock).to_bytes()
    assert shelf.taken == len(shelf) > 0


@pytest.mark.parametrize("name", ["take", "keep"])
def test_what_a_shelf_raises_is_raised(name: str, stock: Options, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_arguments: object) -> Callable[..., object]:
        raise StoreError("the disk", "room", "none", "free some")

    shelf = Kept()
    monkeypatch.setattr(shelf, name, fail)
    with pytest.raises(StoreError, match="the disk"):
        compile_in_subprocess(job(layers(*NARROW), stock), shelf)
