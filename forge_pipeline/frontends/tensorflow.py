"""TensorFlow SavedModels -> ONNX, by tf2onnx."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import onnx
from google.protobuf.message import DecodeError  # type: ignore[import-untyped]
from onnx import ModelProto

from forge_pipeline.errors import ModelError
from forge_pipeline.frontends.agreement import check_same, sample
from forge_pipeline.frontends.contract import Converted, Declared
from forge_pipeline.frontends.interface import name_open_sizes, rename

OPSET: Final = 18
_SIGNATURE: Final = "serving_default"
# Operators that run Python, or read and write files when the graph runs; tf2onnx runs parts of it to fold constants.
_UNSAFE: Final = frozenset(
    {"PyFunc", "PyFuncStateless", "EagerPyFunc", "ReadFile", "WriteFile", "MatchingFiles", "WholeFileReader",
     "WholeFileReaderV2", "TFRecordReader", "TFRecordReaderV2", "TextLineReader", "TextLineReaderV2",
     "FixedLengthRecordReaderV2", "TextLineDataset", "TFRecordDataset", "GeneratorDataset", "ImmutableConst",
     "SaveDatasetV2", "LoadDataset", "DebugIdentity", "PrintV2"}
)  # fmt: skip
_TRIAL_SIZES: Final = (3, 1)


def convert(path: Path, inputs: tuple[Declared, ...]) -> Converted:
    """Return the signature ``serving_default`` of the SavedModel in ``path`` as ONNX, under its own names."""
    _check(path)
    import tensorflow as tf
    import tf2onnx

    loaded = tf.saved_model.load(str(path))
    if _SIGNATURE not in loaded.signatures:
        raise ModelError(
            where=str(path),
            expected=f"a SavedModel with the signature {_SIGNATURE!r}",
            found=", ".join(map(repr, sorted(loaded.signatures))) or "none",
            fix="save it with tf.saved_model.save(model, folder, signatures=function.get_concrete_function(...))",
        )
    function = loaded.signatures[_SIGNATURE]
    specs = dict(sorted(function.structured_input_signature[1].items()))
    results = dict(sorted(function.structured_outputs.items()))
    wrapped = tf.function(lambda *values: [function(**dict(zip(specs, values, strict=True)))[name] for name in results])
    signature = [tf.TensorSpec(spec.shape, spec.dtype, name=name) for name, spec in specs.items()]
    model, _ = tf2onnx.convert.from_function(wrapped, signature, opset=OPSET)
    _feed_all(model, specs)
    rename(model, list(specs), list(results))
    model = _with_sizes(model)
    _compare(path, model, function, specs, results)
    return Converted(model=model, notes={"importer": "tf2onnx", "signature": _SIGNATURE})


def _check(path: Path) -> None:
    """Raise ModelError where the graph, or a function that it calls, may run code or reach files."""
    from tensorflow.core.protobuf.saved_model_pb2 import SavedModel

    content = SavedModel()
    try:
        content.ParseFromString((path / "saved_model.pb").read_bytes())
    except DecodeError as error:
        raise _refused(path, "a damaged or cut saved_model.pb") from error
    for meta in content.meta_graphs:
        for nodes in (meta.graph_def.node, *(function.node_def for function in meta.graph_def.library.function)):
            for node in nodes:
                if node.op in _UNSAFE:
                    raise _refused(path, f"the operator {node.op} ({node.name[:80]!r})")


def _refused(path: Path, found: str) -> ModelError:
    return ModelError(
        where=str(path),
        expected="a SavedModel that computes on tensors alone",
        found=found,
        fix="save the model without what runs Python or reads files; keep that before or behind it",
    )


def _feed_all(model: ModelProto, specs: dict[str, Any]) -> None:
    """Bring the inputs into the order of ``specs``; one that nothing reads is gone from the converted graph."""
    present = {value.name.removesuffix(":0"): value for value in model.graph.input}
    for name in [name for name in specs if name not in present]:
        del specs[name]
    ordered = [present[name] for name in specs]
    del model.graph.input[:]
    model.graph.input.extend(ordered)


def _with_sizes(model: ModelProto) -> ModelProto:
    """Name the open sizes; those of outputs, which tf2onnx numbers one by one, follow from the inputs'."""
    name_open_sizes(model)
    bare = onnx.ModelProto()
    bare.CopyFrom(model)
    del bare.graph.value_info[:]
    for value in bare.graph.output:
        value.type.tensor_type.ClearField("shape")
    known = onnx.shape_inference.infer_shapes(bare, data_prop=True)
    for value, found in zip(model.graph.output, known.graph.output, strict=True):
        if len(found.type.tensor_type.shape.dim) == len(value.type.tensor_type.shape.dim):
            value.type.tensor_type.shape.CopyFrom(found.type.tensor_type.shape)
    return model


def _compare(path: Path, model: ModelProto, function: Any, specs: dict[str, Any], results: dict[str, Any]) -> None:
    import tensorflow as tf

    everything = function.structured_input_signature[1]
    for size in _TRIAL_SIZES:
        feeds = {
            name: sample([extent or size for extent in spec.shape.as_list()], spec.dtype.as_numpy_dtype, seed=position)
            for position, (name, spec) in enumerate(sorted(everything.items()))
        }
        try:
            outputs = function(**{name: tf.constant(array) for name, array in feeds.items()})
        except tf.errors.InvalidArgumentError as error:
            if size == _TRIAL_SIZES[-1]:
                raise _refused(path, f"a signature that fails on its own inputs ({error.message[:200]})") from error
            continue  # a size that only looks open: TensorFlow itself cannot run it with this one
        check_same(model, {name: feeds[name] for name in specs}, [outputs[name].numpy() for name in results])
        if all(extent is not None for spec in everything.values() for extent in spec.shape.as_list()):
            return
