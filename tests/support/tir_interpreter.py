"""Computes tensor intrinsics with numpy: the loops of a pattern, and instructions by what their descriptions mean.

An intrinsic of any CPU computes here so, on any machine. Expressions are evaluated for all lanes, or all iterations of
a pattern, at once.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from forge_pipeline.codegen.int8.isa.instruction import Instruction

BINARY: Mapping[str, Callable[[Any, Any], Any]] = {
    "Add": operator.add, "Sub": operator.sub, "Mul": operator.mul, "Min": np.minimum, "Max": np.maximum,
    "FloorDiv": operator.floordiv, "FloorMod": operator.mod, "BitwiseXor": operator.xor, "BitwiseAnd": operator.and_,
    "BitwiseOr": operator.or_, "RShift": operator.rshift, "LShift": operator.lshift,
    "tirx.bitwise_xor": operator.xor, "tirx.bitwise_and": operator.and_, "tirx.shift_right": operator.rshift,
}  # fmt: skip


@dataclass(slots=True)
class Buffer:
    """Memory of one dtype, and the strides of the axes of what lies there, in elements."""

    memory: Any
    strides: tuple[int, ...]


def buffers_of(function: Any, fill: Callable[[str, str, tuple[int, ...]], Any], gap: int = 0) -> dict[str, Buffer]:
    """Return memory for a function's parameters, filled by name, dtype and shape.

    Where a stride is the caller's to choose, there are ``gap`` elements more than an outer axis needs.
    """
    found = {}
    for parameter in function.params:
        shape = tuple(int(extent) for extent in parameter.ty.shape)
        steps, size = [], 1
        for axis in reversed(range(len(shape))):
            steps.append(size)
            outer = parameter.ty.strides[axis - 1] if axis and len(parameter.ty.strides) else None
            size = size * shape[axis] + (gap if type(outer).__name__ == "Var" else 0)
        strides = tuple(reversed(steps))
        dtype = str(parameter.ty.dtype)
        memory = np.zeros(size, dtype)
        view = np.lib.stride_tricks.as_strided(memory, shape, [step * memory.itemsize for step in strides])
        view[...] = fill(parameter.name, dtype, shape)
        found[parameter.name] = Buffer(memory, strides)
    return found


def numbers(instructions: tuple[Instruction, ...]) -> dict[int, Callable[..., Any]]:
    """Return what instructions mean, by LLVM's numbers."""
    from tvm.target import codegen

    names = {
        name: instruction.meaning
        for instruction in instructions
        for name in ([instruction.llvm] if isinstance(instruction.llvm, str) else instruction.llvm.values())
    }
    names["llvm.arithmetic.fence"] = lambda value: value
    return {int(codegen.llvm_lookup_intrinsic_id(name)): meaning for name, meaning in names.items()}


@dataclass(slots=True)
class Interpreter:
    """Runs a function's body; ``instructions`` are the meanings by LLVM's number, ``state`` what they share."""

    buffers: dict[str, Buffer]
    instructions: Mapping[int, Callable[..., Any]] = field(default_factory=dict)
    state: Any = None
    variables: dict[str, Any] = field(default_factory=dict)

    def run(self, function: Any) -> None:
        """Run it."""
        self._statement(function.body)

    def _statement(self, statement: Any) -> None:
        kind = type(statement).__name__
        getattr(self, f"_{kind.lower()}")(statement)

    def _seqstmt(self, statement: Any) -> None:
        for part in statement.seq:
            self._statement(part)

    def _sblockrealize(self, statement: Any) -> None:
        block = statement.block
        for axis, value in zip(block.iter_vars, statement.iter_values, strict=True):
            self.variables[axis.var.name] = self.value(value)
        for made in block.alloc_buffers:
            size = int(np.prod([int(extent) for extent in made.ty.shape]))
            self.buffers[made.name] = Buffer(np.zeros(size, str(made.ty.dtype)), (1,))
        self._statement(block.body)

    def _for(self, statement: Any) -> None:
        loops = []
        while type(statement).__name__ == "For":
            loops.append((statement.loop_var.name, int(statement.extent)))
            statement = statement.body
        if type(statement).__name__ == "SBlockRealize":  # a pattern: all iterations at once
            for at, (name, extent) in enumerate(loops):
                self.variables[name] = np.arange(extent).reshape(
                    [-1 if at == axis else 1 for axis in range(len(loops))]
                )
            self._statement(statement)
            return
        ((name, extent),) = loops
        for iteration in range(extent):
            self.variables[name] = iteration
            self._statement(statement)

    def _bufferstore(self, statement: Any) -> None:
        place, memory = self._place(statement.buffer, statement.indices), self.buffers[statement.buffer.name].memory
        value = statement.value
        if type(value).__name__ == "Add" and type(value.a).__name__ == "TensorLoad" and _is_pattern(self.variables):
            np.add.at(memory, *np.broadcast_arrays(place, self.value(value.b)))  # iterations add to the same sums
        else:
            memory[place] = self.value(value)

    def _evaluate(self, statement: Any) -> None:
        self.value(statement.value)

    def _place(self, buffer: Any, indices: Any) -> Any:
        at = zip(indices, self.buffers[buffer.name].strides, strict=True)
        return sum(self.value(index) * stride for index, stride in at)

    def value(self, expression: Any) -> Any:
        """Return what an expression is, as an array or a number."""
        kind = type(expression).__name__
        if kind == "Var":
            return self.variables[expression.name]
        if kind in ("IntImm", "FloatImm"):
            return np.dtype(str(expression.ty.dtype)).type(expression.value)
        if kind == "TensorLoad":
            return self.buffers[expression.source.name].memory[self._place(expression.source, expression.indices)]
        if kind == "Ramp":
            return self.value(expression.base) + np.arange(int(expression.lanes)) * self.value(expression.stride)
        if kind == "Broadcast":
            return np.repeat(self.value(expression.value), int(expression.lanes))
        if kind == "Cast":
            return np.asarray(self.value(expression.value)).astype(_element(expression))
        if kind == "Shuffle":
            elements = np.concatenate([np.atleast_1d(self.value(vector)) for vector in expression.vectors])
            return elements[[int(index) for index in expression.indices]]
        if kind == "Call":
            return self._call(expression)
        return BINARY[kind](self.value(expression.a), self.value(expression.b))

    def _call(self, call: Any) -> Any:
        name = call.op.name
        if name in ("tirx.call_llvm_pure_intrin", "tirx.call_llvm_intrin"):
            meaning = self.instructions[int(call.args[0])]
            given = [self.value(argument) for argument in call.args[1:]]
            return meaning(*given) if name.endswith("pure_intrin") else meaning(self.state, *given)
        if name == "tirx.reinterpret":
            bits = np.ascontiguousarray(self.value(call.args[0])).view(_element(call))
            return bits if "x" in str(call.ty.dtype) or bits.ndim != 1 or bits.size != 1 else bits[0]
        if name == "tirx.address_of":
            load = call.args[0]
            buffer = self.buffers[load.source.name].memory
            first = int(self._place(load.source, load.indices)) * buffer.itemsize
            return buffer.view(np.uint8)[first:]
        return BINARY[name](*(self.value(argument) for argument in call.args))


def _is_pattern(variables: Mapping[str, Any]) -> bool:
    return any(isinstance(value, np.ndarray) for value in variables.values())


def _element(expression: Any) -> str:
    return str(expression.ty.dtype).split("x")[0]
