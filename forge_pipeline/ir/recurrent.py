"""What ONNX says of its recurrent operators LSTM, GRU and RNN."""

from __future__ import annotations

from typing import Final

GATES: Final = {"LSTM": 4, "GRU": 3, "RNN": 1}
"""Gates of a step, in the order LSTM iofc, GRU zrh."""

ACTIVATIONS: Final = {"LSTM": ("Sigmoid", "Tanh", "Tanh"), "GRU": ("Sigmoid", "Tanh"), "RNN": ("Tanh",)}
"""The functions of one direction, where the attribute ``activations`` is left out."""

STATES: Final = {"LSTM": (5, 6), "GRU": (5,), "RNN": (5,)}
"""Which inputs are initial states; zero where they are left out."""

REVERSALS: Final = {"forward": (False,), "reverse": (True,), "bidirectional": (False, True)}
"""For each direction of the attribute ``direction``, whether it begins with the last step."""
