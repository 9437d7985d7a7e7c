"""Sums, differences and products of two quantized values, each with its own scale, or of one and another operand.

The other operand is a constant, or the float result of a convolution or product that nobody else reads, as in a
residual block: then all is done where that is computed. Each step is rounded where ONNX Runtime rounds it. Only sums
of two quantized values are formed in steps of the result, so one that lies between two steps, to a float32's precision,
may go to the other one.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from tvm import relax, te, tirx

from forge_pipeline.codegen.int8.conv.match import Convolution
from forge_pipeline.codegen.int8.isa.table import instruction_set
from forge_pipeline.codegen.int8.ops.matmul import Product
from forge_pipeline.codegen.int8.requantize import RESULT_LIMIT
from forge_pipeline.codegen.int8.x86 import narrow_store
from forge_pipeline.codegen.layout.affine import LEVELS, Affine, Clip, clipped_float, quotient, rounded, stored
from forge_pipeline.codegen.layout.builder import Extent, Graph, Value, shape_of
from forge_pipeline.codegen.layout.quantized_values import DeferredKernel, Dequantized, deferred_result
from forge_pipeline.codegen.tir.broadcasting import is_one
from forge_pipeline.codegen.tir.machine import Machine

OPERATORS: Mapping[str, tuple[str, Callable[[Any, Any], Any]]] = {
    "relax.add": ("add", operator.add),
    "relax.subtract": ("subtract", operator.sub),
    "relax.multiply": ("multiply", operator.mul),
}
"""Name and expression."""

Shape = tuple[Extent, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Binary(DeferredKernel):
    """Two operands whose combination is a ``DeferredResult``.

    At least one is dequantized; the other may be a constant, or deferred sums (which are then left in float).

    ``shapes`` are theirs, with as many axes each as the result has.
    """

    operator: str
    operands: tuple[Value, Value]
    shapes: tuple[Shape, Shape]
    clip: Clip

    def _emit(self, graph: Graph, affine: Affine | None) -> Value:
        affines = tuple(value.affine if isinstance(value, Dequantized) else None for value in self.operands)
        settings = {
            "kind": self.operator, "affines": affines, "result": affine, "clip": self.clip,
            "fused": graph.machine.fused,
        }  # fmt: skip
        name = f"{OPERATORS[self.operator][0]}_u8"
        bounded = affine is not None and self._is_bounded(graph.machine, affine)
        blocked = self._in_blocks(graph)
        if blocked is not None:
            settings["bounded"] = bounded
            channels = max(value.source.channels for value in self.operands if isinstance(value, Dequantized))
            return Value(blocked=graph.kernel(combine, *blocked, name=name, **settings), channels=channels)
        plain = [self._plain(graph, value, shape) for value, shape in zip(self.operands, self.shapes, strict=True)]
        return Value(plain=graph.kernel(combine, *plain, name=name, **settings))

    def _is_bounded(self, machine: Machine, affine: Affine) -> bool:
        """Return whether results are known to fit int32 before they are clipped, and the CPU packs vectors of them."""
        combine = operator.mul if self.operator == "relax.multiply" else operator.add
        largest = combine(*(_largest(value, machine) for value in self.operands))
        return instruction_set(machine).packs and largest < RESULT_LIMIT * affine.scale

    def _plain(self, graph: Graph, value: Value, shape: Shape) -> relax.Expr:
        if value.constant is not None:
            return graph.constant(value.constant.reshape(shape))
        plain = graph.plain(value.source if isinstance(value, Dequantized) else value)
        return plain if len(shape_of(plain)) == len(shape) else graph.emit(relax.op.reshape(plain, shape))

    def _in_blocks(self, graph: Graph) -> list[relax.Expr] | None:
        """Return the operands in blocked form, where one comes so and all can have it."""
        sources = [value.source if isinstance(value, Dequantized) else value for value in self.operands]
        images = [source for source in sources if source.constant is None]
        if len(self.shapes[0]) != 4 or not any(graph.is_blocked(image) for image in images):
            return None
        channels = max(int(shape[1]) for shape in self.shapes)
        tensors: list[relax.Expr] = []
        for source, shape in zip(sources, self.shapes, strict=True):
            if source.constant is None:
                if shape[1] != channels:
                    return None
                tensors.append(graph.blocked(source))
                continue
            constant = graph.per_channel(source.constant, channels)
            if constant is None or not shape_of(constant):
                return None
            tensors.append(constant)
        return tensors


def combine(
    left: te.Tensor, right: te.Tensor, kind: str, affines: tuple[Affine | None, Affine | None],
    result: Affine | None, clip: Clip, fused: bool, bounded: bool = False,
) -> te.Tensor:  # fmt: skip
    """Describe the combination of two tensors of bytes or floats; one may be broadcast over the other.

    ``bounded``: results are in blocks, fit int32 before they are clipped, and may be packed.
    """
    name, expression = OPERATORS[kind]
    pairs = list(zip(left.shape, right.shape, strict=True))
    shape = [other if is_one(own) else own for own, other in pairs]

    tensors = list(zip((left, right), affines, strict=True))
    is_sum = kind != "relax.multiply" and result is not None and None not in affines
    unit = np.float32(result.scale if is_sum and result is not None else 1)

    def real(tensor: te.Tensor, affine: Affine | None, at: Sequence[Any]) -> Any:
        broadcast = (is_one(own) and not is_one(full) for own, full in zip(tensor.shape, shape, strict=True))
        value = tensor(*(0 if one else index for one, index in zip(broadcast, at, strict=True)))
        if affine is None:
            return value
        factor = tirx.const(float(np.float32(affine.scale) / unit), "float32")
        return (value.astype("int32") - affine.zero).astype("float32") * factor

    def element(*at: Any) -> Any:
        terms = [real(tensor, affine, at) for tensor, affine in tensors]
        if not is_sum and kind != "relax.multiply":
            terms = [rounded(term) for term in terms]
        value = expression(*terms)
        if result is None:
            return clipped_float(value, clip)
        return stored(value if is_sum else quotient(value, result.scale, fused=fused), result, clip)

    attributes = {}
    if bounded and result is not None:
        attributes = narrow_store.packing_later(result, clip, int(shape[-1]))
    return te.compute(shape, element, name=name if result is None else f"quantize_{name}", attrs=attributes)


def _largest(value: Value, machine: Machine) -> float:
    """Return a bound of an operand's numbers, in real units."""
    if value.constant is not None:
        return float(abs(value.constant).max(initial=0))
    if isinstance(value, Dequantized):
        return max(value.affine.zero, LEVELS - value.affine.zero) * value.affine.scale
    return value.deferred.largest(machine) if isinstance(value.deferred, Convolution) else float("inf")


def binary(graph: Graph, call: relax.Call) -> Value | None:
    """Take two dequantized values, or one and another operand, of shapes that are known to go together."""
    operands = [graph.look(argument) for argument in call.args]
    if not any(isinstance(value, Dequantized) for value in operands):
        return None
    shapes = []
    for value, argument in zip(operands, call.args, strict=True):
        shape = shape_of(argument)
        if not isinstance(value, Dequantized) and value.constant is None:
            sums = deferred_result(graph, argument)
            if not isinstance(sums, Convolution | Product) or shape != shape_of(call):
                return None
        elif value.constant is not None and value.constant.dtype != "float32":
            return None
        shapes.append((1,) * (len(shape_of(call)) - len(shape)) + shape)
    for own, other in zip(*shapes, strict=True):
        if str(own) != str(other) and own != 1 and other != 1:
            return None
    return Value(
        deferred=Binary(
            operator=call.op.name, operands=(operands[0], operands[1]), shapes=(shapes[0], shapes[1]), clip=Clip()
        )
    )


HANDLERS = dict.fromkeys(OPERATORS, binary)
