"""TorchScript archives (`.pt`) -> ONNX, by PyTorch's exporter for them, with the inputs that the user declares."""

from __future__ import annotations

import hashlib
import io
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import onnx

from forge_pipeline.errors import ConfigError, ModelError
from forge_pipeline.frontends.agreement import check_same, sample
from forge_pipeline.frontends.contract import Converted, Declared
from forge_pipeline.frontends.interface import rename
from forge_pipeline.frontends.torch import OPSET, stateful
from forge_pipeline.frontends.zips import open_zip
from forge_pipeline.ir.values import fed

if TYPE_CHECKING:
    import numpy as np

_EXPORTED_AT: Final = 2  # an example of 1 would be taken for a broadcast
_COMPARED_AT: Final = (3, 1)
# TorchScript is a language of its own: of what it can call, these reach files or code outside the archive.
_UNSAFE: Final = re.compile(
    r"\b(?:torch\.(?:from_file|save|load|_save|_load|hub|classes)\b|__torch__\.torch\.classes\b"
    r"|ops\.(?!aten\b|prim\b|quantized\b|torchvision\b)\w+|(?:ops\.aten|aten)\.(?:from_file|save|load)\b)"
)


def convert(path: Path, inputs: tuple[Declared, ...]) -> Converted:
    """Return the scripted or traced module in ``path`` as ONNX, its inputs named and shaped as declared."""
    _check(path)
    if not inputs:
        raise ConfigError(
            where="model.inputs",
            expected="the name, shape and dtype of every input: a TorchScript archive does not hold them",
            found="none",
            fix="declare them, as in model.inputs=[{name: image, shape: [N, 3, 224, 224], dtype: float32}]; "
            "or save the model with torch.export.save, which keeps them",
        )
    import torch

    module = torch.jit.load(str(path), map_location="cpu").eval()
    _check_count(module, inputs)
    if written := _written(module):
        raise stateful(str(path), written)
    before = _state(module)
    open_axes = {
        item.name: {axis: extent for axis, extent in enumerate(item.shape) if isinstance(extent, str)}
        for item in inputs
    }
    _mend_unflatten()
    buffer = io.BytesIO()
    with torch.no_grad():
        torch.onnx.export(
            module, _arguments(inputs, _EXPORTED_AT), buffer, dynamo=False, opset_version=OPSET,
            input_names=[item.name for item in inputs], dynamic_axes=open_axes,
        )  # fmt: skip
    model = onnx.load_model_from_string(buffer.getvalue())
    count = len(model.graph.output)
    rename(
        model, [""] * len(fed(model.graph)), ["output"] if count == 1 else [f"output_{index}" for index in range(count)]
    )
    for size in _COMPARED_AT if any(open_axes.values()) else _COMPARED_AT[:1]:
        with torch.no_grad():
            outputs = _leaves(module(*_arguments(inputs, size)))
        check_same(model, _feeds(inputs, size), [value.detach().numpy() for value in outputs])
    after = _state(module)
    if changed := sorted(name for name in before if before[name] != after.get(name)):
        raise stateful(str(path), changed)
    return Converted(model=model, notes={"importer": "torch.onnx.export(dynamo=False)"})


def _check(path: Path) -> None:
    """Raise ModelError for an archive whose code names what reaches outside it."""
    with open_zip(path) as archive:
        for name in archive.namelist():
            if "/code/" not in f"/{name}" or not name.endswith(".py"):
                continue
            if match := _UNSAFE.search(archive.read(name).decode("utf-8", "replace")):
                raise ModelError(
                    where=str(path),
                    expected="a module of PyTorch's own operators on tensors",
                    found=f"{match[0][:80]!r} in {name[:80]!r}",
                    fix="remove what reads files or needs a library, and save the module again",
                )


def _written(module: Any) -> list[str]:
    """Return the names of attributes that ``forward`` may write to, or to a part of which it may.

    Freezing leaves the attributes that are written to, and drops what runs in training only.
    """
    import torch

    graph = torch.jit.freeze(module, optimize_numerics=False).graph
    aliases = graph.alias_db()
    names = {node.s("name") for node in graph.findAllNodes("prim::SetAttr")}
    read = graph.findAllNodes("prim::GetAttr")
    return sorted(names | {node.s("name") for node in read if aliases.has_writers(node.output())})


def _state(module: Any) -> dict[str, bytes]:
    """Return a digest of every parameter and buffer: tracing may have hidden from the graph what is written to."""
    import torch

    return {
        name: hashlib.sha256(value.detach().contiguous().reshape(-1).view(torch.uint8).numpy()).digest()
        for name, value in module.state_dict().items()
    }


def _mend_unflatten() -> None:
    """Let PyTorch's exporter know how many dimensions `unflatten` gives.

    It forgets them where a size is computed (torch 2.13), and then refuses the `transpose` behind it: attention whose
    three projections are one matrix, with an open batch.
    """
    import torch
    from torch.onnx import symbolic_helper
    from torch.onnx._internal.torchscript_exporter.symbolic_opset13 import unflatten

    def ranked(graph: Any, value: Any, dim: Any, sizes: Any) -> Any:
        result = unflatten(graph, value, dim, sizes)
        rank = symbolic_helper._get_tensor_rank(value)
        parts = symbolic_helper._maybe_get_const(sizes, "is")
        count = len(parts) if isinstance(parts, list | tuple) else len(list(sizes.node().inputs()))
        if rank is not None and not result.isCompleteTensor():
            result.setType(value.type().with_sizes([None] * (rank + count - 1)))
        return result

    torch.onnx.register_custom_op_symbolic("aten::unflatten", ranked, OPSET)


def _check_count(module: Any, inputs: tuple[Declared, ...]) -> None:
    expected = [argument.name for argument in module.forward.schema.arguments[1:] if not argument.has_default_value()]
    most = len(module.forward.schema.arguments) - 1
    if not len(expected) <= len(inputs) <= most:
        raise ConfigError(
            where="model.inputs",
            expected=f"{len(expected)} inputs, for {', '.join(expected)}",
            found=f"{len(inputs)}: {', '.join(item.name for item in inputs)}",
            fix="declare one for each argument of `forward`, in its order",
        )


def _feeds(inputs: tuple[Declared, ...], size: int) -> dict[str, np.ndarray]:
    return {
        item.name: sample([size if isinstance(e, str) else e for e in item.shape], item.dtype, seed=position)
        for position, item in enumerate(inputs)
    }


def _arguments(inputs: tuple[Declared, ...], size: int) -> tuple[Any, ...]:
    import torch

    return tuple(torch.from_numpy(array) for array in _feeds(inputs, size).values())


def _leaves(value: Any) -> list[Any]:
    from torch.utils import _pytree as pytree

    return list(pytree.tree_leaves(value))
