"""Images of any size through one library."""

from __future__ import annotations

import numpy as np
import onnx

from tests.support.int8.compare import HERE, compiled, reference

SIZES = ((17, 9), (2, 2), (3, 5), (8, 8), (41, 47), (3, 26), (2, 13))


def expect_same(model: onnx.ModelProto, tag: str = HERE, axes: tuple[int, int] = (2, 3)) -> None:
    """Compare results at all sizes, with one engine."""
    engine, random = compiled(model, tag), np.random.default_rng(5)
    shape = [extent.dim_value for extent in model.graph.input[0].type.tensor_type.shape.dim]
    for size in SIZES:
        for axis, extent in zip(axes, size, strict=True):
            shape[axis] = extent
        x = (random.standard_normal(shape) * 40).astype(np.float32)
        for found, wanted in zip(engine(x), reference(model, x, optimized=False), strict=True):
            np.testing.assert_array_equal(found, wanted, err_msg=str(size))
