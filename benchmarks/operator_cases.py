"""Models of one operator each, over images, a few numbers and large maps: what `benchmarks.operators` measures."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

OPSET = 22
NAMES = ("batch", "channels", "height", "width")


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """An operator with its attributes and constants, and the shape of the image that it reads.

    ``operands``: further inputs, before the constants. ``kind``: the type of the numbers that it reads.
    ``is_quantized``: it stands between DequantizeLinear and QuantizeLinear, so that it runs in bytes.
    """

    operator: str
    attributes: Mapping[str, Any] = field(default_factory=dict)
    operands: Sequence[np.ndarray] = ()
    constants: Sequence[np.ndarray] = ()
    shape: Sequence[int] = (1, 32, 64, 64)
    kind: str = "float32"
    is_quantized: bool = False
    can_be_open: bool = True
    results: int = 1

    def inputs(self) -> dict[str, np.ndarray]:
        """Return what the model is given."""
        random = np.random.default_rng(0)
        if self.is_quantized:
            image = random.integers(0, 256, self.shape).astype(np.uint8)
        elif self.kind.startswith("float"):
            image = random.standard_normal(self.shape).astype(self.kind)
        else:
            image = random.integers(0, 2 if self.kind == "bool" else 100, self.shape).astype(self.kind)
        return {"x": image, **{f"x{number}": value for number, value in enumerate(self.operands)}}

    def model(self, *, is_open: bool) -> onnx.ModelProto:
        """Return the model: batch, height and width are open, or known."""
        given = self.inputs()
        weights = [numpy_helper.from_array(value, f"c{number}") for number, value in enumerate(self.constants)]
        results = [f"y{number}" for number in range(self.results)]
        nodes = [helper.make_node(self.operator, [*given, *(w.name for w in weights)], results, **self.attributes)]
        if self.is_quantized:
            nodes, weights = _in_bytes(self, list(given), weights)
            results = ["q"]
        ports = [
            helper.make_tensor_value_info(
                name, helper.np_dtype_to_tensor_dtype(value.dtype), self._open(value.shape) if is_open else value.shape
            )
            for name, value in given.items()
        ]
        made = [onnx.ValueInfoProto(name=name) for name in results]
        graph = helper.make_graph(nodes, "operator", ports, made, weights)
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", OPSET)], ir_version=10)
        model = onnx.shape_inference.infer_shapes(model)
        for port in model.graph.output:
            if not port.type.WhichOneof("value"):
                port.type.tensor_type.elem_type = TensorProto.FLOAT
        return model

    def _open(self, shape: Sequence[int]) -> Sequence[int | str]:
        """Return a shape in which the extents that are the image's have names, but for its channels."""
        if len(shape) != len(self.shape):
            return shape
        names = NAMES if len(shape) == 4 else ("batch", "length", "channels")[: len(shape)]
        return [
            size if size != own or size == 1 or (name == "channels" and len(shape) > 2) else name
            for name, size, own in zip(names, shape, self.shape, strict=False)
        ]


def _in_bytes(
    case: Case, given: Sequence[str], weights: list[onnx.TensorProto]
) -> tuple[list[onnx.NodeProto], list[onnx.TensorProto]]:
    """Return an operator of bytes: what it reads dequantized, what it makes quantized."""
    constants = [
        numpy_helper.from_array(np.array(0.02, np.float32), "scale"),
        numpy_helper.from_array(np.array(128, np.uint8), "zero"),
    ]
    nodes = [helper.make_node("DequantizeLinear", [name, "scale", "zero"], [f"{name}f"]) for name in given]
    read = [*(f"{name}f" for name in given), *(weight.name for weight in weights)]
    nodes.append(helper.make_node(case.operator, read, ["y"], **case.attributes))
    nodes.append(helper.make_node("QuantizeLinear", ["y", "scale", "zero"], ["q"]))
    return nodes, [*weights, *constants]


def _numbers(*values: int) -> list[np.ndarray]:
    return [np.array(values, np.int64)]


def _channels() -> list[np.ndarray]:
    return [np.ones(32, np.float32), np.zeros(32, np.float32)]


def _image(*shape: int, kind: str = "float32") -> list[np.ndarray]:
    random = np.random.default_rng(1)
    if kind == "bool":
        return [random.integers(0, 2, shape).astype(bool)]
    return [random.standard_normal(shape).astype(kind)]


def _indices(most: int, *shape: int) -> list[np.ndarray]:
    return [np.random.default_rng(2).integers(0, most, shape).astype(np.int64)]


def _grid() -> list[np.ndarray]:
    return [np.random.default_rng(3).uniform(-1, 1, (1, 64, 64, 2)).astype(np.float32)]


def _offsets() -> list[np.ndarray]:
    return [np.random.default_rng(4).uniform(-2, 2, (1, 18, 64, 64)).astype(np.float32)]


def _resize(mode: str, scale: float, **more: Any) -> Case:
    attributes = {"mode": mode, **more}
    none = np.array([], np.float32)
    return Case(
        operator="Resize", attributes=attributes, constants=[none, np.array([1, 1, scale, scale], np.float32)],
        shape=(1, 32, 32, 32),
    )  # fmt: skip


ODD = (1, 32, 60, 60)
ROWS = (1, 128, 384)
AROUND = {"kernel_shape": [3, 3], "pads": [1, 1, 1, 1]}
EDGES = _numbers(0, 0, 2, 2, 0, 0, 2, 2)
IMAGE = (1, 32, 64, 64)
WINDOWS: Mapping[str, Case] = {
    "max pool 3 x 3": Case(operator="MaxPool", attributes=AROUND),
    "max pool 3 x 3, stride 2": Case(operator="MaxPool", attributes={**AROUND, "strides": [2, 2]}),
    "max pool 2 x 2, stride 2": Case(operator="MaxPool", attributes={"kernel_shape": [2, 2], "strides": [2, 2]}),
    "max pool 9 x 9 of a map": Case(
        operator="MaxPool", attributes={"kernel_shape": [9, 9], "pads": [4] * 4}, shape=(1, 1, 240, 240)
    ),
    "average pool 3 x 3": Case(operator="AveragePool", attributes=AROUND),
    "average pool 2 x 2, stride 2": Case(
        operator="AveragePool", attributes={"kernel_shape": [2, 2], "strides": [2, 2]}
    ),
    "global average": Case(operator="GlobalAveragePool"),
    "global maximum": Case(operator="GlobalMaxPool"),
    "local response": Case(operator="LRN", attributes={"size": 5}),
    "resize nearest 2": _resize("nearest", 2.0, coordinate_transformation_mode="asymmetric", nearest_mode="floor"),
    "resize nearest 1.7": _resize("nearest", 1.7),
    "resize linear 2": _resize("linear", 2.0),
    "resize linear 1.7": _resize("linear", 1.7),
    "resize cubic 2": _resize("cubic", 2.0),
    "grid sample": Case(operator="GridSample", operands=_grid()),
    "deformable convolution 3 x 3": Case(
        operator="DeformConv",
        attributes={"pads": [1] * 4, "kernel_shape": [3, 3]},
        can_be_open=False,
        constants=[np.full((32, 32, 3, 3), 0.003, np.float32), *_offsets()],
    ),
    "convolution 1 x 1": Case(operator="Conv", constants=[np.full((32, 32, 1, 1), 0.03, np.float32)]),
    "convolution 3 x 3": Case(
        operator="Conv", attributes={"pads": [1] * 4}, constants=[np.full((32, 32, 3, 3), 0.003, np.float32)]
    ),
}
"""Operators that read a window, or several pixels, of an image."""

MOVES: Mapping[str, Case] = {
    "pad, constant": Case(operator="Pad", constants=EDGES),
    "pad, edge": Case(operator="Pad", attributes={"mode": "edge"}, constants=EDGES),
    "pad, reflect": Case(operator="Pad", attributes={"mode": "reflect"}, constants=EDGES),
    "pad, wrap": Case(operator="Pad", attributes={"mode": "wrap"}, constants=EDGES),
    **{
        f"transpose {''.join(map(str, order))}": Case(operator="Transpose", attributes={"perm": list(order)})
        for order in (
            (0, 2, 3, 1), (0, 1, 3, 2), (0, 2, 1, 3), (0, 3, 1, 2), (0, 3, 2, 1), (1, 0, 2, 3),
            (3, 2, 1, 0), (2, 3, 0, 1),
        )
    },
    "transpose 512 x 512": Case(operator="Transpose", attributes={"perm": [1, 0]}, shape=(512, 512)),
    "transpose heads": Case(operator="Transpose", attributes={"perm": [0, 2, 1, 3]}, shape=(1, 128, 12, 32)),
    "transpose keys": Case(operator="Transpose", attributes={"perm": [0, 2, 3, 1]}, shape=(1, 128, 12, 32)),
    "join channels": Case(operator="Concat", attributes={"axis": 1}, operands=_image(*IMAGE)),
    "join rows": Case(operator="Concat", attributes={"axis": 3}, operands=_image(*IMAGE)),
    "split channels": Case(operator="Split", attributes={"axis": 1, "num_outputs": 2}, results=2),
    "split rows": Case(operator="Split", attributes={"axis": 3, "num_outputs": 2}, results=2, can_be_open=False),
    "slice, steps of 2": Case(
        operator="Slice", constants=[*_numbers(0, 0), *_numbers(99, 99), *_numbers(2, 3), *_numbers(2, 2)]
    ),
    "slice, backwards": Case(
        operator="Slice", constants=[*_numbers(-1), *_numbers(-99), *_numbers(3), *_numbers(-1)]
    ),
    "slice": Case(operator="Slice", constants=[*_numbers(1, 1), *_numbers(61, 61), *_numbers(2, 3)]),
    "depth to space": Case(operator="DepthToSpace", attributes={"blocksize": 2}),
    "depth to space, CRD": Case(operator="DepthToSpace", attributes={"blocksize": 2, "mode": "CRD"}),
    "space to depth": Case(operator="SpaceToDepth", attributes={"blocksize": 2}),
    "gather channels": Case(operator="Gather", attributes={"axis": 1}, operands=_indices(32, 16)),
    "gather columns": Case(operator="Gather", attributes={"axis": 3}, operands=_indices(64, 32)),
    "gather, embedding": Case(
        operator="Gather", operands=_indices(1000, 1, 128), shape=(1000, 384), can_be_open=False
    ),
    "gather elements": Case(operator="GatherElements", attributes={"axis": 3}, operands=_indices(64, *IMAGE)),
    "gather nd": Case(operator="GatherND", operands=_indices(32, 256, 2), shape=(32, 64, 64), can_be_open=False),
    "scatter nd": Case(
        operator="ScatterND", operands=[*_indices(32, 16, 2), *_image(16, 64)], shape=(32, 64, 64), can_be_open=False
    ),
    "scatter elements": Case(
        operator="ScatterElements", attributes={"axis": 1},
        operands=[*_indices(4096, 64, 256), *_image(64, 256)], shape=(64, 4096), can_be_open=False,
    ),
    "expand": Case(operator="Expand", constants=_numbers(1, 32, 64, 64), shape=(1, 32, 1, 1)),
    "tile": Case(operator="Tile", constants=_numbers(1, 1, 2, 2), shape=(1, 32, 32, 32)),
    "cast to int32": Case(operator="Cast", attributes={"to": TensorProto.INT32}),
    "cast to int64": Case(operator="Cast", attributes={"to": TensorProto.INT64}),
    "cast from int64": Case(operator="Cast", attributes={"to": TensorProto.FLOAT}, kind="int64"),
    "cast to float16": Case(operator="Cast", attributes={"to": TensorProto.FLOAT16}),
    "cast from float16": Case(operator="Cast", attributes={"to": TensorProto.FLOAT}, kind="float16"),
    "cast to bool": Case(operator="Cast", attributes={"to": TensorProto.BOOL}),
    "cast from uint8": Case(operator="Cast", attributes={"to": TensorProto.FLOAT}, kind="uint8"),
}  # fmt: skip
"""Operators that put numbers elsewhere, or say them in another type."""

REDUCTIONS: Mapping[str, Case] = {
    "sum of rows": Case(operator="ReduceSum", constants=_numbers(3)),
    "sum of rows of 60": Case(operator="ReduceSum", constants=_numbers(3), shape=ODD),
    "product of rows": Case(operator="ReduceProd", constants=_numbers(3)),
    "maximum of rows": Case(operator="ReduceMax", constants=_numbers(3)),
    "mean of rows": Case(operator="ReduceMean", constants=_numbers(2), shape=ROWS),
    "mean of channels": Case(operator="ReduceMean", constants=_numbers(1)),
    "mean of pixels": Case(operator="ReduceMean", constants=_numbers(2, 3)),
    "sum of columns": Case(operator="ReduceSum", constants=_numbers(2)),
    "sum of all": Case(operator="ReduceSum"),
    "L2 of rows": Case(operator="ReduceL2", constants=_numbers(3)),
    "log of sums of exp": Case(operator="ReduceLogSumExp", constants=_numbers(3)),
    "argmax of channels": Case(operator="ArgMax", attributes={"axis": 1}),
    "argmax of rows": Case(operator="ArgMax", attributes={"axis": 3}),
    "argmax of 1000": Case(operator="ArgMax", attributes={"axis": 1}, shape=(1, 1000)),
    "top 5 of 1000": Case(operator="TopK", constants=_numbers(5), shape=(1, 1000), results=2),
    "top 5 of rows": Case(operator="TopK", constants=_numbers(5), results=2),
    "top 100 of 8400": Case(operator="TopK", constants=_numbers(100), shape=(1, 8400), results=2),
    "running sums of rows": Case(operator="CumSum", constants=[np.array(3, np.int64)]),
    "running sums of columns": Case(operator="CumSum", constants=[np.array(2, np.int64)]),
    "instance normalization": Case(operator="InstanceNormalization", constants=_channels()),
    "instance normalization, 60": Case(operator="InstanceNormalization", constants=_channels(), shape=ODD),
    "group normalization": Case(operator="GroupNormalization", attributes={"num_groups": 4}, constants=_channels()),
    "batch normalization": Case(operator="BatchNormalization", constants=[*_channels(), *_channels()[::-1]]),
    "layer normalization": Case(
        operator="LayerNormalization", constants=[np.ones(384, np.float32), np.zeros(384, np.float32)], shape=ROWS
    ),
    "layer normalization, 100": Case(
        operator="LayerNormalization",
        constants=[np.ones(100, np.float32), np.zeros(100, np.float32)], shape=(1, 128, 100),
    ),
    "softmax of rows": Case(operator="Softmax", attributes={"axis": 3}),
    "softmax of rows of 60": Case(operator="Softmax", attributes={"axis": 3}, shape=ODD),
    "softmax of 1000": Case(operator="Softmax", shape=(1, 1000)),
    "softmax of channels": Case(operator="Softmax", attributes={"axis": 1}),
    "log softmax of rows": Case(operator="LogSoftmax", attributes={"axis": 3}),
    "Lp normalization": Case(operator="LpNormalization", attributes={"axis": 1}),
}  # fmt: skip
"""Operators of which a result is made of a row, or of all."""

UNARY = (
    "Relu", "Sigmoid", "Tanh", "Erf", "Gelu", "HardSwish", "HardSigmoid", "Softplus", "Mish", "Elu", "Selu",
    "LeakyRelu",
    "Exp", "Log", "Sqrt", "Reciprocal", "Abs", "Neg", "Sign", "Floor", "Round", "Sin", "Cos", "Softsign", "Celu",
    "ThresholdedRelu", "IsNaN", "Identity",
)  # fmt: skip
ELEMENTS: Mapping[str, Case] = {
    **{name.lower(): Case(operator=name) for name in UNARY},
    "relu, 60": Case(operator="Relu", shape=ODD),
    "sigmoid, 60": Case(operator="Sigmoid", shape=ODD),
    "gelu of tanh": Case(operator="Gelu", attributes={"approximate": "tanh"}),
    "clip": Case(operator="Clip", constants=[np.array(0, np.float32), np.array(6, np.float32)]),
    "prelu": Case(operator="PRelu", constants=[np.full((32, 1, 1), 0.1, np.float32)]),
    "power of 2": Case(operator="Pow", constants=[np.array(2, np.float32)]),
    "power of 1.7": Case(operator="Pow", constants=[np.array(1.7, np.float32)]),
    "times a row, 60": Case(operator="Mul", constants=[np.ones(60, np.float32)], shape=ODD, can_be_open=False),
    "times a channel, 60": Case(operator="Mul", constants=[np.ones((32, 1, 1), np.float32)], shape=ODD),
    "add": Case(operator="Add", operands=_image(*IMAGE)),
    "add, 60": Case(operator="Add", operands=_image(*ODD), shape=ODD),
    "add a number": Case(operator="Add", constants=[np.array(1, np.float32)]),
    "divide": Case(operator="Div", operands=_image(*IMAGE)),
    "times scales": Case(operator="Mul", operands=_image(1, 32, 1, 1)),
    "maximum": Case(operator="Max", operands=_image(*IMAGE)),
    "modulo": Case(operator="Mod", attributes={"fmod": 1}, operands=_image(*IMAGE)),
    "greater": Case(operator="Greater", operands=_image(*IMAGE)),
    "greater than a number": Case(operator="Greater", constants=[np.array(0.5, np.float32)]),
    "equal": Case(operator="Equal", operands=_image(*IMAGE)),
    "and": Case(operator="And", operands=_image(*IMAGE, kind="bool"), kind="bool"),
    "not": Case(operator="Not", kind="bool"),
    "where": Case(operator="Where", operands=[*_image(*IMAGE), *_image(*IMAGE)], kind="bool"),
    "where, a number": Case(
        operator="Where", operands=_image(*IMAGE), constants=[np.array(-1, np.float32)], kind="bool"
    ),
    "add int64": Case(operator="Add", operands=_indices(50, *IMAGE), kind="int64"),
}
"""Operators that compute each result by itself."""

BYTES: Mapping[str, Case] = {
    "bytes: max pool": Case(operator="MaxPool", attributes=AROUND, is_quantized=True),
    "bytes: average pool": Case(operator="AveragePool", attributes=AROUND, is_quantized=True),
    "bytes: global average": Case(operator="GlobalAveragePool", is_quantized=True),
    "bytes: add": Case(
        operator="Add", operands=[np.random.default_rng(4).integers(0, 256, IMAGE).astype(np.uint8)], is_quantized=True
    ),
    "bytes: multiply": Case(
        operator="Mul", operands=[np.random.default_rng(4).integers(0, 256, IMAGE).astype(np.uint8)], is_quantized=True
    ),
    "bytes: join": Case(
        operator="Concat", attributes={"axis": 1}, is_quantized=True,
        operands=[np.random.default_rng(4).integers(0, 256, IMAGE).astype(np.uint8)],
    ),
    "bytes: sigmoid": Case(operator="Sigmoid", is_quantized=True),
    "bytes: softmax": Case(operator="Softmax", attributes={"axis": 3}, is_quantized=True),
    "bytes: transpose": Case(operator="Transpose", attributes={"perm": [0, 2, 3, 1]}, is_quantized=True),
    "quantize": Case(operator="QuantizeLinear", constants=[np.array(0.02, np.float32), np.array(128, np.uint8)]),
    "dequantize": Case(
        operator="DequantizeLinear", constants=[np.array(0.02, np.float32), np.array(128, np.uint8)], kind="uint8"
    ),
}  # fmt: skip
"""Operators of quantized models."""

IMAGES: Mapping[str, Case] = {**WINDOWS, **MOVES, **REDUCTIONS, **ELEMENTS, **BYTES}

TINY: Mapping[str, Case] = {
    f"{name} of 64": replace(IMAGES[name], shape=(1, 64))
    for name in ("relu", "sigmoid", "tanh", "add a number", "clip", "softmax of 1000", "argmax of 1000", "gelu")
}
LARGE: Mapping[str, Case] = {
    f"{name}, large": replace(IMAGES[name], shape=(1, 32, 256, 256))
    for name in (
        "relu", "sigmoid", "max pool 3 x 3", "pad, reflect", "sum of rows", "mean of channels",
        "softmax of rows", "softmax of channels", "transpose 0231", "argmax of channels", "add a number", "slice",
        "instance normalization",
    )
}  # fmt: skip
CASES: Mapping[str, Case] = {**IMAGES, **TINY, **LARGE}
