"""Building an ONNX graph from a TensorFlow Lite one: layouts, integers and activations, shared by all operators.

Layout: TensorFlow Lite keeps channels last, ONNX's convolutions have them first. A value is kept in the layout in
which it came into being, and turned only where an operator needs the other one, so that a chain of convolutions has
one Transpose at each end.

Integers: a quantized tensor stays an integer tensor. Who computes with it reads it through a DequantizeLinear and
writes through a QuantizeLinear, with the file's own scales: the QDQ form. Operators that only move numbers work on the
integers themselves.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Final

import numpy as np
from onnx import GraphProto, NodeProto, TensorProto, helper, numpy_helper

from forge_pipeline.errors import ModelError
from forge_pipeline.frontends.interface import BATCH
from forge_pipeline.frontends.tflite.model import Graph, Operator, Quantization, Tensor

LAST, FIRST = "last", "first"  # where the channels of a value of four dimensions are
TO_FIRST: Final = (0, 3, 1, 2)
TO_LAST: Final = (0, 2, 3, 1)
INTEGER_RANGE: Final = {"int8": (-128, 127), "uint8": (0, 255), "int16": (-32768, 32767)}
_SYMBOLS: Final = {0: BATCH}


class Builder:
    """The ONNX graph so far, and where each tensor of the source is in it."""

    def __init__(self, source: Graph, *, open_batch: bool) -> None:
        self.source = source
        self.open_batch = open_batch
        self.nodes: list[NodeProto] = []
        self.weights: list[TensorProto] = []
        self._values: dict[tuple[int, str], str] = {}
        self._real: dict[tuple[int, str], str] = {}
        self._aliases: dict[int, Tensor] = {}
        self._count = 0

    def tensor(self, index: int) -> Tensor:
        """Return a tensor of the source."""
        return self._aliases.get(index) or self.source.tensors[index]

    def shape(self, index: int) -> tuple[int | None, ...]:
        """Return a tensor's shape, None for an open size; the batch is one unless it is open."""
        shape = self.tensor(index).shape
        return shape if self.open_batch else tuple(1 if extent is None else extent for extent in shape)

    def node(self, op_type: str, inputs: Sequence[str], count: int = 1, **attributes: Any) -> str:
        """Add a node and return the name of its (first) output; further ones end in _1, _2 ..."""
        name = f"{op_type.lower()}_{self._count}"
        self._count += 1
        outputs = [name, *(f"{name}_{position}" for position in range(1, count))]
        self.nodes.append(helper.make_node(op_type, list(inputs), outputs, name, **attributes))
        return name

    def constant(self, array: np.ndarray | np.generic) -> str:
        """Add a weight and return its name."""
        name = f"constant_{self._count}"
        self._count += 1
        self.weights.append(numpy_helper.from_array(np.asarray(array, order="C"), name))
        return name

    def integers(self, *numbers: int) -> str:
        """Add a vector of int64: shapes, axes, pads."""
        return self.constant(np.array(numbers, np.int64))

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

    def give(self, index: int, name: str, layout: str = LAST) -> None:
        """Say that ``name`` is the tensor ``index``, as stored, in ``layout``."""
        self._values[index, layout] = name

    def layout(self, *indices: int) -> str:
        """Return FIRST when the computed ones among the tensors, all of four dimensions, have channels first."""
        computed = [index for index in indices if index >= 0 and self.tensor(index).data is None]
        first = bool(computed) and all((index, FIRST) in self._values for index in computed)
        return FIRST if first and all(len(self.shape(index)) == 4 for index in computed) else LAST

    def stored(self, index: int, layout: str = LAST) -> str:
        """Return the ONNX value that holds tensor ``index`` in ``layout``, integers where it is quantized."""
        if (index, layout) in self._values:
            return self._values[index, layout]
        data = self.tensor(index).data
        if data is not None:
            name = self.constant(_first(data) if layout == FIRST else data)
        else:
            other = LAST if layout == FIRST else FIRST
            if (index, other) not in self._values:
                raise ModelError(
                    where=f"tensor {self.tensor(index).name[:80]!r}",
                    expected="operators in an order in which every value is computed before it is read",
                    found="a value that is read first",
                    fix="the file is damaged: convert the model again",
                )
            order = TO_FIRST if layout == FIRST else TO_LAST
            name = self.node("Transpose", [self._values[index, other]], perm=order)
        self._values[index, layout] = name
        return name

    # Values, as the numbers they stand for.

    def is_quantized(self, index: int) -> bool:
        """Tell whether a tensor holds integers that stand for real numbers."""
        tensor = self.tensor(index)
        return tensor.quantization is not None and tensor.dtype in (*INTEGER_RANGE, "int4", "int32")

    def real(self, index: int, layout: str = LAST) -> str:
        """Return tensor ``index`` as real numbers: what it is, or what its integers stand for."""
        if (index, layout) not in self._real:
            tensor, name = self.tensor(index), self.stored(index, layout)
            if self.is_quantized(index) and tensor.quantization is not None:
                axis = tensor.quantization.axis
                if layout == FIRST and tensor.quantization.per_axis:
                    axis = TO_FIRST.index(axis + 4 - len(tensor.shape))
                name = self.dequantized(name, tensor.quantization, tensor.dtype, axis)
            elif tensor.dtype == "float16" and tensor.data is not None:
                name = self.node("Cast", [name], to=TensorProto.FLOAT)
            self._real[index, layout] = name
        return self._real[index, layout]

    def real_constant(self, index: int, data: np.ndarray, axis: int) -> str:
        """Return ``data``, the content of constant ``index`` in another arrangement, as real numbers."""
        tensor = self.tensor(index)
        name = self.constant(data)
        if tensor.quantization is None or not self.is_quantized(index):
            return self.node("Cast", [name], to=TensorProto.FLOAT) if tensor.dtype == "float16" else name
        return self.dequantized(name, tensor.quantization, tensor.dtype, axis)

    def dequantized(self, name: str, quantization: Quantization, dtype: str, axis: int) -> str:
        """Return the real numbers of the integers ``name``."""
        scale, zero = _parameters(quantization, dtype)
        operands = [name, self.constant(scale)]
        if dtype != "int32":
            operands.append(self.constant(zero))
        return self.node("DequantizeLinear", operands, **({"axis": axis} if quantization.per_axis else {}))

    def put(self, index: int, name: str, layout: str = LAST) -> None:
        """Say that tensor ``index`` holds the real numbers ``name``; they are rounded where it is quantized."""
        tensor = self.tensor(index)
        if tensor.quantization is not None and tensor.dtype in INTEGER_RANGE:
            if tensor.dtype == "int16":
                raise unsupported("activations of 16 bits", "activations of 8 bits")
            scale, zero = _parameters(tensor.quantization, tensor.dtype)
            name = self.node("QuantizeLinear", [name, self.constant(scale), self.constant(zero)])
        self.give(index, name, layout)

    def activated(self, name: str, kind: int, index: int) -> str:
        """Return ``name`` behind a fused activation, unless rounding into tensor ``index`` has the same effect."""
        import tflite

        bounds = {
            tflite.ActivationFunctionType.NONE: (None, None),
            tflite.ActivationFunctionType.RELU: (0.0, None),
            tflite.ActivationFunctionType.RELU_N1_TO_1: (-1.0, 1.0),
            tflite.ActivationFunctionType.RELU6: (0.0, 6.0),
        }
        if kind == tflite.ActivationFunctionType.TANH:
            return self.node("Tanh", [name])
        if kind not in bounds:
            raise unsupported(f"the fused activation {kind}", "NONE, RELU, RELU6, RELU_N1_TO_1 or TANH")
        low, high = bounds[kind]
        tensor = self.tensor(index)
        if tensor.quantization is not None and tensor.dtype in INTEGER_RANGE:
            least, most = INTEGER_RANGE[tensor.dtype]
            scale, zero = float(tensor.quantization.scale[0]), int(tensor.quantization.zero_point[0])
            low = None if low is not None and round(low / scale) + zero <= least else low
            high = None if high is not None and round(high / scale) + zero >= most else high
        if low == 0.0 and high is None:
            return self.node("Relu", [name])
        if low is None and high is None:
            return name
        return self.node("Clip", [name, *("" if b is None else self.constant(np.float32(b)) for b in (low, high))])

    def graph(self) -> GraphProto:
        """Return the finished graph, with the interface of the source."""
        inputs = [self._value_info(name, index) for name, index in self.source.inputs.items()]
        outputs = []
        for name, index in self.source.outputs.items():
            self.nodes.append(helper.make_node("Identity", [self.stored(index)], [f"result:{name}"]))
            outputs.append(self._value_info(f"result:{name}", index))
        return helper.make_graph(self.nodes, "main", inputs, outputs, self.weights)

    def _value_info(self, name: str, index: int) -> Any:
        shape = [
            _SYMBOLS.get(axis, f"{name}_{axis}") if extent is None else extent
            for axis, extent in enumerate(self.shape(index))
        ]
        return helper.make_tensor_value_info(name, onnx_type(self.tensor(index).dtype), shape)


def onnx_type(dtype: str) -> int:
    """Return the ONNX element type."""
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


def option(operator: Operator, field: str, default: Any) -> Any:
    """Return a field of the operator's options; ``default``, as schema.fbs has it, where it has no options."""
    return default if operator.options is None else getattr(operator.options, field)()


def bound(operator: Operator) -> int:
    """Return the fused activation of an operator; 0, which is none, where it has no options."""
    return int(option(operator, "FusedActivationFunction", 0))
