"""Where TVM 0.27 orders code by memory addresses, put in order: shape functions, and extents that kernels take."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import tvm
from tvm import tirx
from tvm.relax import block_builder

PREFIX = "shape_func"


@contextmanager
def extents_in_order() -> Iterator[None]:
    """Let TVM make kernels whose extents, where no operand has them as they are, come in the order of the operands.

    ``BlockBuilder.emit_te``, which legalization calls too, appends such extents as it takes them from a set.
    """
    generate = block_builder.gen_call_tir_inputs

    def generated(*arguments: Any, **settings: Any) -> tuple[tirx.PrimFunc, list[Any], Any]:
        function, operands, kind = generate(*arguments, **settings)
        return *_in_order(function, operands), kind

    block_builder.gen_call_tir_inputs = generated
    try:
        yield
    finally:
        block_builder.gen_call_tir_inputs = generate


def _in_order(function: tirx.PrimFunc, operands: Sequence[Any]) -> tuple[tirx.PrimFunc, list[Any]]:
    """Return a kernel and what it is called with, the extents at the end by where the tensors before name them."""
    tensors = [operand for operand in operands if not tvm.ir.is_prim_expr(operand)]
    sizes = [size for tensor in tensors for size in tensor.ty.shape.values]
    named = dict.fromkeys(name for size in sizes for name in tirx.analysis.undefined_vars(size))
    places = {name: at for at, name in enumerate(named)}
    tail = [at for at, operand in enumerate(operands) if operand in places]
    order = list(range(len(function.params)))
    for at, chosen in zip(tail, sorted(tail, key=lambda at: places[operands[at]]), strict=True):
        order[at] = chosen
    parameters = [function.params[at] for at in order]
    ordered = tirx.PrimFunc(parameters, function.body, function.ret_type, function.attrs, function.span)
    return ordered, [operands[at] for at in order[: len(operands)]]


def sort_shape_stores(module: tvm.IRModule) -> tvm.IRModule:
    """Return ``module`` with the stores of every shape function sorted by the slot that they fill.

    ``VMShapeLower`` collects them in a hash table keyed by pointers, so that their order changes from process to
    process, and with it the library's bytes. Each fills a slot of its own from slots of symbolic variables, which
    are filled before the function is called: any order computes the same.
    """
    functions = dict(module.functions)
    for variable, function in functions.items():
        if not (isinstance(function, tvm.tirx.PrimFunc) and variable.name_hint.startswith(PREFIX)):
            continue
        body = function.body
        if isinstance(body, tvm.tirx.SeqStmt) and all(isinstance(item, tvm.tirx.BufferStore) for item in body.seq):
            stores = sorted(body.seq, key=lambda store: int(store.indices[0]))
            functions[variable] = function.with_body(tvm.tirx.SeqStmt(stores))
    return tvm.IRModule(functions, attrs=module.attrs)
