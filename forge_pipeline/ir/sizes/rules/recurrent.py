"""LSTM, GRU and RNN."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from forge_pipeline.ir.recurrent import GATES, STATES
from forge_pipeline.ir.sizes.expression import Whole
from forge_pipeline.ir.sizes.operation import Operation, Rule, needed
from forge_pipeline.ir.sizes.value import Known


def recurrent(op: Operation) -> Sequence[Known]:
    """The whole sequence of hidden states, and the last ones."""
    dtype, data, weight = op.input(0).dtype, needed(op.shape(0)), needed(op.shape(2))
    directions, hidden = weight[0], weight[2]
    op.require_equal(data[2], needed(op.shape(1))[2], "the extents of data and weights differ")
    _demand_widths(op, directions, hidden)
    if op.attribute("layout", 0):
        batch, steps, _ = data
        whole, last = (batch, steps, directions, hidden), (batch, directions, hidden)
    else:
        steps, batch, _ = data
        batch = _agreed(op, batch)
        whole, last = (steps, directions, batch, hidden), (directions, batch, hidden)
    found = [Known(dtype, whole), Known(dtype, last), Known(dtype, last)]
    return found[: len(op.node.output)]


def _demand_widths(op: Operation, directions: Whole, hidden: Whole) -> None:
    """Demand that weights, biases and states are as wide as the recurrence's weights say.

    What is exported of a projected LSTM is not: its cell state is wider than its hidden state.
    """
    rows = GATES[op.node.op_type] * hidden
    state = {1 if op.attribute("layout", 0) else 0: directions, 2: hidden}
    expected = {1: {0: directions, 1: rows}, 2: {1: rows}, 3: {0: directions, 1: 2 * rows}}
    expected |= dict.fromkeys(STATES[op.node.op_type], state) | {7: {0: directions, 1: 3 * hidden}}
    for index, extents in expected.items():
        shape = op.shape(index) if op.has(index) else None
        for axis, extent in extents.items() if shape is not None else ():
            why = f"axis {axis} of input {index} does not go with the weights of the recurrence"
            op.require_equal(shape[axis], extent, why)  # type: ignore[index]


def _agreed(op: Operation, batch: Whole) -> Whole:
    """Return the batch as lengths and initial states have it too."""
    for index, axis in ((4, 0), (5, 1), (6, 1)):
        shape = op.shape(index) if op.has(index) else None
        if shape is not None:
            batch = op.require_equal(batch, shape[axis], "the batches of data and states differ")
    return op.context.resolve(batch)


RULES: Final[Mapping[str, Rule]] = dict.fromkeys(GATES, recurrent)
