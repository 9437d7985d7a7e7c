"""What a Relax module is, as a stream of bytes: names of inner variables left out, everything that counts taken in.

Functions come by name, bindings in order; a value is the number of the binding that made it. Names of functions and of
symbolic dimensions are part of the interface and count. Constants are dtype, shape and, unless only the structure is
asked for, content.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import tvm
from tvm import ir, relax, tirx

from forge_pipeline.digest import canonical_json
from forge_pipeline.relax.bindings import attributes, bindings, is_variable, operator, result


def digest(module: tvm.IRModule, extra: Any = None, *, weights: bool) -> str:
    """Return the SHA-256 of a module as 64 hexadecimal digits; ``extra`` is plain JSON that counts too."""
    state = hashlib.sha256(canonical_json({"format": "forge-relax-1", "extra": extra}))
    for variable, function in sorted(module.functions.items(), key=lambda item: str(item[0].name_hint)):
        state.update(f"\nfunction {variable.name_hint}".encode())
        for piece in _function(function, {}, weights):
            state.update(b"\n")
            state.update(piece)
    return state.hexdigest()


def _function(function: Any, known: dict[Any, int], weights: bool) -> Iterator[bytes]:
    if not isinstance(function, relax.Function):  # a kernel: its text is all there is to know
        yield (
            function.script(show_meta=True).encode() if isinstance(function, tirx.PrimFunc) else str(function).encode()
        )
        return
    for key in ("Codegen", "Composite"):
        if function.attrs and key in function.attrs:
            yield f"{key} {function.attrs[key]}".encode()
    for variable in function.params:
        known[variable] = len(known)
        yield f"parameter {variable.ty}".encode()
    for bound in bindings(function):
        yield from _expr(bound.value, known, weights)
        if bound.cast is not None:
            yield f"cast {bound.cast}".encode()
        known[bound.variable] = len(known)
    yield b"result"
    yield from _expr(result(function), known, weights)


def _expr(expr: Any, known: dict[Any, int], weights: bool) -> Iterator[bytes]:
    if is_variable(expr):
        yield f"value {known[expr]}".encode()
    elif isinstance(expr, ir.GenericConst):
        yield f"constant {expr.ty}".encode()
        if weights:
            yield memoryview(expr.value.numpy().reshape(-1).view("uint8"))  # type: ignore[misc]
    elif isinstance(expr, relax.Tuple):
        yield f"tuple {len(expr.fields)}".encode()
        for field in expr.fields:
            yield from _expr(field, known, weights)
    elif isinstance(expr, relax.TupleGetItem):
        yield f"item {expr.index}".encode()
        yield from _expr(expr.tuple_value, known, weights)
    elif isinstance(expr, relax.Call):
        shown = {name: str(value) for name, value in sorted(attributes(expr).items())}
        types = [str(item) for item in expr.ty_args]
        yield f"call {operator(expr)} {len(expr.args)}".encode()
        yield canonical_json({"attributes": shown, "types": types})
        if not isinstance(expr.op, ir.Op):
            yield from _expr(expr.op, known, weights)
        for argument in expr.args:
            yield from _expr(argument, known, weights)
    elif isinstance(expr, relax.If):
        yield b"if"
        yield from _expr(expr.cond, known, weights)
        for branch in (expr.true_branch, expr.false_branch):
            yield from _function(relax.Function([], branch, None, False), dict(known), weights)
    elif isinstance(expr, relax.Function):
        yield b"function"
        yield from _function(expr, dict(known), weights)
    elif isinstance(expr, ir.GlobalVar):
        yield f"global {expr.name_hint}".encode()
    else:
        yield f"{type(expr).__name__} {expr}".encode()


def digest_arrays(arrays: Mapping[str, np.ndarray]) -> str:
    """Return the SHA-256 of arrays by name."""
    state = hashlib.sha256()
    for name, array in sorted(arrays.items()):
        state.update(f"\n{name} {array.dtype} {array.shape}\n".encode())
        state.update(array.tobytes())
    return state.hexdigest()
