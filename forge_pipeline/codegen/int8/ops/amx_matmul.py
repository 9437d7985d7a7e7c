"""Products of bytes by constant weights in AMX's tiles."""

from __future__ import annotations

from typing import Any

from tvm import relax, te

from forge_pipeline.codegen.amx.lines import lines_of_matrix
from forge_pipeline.codegen.amx.operands import BYTES_BY_BYTES, filled
from forge_pipeline.codegen.amx.products import is_worth, of_matrix, sums_of, typical_rows
from forge_pipeline.codegen.int8.requantize import Epilogue, to_float_if_needed
from forge_pipeline.codegen.layout.builder import Array, Graph


def emit(graph: Graph, flat: relax.Expr, rows: Any, weight: Array, epilogue: Epilogue) -> relax.Expr | None:
    """Emit (.., rows, steps) times (steps, columns); None where vectors serve as well."""
    if not graph.machine.amx or not is_worth(BYTES_BY_BYTES, typical_rows([rows]), (1, *weight.shape)):
        return None
    columns = weight.shape[1]
    return graph.kernel(
        multiply, flat, graph.constant(BYTES_BY_BYTES.pack(weight[None])),
        *epilogue.constants(graph, (filled(columns),)),
        name="dense_u8", columns=columns, epilogue=epilogue,
    )  # fmt: skip


def multiply(
    left: te.Tensor, panels: te.Tensor, bias: te.Tensor, factor: te.Tensor, *float_bias: te.Tensor,
    columns: int, epilogue: Epilogue,
) -> te.Tensor:  # fmt: skip
    """Describe (.., rows, steps) times packed weights, and what is done to the sums."""
    lines = lines_of_matrix(left, BYTES_BY_BYTES)
    return of_matrix(
        sums_of(lines, panels, BYTES_BY_BYTES, int(lines.shape[3])), left.shape[:-1], columns,
        lambda total, n: epilogue.result(total, bias(n), factor(n), *(term(n) for term in float_bias)),
        f"finish_{to_float_if_needed(epilogue.affine)}",
    )  # fmt: skip
