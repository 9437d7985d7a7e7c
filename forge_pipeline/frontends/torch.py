"""PyTorch exported programs (`.pt2`) -> ONNX, by PyTorch's own exporter."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
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
_LARGEST = 1 << 20
_TRIAL_SIZES = (3, 1)  # sizes of an open dimension with which the result is compared; export saw neither


def convert(path: Path, inputs: tuple[Declared, ...]) -> Converted:
    """Return the program in ``path`` as ONNX; its inputs keep their names, outputs in a dict take their keys'."""
    pt2.check(path)
    import torch

    with path.open("rb") as stream:
        program = torch.export.load(stream)
    return Converted(model=program_to_onnx(program), notes={"importer": "torch.onnx.export(dynamo=True)"})


def stateful(where: str, names: Sequence[str]) -> ModelError:
    """Return the refusal of a model that writes to its own buffers or parameters, ``names``."""
    return ModelError(
        where=where,
        expected="a model whose outputs depend on its inputs alone",
        found=f"one that writes to what it keeps between calls: {', '.join(names)[:200]}",
        fix="make these inputs and outputs of `forward`, and have the program that calls the model keep them",
    )


def check_stateless(program: ExportedProgram) -> None:
    """Raise ModelError where ``program`` writes to its own buffers or parameters."""
    signature = program.run_decompositions({}).graph_signature  # which makes results of what is written in place
    written = {**signature.buffers_to_mutate, **signature.parameters_to_mutate}
    if written:
        raise stateful("exported program", sorted(set(written.values())))


def program_to_onnx(program: ExportedProgram) -> ModelProto:
    """Return ``program`` as ONNX once ONNX Runtime computes from it what PyTorch computes. Raises ModelError."""
    import torch

    check_stateless(program)
    try:
        exported = torch.onnx.export(program, dynamo=True, opset_version=OPSET, verbose=False)
    except torch.onnx.OnnxExporterError as error:
        raise ModelError(
            where="torch.onnx.export",
            expected="a program of operators that PyTorch exports to ONNX",
            found=" ".join(str(error.__cause__ or error).split())[:400],
            fix="replace the operator it names, or export the model to ONNX yourself",
        ) from error
    if exported is None:
        raise ModelError("torch.onnx.export", "a model", "nothing", "export the model to ONNX yourself")
    model: ModelProto = exported.model_proto
    rename(model, input_names(program), output_names(program))
    _compare(program, model)
    return model


def input_names(program: ExportedProgram) -> list[str]:
    """Return the names of the tensors that ``program`` takes, in order."""
    tensors = [spec.arg.name for spec in _user_inputs(program) if _is_tensor(spec)]
    return [str(name) for name in tensors]


def _user_inputs(program: ExportedProgram) -> list[Any]:
    return [spec for spec in program.graph_signature.input_specs if spec.kind.name == "USER_INPUT"]


def _is_tensor(spec: Any) -> bool:
    return type(spec.arg).__name__ == "TensorArgument"


def output_names(program: ExportedProgram) -> list[str]:
    """Name what comes out in a dict or a named tuple by its key; "" for what has no name, in order."""
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
    for feeds, wanted in trials(program):
        check_same(model, feeds, wanted)


def trials(program: ExportedProgram) -> Iterator[tuple[dict[str, np.ndarray], list[np.ndarray]]]:
    """Yield made-up inputs by name, and what ``program`` computes from them; two sizes where one is open."""
    import torch
    from torch.utils import _pytree as pytree

    program._guards_code = []  # text that calling the program would execute; only checks of inputs are lost
    module = program.module(check_guards=False)
    spec = program.call_spec.in_spec
    for sizes in _sizes(program):
        feeds, flat = _feeds(program, sizes)
        arguments, keywords = pytree.tree_unflatten(flat, spec)
        with torch.no_grad():
            outputs = pytree.tree_leaves(module(*arguments, **keywords))
        yield feeds, [value.detach().numpy() for value in outputs]


def _sizes(program: ExportedProgram) -> list[dict[Any, int]]:
    """Return sizes by symbol: two for each that allows it, the second as small as it may be."""
    bounds = {
        symbol: (int(bound.lower), int(bound.upper) if bound.upper < _LARGEST else _LARGEST)  # some are infinite
        for symbol, bound in program.range_constraints.items()
    }
    both = [
        {symbol: max(low, min(size + max(low - 1, 0), high)) for symbol, (low, high) in bounds.items()}
        for size in _TRIAL_SIZES
    ]
    return both if both[0] != both[1] else both[:1]


def _feeds(program: ExportedProgram, sizes: dict[Any, int]) -> tuple[dict[str, np.ndarray], list[Any]]:
    """Return made-up inputs with ``sizes`` for the open dimensions, by name and as a flat list."""
    import torch

    values = {node.name: node.meta.get("val") for node in program.graph.nodes if node.op == "placeholder"}
    feeds: dict[str, np.ndarray] = {}
    flat: list[Any] = []
    for position, spec in enumerate(_user_inputs(program)):
        if not _is_tensor(spec):
            flat.append(spec.arg.value)
            continue
        fake = values[spec.arg.name]
        shape = [_extent(extent, sizes) for extent in fake.shape]
        array = sample(shape, str(fake.dtype).removeprefix("torch."), seed=position)
        feeds[spec.arg.name] = array
        flat.append(torch.from_numpy(array))
    return feeds, flat


def _extent(extent: Any, sizes: dict[Any, int]) -> int:
    if isinstance(extent, int):
        return extent
    return int(extent.node.expr.subs(sizes))
