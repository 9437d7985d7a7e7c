"""Functions of TVM as vectors."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

LANES = 16


@pytest.fixture(scope="module")
def evaluate() -> Callable[..., np.ndarray]:
    """Return what gives a function of TVM, by its name, of arrays of one length, computed in vectors."""
    import tvm
    from tvm import s_tir, te, tirx

    from forge_pipeline.codegen.tir.math.vector_math import install
    from forge_pipeline.target import Target

    install()

    def evaluate(name: str, *operands: np.ndarray) -> np.ndarray:
        rows = -(-operands[0].size // LANES)
        given = [te.placeholder((rows, LANES), name=f"x{index}") for index in range(len(operands))]
        y = te.compute((rows, LANES), lambda i, j: getattr(tirx, name)(*(x[i, j] for x in given)), name="y")
        sch = s_tir.Schedule(te.create_prim_func([*given, y]))
        sch.vectorize(sch.get_loops(sch.get_sblock("y"))[1])
        kernel = tvm.compile(sch.mod, target=Target.from_tag("host").tvm())["main"]
        arrays = [np.resize(values.astype(np.float32), (rows, LANES)) for values in operands]
        found = tvm.runtime.tensor(np.zeros((rows, LANES), np.float32))
        kernel(*map(tvm.runtime.tensor, arrays), found)
        result: np.ndarray = found.numpy().ravel()[: operands[0].size]
        return result

    return evaluate
