"""Random models that are full of what passes look for."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper

Shape = tuple[int, ...]


class Grower:
    """Adds random nodes to a graph; remembers the shape of every float value."""

    def __init__(self, draw: Callable[[Any], Any]) -> None:
        self.draw = draw
        self.random = np.random.default_rng(draw(st.integers(0, 2**31)))
        self.nodes: list[onnx.NodeProto] = []
        self.constants: dict[str, Any] = {}
        self.shapes: dict[str, Shape] = {}
        self.names = 0

    def name(self) -> str:
        self.names += 1
        return f"t{self.names}"

    def constant(self, array: Any) -> str:
        name = self.name()
        if self.draw(st.integers(0, 3)) == 0:
            self.nodes.append(
                helper.make_node("Constant", [], [name], value=numpy_helper.from_array(np.asarray(array)))
            )
        else:
            self.constants[name] = np.asarray(array)
        return name

    def floats(self, *shape: int) -> str:
        return self.constant(self.random.normal(size=shape).astype(np.float32))

    def node(self, op: str, inputs: list[str], shape: Shape | None, **attributes: Any) -> str:
        name = self.name()
        self.nodes.append(helper.make_node(op, inputs, [name], **attributes))
        if shape is not None:
            self.shapes[name] = shape
        return name

    def pick(self, rank: int | None = None) -> str | None:
        names = [name for name, shape in self.shapes.items() if rank is None or len(shape) == rank]
        return self.draw(st.sampled_from(names)) if names else None

    def grow(self) -> None:
        self.draw(st.sampled_from(GROWTHS))(self)


def _unary(g: Grower) -> None:
    x = g.pick()
    op = g.draw(st.sampled_from(["Relu", "Sigmoid", "Tanh", "Identity", "Neg", "Abs", "Dropout", "Softplus", "Elu"]))
    g.node(op, [x], g.shapes[x])


def _clip(g: Grower) -> None:
    x = g.pick()
    low, high = sorted(g.random.normal(size=2).astype(np.float32))
    names = [x, g.constant(np.float32(low)) if g.draw(st.booleans()) else ""]
    g.node("Clip", [*names, g.constant(np.float32(high))], g.shapes[x])


def _neutral(g: Grower) -> None:
    x = g.pick()
    op, value = g.draw(st.sampled_from([("Add", 0), ("Sub", 0), ("Mul", 1), ("Div", 1), ("Pow", 1)]))
    shape = g.draw(st.sampled_from([(), (1,), tuple(1 for _ in g.shapes[x])]))
    g.node(op, [x, g.constant(np.full(shape, value, np.float32))], g.shapes[x])


def _scale(g: Grower) -> None:
    x = g.pick()
    shape = tuple(dim if g.draw(st.booleans()) else 1 for dim in g.shapes[x])
    op = g.draw(st.sampled_from(["Add", "Sub", "Mul", "Div"]))
    names = [x, g.constant(g.random.uniform(0.5, 2, shape).astype(np.float32))]
    if op != "Div" and g.draw(st.booleans()):
        names.reverse()
    g.node(op, names, g.shapes[x])


def _binary(g: Grower) -> None:
    x = g.pick()
    same = [name for name, shape in g.shapes.items() if shape == g.shapes[x]]
    g.node(g.draw(st.sampled_from(["Add", "Mul", "Sub", "Max"])), [x, g.draw(st.sampled_from(same))], g.shapes[x])


def _transpose(g: Grower) -> None:
    x = g.pick()
    order = g.draw(st.permutations(range(len(g.shapes[x]))))
    g.node("Transpose", [x], tuple(g.shapes[x][axis] for axis in order), perm=list(order))


def _reshape(g: Grower) -> None:
    x = g.pick()
    size = int(np.prod(g.shapes[x]))
    first = g.draw(st.sampled_from([d for d in range(1, size + 1) if size % d == 0]))
    shape = g.draw(st.sampled_from([(first, size // first), (1, first, size // first), g.shapes[x], (size,)]))
    target = list(shape)
    if g.draw(st.booleans()):
        target[g.draw(st.integers(0, len(target) - 1))] = -1
    g.node("Reshape", [x, g.constant(np.array(target, np.int64))], tuple(shape))


def _computed_reshape(g: Grower) -> None:
    x = g.pick()
    shape = g.shapes[x]
    sizes = g.node("Shape", [x], None)
    first = g.node("Gather", [sizes, g.constant(np.array(0, np.int64))], None)
    lifted = g.node("Unsqueeze", [first, g.constant(np.array([0], np.int64))], None)
    target = g.node("Concat", [lifted, g.constant(np.array([-1], np.int64))], None, axis=0)
    g.node("Reshape", [x, target], (shape[0], int(np.prod(shape[1:], dtype=int))))


def _squeeze(g: Grower) -> None:
    x = g.pick()
    shape = g.shapes[x]
    ones = [axis for axis, dim in enumerate(shape) if dim == 1]
    if ones and len(shape) > 1:
        axis = g.draw(st.sampled_from(ones))
        g.node("Squeeze", [x, g.constant(np.array([axis], np.int64))], shape[:axis] + shape[axis + 1 :])
    elif len(shape) < 5:
        axis = g.draw(st.integers(0, len(shape)))
        g.node("Unsqueeze", [x, g.constant(np.array([axis], np.int64))], (*shape[:axis], 1, *shape[axis:]))


def _conv(g: Grower) -> None:
    x = g.pick(4)
    if x is None:
        return
    n, c, h, w = g.shapes[x]
    k, out = g.draw(st.integers(1, 3)), g.draw(st.integers(1, 4))
    pad = g.draw(st.integers(0, 1))
    if h * w > 200 or c > 16:
        return
    if g.draw(st.booleans()):
        amounts = g.constant(np.array([0, 0, 1, 0, 0, 0, 1, 2], np.int64))
        x = g.node("Pad", [x, amounts], (n, c, h + 2, w + 2))
        h, w = h + 2, w + 2
    if g.draw(st.integers(0, 3)) == 0:
        y = g.node("ConvTranspose", [x, g.floats(c, out, k, k)], (n, out, h + k - 1, w + k - 1))
    elif h + 2 * pad >= k and w + 2 * pad >= k:
        inputs = [x, g.floats(out, c, k, k)] + ([g.floats(out)] if g.draw(st.booleans()) else [])
        y = g.node("Conv", inputs, (n, out, h + 2 * pad - k + 1, w + 2 * pad - k + 1), pads=[pad] * 4)
    else:
        return
    if g.draw(st.booleans()):
        names = [g.floats(out) for _ in range(3)]
        variance = g.constant(g.random.uniform(0.1, 2, out).astype(np.float32))
        g.node("BatchNormalization", [y, *names, variance], g.shapes[y])
    elif g.draw(st.booleans()):
        op = g.draw(st.sampled_from(["Add", "Mul"]))
        g.node(op, [y, g.floats(out, 1, 1)], g.shapes[y])


def _matmul(g: Grower) -> None:
    x = g.pick(g.draw(st.sampled_from([2, 3])))
    if x is None:
        return
    *rest, k = g.shapes[x]
    out = g.draw(st.integers(1, 4))
    y = g.node("MatMul", [x, g.floats(k, out)], (*rest, out))
    if g.draw(st.booleans()):
        y = g.node("Add", [y, g.floats(out)], g.shapes[y])
    if g.draw(st.booleans()):
        g.node("Mul", [y, g.floats(1)], g.shapes[y])


def _slices(g: Grower) -> None:
    x = g.pick()
    shape = g.shapes[x]
    axis = g.draw(st.integers(0, len(shape) - 1))
    if shape[axis] < 2:
        return
    cut = g.draw(st.integers(1, shape[axis] - 1))
    parts = []
    for start, end in ((0, cut), (cut, shape[axis])):
        names = [g.constant(np.array([value], np.int64)) for value in (start, end, axis)]
        parts.append(g.node("Slice", [x, *names], (*shape[:axis], end - start, *shape[axis + 1 :])))
    if g.draw(st.booleans()):
        y = g.node("Concat", parts, shape, axis=axis)
        names = [g.constant(np.array([value], np.int64)) for value in (0, cut, axis)]
        g.node("Slice", [y, *names], (*shape[:axis], cut, *shape[axis + 1 :]))


def _cast(g: Grower) -> None:
    x = g.pick()
    y = g.node("Cast", [x], None, to=TensorProto.DOUBLE)
    g.node("Cast", [y], g.shapes[x], to=TensorProto.FLOAT)


def _pool(g: Grower) -> None:
    x = g.pick(4)
    if x is not None and min(g.shapes[x][2:]) >= 2:
        n, c, h, w = g.shapes[x]
        op = g.draw(st.sampled_from(["MaxPool", "AveragePool"]))
        g.node(op, [x], (n, c, h - 1, w - 1), kernel_shape=[2, 2])


def _reduce(g: Grower) -> None:
    x = g.pick()
    shape = g.shapes[x]
    axis = g.draw(st.integers(0, len(shape) - 1))
    g.node("ReduceMean", [x], (*shape[:axis], 1, *shape[axis + 1 :]), axes=[axis])


def _constants(g: Grower) -> None:
    x = g.pick()
    a = g.node("Mul", [g.floats(), g.floats()], None)
    b = g.node("Expand", [a, g.constant(np.array(g.shapes[x], np.int64))], None)
    g.node("Add", [x, b], g.shapes[x])


def _twice(g: Grower) -> None:
    x = g.pick()
    for _ in range(2):
        g.node("Sin", [x], g.shapes[x])


GROWTHS = [
    _unary, _clip, _neutral, _scale, _binary, _transpose, _reshape, _computed_reshape, _squeeze, _conv, _matmul,
    _slices, _cast, _pool, _reduce, _constants, _twice,
]  # fmt: skip


@st.composite
def models(draw: Any, *, most: int = 14) -> onnx.ModelProto:
    """Draw a valid model with one or two inputs and up to three outputs."""
    g = Grower(draw)
    inputs: dict[str, Shape] = {"x": (2, 3, 5, 4)}
    if draw(st.booleans()):
        inputs["z"] = (4, 6)
    g.shapes.update(inputs)
    for _ in range(draw(st.integers(2, most))):
        g.grow()
    made = [name for name in g.shapes if name not in inputs]
    if not made:
        made = [g.node("Relu", ["x"], inputs["x"])]
    outputs = sorted({made[-1], *draw(st.lists(st.sampled_from(made), max_size=2))})

    def described(name: str) -> onnx.ValueInfoProto:
        return helper.make_tensor_value_info(name, TensorProto.FLOAT, g.shapes[name])

    graph = helper.make_graph(
        g.nodes,
        "random",
        [described(name) for name in inputs],
        [described(name) for name in outputs],
        [numpy_helper.from_array(array, name) for name, array in g.constants.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
