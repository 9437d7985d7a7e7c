"""The activations of recurrent layers (ONNX operator reference, LSTM-14, GRU-14, RNN-14), and their bounds."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final

from tvm import tirx

from forge_pipeline.ir.recurrent import ACTIVATIONS

Function = Callable[[Any, Any], Any]
"""``(direction, value)``: an activation, which may be another in each direction."""

PARAMETERS: Final[Mapping[str, tuple[float | None, float | None]]] = {
    "affine": (1.0, 0.0),
    "elu": (1.0, None),
    "hardsigmoid": (0.2, 0.5),
    "leakyrelu": (0.01, None),
    "scaledtanh": (1.0, 1.0),
    "thresholdedrelu": (1.0, None),
}
"""Alpha and beta of functions that have them, where a node does not say them; None: it has none."""

BOUNDED: Final = 2
"""Functions whose inputs `clip` bounds: those of gates. That of a cell's state is not bounded, as in ONNX Runtime."""


def functions_of(kind: str, attributes: Mapping[str, Any], directions: int, dtype: str) -> tuple[Function, ...]:
    """Return each activation of a step, as the directions have it. Raises NotImplementedError for an unknown one."""
    defaults = ACTIVATIONS[kind]
    given = [name.decode() for name in attributes.get("activations", ())] or list(defaults) * directions
    alphas, betas = (iter(attributes.get(f"activation_{name}", ())) for name in ("alpha", "beta"))
    clip = attributes.get("clip")
    made = [
        _bounded(_function(name.lower(), alphas, betas, dtype), clip if at % len(defaults) < BOUNDED else None, dtype)
        for at, name in enumerate(given)
    ]
    names = [name.lower() for name in given]
    has_numbers = any(f"activation_{name}" in attributes for name in ("alpha", "beta"))
    return tuple(
        _by_direction(made[at :: len(defaults)], not has_numbers and len(set(names[at :: len(defaults)])) == 1)
        for at in range(len(defaults))
    )


def _by_direction(functions: Sequence[Callable[[Any], Any]], are_equal: bool) -> Function:
    first, last = functions[0], functions[-1]
    if are_equal or len(functions) == 1:
        return lambda direction, value: first(value)
    return lambda direction, value: tirx.Select(direction == 0, first(value), last(value))


def _bounded(function: Callable[[Any], Any], clip: float | None, dtype: str) -> Callable[[Any], Any]:
    """Return a function of what is kept between ``-clip`` and ``clip`` first."""
    if not clip:
        return function
    low, high = tirx.const(-clip, dtype), tirx.const(clip, dtype)
    return lambda value: function(tirx.max(tirx.min(value, high), low))


def _function(name: str, alphas: Iterator[float], betas: Iterator[float], dtype: str) -> Callable[[Any], Any]:
    """Return a function; one that has an alpha or a beta takes the next that is given."""

    def const(number: float) -> Any:
        return tirx.const(number, dtype)

    zero, one = const(0), const(1)
    own = PARAMETERS.get(name, (None, None))
    numbers = [
        None if default is None else next(given, default) for default, given in zip(own, (alphas, betas), strict=True)
    ]
    alpha, beta = (zero if number is None else const(number) for number in numbers)

    def softplus(x: Any) -> Any:
        return tirx.max(x, zero) + tirx.log(one + tirx.exp(-tirx.abs(x)))

    functions: dict[str, Callable[[Any], Any]] = {
        "affine": lambda x: alpha * x + beta,
        "elu": lambda x: tirx.Select(x >= zero, x, alpha * (tirx.exp(tirx.min(x, zero)) - one)),
        "hardsigmoid": lambda x: tirx.max(tirx.min(alpha * x + beta, one), zero),
        "leakyrelu": lambda x: tirx.Select(x >= zero, x, alpha * x),
        "relu": lambda x: tirx.max(x, zero),
        "scaledtanh": lambda x: alpha * tirx.tanh(beta * x),
        "sigmoid": tirx.sigmoid,
        "softplus": softplus,
        "softsign": lambda x: x / (one + tirx.abs(x)),
        "tanh": tirx.tanh,
        "thresholdedrelu": lambda x: tirx.Select(x > alpha, x, zero),
    }
    if name not in functions:
        raise NotImplementedError(f"activation {name}")
    return functions[name]
