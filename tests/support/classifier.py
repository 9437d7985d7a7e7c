"""A small classifier with the bundled model's interface."""

from __future__ import annotations

import numpy as np
import onnx
from onnx import numpy_helper, parser


def classifier() -> onnx.ModelProto:
    """Return what takes and gives the same as the bundled model and is compiled in a tenth of the time."""
    model = parser.parse_model("""<ir_version: 10, opset_import: ["": 18]>
        small (float[batch, 1, 8, 8] image) => (float[batch, 10] logits)
        { h = Conv<pads=[1, 1, 1, 1]>(image, c)  r = Relu(h)  p = GlobalAveragePool(r)  f = Flatten(p)
          logits = MatMul(f, d) }""")
    random = np.random.default_rng(0)
    for name, shape in {"c": (16, 1, 3, 3), "d": (16, 10)}.items():
        weight = random.standard_normal(shape).astype(np.float32)
        model.graph.initializer.append(numpy_helper.from_array(weight, name))
    return model
