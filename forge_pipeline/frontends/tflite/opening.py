"""Which sizes of a converted model stay open: files declare sizes open that operators have fixed since."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final

import numpy as np
from onnx import ModelProto, helper

from forge_pipeline.errors import DataError, ModelError
from forge_pipeline.frontends.agreement import sample
from forge_pipeline.frontends.interface import BATCH

if TYPE_CHECKING:
    from forge_pipeline.ir.reference.interpreter import Interpreter

_TRIED: Final = (64, 96, 32, 17, 640, 16000)
"""Sizes for axes that are open beside the batch: of images that are halved five times, of sequences, of sound."""

_MOST: Final = 1 << 26
"""Numbers of an input that is tried; a larger one is not worth its time, or the file is damaged."""


def holds(model: ModelProto) -> bool:
    """Tell whether ONNX Runtime runs ``model`` at the sizes that it declares open.

    Three samples at once have to give what they give one by one; other axes have to take two of several sizes.
    """
    from forge_pipeline.ir.reference.interpreter import Interpreter

    shapes = [_shape(value) for value in model.graph.input]
    batched = [bool(shape) and shape[0] == BATCH for shape in shapes]
    if any(batched) and not all(batched):
        return False
    inner = any(not isinstance(extent, int) for shape in shapes for extent in shape[int(batched[0]) :])
    try:
        run = Interpreter(model)
    except ModelError:
        return False
    good = 0
    for size in _TRIED if inner else (1,):
        good += _works(model, run, size, batched=all(batched))
        if good == 1 + inner:
            return True
    return False


def _shape(value: object) -> list[int | str]:
    dims = value.type.tensor_type.shape.dim  # type: ignore[attr-defined]
    return [dim.dim_param or int(dim.dim_value) for dim in dims]


def _works(model: ModelProto, run: Interpreter, size: int, *, batched: bool) -> bool:
    feeds = {}
    for position, value in enumerate(model.graph.input):
        extents = [3 if e == BATCH else e if isinstance(e, int) else size for e in _shape(value)]
        if math.prod(extents) > _MOST:
            return False
        dtype = str(helper.tensor_dtype_to_np_dtype(value.type.tensor_type.elem_type))
        feeds[value.name] = sample(extents, dtype, seed=position)
    try:
        together = run(feeds)
        if not batched:
            return True
        single = [run({name: array[i : i + 1] for name, array in feeds.items()}) for i in range(3)]
    except DataError:  # a size is baked in
        return False
    return all(
        whole.shape[:1] == (3,)
        and all(np.allclose(whole[i : i + 1], single[i][name], rtol=1e-4, atol=1e-5) for i in range(3))
        for name, whole in together.items()
    )
