"""The loop over a sequence's steps in Keras's recurrent layers, in a form that PyTorch exports with an open batch.

Keras's own takes the batch apart into its rows, so an export holds for the number of rows that it was made with.
"""

from __future__ import annotations

from typing import Any


def rnn(
    step_function: Any,
    inputs: Any,
    initial_states: Any,
    go_backwards: bool = False,
    mask: Any = None,
    constants: Any = None,
    time_major: bool = False,
    zero_output_for_mask: bool = False,
    **_: Any,
) -> tuple[Any, Any, list[Any]]:
    """Return the last output, all outputs, and the last states, as ``keras.backend``'s `rnn` does."""
    import torch

    x = inputs if time_major else inputs.transpose(0, 1)
    flags = None if mask is None else (mask if time_major else mask.transpose(0, 1)).bool()
    numbers = range(x.shape[0])
    output, states, outputs = None, list(initial_states), []
    for number in reversed(numbers) if go_backwards else numbers:
        made, new = step_function(x[number], (*states, *(constants or ())))
        if flags is not None:
            before = torch.zeros_like(made) if output is None or zero_output_for_mask else output
            made = _chosen(flags[number], made, before)
            new = [_chosen(flags[number], *both) for both in zip(new, states, strict=True)]
        output, states = made, list(new)
        outputs.append(output)
    every = torch.stack(outputs)
    return output, every if time_major else every.transpose(0, 1), states


def _chosen(flags: Any, new: Any, old: Any) -> Any:
    import torch

    return torch.where(flags.reshape(-1, *[1] * (new.dim() - 1)), new, old)
