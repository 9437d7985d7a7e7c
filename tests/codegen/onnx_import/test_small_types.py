"""Types of 8 bits and fewer: every byte is read as ml_dtypes reads it, and every float rounded as ONNX's Cast says."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator

from forge_pipeline import RelaxModule
from forge_pipeline.codegen.build import build
from forge_pipeline.codegen.options import Options
from forge_pipeline.errors import CompileError, DataError
from forge_pipeline.ir.tensors import DTYPES, SMALL
from forge_pipeline.target import Target
from forge_runtime.engine import Engine

Array = np.ndarray[Any, Any]

FLOATS = sorted(number for number in SMALL if DTYPES[number].startswith("float") and number != TensorProto.FLOAT8E8M0)
INTEGERS = sorted(number for number in SMALL if "int" in DTYPES[number])
EIGHT_BITS = [number for number in FLOATS if "8" in DTYPES[number]]


def small(number: int) -> Any:
    return getattr(ml_dtypes, DTYPES[number])


def model_of(
    nodes: list[onnx.NodeProto],
    inputs: Mapping[str, tuple[int, list[Any]]],
    outputs: Mapping[str, int],
    constants: Mapping[str, Array] | None = None,
) -> onnx.ModelProto:
    graph = helper.make_graph(
        nodes,
        "small",
        [helper.make_tensor_value_info(name, kind, shape) for name, (kind, shape) in inputs.items()],
        [helper.make_tensor_value_info(name, kind, None) for name, kind in outputs.items()],
        [numpy_helper.from_array(array, name) for name, array in (constants or {}).items()],
    )
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 25)], ir_version=11)
    return onnx.shape_inference.infer_shapes(made)


def compiled(model: onnx.ModelProto) -> Engine:
    options = Options(generator="tiled", opt_level=3, float16=False, channel_layout=None)
    return Engine(build(model, Target.from_tag("host"), options).to_bytes(), threads=1)


def assert_same(found: list[Array], expected: list[Array]) -> None:
    """Same types, same bytes, but for the bits of NaN."""
    assert [array.dtype for array in found] == [array.dtype for array in expected]
    for have, want in zip(found, expected, strict=True):
        if "int" in str(want.dtype):
            np.testing.assert_array_equal(have.astype(np.int64), want.astype(np.int64))
            continue
        a, b = have.astype(np.float64), want.astype(np.float64)
        np.testing.assert_array_equal(a, b, err_msg=str(want.dtype))
        np.testing.assert_array_equal(np.signbit(a[~np.isnan(a)]), np.signbit(b[~np.isnan(b)]))


def exact() -> Array:
    """Return every number of every type, and what lies half-way between two of one of them."""
    found = []
    for kind in FLOATS:
        own = np.unique(np.arange(256, dtype=np.uint8).view(small(kind)).astype(np.float32))
        own = own[np.isfinite(own)]
        found += [own, (own[1:] + own[:-1]) / np.float32(2)]
    return np.unique(np.concatenate(found))


def floats() -> Array:
    """Return ``exact``, the floats beside each, and what is out of range."""
    beyond = np.array([1e5, 1e30, 3e38, 1e-7, 1e-30, 1e-45, 232, 464, 465, 61440, 61441], np.float32)
    numbers = np.concatenate([exact(), beyond, -beyond])
    near = [np.nextafter(numbers, np.float32(way)) for way in (-np.inf, np.inf)]
    return np.concatenate([numbers, *near, np.array([0.0, -0.0, np.inf, -np.inf, np.nan], np.float32)])


def test_every_byte_is_read_as_its_number() -> None:
    kinds = sorted(SMALL)
    nodes = [helper.make_node("Cast", [f"x{kind}"], [f"y{kind}"], to=TensorProto.FLOAT) for kind in kinds]
    engine = compiled(
        model_of(
            nodes,
            {f"x{kind}": (kind, ["N"]) for kind in kinds},
            {f"y{kind}": TensorProto.FLOAT for kind in kinds},
        )
    )
    codes = [np.arange(1 << ml_bits(kind), dtype=np.uint8).view(small(kind)) for kind in kinds]
    longest = max(len(code) for code in codes)
    arrays = [np.tile(code.view(np.uint8), longest // len(code)).view(code.dtype) for code in codes]
    assert_same(engine(*arrays), [array.astype(np.float32) for array in arrays])


def ml_bits(kind: int) -> int:
    about = ml_dtypes.iinfo(small(kind)) if kind in INTEGERS else ml_dtypes.finfo(small(kind))
    return int(about.bits)


def cast(dtype: int, saturate: int) -> onnx.ModelProto:
    """Return a model that casts its input, of ``dtype``, to every type of floats."""
    nodes = [helper.make_node("Cast", ["x"], [f"y{kind}"], to=kind, saturate=saturate) for kind in FLOATS]
    return model_of(nodes, {"x": (dtype, ["N"])}, {f"y{kind}": kind for kind in FLOATS})


@pytest.mark.every(2)
@pytest.mark.parametrize("saturate", [1, 0])
def test_floats_are_rounded_as_the_reference_rounds_them(saturate: int) -> None:
    model, x = cast(TensorProto.FLOAT, saturate), floats()
    with np.errstate(all="ignore"):
        assert_same(compiled(model)(x), ReferenceEvaluator(model).run(None, {"x": x}))


def test_floats_of_64_bits_are_rounded_once() -> None:
    numbers = exact()
    x = numbers.astype(np.float64) * (1 + 2.0**-50)
    away = np.where(numbers == 0, numbers, np.nextafter(numbers, np.copysign(np.float32(np.inf), numbers)))
    with np.errstate(all="ignore"):
        expected = ReferenceEvaluator(cast(TensorProto.FLOAT, 1)).run(None, {"x": away})
    assert_same(compiled(cast(TensorProto.DOUBLE, 1))(x), expected)


POWERS = np.array(
    [0, 1e-45, 2.0**-128, 2.0**-127, 2.0**-126, 1.5 * 2.0**-127, 0.124, 0.25, 1.0, 1.25, 1.5, 1.75, 2.0, 3.0, 5.0,
     2.0**127, 1.25 * 2.0**127, 3.4e38, np.inf, np.nan],
    np.float32,
)  # fmt: skip
LEAST, MOST, NONE = 0, 254, 255


@pytest.mark.parametrize(
    ("mode", "saturate", "ends"),
    [
        ("up", 1, [*[LEAST] * 4, 1, 1, 124, 125, 127, 128, 128, 128, 128, 129, 130, *[MOST] * 4, NONE]),
        ("down", 1, [*[LEAST] * 4, 1, 0, 123, 125, 127, 127, 127, 127, 128, 128, 129, *[MOST] * 4, NONE]),
        ("nearest", 1, [*[LEAST] * 4, 1, 1, 124, 125, 127, 127, 128, 128, 128, 129, 129, *[MOST] * 4, NONE]),
        ("nearest", 0, [*[NONE] * 3, 0, 1, 1, 124, 125, 127, 127, 128, 128, 128, 129, 129, MOST, *[NONE] * 4]),
    ],
)
def test_powers_of_two_are_rounded_and_saturate_as_the_tables_of_cast_say(
    mode: str, saturate: int, ends: list[int]
) -> None:
    kind = TensorProto.FLOAT8E8M0
    node = helper.make_node("Cast", ["x"], ["y"], to=kind, round_mode=mode, saturate=saturate)
    (found,) = compiled(model_of([node], {"x": (TensorProto.FLOAT, ["N"])}, {"y": kind}))(POWERS)
    assert found.view(np.uint8).tolist() == ends


@pytest.mark.parametrize("dtype", ["float32", "int64"])
def test_integers_lose_their_higher_bits(dtype: str) -> None:
    nodes = [helper.make_node("Cast", ["x"], [f"y{kind}"], to=kind) for kind in INTEGERS]
    given = {"float32": TensorProto.FLOAT, "int64": TensorProto.INT64}[dtype]
    x = np.arange(-40, 40).astype(dtype)
    found = compiled(model_of(nodes, {"x": (given, ["N"])}, {f"y{kind}": kind for kind in INTEGERS}))(x)
    assert_same(found, [x.astype(np.int64).astype(small(kind)) for kind in INTEGERS])
    assert all((array.view(np.uint8) < 16).all() for array in found)


SOME = [TensorProto.INT4, TensorProto.FLOAT4E2M1, TensorProto.FLOAT8E5M2]
AXES: Mapping[str, tuple[list[int], dict[str, int], list[int]]] = {
    "one scale": ([], {}, [*INTEGERS, TensorProto.FLOAT4E2M1, *EIGHT_BITS]),
    "a scale for each row": ([3], {"axis": 0}, SOME),
    "a scale for each column": ([8], {"axis": -1}, SOME),
    "a scale for each block": ([3, 2], {"axis": 1, "block_size": 4}, SOME),
}


@pytest.mark.every(6)
@pytest.mark.parametrize("way", AXES)
def test_what_is_quantized_and_dequantized_is_what_the_reference_gives(way: str) -> None:
    shape, attributes, kinds = AXES[way]
    rng = np.random.default_rng(3)
    constants = {"scale": rng.uniform(0.25, 0.5, shape).astype(np.float32)}
    nodes = []
    for kind in kinds:
        constants[f"z{kind}"] = np.ones(shape).astype(small(kind)) if kind in INTEGERS else np.zeros(shape, small(kind))
        operands = ["scale", f"z{kind}"]
        nodes += [
            helper.make_node("QuantizeLinear", ["x", *operands], [f"q{kind}"], **attributes),
            helper.make_node("Transpose", [f"q{kind}"], [f"t{kind}"], perm=[1, 0]),
            helper.make_node("Transpose", [f"t{kind}"], [f"u{kind}"], perm=[1, 0]),
            helper.make_node("DequantizeLinear", [f"u{kind}", *operands], [f"y{kind}"], **attributes),
        ]
    outputs = {f"{name}{kind}": kind if name == "q" else TensorProto.FLOAT for kind in kinds for name in "qy"}
    model = model_of(nodes, {"x": (TensorProto.FLOAT, [3, 8])}, outputs, constants)
    x = rng.normal(0, 2, (3, 8)).astype(np.float32)
    assert_same(compiled(model)(x), ReferenceEvaluator(model).run(None, {"x": x}))


def test_a_constant_zero_point_keeps_the_type_of_the_result() -> None:
    """A constant of 4 bits is widened where it is only dequantized: not where it says what others are."""
    nodes = [
        helper.make_node("QuantizeLinear", ["x", "scale", "zero"], ["q"]),
        helper.make_node("CastLike", ["x", "zero"], ["c"]),
        helper.make_node("DequantizeLinear", ["weight", "scale", "zero"], ["y"]),
    ]
    int4 = ml_dtypes.int4
    constants = {
        "scale": np.array(0.5, np.float32),
        "zero": np.array(-1).astype(int4),
        "weight": np.arange(-8, 8).astype(int4),
    }
    outputs = {"q": TensorProto.INT4, "c": TensorProto.INT4, "y": TensorProto.FLOAT}
    model = model_of(nodes, {"x": (TensorProto.FLOAT, [4])}, outputs, constants)
    x = np.array([-100, -1.25, 1.75, 100], np.float32)
    found = compiled(model)(x)
    assert_same(found[:1] + found[2:], [np.array([-8, -3, 3, 7]).astype(int4), np.arange(-7, 9, dtype=np.float32) / 2])


@pytest.mark.parametrize("way", AXES)
def test_weights_of_small_floats_are_dequantized_when_the_model_is_compiled(way: str) -> None:
    shape, attributes, _ = AXES[way]
    rng = np.random.default_rng(5)
    kind = small(TensorProto.FLOAT8E4M3FN)
    constants = {
        "weight": rng.normal(0, 2, (3, 8)).astype(kind),
        "scale": rng.uniform(0.25, 0.5, shape).astype(np.float32),
        "zero": np.zeros(shape, kind),
    }
    nodes = [
        helper.make_node("DequantizeLinear", ["weight", "scale", "zero"], ["real"], **attributes),
        helper.make_node("Add", ["x", "real"], ["y"]),
    ]
    model = model_of(nodes, {"x": (TensorProto.FLOAT, [3, 8])}, {"y": TensorProto.FLOAT}, constants)
    x = rng.normal(0, 2, (3, 8)).astype(np.float32)
    engine = compiled(model)
    assert_same(engine(x), ReferenceEvaluator(model).run(None, {"x": x}))
    assert [kernel.name for kernel in engine.profile(x, runs=1)] == ["add"]


def test_a_loop_carries_bytes() -> None:
    kind = TensorProto.FLOAT8E4M3FN

    def graph(name: str, nodes: list[onnx.NodeProto], inputs: list[Any], outputs: list[Any]) -> onnx.GraphProto:
        return helper.make_graph(nodes, name, inputs, outputs)

    body = graph(
        "body",
        [
            helper.make_node("Cast", ["v"], ["w"], to=TensorProto.FLOAT),
            helper.make_node("Add", ["w", "w"], ["s"]),
            helper.make_node("Cast", ["s"], ["next"], to=kind),
            helper.make_node("Identity", ["go"], ["on"]),
            helper.make_node("Identity", ["v"], ["share"]),
        ],
        [
            helper.make_tensor_value_info("i", TensorProto.INT64, []),
            helper.make_tensor_value_info("go", TensorProto.BOOL, []),
            helper.make_tensor_value_info("v", kind, [3]),
        ],
        [
            helper.make_tensor_value_info("on", TensorProto.BOOL, []),
            helper.make_tensor_value_info("next", kind, [3]),
            helper.make_tensor_value_info("share", kind, [3]),
        ],
    )
    loop = helper.make_node("Loop", ["n", "", "x"], ["last", "all"], body=body)
    inputs = {"n": (TensorProto.INT64, []), "x": (kind, [3])}
    engine = compiled(model_of([loop], inputs, {"last": kind, "all": kind}))
    x = np.array([1, -0.5, 300]).astype(small(kind))
    wide = x.astype(np.float32)
    steps = [np.clip(wide * 2.0**turn, -448, 448).astype(x.dtype) for turn in range(4)]
    assert_same(engine(np.array(3), x), [steps[3], np.stack(steps[:3])])
    empty = engine(np.array(0), x)
    assert_same(empty, [x, np.zeros((0, 3), x.dtype)])


def test_what_would_compute_with_such_elements_is_refused() -> None:
    kind = TensorProto.FLOAT8E5M2
    node = helper.make_node("IsNaN", ["x"], ["y"])
    with pytest.raises(CompileError, match="converted, but not computed with"):
        compiled(model_of([node], {"x": (kind, [2])}, {"y": TensorProto.BOOL}))


def test_a_module_of_relax_has_no_such_inputs() -> None:
    node = helper.make_node("Cast", ["x"], ["y"], to=TensorProto.FLOAT)
    model = model_of([node], {"x": (TensorProto.INT4, [2])}, {"y": TensorProto.FLOAT})
    with pytest.raises(CompileError, match="int4"):
        RelaxModule.from_onnx(model)


def test_arrays_of_another_type_are_refused_also_bytes() -> None:
    kind = TensorProto.INT4
    node = helper.make_node("Cast", ["x"], ["y"], to=TensorProto.FLOAT)
    engine = compiled(model_of([node], {"x": (kind, [2])}, {"y": TensorProto.FLOAT}))
    with pytest.raises(DataError, match="int4"):
        engine(np.zeros(2, np.uint8))
    assert engine.metadata["inputs"][0]["dtype"] == "int4"
