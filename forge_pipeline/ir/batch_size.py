"""Another batch size for a model: interface, baked shapes, and a run that proves it."""

from __future__ import annotations

import numpy as np
import onnx
from onnx import ModelProto, TensorProto, numpy_helper

from forge_pipeline.errors import DataError, ModelError
from forge_pipeline.ir.onnx_module import ONNXModule
from forge_pipeline.ir.values import fed

_SHAPE_OPERAND = {"Reshape": 1, "Expand": 1}  # operator -> which input is a target shape


def with_batch_size(module: ONNXModule, size: int) -> ONNXModule:
    """Return a copy of ``module`` whose inputs have ``size`` as leading dimension.

    The batch is the leading dimension of the first input, and of every input and output that has the same one
    (the same symbol, or the same number). Constant target shapes of Reshape and Expand that start with the old
    number follow. What comes out must agree with shape inference and, where every dimension is known, with a
    run on zeros. Raises ModelError for a size below 1, for a model without a batch, and for one that has
    another batch baked into its arithmetic.
    """
    if size < 1:
        raise ModelError("set_batch_size", "a batch size of at least 1", str(size), "give a positive number")
    shapes = module.input_shapes
    if not shapes or not shapes[0]:
        raise ModelError(
            where="set_batch_size",
            expected="a model whose first input has a leading dimension",
            found=f"the scalar {module.input_names[0]!r}" if shapes else "no inputs",
            fix="export the model with a batch dimension",
        )
    old = shapes[0][0]
    changed = module.copy()
    graph = changed.light.graph
    _constants_are_no_inputs(changed.light)
    if isinstance(old, int) and old != size:
        _follow_baked_shapes(changed.light, old, size)
    for value in (*graph.input, *graph.output):
        if _leading(value) == old:
            value.type.tensor_type.shape.dim[0].dim_value = size
    del graph.value_info[:]
    _settle_outputs(changed, size)
    _prove(changed, size)
    return changed


def _leading(value: onnx.ValueInfoProto) -> int | str | None:
    dims = value.type.tensor_type.shape.dim
    if not dims:
        return None
    return int(dims[0].dim_value) if dims[0].dim_value > 0 else str(dims[0].dim_param) or "?"


def _follow_baked_shapes(model: ModelProto, old: int, new: int) -> None:
    """Replace the leading entry of constant target shapes where the reshaped value leads with the old batch."""
    known = onnx.shape_inference.infer_shapes(model, data_prop=True).graph
    leading = {value.name: _leading(value) for value in (*known.value_info, *known.input, *known.output)}
    constants = {tensor.name: tensor for tensor in model.graph.initializer}
    for node in model.graph.node:
        if node.op_type == "Constant" and node.attribute and node.attribute[0].name == "value":
            constants[node.output[0]] = node.attribute[0].t
    for node in model.graph.node:
        operand = _SHAPE_OPERAND.get(node.op_type)
        if operand is None or len(node.input) <= operand or leading.get(node.input[0]) != old:
            continue
        shape = constants.get(node.input[operand])
        if shape is None or shape.data_location == TensorProto.EXTERNAL:
            continue
        entries = numpy_helper.to_array(shape).copy()
        if entries.ndim == 1 and entries.size and entries[0] == old:
            entries[0] = new
            name = f"{shape.name}_batch_{new}_{node.output[0]}"
            model.graph.initializer.append(numpy_helper.from_array(entries, name))
            node.input[operand] = name


def _constants_are_no_inputs(model: ModelProto) -> None:
    """Stop listing initializers as inputs, as IR versions before 4 demand: only then does inference read them."""
    kept = fed(model.graph)
    del model.graph.input[:]
    model.graph.input.extend(kept)
    model.ir_version = max(model.ir_version, 4)


def _settle_outputs(module: ONNXModule, size: int) -> None:
    """Take over what inference now knows about the outputs; refuse where it contradicts them."""
    try:
        inferred = onnx.shape_inference.infer_shapes(module.light, check_type=True, strict_mode=True, data_prop=True)
    except onnx.shape_inference.InferenceError as error:
        raise _baked(size, str(error)) from error
    for value, known in zip(module.light.graph.output, inferred.graph.output, strict=True):
        stated, found = value.type.tensor_type.shape.dim, known.type.tensor_type.shape.dim
        for dim, better in zip(stated, found, strict=False):
            if better.HasField("dim_value"):
                dim.dim_value = better.dim_value


def _prove(module: ONNXModule, size: int) -> None:
    """Run the model once on zeros, where every dimension is known."""
    shapes = [[dim for dim in shape if isinstance(dim, int)] for shape in module.input_shapes]
    if any(len(known) != len(shape) for known, shape in zip(shapes, module.input_shapes, strict=True)):
        return
    infer = module.get_inference_function()
    zeros = [np.zeros(shape, dtype) for shape, dtype in zip(shapes, module.input_dtypes, strict=True)]
    try:
        results = infer(*zeros)
    except DataError as error:
        raise _baked(size, error.found) from error
    arrays = results if isinstance(results, list) else [results]
    for value, array in zip(module.light.graph.output, arrays, strict=True):
        stated = _leading(value)
        if isinstance(stated, int) and array.shape[:1] != (stated,):
            raise _baked(size, f"output {value.name!r} of shape {list(array.shape)}")


def _baked(size: int, found: str) -> ModelError:
    return ModelError(
        where="set_batch_size",
        expected=f"a model that computes a batch of {size}",
        found=found,
        fix="export the model with a symbolic batch dimension, then set its size",
    )
