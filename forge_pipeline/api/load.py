"""Loading for programs: what the load stage does to a file, for a path or a framework's object, as one call."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from forge_pipeline.errors import ConfigError, ModelError
from forge_pipeline.frontends import Source
from forge_pipeline.frontends.contract import Declared
from forge_pipeline.frontends.source import naming
from forge_pipeline.ir.dims import listed

if TYPE_CHECKING:
    from forge_pipeline.api.onnx_module import ONNXModule

Shape = Sequence[int | str]

_GENERATOR = "leave it out: the code generator chooses layouts; `compile(set_channel_layout=...)` asks for one"
_RELAYS = "leave it out: it is an option of Relay's importer, which is gone"
FORGES_OPTIONS = {
    "dtype": "leave it out: the file says the types of its inputs",
    "dtype_dict": "leave it out: the file says the types of its inputs",
    "opset": "leave it out: the file says its opset",
    "freeze_params": "leave it out: weights are constants here; RelaxModule(..., fold_constants=False) keeps them",
    "layout": _GENERATOR,
    "convert_config": _GENERATOR,
    "custom_convert_map": _RELAYS,
    "use_parser_friendly_name": _RELAYS,
    "keep_quantized_weight": _RELAYS,
    "outputs": "leave it out, and cut the model with `module.main.remove` or the passes of docs/passes.md",
    "export_node_renamed_model_path": "leave it out: the load stage's report has every original name",
}  # option of Forge's importers that has no effect to give here -> what to do instead


def load(source: object, *, inputs: Sequence[Any] = (), dynamic_shapes: Any = None, **options: Any) -> ONNXModule:
    """Return the model that ``source`` is as an ONNXModule in canonical form, checked as the load stage checks it.

    ``source`` is a path, the bytes of a model file, or a framework's object: ``onnx.ModelProto``, PyTorch's
    ``ExportedProgram``, ``ScriptModule`` or ``nn.Module`` (in eval mode), a Keras model, a TensorFlow ``Module`` or
    ``ConcreteFunction``, a ``tflite.Model``. ``inputs`` are for what does not know its own (TorchScript, a PyTorch
    module): example arrays, or ``Declared(name=, shape=, dtype=)``; a mapping with these keys will do.
    ``dynamic_shapes`` is that of ``torch.export.export``. ``options`` override conf/load/default.yaml; ``dims`` among
    them gives open extents a size by name, ``values`` makes constants of inputs. Raises ModelError, and ConfigError for
    an option.
    """
    from forge_pipeline.frontends.objects import save

    given = [item if not isinstance(item, Mapping) else _declared(item) for item in inputs]
    if source == "":
        raise ModelError("load()", "the path of a model file", "an empty path", "give the path of the model")
    if isinstance(source, str | os.PathLike):
        declared = [item for item in given if isinstance(item, Declared)]
        if len(declared) != len(given) or dynamic_shapes is not None:
            raise ModelError(
                where="load()",
                expected="inputs as Declared(name=, shape=, dtype=) for a file",
                found="example arrays, or dynamic_shapes",
                fix="describe the inputs; an open size is a symbol in `shape`",
            )
        with naming(Path(source)):
            return _load(Path(source), declared, options)
    with TemporaryDirectory(prefix="forge-load-") as folder:
        saved = save(source, Path(folder), given, dynamic_shapes)
        return _load(saved.path, saved.inputs, options)


def from_onnx(model: object, shape: Mapping[str, Shape] | None = None, **options: Any) -> ONNXModule:
    """Return an ONNX model (path, bytes or ``ModelProto``) as ``load`` does, open sizes of inputs set to ``shape``.

    Raises ModelError where a size is not open, or does not fit the model.
    """
    return _shaped(load(model, **options), shape)


def from_torch(
    script_module: object,
    input_infos: Sequence[Any] | None = None,
    default_type: str = "float32",
    *,
    example_inputs: Sequence[Any] = (),
    dynamic_shapes: Any = None,
    **options: Any,
) -> ONNXModule:
    """Return a PyTorch model (path or object) as ``load`` does.

    ``input_infos`` holds ``(name, shape)`` or ``(name, (shape, dtype))`` for each input, in order. A symbol in a shape
    is an open size.
    """
    declared = [_input_info(entry, default_type) for entry in input_infos or ()]
    if declared and dynamic_shapes is None and not isinstance(script_module, str | os.PathLike):
        dynamic_shapes = _dynamic(script_module, declared)
    return load(script_module, inputs=declared or example_inputs, dynamic_shapes=dynamic_shapes, **options)


def from_keras(model: object, shape: Mapping[str, Shape] | None = None, **options: Any) -> ONNXModule:
    """Return a Keras model (path or object) as ``load`` does, with open sizes of inputs set to ``shape``."""
    return _shaped(load(model, **options), shape)


def from_tensorflow(model: object, shape: Mapping[str, Shape] | None = None, **options: Any) -> ONNXModule:
    """Return a TensorFlow model (folder of a SavedModel, or object) as ``load`` does; ``shape`` as in ``from_onnx``."""
    return _shaped(load(model, **options), shape)


def from_tflite(model: object, shape_dict: Mapping[str, Shape] | None = None, **options: Any) -> ONNXModule:
    """Return a TensorFlow Lite model (path, bytes, ``tflite.Model``) as ``load`` does; ``shape_dict``: as ``shape``."""
    return _shaped(load(model, **options), shape_dict)


def _load(path: Path, inputs: Sequence[Declared], options: Mapping[str, Any]) -> ONNXModule:
    from forge_pipeline.api.onnx_module import ONNXModule
    from forge_pipeline.config import defaults
    from forge_pipeline.pipeline.runner import External, run_once
    from forge_pipeline.stages import taking
    from forge_pipeline.stages.contract import Rest

    several = listed(options.get("dims") or {})
    if several:
        raise ConfigError(
            where="load: dims",
            expected="one size for each extent",
            found=f"several for {', '.join(several)}",
            fix="give these to compile(dims=...): the model keeps them open, its library has code for each",
        )
    for name in options:
        if name in FORGES_OPTIONS:
            raise ConfigError(f"load: {name}", "options of conf/load", "one of Forge's importers", FORGES_OPTIONS[name])
    stage = taking("source")
    rest = Rest(inputs=[_plain(item) for item in inputs], target={}, preparation={}, has_data=False)
    values = stage.sliced(defaults(f"{stage.name}/default.yaml"), rest)
    result = run_once(stage.name, values | dict(options), {"source": External(Source(path))})
    loaded = result.output
    return ONNXModule.mapped(loaded.light) if loaded.is_mapped else ONNXModule(loaded.mod)


def _plain(item: Declared) -> dict[str, Any]:
    return {"name": item.name, "shape": list(item.shape), "dtype": item.dtype}


def _declared(item: Mapping[str, Any]) -> Declared:
    from forge_pipeline.config import bind

    return bind(Declared, item, where="inputs")


def _input_info(entry: Any, default_type: str) -> Declared:
    from forge_pipeline.config import bind

    name, description = entry
    nested = len(description) == 2 and isinstance(description[0], Sequence) and not isinstance(description[0], str)
    shape, dtype = description if nested else (description, default_type)
    names = {"float": "float32", "int": "int64", "half": "float16", "double": "float64"}  # as PyTorch abbreviates
    values = {"name": name, "shape": list(shape), "dtype": names.get(str(dtype), str(dtype))}
    return bind(Declared, values, where="input_infos")


def _dynamic(model: object, declared: Sequence[Declared]) -> Any:
    """Return what torch.export wants to hear about the symbols of ``declared``; None where there are none."""
    torch = sys.modules.get("torch")
    symbols = any(isinstance(extent, str) for item in declared for extent in item.shape)
    if torch is None or not symbols or isinstance(model, torch.jit.ScriptModule):
        return None
    dims: dict[str, Any] = {}
    return tuple(
        {
            axis: dims.setdefault(extent, torch.export.Dim(extent))
            for axis, extent in enumerate(item.shape)
            if isinstance(extent, str)
        }
        for item in declared
    )


def _shaped(module: ONNXModule, shapes: Mapping[str, Shape] | None) -> ONNXModule:
    """Return ``module`` with open sizes of its inputs set, and everything checked again."""
    if not shapes:
        return module

    model = module.copy().light
    values = {value.name: value for value in model.graph.input}
    symbols: dict[str, int | str] = {}
    for name, shape in shapes.items():
        dims = values[name].type.tensor_type.shape.dim if name in values else ()
        if name not in values or len(dims) != len(shape):
            raise _unfit(f"input {name!r}", f"{', '.join(map(repr, values))} with as many sizes as it has", str(shape))
        for dim, extent in zip(dims, shape, strict=True):
            if dim.HasField("dim_value") and dim.dim_value != extent:
                raise _unfit(f"input {name!r}", f"the size {dim.dim_value}, which the model fixes", str(extent))
            if dim.dim_param and symbols.setdefault(dim.dim_param, extent) != extent:
                raise _unfit(
                    f"input {name!r}", f"one size for {dim.dim_param!r}", f"{symbols[dim.dim_param]}, {extent}"
                )
            _set(dim, extent)
    for value in (*model.graph.input, *model.graph.output):
        for dim in value.type.tensor_type.shape.dim:
            if dim.dim_param in symbols:
                _set(dim, symbols[dim.dim_param])
    return load(model)


def _set(dim: Any, extent: int | str) -> None:
    if isinstance(extent, str):
        dim.dim_param = extent
    else:
        dim.dim_value = extent


def _unfit(where: str, expected: str, found: str) -> ModelError:
    return ModelError(where, expected, found, "give the sizes that the model leaves open, and the others as they are")
