"""TensorFlow Lite models (`.tflite`) -> ONNX, by a reader of our own; TensorFlow is not needed.

A quantized model keeps its integers, scales and zero points, in QDQ form; weights in half precision or in integers
(dynamic range) stay so behind a Cast or a DequantizeLinear. TensorFlow Lite computes between integers in fixed point
and ONNX in float32, so that a result can differ by one step of its scale.

What the interpreter keeps from call to call (variable tensors of recurrent operators, resource variables) becomes
inputs and outputs behind the model's own: see ``state``.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from onnx import ModelProto, helper

from forge_pipeline.errors import ModelError
from forge_pipeline.frontends.contract import Converted, Declared
from forge_pipeline.frontends.interface import rename
from forge_pipeline.frontends.tflite import opening, reader, state
from forge_pipeline.frontends.tflite.builder import Builder, Shared
from forge_pipeline.frontends.tflite.model import Graph, Model
from forge_pipeline.frontends.tflite.operators import table

OPSET: Final = 21  # the first whose DequantizeLinear reads 16 bits
IR_VERSION: Final = 10


def convert(path: Path, inputs: tuple[Declared, ...]) -> Converted:
    """Return the model in ``path`` as ONNX, its interface named by its signature or else by its tensors.

    Sizes are open where the file says so and ONNX Runtime runs the model at more than one (see ``opening``); others are
    what the interpreter begins with. The notes say what the model keeps between calls.
    """
    model = reader.read(path)
    _check(model)
    for opened in _openings(model):
        try:
            converted, kept = to_onnx(opened, given_sizes=False)
        except ModelError:  # an operator needs a size
            continue
        if opening.holds(converted):
            batch = any(tensor[:1] == (None,) for tensor in _input_shapes(opened))
            return Converted(model=converted, notes=_notes(kept, batch="open" if batch else "fixed"))
    converted, kept = to_onnx(model, given_sizes=True)
    return Converted(model=converted, notes=_notes(kept, batch="fixed"))


def _notes(kept: list[state.Kept], *, batch: str) -> dict[str, Any]:
    notes: dict[str, Any] = {"importer": "tflite", "batch": batch}
    return notes | ({"state": state.notes(kept)} if kept else {})


def _openings(model: Model) -> Iterator[Model]:
    """Yield the model with all open sizes of its inputs, then without those of the batch, while any is left."""
    shapes = _input_shapes(model)
    if any(None in shape for shape in shapes):
        yield model
    if any(None in shape[1:] for shape in shapes) and any(shape[:1] == (None,) for shape in shapes):
        graph = model.graphs[model.main]
        tensors = list(graph.tensors)
        for index in graph.inputs.values():
            given = tensors[index]
            tensors[index] = replace(given, shape=(*given.static[:1], *given.shape[1:]))
        graphs = list(model.graphs)
        graphs[model.main] = replace(graph, tensors=tuple(tensors))
        yield replace(model, graphs=tuple(graphs))


def _input_shapes(model: Model) -> list[tuple[int | None, ...]]:
    graph = model.graphs[model.main]
    return [graph.tensors[index].shape for index in graph.inputs.values()]


def _check(model: Model) -> None:
    missing = sorted({op.name for graph in _reached(model) for op in graph.operators} - table.OPERATORS.keys())
    if missing:
        raise ModelError(
            where="TensorFlow Lite operators",
            expected=f"some of the {len(table.OPERATORS)} that have a converter "
            "(forge_pipeline/frontends/tflite/operators/table.py)",
            found=", ".join(missing)[:500],
            fix="give the SavedModel that the file was converted from, or convert it with tf2onnx --tflite",
        )


def _reached(model: Model) -> list[Graph]:
    """Return the graphs that a call of the main one can run; a file can have others, of other signatures."""
    found, waiting = set[int](), [model.main]
    while waiting:
        if (number := waiting.pop()) in found or not 0 <= number < len(model.graphs):
            continue
        found.add(number)
        waiting += [inner for operator in model.graphs[number].operators for inner in operator.graphs]
    return [model.graphs[number] for number in sorted(found)]


def to_onnx(model: Model, *, given_sizes: bool) -> tuple[ModelProto, list[state.Kept]]:
    """Return ``model`` as an ONNX model, and what it keeps between calls, which its last inputs and outputs are.

    ``given_sizes``: open sizes are those that the interpreter begins with. Raises ModelError for a use of an operator
    that has no converter.
    """
    main = model.graphs[model.main]
    builder = Builder(Shared(model=model, convert=table.convert), main, given_sizes=given_sizes)
    for name, index in main.inputs.items():
        builder.give(index, name)
    builder.convert_all()
    graph, kept = builder.graph(), builder.carried()
    converted = helper.make_model(
        graph, opset_imports=[helper.make_opsetid("", OPSET)], ir_version=IR_VERSION, producer_name="tflite"
    )
    names = [one.name for one in kept]
    rename(converted, [*main.inputs, *names], [*main.outputs, *map(state.following, names)])
    return converted, kept
