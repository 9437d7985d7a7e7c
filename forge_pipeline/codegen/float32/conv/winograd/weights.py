"""Winograd's transform of weights, G w G^T, run when a library is loaded: the file holds the 3x3 kernels.

In float64, so that the weights are what they would be had they been transformed when the model was built.
"""

from __future__ import annotations

from tvm import te
from tvm.s_tir import Schedule

from forge_pipeline.codegen.float32.conv.winograd.tiles import combine
from forge_pipeline.codegen.layout.builder import Array
from forge_pipeline.codegen.tir import primitives
from forge_pipeline.codegen.tir.machine import Machine

NAME = "winograd_weight"


def transform(weight: te.Tensor, matrix: Array) -> te.Tensor:
    """Describe (rows, blocks, 3, 3, channel, lane), as `direct` packs it, as (rows, i, j, blocks, channel, lane).

    ``matrix`` is G, (m + 2, 3).
    """
    rows, blocks, _, _, channels, lanes = (int(extent) for extent in weight.shape)
    size = int(matrix.shape[0])
    vertical = te.compute(
        (rows, blocks, channels, size, 3, lanes),
        lambda r, b, c, i, x, lane: combine(
            matrix, i, "float64", lambda y: weight[r, b, y, x, c, lane].astype("float64")
        ),
        name="vertical",
    )
    return te.compute(
        (rows, size, size, blocks, channels, lanes),
        lambda r, i, j, b, c, lane: combine(matrix, j, "float64", lambda x: vertical[r, b, c, i, x, lane]).astype(
            weight.dtype
        ),
        name="transformed",
        attrs={primitives.FAMILY: NAME},
    )


def schedule(sch: Schedule, machine: Machine) -> None:
    """A vector of filters at a time; filters and channels over the threads."""
    anchor, vertical = primitives.find(sch, NAME), sch.get_sblock("vertical")
    r, i, j, b, c, lane = sch.get_loops(anchor)
    sch.reorder(r, b, c, i, j, lane)
    shared = sch.fuse(r, b)
    sch.compute_at(vertical, c, preserve_unit_loops=True)
    sch.set_scope(vertical, 0, "local")
    sch.parallel(shared)
    for block in (anchor, vertical):
        *_, first, second, lane = sch.get_loops(block)
        sch.vectorize(lane)
        sch.unroll(first)
        sch.unroll(second)
