"""The one place where TVM 0.27 orders code by memory addresses, put in order: functions that compute shapes."""

from __future__ import annotations

import tvm

PREFIX = "shape_func"


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
