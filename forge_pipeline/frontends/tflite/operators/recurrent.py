"""TensorFlow Lite's recurrent operators: ONNX's own where they say all of it, else a Scan of their step.

Their states are variable tensors: they are what the last call left in them (``state``).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final

import numpy as np

from forge_pipeline.frontends.tflite.builder import TANH, Builder, bound, option, unsupported
from forge_pipeline.frontends.tflite.model import Operator
from forge_pipeline.frontends.tflite.operators.steps import Gate, Lstm, walk

_RELU: Final = 1
_ONNX_NAMES: Final = {_RELU: "Relu", TANH: "Tanh"}
_ONNX_ORDER: Final = "iofc"  # of the gates in ONNX's LSTM; of its peepholes "iof"


@dataclass(frozen=True, slots=True, kw_only=True)
class Operands:
    """The tensors of one direction of an LSTM; -1 for one that is not there. Those of gates by gate."""

    inputs: dict[str, int]
    recurrent: dict[str, int]
    peepholes: dict[str, int]
    biases: dict[str, int]
    norms: dict[str, int]
    projection: int
    projection_bias: int
    output: int
    cell: int


def _operands(op: Operator, places: Sequence[int], output: int, cell: int, norms: int | None = None) -> Operands:
    """``places``: where input weights, recurrent weights, peepholes, biases and the projection begin."""

    def at(place: int) -> int:
        return op.inputs[place] if place < len(op.inputs) else -1

    def gates(first: int | None, names: str = "ifco") -> dict[str, int]:
        found = {} if first is None else {gate: at(first + place) for place, gate in enumerate(names)}
        return {gate: index for gate, index in found.items() if index >= 0}

    inputs, recurrent, peepholes, biases, projection = places
    return Operands(
        inputs=gates(inputs),
        recurrent=gates(recurrent),
        peepholes=gates(peepholes, "ifo"),
        biases=gates(biases),
        norms=gates(norms),
        projection=at(projection),
        projection_bias=at(projection + 1),
        output=at(output),
        cell=at(cell),
    )


def unidirectional_lstm(b: Builder, op: Operator) -> None:
    """UNIDIRECTIONAL_SEQUENCE_LSTM."""
    operands = _operands(op, (1, 5, 9, 12, 16), 18, 19, 20)
    steps = _by_time(b, op, op.inputs[0])
    _give(b, op, op.outputs[0], _lstm(b, op, operands, steps, [], backwards=False))


def bidirectional_lstm(b: Builder, op: Operator) -> None:
    """BIDIRECTIONAL_SEQUENCE_LSTM: in a stack, what the one below gives backwards may be a second input."""
    forward = _operands(op, (1, 5, 9, 12, 16), 35, 36)
    backward = _operands(op, (18, 22, 26, 29, 33), 37, 38)
    first, second, aux = _both(b, op, 39, 41)
    results = []
    for operands, steps, weights, backwards in ((forward, first, 40, False), (backward, second, 44, True)):
        more = []
        if aux:
            table = {gate: op.inputs[weights + place] for place, gate in enumerate("ifco")}
            more = [(aux, {gate: table[gate] for gate in operands.inputs})]
        results.append(_lstm(b, op, operands, steps, more, backwards=backwards))
    _give_both(b, op, results)


def _both(b: Builder, op: Operator, place: int, weights: int) -> tuple[str, str, str]:
    """Return what goes forwards, what goes backwards, and what is added to both by weights of its own ("": nothing)."""
    first = _by_time(b, op, op.inputs[0])
    if len(op.inputs) <= place or op.inputs[place] < 0:
        return first, first, ""
    second = _by_time(b, op, op.inputs[place])
    if len(op.inputs) > weights and op.inputs[weights] >= 0:
        return first, first, second
    return first, second, ""


def _by_time(b: Builder, op: Operator, index: int) -> str:
    name = b.real(index)
    return name if option(op, "TimeMajor", False) else b.node("Transpose", [name], perm=[1, 0, 2])


def _give(b: Builder, op: Operator, index: int, name: str) -> None:
    b.put(index, name if option(op, "TimeMajor", False) else b.node("Transpose", [name], perm=[1, 0, 2]))


def _give_both(b: Builder, op: Operator, results: list[str]) -> None:
    if option(op, "MergeOutputs", False):
        _give(b, op, op.outputs[0], b.node("Concat", results, axis=-1))
        return
    for index, name in zip(op.outputs, results, strict=True):
        _give(b, op, index, name)


# Long short-term memory.


def _lstm(
    b: Builder,
    op: Operator,
    operands: Operands,
    steps: str,
    more: list[tuple[str, dict[str, int]]],
    *,
    backwards: bool,
) -> str:
    """Return the results of all steps [steps, batch, outputs], and keep the states."""
    states = [b.real(operands.output), b.real(operands.cell)]
    if _is_plain(b, op, operands) and not more:
        name = _onnx_lstm(b, op, operands, steps, states, backwards=backwards)
        after = [b.node("Squeeze", [f"{name}_{place}", b.integers(0)]) for place in (1, 2)]
        results = b.node("Squeeze", [name, b.integers(1)])
    else:
        cell = _cell(b, op, operands)
        results, after = walk(
            b, partial(cell.step, b), _products(b, operands, [(steps, operands.inputs), *more]), states,
            backwards=backwards,
        )  # fmt: skip
    for index, state in zip((operands.output, operands.cell), after, strict=True):
        b.keep(index, b.rounded(index, state))
    return results


def _is_plain(b: Builder, op: Operator, operands: Operands) -> bool:
    """Tell whether ONNX's LSTM computes the same. Its ``clip`` is another: of what goes into the functions."""
    return (
        len(operands.inputs) == len(operands.biases) == 4
        and operands.projection < 0
        and not operands.norms
        and len(operands.peepholes) in (0, 3)
        and option(op, "CellClip", 0.0) <= 0
        and bound(op) in _ONNX_NAMES
        and not b.is_quantized(operands.cell)
        and not b.is_quantized(operands.output)
    )


def _onnx_lstm(b: Builder, op: Operator, operands: Operands, steps: str, states: list[str], *, backwards: bool) -> str:
    def vector(table: dict[str, int], order: str) -> np.ndarray:
        return np.concatenate([b.numbers(table[gate]) for gate in order])

    biases = vector(operands.biases, _ONNX_ORDER)
    given = [
        steps,
        stacked(b, [operands.inputs[gate] for gate in _ONNX_ORDER], leading=True),
        stacked(b, [operands.recurrent[gate] for gate in _ONNX_ORDER], leading=True),
        b.constant(np.concatenate([biases, np.zeros_like(biases)])[None]),
        "",
        *(b.node("Unsqueeze", [state, b.integers(0)]) for state in states),
    ]
    if operands.peepholes:
        given.append(b.constant(vector(operands.peepholes, "iof")[None]))
    function = _ONNX_NAMES[bound(op)]
    return b.node(
        "LSTM", given, 3, hidden_size=biases.size // 4, direction="reverse" if backwards else "forward",
        activations=["Sigmoid", function, function],
    )  # fmt: skip


def stacked(b: Builder, indices: Sequence[int], *, leading: bool = False) -> str:
    """Return constant matrices [rows, columns], one under the other, as real numbers: transposed, or as [1, ...].

    Integers stay integers, each row with the scale of its matrix.
    """
    tensors = [b.tensor(index) for index in indices]
    kinds = {tensor.dtype for tensor in tensors}
    if kinds != {"int8"} or any(t.quantization is None or t.quantization.zero_point.any() for t in tensors):
        whole = np.concatenate([b.numbers(index) for index in indices])
        return b.constant(whole[None] if leading else whole.T)
    data = np.concatenate([b.data(index, "matrix") for index in indices])
    scales = [
        np.broadcast_to(tensor.quantization.scale, (tensor.static[0],))
        for tensor in tensors
        if tensor.quantization is not None
    ]
    scale = np.concatenate(scales)
    operands = [
        b.constant(data[None] if leading else data.T),
        b.constant(scale),
        b.constant(np.zeros(scale.size, np.int8)),
    ]
    return b.node("DequantizeLinear", operands, axis=1)


def _products(b: Builder, operands: Operands, inputs: list[tuple[str, dict[str, int]]]) -> str:
    """Return the products of all steps with the input weights, gates side by side, and the biases added."""
    name = ""
    for steps, table in inputs:
        product = b.node("MatMul", [steps, stacked(b, list(table.values()))])
        name = b.node("Add", [name, product]) if name else product
    if operands.norms or not operands.biases:
        return name
    biases = np.concatenate([_vector(b, operands.biases.get(gate, -1), like=i) for gate, i in operands.inputs.items()])
    return b.node("Add", [name, b.constant(biases)])


def _vector(b: Builder, index: int, *, like: int) -> np.ndarray:
    return b.numbers(index) if index >= 0 else np.zeros(b.tensor(like).static[0], np.float32)


def _cell(b: Builder, op: Operator, operands: Operands) -> Lstm:
    def vector(table: dict[str, int], gate: str) -> str:
        return b.constant(b.numbers(table[gate])) if gate in table else ""

    def kept(index: int) -> partial[str]:
        return partial(_kept, b, index)

    gates = {
        gate: Gate(
            peephole=vector(operands.peepholes, gate),
            norm=vector(operands.norms, gate),
            bias=vector(operands.biases, gate) if operands.norms else "",
        )
        for gate in operands.inputs
    }
    projected = operands.projection >= 0
    return Lstm(
        gates=gates,
        recurrent=stacked(b, list(operands.recurrent.values())),
        activation=partial(b.activated, kind=bound(op)),
        projection=stacked(b, [operands.projection]) if projected else "",
        projection_bias=b.constant(b.numbers(operands.projection_bias)) if operands.projection_bias >= 0 else "",
        cell_clip=float(option(op, "CellClip", 0.0)),
        projection_clip=float(option(op, "ProjClip", 0.0)),
        keep_output=kept(operands.output),
        keep_cell=kept(operands.cell),
    )


def _kept(b: Builder, index: int, name: str) -> str:
    """Return the numbers ``name`` as the variable tensor ``index`` keeps them: rounded where it holds integers."""
    quantization = b.tensor(index).quantization
    if quantization is None or not b.is_quantized(index):
        return name
    return b.dequantized(b.rounded(index, name), quantization, b.tensor(index).dtype, quantization.axis)


def lstm(b: Builder, op: Operator) -> None:
    """LSTM: one step of what the sequence operators do; or the cell with one matrix and states that are operands."""
    if option(op, "KernelType", 0) == 1:
        _basic_lstm(b, op)
        return
    operands = _operands(op, (1, 5, 9, 12, 16), 18, 19, 20)
    inputs = _products(b, operands, [(b.real(op.inputs[0]), operands.inputs)])
    after = _cell(b, op, operands).step(b, inputs, [b.real(operands.output), b.real(operands.cell)])
    for index, state in zip((operands.output, operands.cell), after, strict=True):
        b.keep(index, b.rounded(index, state))
    b.put(op.outputs[-1], after[0])  # before it come places for what the interpreter computes inside


def _basic_lstm(b: Builder, op: Operator) -> None:
    values, output, weights, biases, cell = op.inputs
    joined = b.node("Concat", [b.real(values), b.real(output)], axis=-1)
    sums = b.node("Gemm", [joined, b.real(weights), b.real(biases)], transB=1)
    enter = b.node("Split", [sums], 4, axis=-1, num_outputs=4)
    new, forget, leave = (f"{enter}_{place}" for place in (1, 2, 3))
    kept = b.node("Mul", [b.node("Sigmoid", [forget]), b.real(cell)])
    state = b.node("Add", [kept, b.node("Mul", [b.node("Sigmoid", [enter]), b.node("Tanh", [new])])])
    b.put(op.outputs[0], b.node("Mul", [b.node("Sigmoid", [leave]), b.node("Tanh", [state])]))
    b.put(op.outputs[1], state)


# The plain recurrent cell.


def unidirectional_rnn(b: Builder, op: Operator) -> None:
    """UNIDIRECTIONAL_SEQUENCE_RNN."""
    steps = _by_time(b, op, op.inputs[0])
    _give(b, op, op.outputs[0], _rnn(b, op, list(op.inputs[1:5]), steps, [], backwards=False))


def bidirectional_rnn(b: Builder, op: Operator) -> None:
    """BIDIRECTIONAL_SEQUENCE_RNN."""
    first, second, aux = _both(b, op, 9, 10)
    results = []
    for place, steps, weights, backwards in ((1, first, 10, False), (5, second, 11, True)):
        more = [(aux, op.inputs[weights])] if aux else []
        operands = list(op.inputs[place : place + 4])
        results.append(_rnn(b, op, operands, steps, more, backwards=backwards))
    _give_both(b, op, results)


def rnn(b: Builder, op: Operator) -> None:
    """RNN: one step."""
    weights, recurrent, biases, state = op.inputs[1:5]
    name = b.node("MatMul", [b.real(op.inputs[0]), stacked(b, [weights])])
    name = b.node("Add", [name, b.constant(b.numbers(biases))])
    name = b.node("Add", [name, b.node("MatMul", [b.real(state), stacked(b, [recurrent])])])
    name = b.activated(name, bound(op), op.outputs[0])
    b.keep(state, b.rounded(state, name))
    b.put(op.outputs[0], name)


def _rnn(
    b: Builder, op: Operator, operands: list[int], steps: str, more: list[tuple[str, int]], *, backwards: bool
) -> str:
    """``operands``: input weights, recurrent weights, bias, state."""
    weights, recurrent, biases, state = operands
    before = b.real(state)
    if bound(op) in _ONNX_NAMES and not more:
        bias = b.numbers(biases)
        name = b.node(
            "RNN",
            [
                steps,
                stacked(b, [weights], leading=True),
                stacked(b, [recurrent], leading=True),
                b.constant(np.concatenate([bias, np.zeros_like(bias)])[None]),
                "",
                b.node("Unsqueeze", [before, b.integers(0)]),
            ],
            2,
            hidden_size=bias.size,
            direction="reverse" if backwards else "forward",
            activations=[_ONNX_NAMES[bound(op)]],
        )
        b.keep(state, b.node("Squeeze", [f"{name}_1", b.integers(0)]))
        return b.node("Squeeze", [name, b.integers(1)])
    inputs = b.node("Add", [b.node("MatMul", [steps, stacked(b, [weights])]), b.constant(b.numbers(biases))])
    for other, table in more:
        inputs = b.node("Add", [inputs, b.node("MatMul", [other, stacked(b, [table])])])
    matrix = stacked(b, [recurrent])

    def step(now: str, states: Sequence[str]) -> list[str]:
        sums = b.node("Add", [now, b.node("MatMul", [states[0], matrix])])
        return [b.activated(sums, bound(op))]

    results, (after,) = walk(b, step, inputs, [before], backwards=backwards)
    b.keep(state, after)
    return results


# Singular value decomposition filter.


def svdf(b: Builder, op: Operator) -> None:
    """SVDF (Nakkiran et al., Interspeech 2015): each filter keeps its last results, which a second filter adds up.

    ``rank`` filters make a unit. Results that are kept in integers are rounded before they are added up.
    """
    values, features, times, biases, state = op.inputs
    filters, memory = b.tensor(times).static
    if filters % max(1, option(op, "Rank", 1)):
        raise unsupported(f"{filters} filters for units of {option(op, 'Rank', 1)}", "as many for each unit")
    now = b.node("MatMul", [b.real(values), stacked(b, [features])])
    now = b.node("Unsqueeze", [b.rounded(state, now), b.integers(2)])
    before = b.node("Reshape", [b.stored(state), b.integers(-1, filters, memory)])
    kept = b.node("Slice", [before, b.integers(1), b.integers(memory), b.integers(2)])
    after = b.node("Concat", [kept, now], axis=2)
    b.keep(state, b.node("Reshape", [after, b.integers(-1, filters * memory)]))
    quantization = b.tensor(state).quantization
    if quantization is not None and b.is_quantized(state):
        after = b.dequantized(after, quantization, b.tensor(state).dtype, quantization.axis)
    name = b.node("ReduceSum", [b.node("Mul", [after, b.real(times)]), b.integers(2)], keepdims=0)
    if (rank := int(option(op, "Rank", 1))) > 1:
        name = b.node("Reshape", [name, b.integers(-1, filters // rank, rank)])
        name = b.node("ReduceSum", [name, b.integers(2)], keepdims=0)
    if biases >= 0:
        name = b.node("Add", [name, b.real(biases)])
    b.put(op.outputs[0], b.activated(name, bound(op), op.outputs[0]))
