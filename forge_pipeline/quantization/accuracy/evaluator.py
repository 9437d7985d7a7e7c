"""What a choice costs, measured on the probes: signal to noise at the outputs, and top-1."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from onnx import ModelProto

from forge_pipeline.ir.reference.interpreter import Interpreter
from forge_pipeline.ir.sizes.counted import axes_of, sizes_of
from forge_pipeline.ir.traversal import needs
from forge_pipeline.quantization.calibration.probes import Probe
from forge_pipeline.quantization.network import Network

SQUASHED = frozenset({"LogSoftmax", "Sigmoid", "Softmax", "Tanh"})
CHOOSING = frozenset({"Gather", "GatherElements", "GatherND", "TopK", "Where"})
"""Operators that choose among values: noise may make them choose another, and say nothing of how large it was."""
SILENT = 1e-30  # noise below this share of the signal is none


@dataclass(frozen=True, slots=True, kw_only=True)
class Evaluator:
    """The float model's answers on the probes, to hold candidates against.

    Compared are the outputs; in front of a final softmax or sigmoid, its input, since saturation would hide the noise.
    How many of something a model finds may differ by one: then what it finds them in is compared (a detector's boxes
    and scores before those that overlap are left out).
    """

    probes: tuple[Probe, ...]
    values: tuple[str, ...]
    answers: tuple[Mapping[str, NDArray[Any]], ...]

    @classmethod
    def of(cls, network: Network, probes: Sequence[Probe]) -> Evaluator:
        """Run the float model on the probes. Raises ModelError."""
        values = tuple(dict.fromkeys(_compared(network)))
        run = Interpreter(network.model, taps=values, optimized=True)
        answers = tuple(run(probe.feed, values) for probe in probes)
        return cls(probes=tuple(probes), values=values, answers=answers)

    def sqnr(self, candidate: ModelProto) -> float:
        """Return the candidate's signal-to-quantization-noise ratio in dB, the mean over the compared values."""
        signal, noise = dict.fromkeys(self.values, 0.0), dict.fromkeys(self.values, 0.0)
        for answer, found in zip(self.answers, self.run(candidate), strict=True):
            for name in self.values:
                exact = answer[name].astype(np.float64)
                signal[name] += float((exact**2).sum())
                is_alike = found[name].shape == exact.shape  # else as many of something as data decides
                noise[name] += float(((exact - found[name]) ** 2 if is_alike else exact**2).sum())
        ratios = [noise[name] / signal[name] if signal[name] else 1.0 for name in self.values]
        return float(np.mean([-10.0 * np.log10(max(ratio, SILENT)) for ratio in ratios]))

    def drop(self, candidate: ModelProto) -> float | None:
        """Return the loss of top-1 in percentage points; None where the first output is not [batch, classes].

        Against the labels where the probes have them, else against the float model's own answers.
        """
        first = self.values[0]
        lost = total = 0
        for probe, answer, found in zip(self.probes, self.answers, self.run(candidate), strict=True):
            if answer[first].ndim != 2 or answer[first].shape[1] < 2:
                return None
            before, after = answer[first].argmax(axis=1), found[first].argmax(axis=1)
            truth = before if probe.labels is None or probe.labels.shape != before.shape else probe.labels
            lost += int((before == truth).sum()) - int((after == truth).sum())
            total += len(before)
        return 100.0 * lost / total

    def run(self, candidate: ModelProto) -> list[dict[str, NDArray[Any]]]:
        """Return what a candidate gives for the compared values, for each probe. Raises ModelError."""
        made = {name for node in candidate.graph.node for name in node.output}
        seen = {name: f"{name}_dq" if f"{name}_dq" in made else name for name in self.values}
        run = Interpreter(candidate, taps=seen.values())  # as it is written: fused integer kernels may saturate
        runs = []
        for probe in self.probes:
            found = run(probe.feed, tuple(seen.values()))
            runs.append({name: found[alias] for name, alias in seen.items()})
        return runs


def _compared(network: Network) -> list[str]:
    """Return what stands for each output: floats, but of a model that has integers alone."""
    outputs = [value.name for value in network.model.graph.output]
    values = [_before_squashing(network, name) for name in _of_known_size(network, outputs)]
    return [name for name in values if name in network.floats] or values or outputs


def _before_squashing(network: Network, output: str) -> str:
    """Return the float that becomes a value by no more than a change of shape and one function that saturates."""
    name, node = output, network.producer.get(output)
    while node is not None and node.op_type in SQUASHED | {"Reshape", "Identity", "Cast", "QuantizeLinear"}:
        squashed = node.op_type in SQUASHED
        before = node.input[0]
        if before in network.constants or before not in network.floats:
            break
        name, node = before, network.producer.get(before)
        if squashed:
            break
    return name if name in network.floats else output


def _of_known_size(network: Network, outputs: Sequence[str]) -> list[str]:
    """Return the outputs; for one whose extents hang on data, the floats of other extents that it is chosen from."""
    sizes = sizes_of(network.model)
    found: dict[str, None] = {}
    pending, seen = list(reversed(outputs)), set(network.constants)
    while pending:
        name = pending.pop()
        node = network.producer.get(name)
        if name in seen or node is None:
            continue
        seen.add(name)
        chooses = node.op_type in CHOOSING or (node.op_type == "Cast" and node.input[0] not in network.floats)
        if axes_of(sizes, name) == () and (name in outputs or (name in network.floats and not chooses)):
            found[name] = None
        else:
            pending += [each for each in reversed(list(needs(node))) if each]
    return list(found)
