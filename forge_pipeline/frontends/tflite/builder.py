"""Building an ONNX graph from a TensorFlow Lite one: layouts, integers and activations, shared by all operators.

Layout: TensorFlow Lite keeps channels last, ONNX's convolutions have them first. A value is kept in the layout in
which it came into being, and turned only where an operator needs the other one, so that a chain of convolutions has
one Transpose at each end.

Integers: a quantized tensor stays an integer tensor. Who computes with it reads it through a DequantizeLinear and
writes through a QuantizeLinear, with the file's own scales: the QDQ form. Operators that only move numbers work on the
integers themselves.

Complex numbers: a complex tensor is two real ones, and what moves numbers is done to each.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any, Final

import numpy as np
from onnx import GraphProto, NodeProto, TensorProto, ValueInfoProto, helper, numpy_helper

from forge_pipeline.errors import ModelError
from forge_pipeline.frontends.interface import BATCH
from forge_pipeline.frontends.tflite.model import Graph, Model, Operator, Quantization, Tensor
from forge_pipeline.frontends.tflite.sizes import Shape, as_declared, as_given
from forge_pipeline.frontends.tflite.state import Kept, State

LAST, FIRST = "last", "first"  # where the channels of a value of four dimensions are
TO_FIRST: Final = (0, 3, 1, 2)
TO_LAST: Final = (0, 2, 3, 1)
INTEGER_RANGE: Final = {"int8": (-128, 127), "uint8": (0, 255), "int16": (-32768, 32767)}
BOUNDS: Final[dict[int, tuple[float | None, float | None]]] = {
    0: (None, None), 1: (0.0, None), 2: (-1.0, 1.0), 3: (0.0, 6.0)
}  # ActivationFunctionType: NONE, RELU, RELU_N1_TO_1, RELU6  # fmt: skip
TANH: Final = 4
NO_NUMBERS: Final = ("complex64", "resource")
_MOST_NESTED: Final = 32
_DAMAGE: Final = (
    struct.error, IndexError, TypeError, AttributeError, ValueError, OverflowError, UnicodeDecodeError,
    ZeroDivisionError,
)  # what reading an operand or option gives that is not there, or does not fit  # fmt: skip
_RESULT: Final = "result:"  # before the name of an output, until all values have the names of the interface

Converter = Callable[["Builder", Operator], None]


@dataclass(slots=True, kw_only=True)
class Shared:
    """What all graphs of one model have in common while they are built."""

    model: Model
    convert: Converter
    weights: list[TensorProto] = field(default_factory=list)
    state: State = field(default_factory=State)
    count: int = 0


class Builder:
    """The ONNX graph so far, and where each tensor of the source is in it."""

    def __init__(
        self, shared: Shared, source: Graph, *, given_sizes: bool, depth: int = 0, conditional: bool = False
    ) -> None:
        """``given_sizes``: inputs have their static shapes, and so has what follows from them.

        ``depth`` counts the graphs around this one; ``conditional``: it runs perhaps never, or many times.
        """
        self.shared = shared
        self.source = source
        self.nodes: list[NodeProto] = []
        self.part = 0
        self._depth = depth
        self._conditional = conditional
        self._given_sizes = given_sizes
        self._shapes = as_given(source) if given_sizes else as_declared(source)
        self._values: dict[tuple[int, str, int], str] = {}
        self._real: dict[tuple[int, str, int], str] = {}
        self._aliases: dict[int, Tensor] = {}

    def tensor(self, index: int) -> Tensor:
        """Return a tensor of the source."""
        return self._aliases.get(index) or self.source.tensors[index]

    def shape(self, index: int) -> Shape:
        """Return a tensor's shape, None for an open size."""
        return self._shapes[index]

    def rank(self, index: int) -> int:
        """Return a tensor's number of dimensions."""
        return len(self._shapes[index])

    def node(self, op_type: str, inputs: Sequence[str], count: int = 1, **attributes: Any) -> str:
        """Add a node and return the name of its (first) output; further ones end in _1, _2 ..."""
        name = self.fresh(op_type.lower())
        outputs = [name, *(f"{name}_{position}" for position in range(1, count))]
        self.nodes.append(helper.make_node(op_type, list(inputs), outputs, name, **attributes))
        return name

    def fresh(self, hint: str) -> str:
        """Return a name that no value has."""
        name = f"{hint}_{self.shared.count}"
        self.shared.count += 1
        return name

    def constant(self, array: np.ndarray | np.generic) -> str:
        """Add a weight and return its name."""
        name = self.fresh("constant")
        self.shared.weights.append(numpy_helper.from_array(np.asarray(array, order="C"), name))
        return name

    def integers(self, *numbers: int) -> str:
        """Add a vector of int64: shapes, axes, pads."""
        return self.constant(np.array(numbers, np.int64))

    def number(self, value: float, index: int | None) -> str:
        """Add a number of the type that tensor ``index`` has where it is computed with."""
        if index is None:
            return self.constant(np.float32(value))
        dtype = self.tensor(index).dtype
        return self.constant(np.float32(value) if self.is_quantized(index) else np.dtype(dtype).type(value))

    def data(self, index: int, what: str) -> np.ndarray:
        """Return the content of a constant operand. Raises ModelError where it is computed."""
        data = self.tensor(index).data
        if data is None:
            raise unsupported(f"{what} that is computed by the model", f"a constant {what}")
        return data

    # Values, as they are stored.

    def alias(self, index: int, constant: int) -> None:
        """Let tensor ``index`` be the constant ``constant``, as it is stored."""
        given = self.tensor(constant)
        self._aliases[index] = replace(given, shape=self.tensor(index).shape)

    def cast(self, name: str, dtype: str) -> str:
        """Return an index or a shape, which ONNX has in int64, as ``dtype``."""
        return name if dtype == "int64" else self.node("Cast", [name], to=onnx_type(dtype))

    def int64(self, index: int) -> str:
        """Return an operand that holds indices or sizes as ONNX takes them."""
        tensor = self.tensor(index)
        if tensor.data is not None:
            return self.constant(tensor.data.astype(np.int64))
        return self.stored(index) if tensor.dtype == "int64" else self.node("Cast", [self.stored(index)], to=7)

    def give(self, index: int, name: str, layout: str = LAST) -> None:
        """Say that ``name`` is the tensor ``index``, as stored, in ``layout``."""
        self._values[self._key(index, layout)] = name

    def _key(self, index: int, layout: str) -> tuple[int, str, int]:
        return index, layout, self.part if self.tensor(index).dtype == "complex64" else 0

    def layout(self, *indices: int) -> str:
        """Return FIRST when the computed ones among the tensors, all of four dimensions, have channels first."""
        computed = [index for index in indices if index >= 0 and self.tensor(index).data is None]
        first = bool(computed) and all(self._key(index, FIRST) in self._values for index in computed)
        return FIRST if first and all(self.rank(index) == 4 for index in computed) else LAST

    def stored(self, index: int, layout: str = LAST) -> str:
        """Return the ONNX value that holds tensor ``index`` in ``layout``, integers where it is quantized."""
        key = self._key(index, layout)
        if key not in self._values:
            self._values[key] = self._stored(index, layout)
        return self._values[key]

    def _stored(self, index: int, layout: str) -> str:
        tensor = self.tensor(index)
        if tensor.data is not None:
            return self.constant(_first(tensor.data) if layout == FIRST else tensor.data)
        other = self._key(index, LAST if layout == FIRST else FIRST)
        if other in self._values:
            return self.node("Transpose", [self._values[other]], perm=TO_FIRST if layout == FIRST else TO_LAST)
        if tensor.variable and layout == LAST:
            self.at_top("a variable tensor")
            return self.shared.state.read(index, tensor, tensor.name)
        raise ModelError(
            where=f"tensor {tensor.name[:80]!r}",
            expected="operators in an order in which every value is computed before it is read",
            found="a value that is read first",
            fix="the file is damaged: convert the model again",
        )

    def keep(self, index: int, name: str) -> None:
        """Say that ``name``, as stored, is what the variable tensor ``index`` holds from now on."""
        for known in (self._values, self._real):
            for layout in (LAST, FIRST):
                known.pop(self._key(index, layout), None)
        self.give(index, name)
        self.shared.state.write(index, name)

    def at_top(self, what: str) -> None:
        """Raise ModelError in a graph that runs perhaps never, or many times."""
        if self._conditional:
            raise unsupported(f"{what} inside of a branch or a loop", "state outside of branches and loops")

    # Values, as the numbers they stand for.

    def is_quantized(self, index: int) -> bool:
        """Tell whether a tensor holds integers that stand for real numbers."""
        tensor = self.tensor(index)
        biases = ("int32", "int64") if tensor.data is not None else ()
        return tensor.quantization is not None and tensor.dtype in (*INTEGER_RANGE, "int4", *biases)

    def real(self, index: int, layout: str = LAST) -> str:
        """Return tensor ``index`` as real numbers: what it is, or what its integers stand for."""
        key = self._key(index, layout)
        if key not in self._real:
            tensor = self.tensor(index)
            if tensor.dtype == "int64" and self.is_quantized(index):  # a bias of more bits than ONNX takes
                numbers = self.numbers(index)
                self._real[key] = self.constant(_first(numbers) if layout == FIRST else numbers)
                return self._real[key]
            name = self.stored(index, layout)
            if self.is_quantized(index) and tensor.quantization is not None:
                axis = tensor.quantization.axis
                if layout == FIRST and tensor.quantization.per_axis:
                    axis = TO_FIRST.index(axis + 4 - len(tensor.shape))
                name = self.dequantized(name, tensor.quantization, tensor.dtype, axis)
            elif tensor.dtype == "float16" and tensor.data is not None:
                name = self.node("Cast", [name], to=TensorProto.FLOAT)
            self._real[key] = name
        return self._real[key]

    def real_constant(self, index: int, data: np.ndarray, axis: int) -> str:
        """Return ``data``, the content of constant ``index`` in another arrangement, as real numbers."""
        tensor = self.tensor(index)
        name = self.constant(data)
        if tensor.quantization is None or not self.is_quantized(index):
            return self.node("Cast", [name], to=TensorProto.FLOAT) if tensor.dtype == "float16" else name
        return self.dequantized(name, tensor.quantization, tensor.dtype, axis)

    def numbers(self, index: int) -> np.ndarray:
        """Return the numbers that constant ``index`` stands for, as float32. Raises ModelError where it is computed."""
        tensor, data = self.tensor(index), self.data(index, "operand")
        quantization = tensor.quantization
        if quantization is None or not self.is_quantized(index):
            return data.astype(np.float32)
        extents = [1] * data.ndim
        if quantization.per_axis:
            extents[quantization.axis] = -1
        scale, zero = (array.reshape(extents) for array in (quantization.scale, quantization.zero_point))
        return np.asarray((data.astype(np.int64) - zero) * scale.astype(np.float64), np.float32)

    def dequantized(self, name: str, quantization: Quantization, dtype: str, axis: int) -> str:
        """Return the real numbers of the integers ``name``."""
        scale, zero = _parameters(quantization, dtype)
        operands = [name, self.constant(scale)]
        if dtype != "int32":
            operands.append(self.constant(zero))
        return self.node("DequantizeLinear", operands, **({"axis": axis} if quantization.per_axis else {}))

    def put(self, index: int, name: str, layout: str = LAST) -> None:
        """Say that tensor ``index`` holds the real numbers ``name``; they are rounded where it is quantized."""
        self.give(index, self.rounded(index, name), layout)

    def rounded(self, index: int, name: str) -> str:
        """Return the real numbers ``name`` as tensor ``index`` stores them."""
        tensor = self.tensor(index)
        if tensor.quantization is None or tensor.dtype not in INTEGER_RANGE:
            return name
        scale, zero = _parameters(tensor.quantization, tensor.dtype)
        return self.node("QuantizeLinear", [name, self.constant(scale), self.constant(zero)])

    def activated(self, name: str, kind: int, index: int | None = None) -> str:
        """Return ``name`` behind a fused activation, unless rounding into tensor ``index`` has the same effect."""
        if kind == TANH:
            return self.node("Tanh", [name])
        if kind not in BOUNDS:
            raise unsupported(f"the fused activation {kind}", "NONE, RELU, RELU6, RELU_N1_TO_1 or TANH")
        low, high = BOUNDS[kind]
        tensor = None if index is None else self.tensor(index)
        if tensor is not None and tensor.quantization is not None and tensor.dtype in INTEGER_RANGE:
            least, most = INTEGER_RANGE[tensor.dtype]
            scale, zero = float(tensor.quantization.scale[0]), int(tensor.quantization.zero_point[0])
            low = None if low is not None and round(low / scale) + zero <= least else low
            high = None if high is not None and round(high / scale) + zero >= most else high
        if low == 0.0 and high is None:
            return self.node("Relu", [name])
        if low is None and high is None:
            return name
        return self.node("Clip", [name, *("" if b is None else self.number(b, index) for b in (low, high))])

    # Graphs.

    @contextmanager
    def imaginary(self) -> Iterator[None]:
        """Within, complex tensors are their imaginary parts; else their real ones."""
        self.part = 1
        yield
        self.part = 0

    @contextmanager
    def apart(self) -> Iterator[list[NodeProto]]:
        """Within, nodes go to the list that is given: the body of a loop. What they read is made before."""
        outer, self.nodes = self.nodes, []
        yield self.nodes
        self.nodes = outer

    def convert_all(self) -> None:
        """Convert the operators of the source, in order; a refusal says which."""
        for position, operator in enumerate(self.source.operators):
            try:
                self.shared.convert(self, operator)
            except ModelError as refusal:
                if refusal.where != "operator":
                    raise
                where = f"operator {position}, {operator.name[:80]}"
                raise ModelError(where, refusal.expected, refusal.found, refusal.fix) from refusal
            except _DAMAGE as error:
                raise ModelError(
                    where=f"operator {position}, {operator.name[:80]}",
                    expected="the operands and options that its operator has",
                    found=f"others ({type(error).__name__}: {str(error)[:200]})",
                    fix="the file is damaged: convert the model again",
                ) from error

    def nested(self, index: int, inputs: Sequence[str], *, inline: bool = False) -> Builder:
        """Return subgraph ``index``, converted, with ONNX values for its inputs; its nodes are a part of mine or not.

        The inputs hold their tensors as stored, channels last. Raises ModelError for graphs that run themselves.
        """
        graphs = self.shared.model.graphs
        if not 0 <= index < len(graphs) or len(graphs[index].inputs) != len(inputs) or self._depth >= _MOST_NESTED:
            raise ModelError(
                where=f"subgraph {index}",
                expected=f"one of {len(graphs)} that takes {len(inputs)} values and does not run itself",
                found="another",
                fix="the file is damaged: convert the model again",
            )
        inner = Builder(
            self.shared,
            graphs[index],
            given_sizes=self._given_sizes and inline,
            depth=self._depth + 1,
            conditional=self._conditional or not inline,
        )
        if inline:
            inner.nodes = self.nodes
        for source, name in zip(graphs[index].inputs.values(), inputs, strict=True):
            inner.give(source, name)
        inner.convert_all()
        return inner

    def results(self) -> list[str]:
        """Return the ONNX values of the source's outputs, as stored."""
        return [self.stored(index) for index in self.source.outputs.values()]

    def body(self, name: str, inputs: Sequence[ValueInfoProto], before: Sequence[str] = ()) -> GraphProto:
        """Return the nodes as a graph that another one runs, which gives ``before`` and then the source's outputs.

        Weights are those of the outermost graph.
        """
        given = [*((flag, "bool", ()) for flag in before), *self._typed(self.results())]
        outputs = []
        for value, dtype, shape in given:
            result = self.node("Identity", [value])  # which may be a weight, or an input, or a value from outside
            outputs.append(value_info(result, dtype, shape))
        return helper.make_graph(self.nodes, name, list(inputs), outputs)

    def _typed(self, names: Sequence[str]) -> list[tuple[str, str, Shape]]:
        indices = self.source.outputs.values()
        return [(name, self.tensor(i).dtype, self.shape(i)) for name, i in zip(names, indices, strict=True)]

    def graph(self) -> GraphProto:
        """Return the finished main graph, with the interface of the source and then what it keeps between calls."""
        kept = self.carried()
        for constant in self.shared.state.constants():
            value = [self.constant(constant.initial), self.integers(*constant.shape)]
            self.nodes.insert(0, helper.make_node("Expand", value, [constant.before]))
        inputs = [self._open(name, index) for name, index in self.source.inputs.items()]
        inputs += [value_info(one.before, one.tensor.dtype, one.shape) for one in kept]
        outputs = []
        for name, index in self.source.outputs.items():
            self.nodes.append(helper.make_node("Identity", [self.stored(index)], [f"{_RESULT}{name}"]))
            outputs.append(self._open(f"{_RESULT}{name}", index))
        for one in kept:
            self.nodes.append(helper.make_node("Identity", [one.after], [f"next:{one.before}"]))
            outputs.append(value_info(f"next:{one.before}", one.tensor.dtype, one.shape))
        return helper.make_graph(self.nodes, "main", inputs, outputs, self.shared.weights)

    def carried(self) -> list[Kept]:
        """Return what the model keeps between calls."""
        return self.shared.state.carried({*self.source.inputs, *self.source.outputs})

    def _open(self, name: str, index: int) -> ValueInfoProto:
        tensor = self.tensor(index)
        if tensor.dtype in NO_NUMBERS:
            raise ModelError(
                where=f"input or output {name.removeprefix(_RESULT)[:80]!r}",
                expected="real numbers",
                found=f"a value of type {tensor.dtype}",
                fix="let the model take and give real numbers, such as the real and the imaginary part",
            )
        shown = name.removeprefix(_RESULT)
        shape = [
            extent if extent is not None else BATCH if axis == 0 and self._batched() else f"{shown}_{axis}"
            for axis, extent in enumerate(self.shape(index))
        ]
        return helper.make_tensor_value_info(name, onnx_type(tensor.dtype), shape)

    def _batched(self) -> bool:
        """Tell whether the first axis of all inputs is open: it is taken for a batch, which outputs have too."""
        shapes = [self.shape(index) for index in self.source.inputs.values()]
        return bool(shapes) and all(shape[:1] == (None,) for shape in shapes)


def value_info(name: str, dtype: str, shape: Shape) -> ValueInfoProto:
    """Return the form of a value; an open size has no name."""
    return helper.make_tensor_value_info(name, onnx_type(dtype), list(shape))


def onnx_type(dtype: str) -> int:
    """Return the ONNX element type. Raises ModelError for complex numbers and handles."""
    if dtype in NO_NUMBERS:
        raise unsupported(f"a value of type {dtype}", "real numbers in branches, loops and casts")
    return int(helper.np_dtype_to_tensor_dtype(np.dtype("int8" if dtype == "int4" else dtype)))


def _parameters(quantization: Quantization, dtype: str) -> tuple[np.ndarray, np.ndarray]:
    zero = quantization.zero_point.astype("int8" if dtype == "int4" else dtype)
    if quantization.per_axis:
        return quantization.scale, zero
    return quantization.scale.reshape(()), zero.reshape(())


def _first(data: np.ndarray) -> np.ndarray:
    """Turn a constant that meets values of four dimensions; one of fewer dimensions aligns with the last ones."""
    if data.ndim == 0:
        return data
    return data.reshape((1,) * (4 - data.ndim) + data.shape).transpose(TO_FIRST)


def unsupported(found: str, expected: str) -> ModelError:
    """Return the refusal of something that an operator is used with; who catches it adds which operator."""
    return ModelError(
        where="operator",
        expected=expected,
        found=found,
        fix="give the SavedModel that the file was converted from, or convert it with tf2onnx",
    )


def option(operator: Operator, field_name: str, default: Any) -> Any:
    """Return a field of the operator's options; ``default``, as schema.fbs has it, where it has no options."""
    return default if operator.options is None else getattr(operator.options, field_name)()


def options(operator: Operator, field_name: str) -> list[int]:
    """Return a list of the operator's options; empty where it has none."""
    count = option(operator, f"{field_name}Length", 0)
    return [int(getattr(operator.options, field_name)(place)) for place in range(count)]


def bound(operator: Operator) -> int:
    """Return the fused activation of an operator; 0, which is none, where it has no options."""
    return int(option(operator, "FusedActivationFunction", 0))
