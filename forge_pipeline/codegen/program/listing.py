"""A program in lines, for who debugs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import fields

from forge_pipeline.codegen.program.encoding import Program
from forge_pipeline.codegen.program.operations import (
    Argument,
    Call,
    Compute,
    Function,
    Grow,
    Heap,
    Match,
    Number,
    Operation,
    Place,
    Reserve,
    Rows,
    Tensor,
    View,
)
from forge_pipeline.codegen.regions import program as p


def listing(program: Program) -> str:
    """Return the functions of a program, their tensors and operations, and the steps of its blocks, a line each."""
    kernels = list(program.kernels)
    lines = [f"{len(program.to_bytes())} bytes, {len(kernels)} kernels, {len(program.constants)} bytes of constants"]
    for function in program.functions:
        lines += ["", *_function(function, kernels)]
    if program.blocks is not None:
        lines += ["", *_block("main", program.blocks.main, "")]
    return "\n".join(lines) + "\n"


def _function(function: Function, kernels: Sequence[str]) -> Iterator[str]:
    fixed = "".join(f", {name}={size}" for name, size in function.fixed.items())
    memory = f"scratch {function.scratch}, kept {function.kept}, buffers {function.buffers}, heap {function.heap}"
    yield f"{function.name}{fixed}: {memory}"
    rows = {tensor: number for number, tensor in enumerate(function.tensors)}
    for tensor, number in rows.items():
        yield f"  t{number} = {tensor.kind.name} {tensor.where} {tensor.dtype}{_shape(tensor.shape)}"
    for operation in function.code:
        yield f"  {_operation(operation, rows, kernels)}"


def _operation(operation: Operation, rows: Rows, kernels: Sequence[str]) -> str:
    touched = ", ".join(f"t{rows[tensor]}" for tensor in operation.tensors)
    if isinstance(operation, Call):
        return f"CALL {_call(operation, rows, kernels)}"
    if isinstance(operation, Compute):
        return f"COMPUTE {operation.slot} {_call(operation.call, rows, kernels)}"
    if isinstance(operation, Match):
        return f"MATCH {touched} {', '.join(f'{code.name} {value}' for code, value in operation.axes)}"
    if isinstance(operation, Reserve):
        return f"STORAGE b{operation.storage.buffer} {operation.storage.size}"
    if isinstance(operation, Place):
        return f"TENSOR {touched} b{operation.storage.buffer} {operation.offset} {_shape(operation.tensor.shape)}"
    if isinstance(operation, View):
        return f"VIEW {touched} {_shape(operation.tensor.shape)}"
    if isinstance(operation, Grow):
        return f"STATE {touched} s{operation.state} {_shape(operation.tensor.shape)}"
    return f"RETURN {touched}"


def _call(call: Call, rows: Rows, kernels: Sequence[str]) -> str:
    return f"{kernels[call.kernel]}({', '.join(_argument(argument, rows) for argument in call.arguments)})"


def _argument(argument: Argument, rows: Rows) -> str:
    if isinstance(argument, Heap):
        return "heap"
    return f"t{rows[argument]}" if isinstance(argument, Tensor) else str(argument)


def _block(name: str, block: p.Block, margin: str) -> Iterator[str]:
    yield f"{margin}{name} {list(block.inputs)} -> {list(block.outputs)}:"
    for step in block.steps:
        values = {field.name: getattr(step, field.name) for field in fields(step)}
        inner = {name: value for name, value in values.items() if isinstance(value, p.Block)}
        plain = ", ".join(f"{name} {value}" for name, value in values.items() if name not in inner)
        yield f"{margin}  {type(step).__name__.upper()} {plain}"
        for within, found in inner.items():
            yield from _block(within, found, f"{margin}    ")


def _shape(shape: Sequence[Number | None]) -> str:
    return f"({', '.join('?' if extent is None else str(extent) for extent in shape)})"
