"""What a choice costs, measured on the probes: signal to noise at the outputs, and top-1."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from onnx import ModelProto

from forge_pipeline.ir.reference.interpreter import Interpreter
from forge_pipeline.quantization.calibration.probes import Probe
from forge_pipeline.quantization.network import Network

SQUASHED = frozenset({"LogSoftmax", "Sigmoid", "Softmax", "Tanh"})
SILENT = 1e-30  # noise below this share of the signal is none


@dataclass(frozen=True, slots=True, kw_only=True)
class Evaluator:
    """The float model's answers on the probes, to hold candidates against.

    Compared are the outputs; in front of a final softmax or sigmoid, its input, since saturation would hide the noise.
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
                noise[name] += float(((exact - found[name]) ** 2).sum())
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
    values = []
    for output in network.model.graph.output:
        name = output.name
        node = network.producer.get(name)
        while node is not None and node.op_type in SQUASHED | {"Reshape", "Identity", "Cast", "QuantizeLinear"}:
            squashed = node.op_type in SQUASHED
            before = node.input[0]
            if before in network.constants or before not in network.floats:
                break
            name, node = before, network.producer.get(before)
            if squashed:
                break
        values.append(name if name in network.floats else output.name)
    return [name for name in values if name in network.floats] or values
