"""Buffers are allocated in the innermost loop that uses them, where TVM leaves them alone."""

from __future__ import annotations

from typing import Any

from tests.support.kernels import allocated


def _kernel(rows: int) -> Any:
    """Return a kernel that doubles a row, adds it up and writes the sums of all rows, twice over."""
    from tvm import s_tir, te

    x = te.placeholder((rows, 8), "float32", "x")
    doubled = te.compute((rows, 8), lambda i, j: x[i, j] * 2, name="doubled")
    axis = te.reduce_axis((0, 8), "axis")
    sums = te.compute((rows,), lambda i: te.sum(doubled[i, axis], axis=axis), name="sums")
    result = te.compute((rows,), lambda i: sums[rows - 1 - i] + sums[i], name="result")
    sch = s_tir.Schedule(te.create_prim_func([x, result]))
    (row, _) = sch.get_loops(sch.get_sblock("sums"))
    sch.compute_at(sch.get_sblock("doubled"), row)
    sch.decompose_reduction(sch.get_sblock("sums"), sch.get_loops(sch.get_sblock("sums"))[-1])
    return sch.mod["main"]


def _homes(function: Any) -> dict[str, int]:
    return {buffer.name: depth for depth, buffer in allocated(function)}


def test_a_buffer_of_one_loop_is_in_it_and_one_of_two_stays_outside() -> None:
    import tvm
    import tvm_ffi
    from tvm import s_tir

    from forge_pipeline.codegen.tir.lowering.allocations import in_place

    before = _kernel(5)
    assert _homes(before) == {"doubled": 0, "sums": 0}
    after = in_place(before, None, None)
    assert _homes(after) == {"doubled": 1, "sums": 0}
    prepared, again = (
        tvm.transform.Sequential(
            [s_tir.transform.LowerInitBlock(), s_tir.transform.PlanAndUpdateBufferAllocationLocation()]
        )(tvm.IRModule({"main": function}))["main"]
        for function in (before, after)
    )
    assert _homes(prepared) == _homes(again) == {"doubled": 1, "sums": 0}
    lowered = s_tir.transform.LowerInitBlock()(tvm.IRModule({"main": after}))["main"]
    assert tvm_ffi.structural_equal(lowered, again)  # TVM has nothing to move


def test_a_kernel_without_buffers_is_as_it_was() -> None:
    from tvm import te

    from forge_pipeline.codegen.tir.lowering.allocations import in_place

    x = te.placeholder((4,), "float32", "x")
    function = te.create_prim_func([x, te.compute((4,), lambda i: x[i] + 1, name="y")])
    assert in_place(function, None, None).same_as(function)
