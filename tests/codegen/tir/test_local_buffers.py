"""From scheduled kernels to code: what TVM would do otherwise."""

from __future__ import annotations

import numpy as np


def test_what_is_computed_of_a_choice_is_computed_once_of_any_floats() -> None:
    import tvm
    from tvm import te, tirx

    from forge_pipeline.codegen.tir.lowering import pipeline
    from forge_pipeline.target import Target

    size = tirx.Var("size", "int64")
    x = te.placeholder((size,), name="x")

    def element(i: object) -> object:
        place = tirx.Select(i * 2 < size, i, size - i).astype("float32") * size.astype("float32")
        return (x[i] + place) * place

    kernel = te.create_prim_func([x, te.compute((size,), element, name="y")])
    machine = Target.from_tag("host")
    built = pipeline.build(tvm.IRModule({"main": kernel.with_attr("global_symbol", "main")}), machine)
    given, found = np.arange(7, dtype=np.float32), tvm.runtime.tensor(np.zeros(7, np.float32))
    built["main"](tvm.runtime.tensor(given), found)
    place = np.float32([0, 1, 2, 3, 3, 2, 1]) * 7
    assert np.array_equal(found.numpy(), (given + place) * place)
