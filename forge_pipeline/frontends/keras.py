"""Keras models (`.keras`, `.h5`) -> ONNX: Keras on PyTorch, exported as a PyTorch program. TensorFlow is not needed."""

from __future__ import annotations

import math
import shutil
from collections.abc import Callable, Iterable, Mapping
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any

from forge_pipeline.errors import ModelError
from forge_pipeline.frontends import keras2, keras_config, keras_rnn
from forge_pipeline.frontends.agreement import sample
from forge_pipeline.frontends.contract import Converted, Declared
from forge_pipeline.frontends.interface import name_open_sizes, open_size_name, rename
from forge_pipeline.frontends.torch import program_to_onnx
from forge_pipeline.ir.external_data.file_kinds import kind_of

if TYPE_CHECKING:
    from onnx import ModelProto

_SCALES = (64, 4096, 32768, 0)  # of the sizes that stand for open ones: a layer can want more than the smallest
_LARGEST = 1 << 26  # numbers in an input


def convert(path: Path, inputs: tuple[Declared, ...], sizes: Mapping[str, int]) -> Converted:
    """Return the model in ``path`` as ONNX; inputs and outputs keep their names, dimensions of None stay open.

    Those that ``sizes`` names are numbers instead; the notes say which (`sizes`).
    """
    archive = kind_of(path) == "keras"
    (keras_config.check_archive if archive else keras_config.check_hdf5)(path)
    name = Path("model.keras" if archive else "model.h5")  # Keras goes by the name
    try:
        name.symlink_to(path)
    except OSError:
        shutil.copyfile(path, name)
    import keras

    old = None if archive else keras_config.config_of_keras2(name)
    if old is None:
        model = keras.saving.load_model(name, compile=False, safe_mode=True)
    else:
        with keras.saving.custom_object_scope(keras2.objects()):
            model = keras.saving.deserialize_keras_object(keras2.as_keras3(old), safe_mode=True)
        model.load_weights(name)
    known = {_name(value, axis) for value in _functional(model).inputs for axis in _open_axes(value)}
    fixed = {key: size for key, size in sizes.items() if key in known}
    notes = {"importer": "keras on torch, torch.onnx.export(dynamo=True)"} | ({"sizes": fixed} if fixed else {})
    return Converted(model=model_to_onnx(model, fixed), notes=notes)


def model_to_onnx(model: Any, sizes: Mapping[str, int]) -> ModelProto:
    """Return a Keras model, on the PyTorch backend, as ONNX. Raises ModelError where the two do not agree.

    An open extent is a number where ``sizes`` has one for its name; a layer that wants one for another is refused.
    """
    import keras
    import torch

    graph = _functional(model)
    inputs = list(graph.inputs)
    open_axes = [[axis for axis in _open_axes(value) if _name(value, axis) not in sizes] for value in inputs]
    examples = tuple(
        torch.from_numpy(sample(shape, value.dtype, seed=position))
        for position, (value, shape) in enumerate(zip(inputs, _shapes(graph, sizes), strict=True))
    )
    dynamic = tuple(dict.fromkeys(axes, torch.export.Dim.DYNAMIC) for axes in open_axes)
    keras.src.backend.rnn = keras_rnn.rnn
    for layer in model._flatten_layers():
        if type(layer).__name__ == "TimeDistributed":
            layer.call = _at_once(layer.layer)
    try:
        with torch.no_grad():
            program = torch.export.export(_flat(model), examples, dynamic_shapes={"inputs": dynamic})
    except torch._dynamo.exc.UserError as error:
        names = [_name(value, axis) for value, axes in zip(inputs, open_axes, strict=True) for axis in axes if axis]
        if "onstraints violated" not in str(error) or not names:
            raise
        given = ", ".join(f"{name}: SIZE" for name in dict.fromkeys(names))
        raise ModelError(
            where=str(model.name)[:80],
            expected="layers that PyTorch exports with open sizes; recurrent ones are not such: it unrolls them",
            found=f"{given.replace(': SIZE', '')} open, and a layer that needs it as a number",
            fix=f"say what it is: model.dims='{{{given}}}'",
        ) from error
    exported = program_to_onnx(program)
    rename(exported, [value.name for value in inputs], _each_once(graph.output_names))
    name_open_sizes(exported)
    return exported


def _each_once(names: Iterable[str]) -> list[str]:
    """Return names with the number of its occurrence at the end of one that came before: a layer that is shared."""
    seen: list[str] = []
    for name in names:
        seen.append(name if name not in seen else next(f"{name}_{n}" for n in count(1) if f"{name}_{n}" not in seen))
    return seen


def _open_axes(value: Any) -> list[int]:
    return [axis for axis, extent in enumerate(value.shape) if extent is None]


def _name(value: Any, axis: int) -> str:
    return open_size_name(value.name, axis)


def _shapes(graph: Any, sizes: Mapping[str, int]) -> list[list[int]]:
    """Return shapes of the inputs with which every layer of ``graph`` has something to compute."""
    import keras

    def at(scale: int) -> list[list[int]]:
        return [
            [extent or sizes.get(_name(value, axis)) or (scale * (1 + axis) if axis and scale else 2 + axis)
             for axis, extent in enumerate(value.shape)]
            for value in graph.inputs
        ]  # fmt: skip

    for scale in _SCALES:
        shapes = at(scale)
        if max(math.prod(shape) for shape in shapes) > _LARGEST:
            break
        given = [keras.KerasTensor(shape, value.dtype) for shape, value in zip(shapes, graph.inputs, strict=True)]
        nested = keras.tree.pack_sequence_as(graph._inputs_struct, given)
        try:
            made = keras.tree.flatten(graph.compute_output_spec(nested))
        except Exception:  # noqa: BLE001, S112  what a layer says of a size that is too small, in words of its own
            continue
        if all(extent for value in made for extent in value.shape):
            return shapes
    return at(_SCALES[-1])  # the export says what is wrong with it


def _at_once(layer: Any) -> Callable[..., Any]:
    """Return what a TimeDistributed ``layer`` computes, for all steps at once; Keras's own has a loop of them."""

    def call(inputs: Any, training: Any = None, mask: Any = None) -> Any:
        further = {"training": training} if layer._call_has_training_arg else {}
        if layer._call_has_mask_arg and mask is not None:
            further["mask"] = mask.flatten(0, 1)
        return layer.call(inputs.flatten(0, 1), **further).unflatten(0, inputs.shape[:2])

    return call


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
