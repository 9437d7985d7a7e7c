"""Where caches grow: what a function returns of one lies where the session keeps it, and is written there."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from forge_pipeline.codegen.program.operations import (
    Call,
    Compute,
    Function,
    Grow,
    Operation,
    Place,
    Reserve,
    Return,
    Tensor,
)
from forge_pipeline.codegen.program.translation import SYMBOL
from forge_pipeline.codegen.state.kernels import APPEND_KERNEL
from forge_pipeline.errors import CompileError


def grow(function: Function, states: Sequence[Mapping[str, Any]], kernels: Mapping[str, int]) -> None:
    """Have ``function``, whose last results are ``states``, write those that grow where they are kept.

    Raises CompileError where another kernel than the one that appends would write there.
    """
    symbols = {number: symbol for symbol, number in kernels.items()}
    (last,) = [operation for operation in function.code if isinstance(operation, Return)]
    caches = {
        tensor: number
        for number, (tensor, state) in enumerate(
            zip(last.tensors[-len(states) or len(last.tensors) :], states, strict=True)
        )
        if state["max"]
    }
    code: list[Operation] = []
    for operation in function.code:
        written = _written(operation)
        if written in caches and not symbols[_kernel(operation)].startswith(SYMBOL + APPEND_KERNEL):
            raise _refused(function.name, symbols[_kernel(operation)])
        is_place = isinstance(operation, Place) and operation.tensor in caches
        code.append(Grow(operation.tensor, caches[operation.tensor]) if is_place else operation)  # type: ignore[union-attr]
    if {operation.tensor for operation in code if isinstance(operation, Grow)} != set(caches):
        raise _refused(function.name, "a cache that is no result of a kernel")
    for tensor in caches:
        tensor.storage = None
    used = {operation.storage for operation in code if isinstance(operation, Place)}
    function.code = [item for item in code if not isinstance(item, Reserve) or item.storage in used]


def _written(operation: Operation) -> Tensor | None:
    """Return the tensor that a kernel writes: its last argument."""
    call = operation.call if isinstance(operation, Compute) else operation
    last = call.arguments[-1] if isinstance(call, Call) and call.arguments else None
    return last if isinstance(last, Tensor) else None


def _kernel(operation: Operation) -> int:
    call = operation.call if isinstance(operation, Compute) else operation
    return call.kernel if isinstance(call, Call) else -1


def _refused(name: str, found: str) -> CompileError:
    return CompileError(
        where=f"function {name!r}",
        expected="the kernel that appends to write a cache",
        found=found,
        fix="leave this state to the caller, and report the model",
    )
