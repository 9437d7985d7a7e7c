"""PyTorch exported programs (`.pt2`) -> ONNX, by PyTorch's own exporter."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from forge_pipeline.errors import ModelError
from forge_pipeline.frontends import pt2
from forge_pipeline.frontends.agreement import check_same, sample
from forge_pipeline.frontends.contract import Converted, Declared
from forge_pipeline.frontends.interface import rename

if TYPE_CHECKING:
    import numpy as np
    from onnx import ModelProto
    from torch.export import ExportedProgram

OPSET = 18
_TRIED = (3, 1)  # sizes of an open dimension with which the result is compared; export saw neither


def convert(path: Path, inputs: tuple[Declared, ...]) -> Converted:
    """Return the program in ``path`` as ONNX; its inputs keep their names, outputs in a dict take their keys'."""
    pt2.check(path)
    import torch

    with path.open("rb") as stream:
        program = torch.export.load(stream)
    return Converted(model=program_to_onnx(program), notes={"importer": "torch.onnx.export(dynamo=True)"})


def program_to_onnx(program: ExportedProgram) -> ModelProto:
    """Return ``program`` as ONNX once ONNX Runtime computes from it what PyTorch computes. Raises ModelError."""
    import torch

    program._guards_code = []  # text that calling the program would execute; only checks of inputs are lost
    exported = torch.onnx.export(program, dynamo=True, opset_version=OPSET, verbose=False)
    if exported is None:
        raise ModelError("model", "a program that PyTorch exports", "nothing", "export the model to ONNX yourself")
    model: ModelProto = exported.model_proto
    rename(model, _input_names(program), _output_names(program))
    _compare(program, model)
    return model


def _input_names(program: ExportedProgram) -> list[str]:
    tensors = [spec.arg.name for spec in _user_inputs(program) if _is_tensor(spec)]
    return [str(name) for name in tensors]


def _user_inputs(program: ExportedProgram) -> list[Any]:
    return [spec for spec in program.graph_signature.input_specs if spec.kind.name == "USER_INPUT"]


def _is_tensor(spec: Any) -> bool:
    return type(spec.arg).__name__ == "TensorArgument"


def _output_names(program: ExportedProgram) -> list[str]:
    """Name what comes out in a dict or a named tuple by its key; "" for what has no name."""
    from torch.utils import _pytree as pytree

    spec = program.call_spec.out_spec
    if spec is None:
        return [""] * len(program.graph_signature.user_outputs)
    places, _ = pytree.tree_flatten_with_path(pytree.tree_unflatten(range(spec.num_leaves), spec))
    names = []
    for keys, _ in places:
        parts = [getattr(key, "key", None) or getattr(key, "name", None) for key in keys]
        words = [part for part in parts if isinstance(part, str)]
        names.append(".".join(words) if words and len(words) == len(parts) else "")
    return names


def _compare(program: ExportedProgram, model: ModelProto) -> None:
    import torch
    from torch.utils import _pytree as pytree

    module = program.module(check_guards=False)
    spec = program.call_spec.in_spec
    for size in dict.fromkeys(_TRIED if _symbols(program) else _TRIED[:1]):
        feeds, flat = _feeds(program, size)
        if feeds is None or spec is None:
            continue
        arguments, keywords = pytree.tree_unflatten(flat, spec)
        with torch.no_grad():
            outputs = pytree.tree_leaves(module(*arguments, **keywords))
        check_same(model, feeds, [value.detach().numpy() for value in outputs])


def _symbols(program: ExportedProgram) -> dict[Any, Any]:
    return dict(program.range_constraints)


def _feeds(program: ExportedProgram, size: int) -> tuple[dict[str, np.ndarray] | None, list[Any]]:
    """Return made-up inputs with ``size`` for every open dimension, by name and as a flat list; None if unfit."""
    import torch

    bounds = _symbols(program)
    for bound in bounds.values():
        if not bound.lower <= size <= bound.upper:
            size = max(size, int(bound.lower))
    values = {node.name: node.meta.get("val") for node in program.graph.nodes if node.op == "placeholder"}
    feeds: dict[str, np.ndarray] = {}
    flat: list[Any] = []
    for position, spec in enumerate(_user_inputs(program)):
        if not _is_tensor(spec):
            flat.append(spec.arg.value)
            continue
        fake = values[spec.arg.name]
        shape = [_extent(extent, size) for extent in fake.shape]
        array = sample(shape, str(fake.dtype).removeprefix("torch."), seed=position)
        feeds[spec.arg.name] = array
        flat.append(torch.from_numpy(array))
    return feeds, flat


def _extent(extent: Any, size: int) -> int:
    if isinstance(extent, int):
        return extent
    expression = extent.node.expr
    return int(expression.subs(dict.fromkeys(expression.free_symbols, size)))
