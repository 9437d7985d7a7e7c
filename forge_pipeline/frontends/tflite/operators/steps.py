"""One step of TensorFlow Lite's recurrent operators, and their walk over a sequence.

The LSTM is that of Sak, Senior and Beaufays (arXiv:1402.1128) with peepholes, projection and clipped cells, with
coupled gates (Greff et al., arXiv:1503.04069), and with layer normalization (Ba et al., arXiv:1607.06450), as
tensorflow/lite/kernels/lstm_eval.cc computes it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

import numpy as np
from onnx import helper

from forge_pipeline.frontends.tflite.builder import Builder

Function = Callable[[str], str]
Step = Callable[[str, Sequence[str]], list[str]]
"""From what the step's input comes to and the states before, to the states behind; the first is the result."""

_LEAST_VARIANCE: Final = np.float32(1e-8)  # of tensor_utils::MeanStddevNormalization


@dataclass(frozen=True, slots=True, kw_only=True)
class Gate:
    """What a gate has beside its products: ONNX values of one vector each, "" for none."""

    peephole: str = ""
    norm: str = ""
    bias: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Lstm:
    """A cell: its gates i (none where it is coupled to f), f, c and o, in the order of their rows in ``recurrent``."""

    gates: Mapping[str, Gate]
    recurrent: str
    activation: Function
    projection: str = ""
    projection_bias: str = ""
    cell_clip: float = 0.0
    projection_clip: float = 0.0
    keep_output: Function = field(default=lambda name: name)
    keep_cell: Function = field(default=lambda name: name)

    def step(self, b: Builder, inputs: str, states: Sequence[str]) -> list[str]:
        """Return output and cell behind a step; ``inputs`` are the products of its input, all gates side by side."""
        output, cell = states
        sums = b.node("Add", [inputs, b.node("MatMul", [output, self.recurrent])])
        first = b.node("Split", [sums], len(self.gates), axis=-1, num_outputs=len(self.gates))
        parts = {gate: f"{first}_{place}" if place else first for place, gate in enumerate(self.gates)}
        forget = b.node("Sigmoid", [self._gate(b, "f", parts["f"], cell)])
        if "i" in parts:
            enter = b.node("Sigmoid", [self._gate(b, "i", parts["i"], cell)])
        else:
            enter = b.node("Sub", [b.constant(np.float32(1)), forget])
        new = self.activation(self._gate(b, "c", parts["c"], ""))
        cell = b.node("Add", [b.node("Mul", [forget, cell]), b.node("Mul", [enter, new])])
        cell = self.keep_cell(_clipped(b, cell, self.cell_clip))
        leave = b.node("Sigmoid", [self._gate(b, "o", parts["o"], cell)])
        output = b.node("Mul", [leave, self.activation(cell)])
        if self.projection:
            output = b.node("MatMul", [output, self.projection])
            if self.projection_bias:
                output = b.node("Add", [output, self.projection_bias])
            output = _clipped(b, output, self.projection_clip)
        return [self.keep_output(output), cell]

    def _gate(self, b: Builder, name: str, part: str, cell: str) -> str:
        gate = self.gates[name]
        if gate.peephole and cell:
            part = b.node("Add", [part, b.node("Mul", [cell, gate.peephole])])
        if gate.norm:
            part = b.node("Mul", [_normalized(b, part), gate.norm])
            if gate.bias:
                part = b.node("Add", [part, gate.bias])
        return part


def _normalized(b: Builder, name: str) -> str:
    last = b.integers(-1)
    centered = b.node("Sub", [name, b.node("ReduceMean", [name, last])])
    variance = b.node("ReduceMean", [b.node("Mul", [centered, centered]), last])
    return b.node("Div", [centered, b.node("Sqrt", [b.node("Add", [variance, b.constant(_LEAST_VARIANCE)])])])


def _clipped(b: Builder, name: str, limit: float) -> str:
    if limit <= 0:
        return name
    return b.node("Clip", [name, b.constant(np.float32(-limit)), b.constant(np.float32(limit))])


def walk(b: Builder, step: Step, inputs: str, states: Sequence[str], *, backwards: bool) -> tuple[str, list[str]]:
    """Return the results of all steps, in the order of the inputs, and the states behind the last.

    ``inputs`` [steps, batch, features]; it is the Scan of ONNX.
    """
    given = [b.fresh("state") for _ in states]
    now = b.fresh("now")
    with b.apart() as nodes:
        after = step(now, given)
        results = [b.node("Identity", [name]) for name in [*after, after[0]]]
    real = helper.make_tensor_value_info
    body = helper.make_graph(
        nodes,
        "step",
        [real(name, 1, None) for name in (*given, now)],
        [real(name, 1, None) for name in results],
    )
    order = [int(backwards)]
    name = b.node(
        "Scan", [*states, inputs], len(results), body=body, num_scan_inputs=1,
        scan_input_directions=order, scan_output_directions=order,
    )  # fmt: skip
    return f"{name}_{len(states)}", [name, *(f"{name}_{place}" for place in range(1, len(states)))]
