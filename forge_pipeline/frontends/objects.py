"""A model that a program holds, written to the file that its framework writes: from there on there is one way."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from forge_pipeline.config import bind
from forge_pipeline.errors import ModelError
from forge_pipeline.frontends.contract import Declared
from forge_pipeline.ir import ONNXModule


@dataclass(frozen=True, slots=True, kw_only=True)
class Saved:
    """A model's file, and the declaration of its inputs where the file does not hold it."""

    path: Path
    inputs: tuple[Declared, ...] = ()


def save(model: object, folder: Path, inputs: Sequence[Any], dynamic_shapes: Any) -> Saved:
    """Write ``model`` into ``folder``; imports no framework, since an object of one has imported it.

    ``inputs`` are example inputs (arrays or tensors), or Declared ones, where the model does not know its own: a
    PyTorch module. ``dynamic_shapes`` is that of ``torch.export.export``. Raises ModelError for another object.
    """
    for module, name, writer in _WRITERS:
        found = sys.modules.get(module)
        kind = getattr(found, name, None) if found is not None else None
        if isinstance(kind, type) and isinstance(model, kind):
            return writer(model, folder, inputs, dynamic_shapes)
    if isinstance(model, bytes | bytearray | memoryview):
        return Saved(path=_written(folder / "model", bytes(model)))
    raise ModelError(
        where="load",
        expected="a path, the bytes of a model file, or a model of ONNX, PyTorch, Keras, TensorFlow or TensorFlow Lite",
        found=f"an object of {type(model).__module__}.{type(model).__qualname__}",
        fix="give the path of the model's file",
    )


def _written(path: Path, content: bytes) -> Path:
    path.write_bytes(content)
    return path


def _onnx(model: Any, folder: Path, inputs: Sequence[Any], dynamic_shapes: Any) -> Saved:
    path = folder / "model.onnx"
    ONNXModule(model).save(path)
    return Saved(path=path)


def _exported(model: Any, folder: Path, inputs: Sequence[Any], dynamic_shapes: Any) -> Saved:
    import torch

    path = folder / "model.pt2"
    torch.export.save(model, path)
    return Saved(path=path)


def _scripted(model: Any, folder: Path, inputs: Sequence[Any], dynamic_shapes: Any) -> Saved:
    names = [argument.name for argument in model.forward.schema.arguments[1:]]
    declared = tuple(
        item if isinstance(item, Declared) else _described(name, item)
        for name, item in zip(names, inputs, strict=False)
    )
    path = folder / "model.pt"
    model.save(str(path))
    return Saved(path=path, inputs=declared)


def _described(name: str, example: Any) -> Declared:
    dtype = str(example.dtype).removeprefix("torch.")
    return bind(Declared, {"name": name, "shape": list(example.shape), "dtype": dtype}, where=f"example of {name!r}")


def _module(model: Any, folder: Path, inputs: Sequence[Any], dynamic_shapes: Any) -> Saved:
    import torch

    if not inputs:
        raise ModelError(
            where="load",
            expected="example inputs: a PyTorch module does not know its own",
            found="none",
            fix="give inputs=(tensor, ...); for an open batch also dynamic_shapes, as for torch.export",
        )
    if model.training:
        raise ModelError(
            where="load",
            expected="a module for inference",
            found="one in training mode, in which dropout and batch normalization do something else",
            fix="call model.eval() first",
        )
    with torch.no_grad():
        program = torch.export.export(model, _tensors(inputs), dynamic_shapes=dynamic_shapes)
    return _exported(program, folder, (), None)


def _tensors(inputs: Sequence[Any]) -> tuple[Any, ...]:
    """Return example inputs as PyTorch takes them; a Declared one is filled with numbers, 2 for an open size."""
    import torch

    from forge_pipeline.frontends.agreement import sample

    return tuple(
        torch.from_numpy(sample([2 if isinstance(e, str) else e for e in item.shape], item.dtype, seed=position))
        if isinstance(item, Declared)
        else torch.as_tensor(item)
        for position, item in enumerate(inputs)
    )


def _keras(model: Any, folder: Path, inputs: Sequence[Any], dynamic_shapes: Any) -> Saved:
    path = folder / "model.keras"
    model.save(path)
    return Saved(path=path)


def _tensorflow(model: Any, folder: Path, inputs: Sequence[Any], dynamic_shapes: Any) -> Saved:
    import tensorflow as tf

    path = folder / "model"
    tf.saved_model.save(model, str(path))
    return Saved(path=path)


def _function(model: Any, folder: Path, inputs: Sequence[Any], dynamic_shapes: Any) -> Saved:
    import tensorflow as tf

    path = folder / "model"
    holder = tf.Module()
    holder.function = model
    tf.saved_model.save(holder, str(path), signatures=model)
    return Saved(path=path)


def _tflite(model: Any, folder: Path, inputs: Sequence[Any], dynamic_shapes: Any) -> Saved:
    return Saved(path=_written(folder / "model.tflite", bytes(model._tab.Bytes)))


Writer = Callable[[Any, Path, Sequence[Any], Any], Saved]
_WRITERS: Final[tuple[tuple[str, str, Writer], ...]] = (  # the first that fits: a Keras model can be a PyTorch module
    ("onnx", "ModelProto", _onnx),
    ("keras", "Model", _keras),
    ("torch.export", "ExportedProgram", _exported),
    ("torch.jit", "ScriptModule", _scripted),
    ("torch.nn", "Module", _module),
    ("tensorflow.python.eager.polymorphic_function.concrete_function", "ConcreteFunction", _function),
    ("tensorflow", "Module", _tensorflow),
    ("tflite.Model", "Model", _tflite),
)
