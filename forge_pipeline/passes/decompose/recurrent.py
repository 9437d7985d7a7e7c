"""LSTM, GRU and RNN spelt out step by step, for compilers and quantizers that know matrix products only.

Equations and gate orders are those of the ONNX operator specification (LSTM iofc, GRU zrh).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from onnx import NodeProto

from forge_pipeline.ir.recurrent import ACTIVATIONS, GATES, REVERSALS
from forge_pipeline.passes.contract import Tolerance, Transformation, verified
from forge_pipeline.passes.graph import Array, Graph
from forge_pipeline.passes.nodes import attribute, is_op
from forge_pipeline.passes.rewrite import Builder

SUPPORTED = frozenset({"Sigmoid", "Tanh", "Relu", "Softsign", "Softplus"})  # those without parameters


@dataclass(frozen=True, slots=True, kw_only=True)
class UnrollOptions:
    """``max_steps``: sequences longer than this, or of unknown length, stay as they are."""

    max_steps: int = 16


@verified(Tolerance())
class UnrollRecurrent(Transformation[UnrollOptions]):
    """Replace recurrent operators over short, known sequences by matrix products and elementwise operators.

    Peepholes, clipping, coupled gates and the batch-first layout included. Stays as it is: weights that are not
    constant, rows of different lengths, and activations with parameters.
    """

    options_type = UnrollOptions

    def call(self, graph: Graph) -> int:
        """Unroll what can be."""
        return sum(self._unroll(graph, node) for node in graph.nodes if is_op(node, *GATES) and graph.opset() >= 13)

    def _unroll(self, graph: Graph, node: NodeProto) -> bool:
        turned = bool(attribute(node, "layout", 0))
        shape = graph.static_shape(node.input[0])
        if shape is not None and turned:
            shape = (shape[1], shape[0], shape[2])
        weights = [graph.array(name) for name in node.input[1:3]]
        if shape is None or shape[0] > self.options.max_steps or any(array is None for array in weights):
            return False
        given = list(node.input[3:]) + [""] * 5
        bias = graph.array(given[0]) if given[0] else np.zeros((len(weights[0]), 0), np.float32)  # type: ignore[arg-type]
        peephole = graph.array(given[4]) if given[4] else None
        lengths = graph.array(given[1]) if given[1] else np.array(shape[0])
        if bias is None or lengths is None or (lengths != shape[0]).any() or (given[4] and peephole is None):
            return False
        reversals = REVERSALS[attribute(node, "direction", "forward")]
        functions = attribute(node, "activations") or ACTIVATIONS[node.op_type] * len(reversals)
        functions = [name.decode() if isinstance(name, bytes) else str(name) for name in functions]
        if not set(functions) <= SUPPORTED:
            return False
        hidden = int(attribute(node, "hidden_size") or weights[1].shape[-1])  # type: ignore[union-attr]
        op = Builder(graph, f"{node.output[0] or node.output[1]}_step")
        cells = []
        source = str(node.input[0])
        if turned:
            source = str(op.Transpose(source, perm=[1, 0, 2]))
            given[2:4] = [str(op.Transpose(name, perm=[1, 0, 2])) if name else "" for name in given[2:4]]
        steps = _steps(op, source, shape[0])
        for index, is_reversed in enumerate(reversals):
            states = [self._state(op, name, index, (shape[1], hidden), weights[0]) for name in given[2:4]]
            cell = _Cell(
                op=op,
                kind=node.op_type,
                hidden=hidden,
                weight=weights[0][index],  # type: ignore[index]
                recurrence=weights[1][index],  # type: ignore[index]
                bias=bias[index] if bias.shape[-1] else np.zeros(2 * GATES[node.op_type] * hidden, np.float32),
                functions=functions[index * len(ACTIVATIONS[node.op_type]) :],
                after=bool(attribute(node, "linear_before_reset", 0)),
                clip=float(attribute(node, "clip", 0.0)),
                coupled=bool(attribute(node, "input_forget", 0)),
                peephole=None if peephole is None else peephole[index],
            )
            cells.append(cell.run(steps, states, -1 if is_reversed else 1))
        _finish(graph, node, op, cells, turned=turned)
        return True

    @staticmethod
    def _state(op: Builder, name: str, index: int, shape: tuple[int, int], weight: Array | None) -> str:
        if not name:
            return op.constant(np.zeros(shape, None if weight is None else weight.dtype))
        axis = op.constant(np.array([0], np.int64))
        return str(op.Squeeze(op.Gather(name, op.constant(np.array([index], np.int64)), axis=0), axis))


def _steps(op: Builder, name: str, count: int) -> list[str]:
    return [str(op.Gather(name, op.constant(np.array(index, np.int64)), axis=0)) for index in range(count)]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Cell:
    op: Builder
    kind: str
    hidden: int
    weight: Array
    recurrence: Array
    bias: Array
    functions: Sequence[str]
    after: bool
    clip: float
    coupled: bool
    peephole: Array | None

    def run(self, inputs: list[str], states: list[str], step: int) -> tuple[list[str], list[str]]:
        """Return the hidden state after each input, in the order of the inputs, and the last states."""
        outputs = [""] * len(inputs)
        order = range(len(inputs))[::step]
        half = len(self.bias) // 2
        weight, recurrence = self.op.constant(self.weight.T), self.op.constant(self.recurrence.T)
        given, carried = self.op.constant(self.bias[:half]), self.op.constant(self.bias[half:])
        for index in order:
            x = str(self.op.Add(self.op.MatMul(inputs[index], weight), given))
            states = getattr(self, f"_{self.kind.lower()}")(x, states, recurrence, carried)
            outputs[index] = states[0]
        return outputs, states

    def _act(self, index: int, value: str) -> str:
        if self.clip and index != 2:  # ONNX Runtime does not clip the cell's own value
            ends = (self.op.constant(end, self.weight.dtype) for end in (-self.clip, self.clip))
            value = str(self.op.Clip(value, *ends))
        return str(getattr(self.op, self.functions[index])(value))

    def _part(self, value: str, gate: int) -> str:
        starts, ends = (self.op.constant(np.array([k * self.hidden], np.int64)) for k in (gate, gate + 1))
        return str(self.op.Slice(value, starts, ends, self.op.constant(np.array([1], np.int64))))

    def _rnn(self, x: str, states: list[str], recurrence: str, carried: str) -> list[str]:
        total = self.op.Add(x, self.op.Add(self.op.MatMul(states[0], recurrence), carried))
        return [self._act(0, total), states[1]]

    def _lstm(self, x: str, states: list[str], recurrence: str, carried: str) -> list[str]:
        op = self.op
        total = str(op.Add(x, op.Add(op.MatMul(states[0], recurrence), carried)))
        taken = self._act(0, self._seeing(self._part(total, 0), 0, states[1]))
        if self.coupled:
            kept = str(op.Sub(op.constant(np.ones(1, self.weight.dtype)), taken))
        else:
            kept = self._act(0, self._seeing(self._part(total, 2), 2, states[1]))
        fresh = self._act(1, self._part(total, 3))
        cell = str(op.Add(op.Mul(kept, states[1]), op.Mul(taken, fresh)))
        given = self._act(0, self._seeing(self._part(total, 1), 1, cell))
        return [str(op.Mul(given, self._act(2, cell))), cell]

    def _seeing(self, value: str, gate: int, cell: str) -> str:
        """Add what a gate sees of the cell through its peephole."""
        if self.peephole is None:
            return value
        weight = self.peephole[gate * self.hidden : (gate + 1) * self.hidden]
        return str(self.op.Add(value, self.op.Mul(self.op.constant(weight), cell)))

    def _gru(self, x: str, states: list[str], recurrence: str, carried: str) -> list[str]:
        op, h = self.op, states[0]
        product = str(op.Add(op.MatMul(h, recurrence), carried))
        update, reset = (self._act(0, str(op.Add(self._part(x, k), self._part(product, k)))) for k in (0, 1))
        if self.after:
            inner = str(op.Mul(reset, self._part(product, 2)))
        else:
            last = op.constant(self.recurrence[2 * self.hidden :].T)
            bias = op.constant(self.bias[len(self.bias) // 2 + 2 * self.hidden :])
            inner = str(op.Add(op.MatMul(op.Mul(reset, h), last), bias))
        fresh = self._act(1, str(op.Add(self._part(x, 2), inner)))
        one = op.constant(np.ones(1, self.weight.dtype))
        return [str(op.Add(op.Mul(op.Sub(one, update), fresh), op.Mul(update, h))), states[1]]


def _finish(
    graph: Graph, node: NodeProto, op: Builder, cells: list[tuple[list[str], list[str]]], *, turned: bool
) -> None:
    """Build [steps, directions, batch, hidden] and the last states [directions, batch, hidden], or batch first."""
    zero = op.constant(np.array([0], np.int64))
    values = []
    if node.output[0]:
        each = []
        for step in zip(*(outputs for outputs, _ in cells), strict=True):
            rows = [op.Unsqueeze(value, zero) for value in step]
            each.append(op.Unsqueeze(op.Concat(*rows, axis=0), zero))
        whole = op.Concat(*each, axis=0)
        values.append((node.output[0], op.Transpose(whole, perm=[2, 0, 1, 3]) if turned else whole))
    for index, target in enumerate(node.output[1:]):
        if target:
            rows = [op.Unsqueeze(states[index], zero) for _, states in cells]
            whole = op.Concat(*rows, axis=0)
            values.append((target, op.Transpose(whole, perm=[1, 0, 2]) if turned else whole))
    graph.remove(node)
    for target, value in values:
        graph.rename(value, target)
