"""A model with the sizes that its user chose, once it is known that it can have them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from forge_pipeline.errors import ForgeError, ModelError
from forge_pipeline.ir.canonical import Canonical, by_reference
from forge_pipeline.ir.dims import WHERE, Dims, check, combinations, fixed, open_extents, shown, with_sizes
from forge_pipeline.ir.reference.interpreter import Interpreter
from forge_pipeline.ir.type_inference import check_types
from forge_pipeline.passes.verification.candidate_sizes import Preferred
from forge_pipeline.passes.verification.exact import REFUSALS, reason
from forge_pipeline.passes.verification.made_up import Kinds, MadeUp, made_up
from forge_pipeline.passes.verification.samples import Unsupported

LARGEST = 1 << 30
"""Bytes of weights from which on a model is not run to see whether it can: shape inference alone is asked."""


def sized(form: Canonical, dims: Dims, *, max_value_bytes: int) -> Canonical:
    """Return ``form`` with what ``dims`` fixes as numbers.

    Raises ConfigError for an extent that is not open, and ModelError for sizes that the model cannot have: shape
    inference finds a contradiction that is not in the model as it is, or ONNX Runtime refuses them and takes others.
    """
    check(dims, open_extents(form.skeleton.graph.input))
    check_types(form, max_value_bytes=max_value_bytes)
    numbers = fixed(dims)
    for sizes in combinations(dims):
        chosen = _with(form, {**numbers, **sizes})
        try:
            check_types(chosen, max_value_bytes=max_value_bytes)
        except ModelError as refusal:
            raise _impossible({**numbers, **sizes}, "sizes that the model can have", refusal.found) from refusal
        _try_out(form, {**numbers, **sizes})
    return _with(form, numbers)


def _with(form: Canonical, sizes: Mapping[str, int]) -> Canonical:
    return replace(form, skeleton=with_sizes(form.skeleton, sizes))


def _try_out(form: Canonical, sizes: Mapping[str, int]) -> None:
    """Raise ModelError where ONNX Runtime refuses the model with these sizes, but runs it with others."""
    if sum(weight.size for weight in form.weights) > LARGEST:
        return
    refusal = _ran(form, sizes)
    if isinstance(refusal, ForgeError):
        other = _ran(form, {})
        if isinstance(other, MadeUp):
            expected = f"sizes that ONNX Runtime runs the model with, such as {shown(other.sizes)}"
            raise _impossible(sizes, expected, reason(refusal)) from refusal


def _ran(form: Canonical, sizes: Mapping[str, int]) -> MadeUp | ForgeError | None:
    """Return inputs that the model runs with, or ONNX Runtime's refusal; None where that cannot be told."""
    model = by_reference(_with(form, sizes))
    try:
        return made_up(model, Interpreter(model), Preferred(), Kinds(samples=1, seed=0, varied=False))
    except REFUSALS as refusal:
        return refusal
    except Unsupported:
        return None


def _impossible(sizes: Mapping[str, int], expected: str, found: str) -> ModelError:
    return ModelError(
        where=WHERE,
        expected=expected,
        found=f"{shown(sizes)}: {found}",
        fix="choose others; what is left out of model.dims stays open",
    )
