"""Shape functions are the same whatever order TVM met their values in."""

from __future__ import annotations

import itertools

from forge_pipeline.codegen.tir.deterministic_order import sort_shape_stores


def test_every_order_of_the_stores_becomes_the_same_function() -> None:
    import tvm
    import tvm_ffi
    from tvm.script import tirx as T

    @T.prim_func(s_tir=True)
    def shape_func(H: T.Buffer((4,), "int64")):  # type: ignore[no-untyped-def, name-defined]
        H[1] = H[0] * T.int64(2)
        H[2] = H[0] * T.int64(3)
        H[3] = H[0] * T.int64(5)

    modules = [
        tvm.IRModule({"shape_func": shape_func.with_body(tvm.tirx.SeqStmt(list(order)))})
        for order in itertools.permutations(shape_func.body.seq)
    ]
    ordered = [sort_shape_stores(module) for module in modules]
    assert not tvm_ffi.structural_equal(modules[0], modules[1])
    assert all(tvm_ffi.structural_equal(ordered[0], module) for module in ordered[1:])
    assert [int(store.indices[0]) for store in ordered[-1]["shape_func"].body.seq] == [1, 2, 3]
