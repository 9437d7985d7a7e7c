"""Keras models (`.keras`, `.h5`) -> ONNX: Keras on PyTorch, exported as a PyTorch program. TensorFlow is not needed."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

from forge_pipeline.errors import ModelError
from forge_pipeline.frontends import keras_config
from forge_pipeline.frontends.agreement import sample
from forge_pipeline.frontends.contract import Converted, Declared
from forge_pipeline.frontends.file_kinds import kind_of
from forge_pipeline.frontends.interface import name_open_sizes, rename
from forge_pipeline.frontends.torch import program_to_onnx

if TYPE_CHECKING:
    from onnx import ModelProto

_EXPORTED_AT = 2


def convert(path: Path, inputs: tuple[Declared, ...]) -> Converted:
    """Return the model in ``path`` as ONNX; inputs and outputs keep their names, dimensions of None stay open."""
    archive = kind_of(path) == "keras"
    (keras_config.check_archive if archive else keras_config.check_hdf5)(path)
    name = Path("model.keras" if archive else "model.h5")  # Keras goes by the name
    try:
        name.symlink_to(path)
    except OSError:
        shutil.copyfile(path, name)
    import keras

    model = keras.saving.load_model(name, compile=False, safe_mode=True)
    return Converted(model=model_to_onnx(model), notes={"importer": "keras on torch, torch.onnx.export(dynamo=True)"})


def model_to_onnx(model: Any) -> ModelProto:
    """Return a Keras model, on the PyTorch backend, as ONNX. Raises ModelError where the two do not agree."""
    import torch

    graph = _functional(model)
    inputs = list(graph.inputs)
    examples = tuple(
        torch.from_numpy(sample([extent or _EXPORTED_AT + axis for axis, extent in enumerate(value.shape)], value.dtype,
                                seed=position))
        for position, value in enumerate(inputs)
    )  # fmt: skip
    open_axes = tuple(
        {axis: torch.export.Dim.DYNAMIC for axis, extent in enumerate(value.shape) if extent is None}
        for value in inputs
    )
    with torch.no_grad():
        program = torch.export.export(_flat(model), examples, dynamic_shapes={"inputs": open_axes})
    exported = program_to_onnx(program)
    rename(exported, [value.name for value in inputs], list(graph.output_names))
    name_open_sizes(exported)
    return exported


def _functional(model: Any) -> Any:
    """Return the model of Keras's functional interface that ``model`` is, or, for a Sequential, holds."""
    functional = getattr(model, "_functional", model)
    if functional is None:
        raise ModelError(
            where=str(model.name),
            expected="a Sequential model that knows the shape of its input",
            found="one that was saved before it was built",
            fix="begin it with keras.Input(shape), or call model.build(shape), and save it again",
        )
    return functional


def _flat(model: Any) -> Any:
    """Return a PyTorch module that takes the inputs of ``model`` one by one, however they are nested in it."""
    import keras
    import torch

    structure = getattr(_functional(model), "_inputs_struct", None)

    class Flat(torch.nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.model = model

        def forward(self, *inputs: Any) -> Any:
            nested = inputs[0] if structure is None else keras.tree.pack_sequence_as(structure, list(inputs))
            return keras.tree.flatten(self.model(nested, training=False))

    return Flat().eval()
