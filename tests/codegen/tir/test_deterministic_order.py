"""Code is the same whatever order TVM met values and extents in."""

from __future__ import annotations

import itertools
from typing import Any

from forge_pipeline.codegen.tir.deterministic_order import extents_in_order, sort_shape_stores


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


def test_a_kernel_takes_the_extents_that_no_operand_has_in_the_order_in_which_the_operands_name_them() -> None:
    from tvm import relax, te, tirx

    def twice(x: Any) -> Any:
        return te.compute(x.shape, lambda *place: x[place] * 2)

    for count in range(2, 9):  # each of them at another address
        extents = [tirx.Var(f"n{at}", "int64") for at in range(count)]
        value = relax.Var("x", relax.TensorType([extent * 2 for extent in reversed(extents)], "float32"))
        builder = relax.BlockBuilder()
        with builder.function("main", [value]), extents_in_order():
            with builder.dataflow():
                output = builder.emit_output(builder.call_te(twice, value))
            builder.emit_func_output(output)
        (call,) = (binding.value for block in builder.get()["main"].body.blocks for binding in block.bindings)
        kernel = builder.get()["twice"]
        assert [extent.name for extent in call.args[1].fields[1:]] == [extent.name for extent in reversed(extents)]
        assert [parameter.name for parameter in kernel.params[1 : 1 + count]] == [e.name for e in reversed(extents)]
