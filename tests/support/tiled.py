"""Models of a few operators with float32 inputs, compiled by the tiled generator and compared with ONNX Runtime."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx
import onnxruntime
from onnx import TensorProto, helper, numpy_helper

from forge_pipeline.codegen.build import build
from forge_pipeline.codegen.options import Options
from forge_pipeline.target import Target
from forge_runtime.engine import Engine
from tests.support.sums import assert_same_sums

TILED = Options(generator="tiled", opt_level=3, float16=False, channel_layout=None)
Shape = Sequence[int | str]


def model(
    nodes: list[onnx.NodeProto], inputs: dict[str, Shape], weights: dict[str, np.ndarray] | None = None
) -> onnx.ModelProto:
    """Return a model of ``inputs`` with the one output `y`."""
    graph = helper.make_graph(
        nodes,
        "graph",
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name, shape in inputs.items()],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
        [numpy_helper.from_array(value, name) for name, value in (weights or {}).items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=10)


def compiled(source: onnx.ModelProto, threads: int = 1, tag: str = "host") -> Engine:
    """Return the model, compiled for a target that runs here; no kernel is left to plain loops."""
    library = build(source, Target.from_tag(tag), TILED)
    assert library.metadata["compile"]["fallbacks"] == []
    return Engine(library.to_bytes(), threads=threads)


def kernels_of(engine: Engine) -> list[str]:
    """Return the names of the kernels that run for inputs of ones, with 5 for extents that are open."""
    inputs = [
        np.ones([size if isinstance(size, int) else 5 for size in port.shape], np.float32) for port in engine.inputs
    ]
    return [kernel.name for kernel in engine.profile(*inputs, runs=1)]


def assert_same(source: onnx.ModelProto, sizes: Sequence[dict[str, int]], *, terms: int, tag: str = "host") -> None:
    """Compare with ONNX Runtime at each of ``sizes``, one after the other."""
    engine, session = compiled(source, threads=2, tag=tag), onnxruntime.InferenceSession(source.SerializeToString())
    rng = np.random.default_rng(3)
    for given in sizes:
        feeds = {}
        for value in source.graph.input:
            axes = [axis.dim_value or given[axis.dim_param] for axis in value.type.tensor_type.shape.dim]
            feeds[value.name] = rng.standard_normal(axes).astype(np.float32)
        (expected,) = session.run(None, feeds)
        (found,) = engine(**feeds)
        assert found.shape == expected.shape, given
        assert_same_sums(found, expected, terms=terms)
