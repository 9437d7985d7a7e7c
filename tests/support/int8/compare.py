"""Compiles quantized models for whatever machine tests run on, and compares with ONNX Runtime."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import onnx

from forge_pipeline.codegen.build import build
from forge_pipeline.codegen.options import Options
from forge_pipeline.target import Target
from forge_pipeline.target.description import why_not_here
from tests.support.emulated.choice import AMX, CHOSEN, expect, load
from tests.support.int8.net import Net

VNNI, PLAIN, SDOT = "intel/sapphire-rapids", "x86-64/v3", "arm/cortex-a76"
HERE = CHOSEN or (PLAIN if why_not_here(Target.from_tag(VNNI)) else VNNI)
OTHERS = ("x86-64/v2", PLAIN, "x86-64/v4", "intel/alder-lake")
"""Every other way in which an x86 multiplies bytes."""
ELSEWHERE = {
    "intel/sapphire-rapids": "vpdpbusd",
    "intel/alder-lake": "vpdpbusd",
    "x86-64/v4": "pmaddw.d.512",
    "arm/cortex-a76": "neon.sdot",
    "arm/generic": "neon.smull",
    "arm/neoverse-v1": "neon.usmmla",
}
"""With which instruction other targets multiply them."""
OPTIONS = Options(generator="tiled", opt_level=3, float16=False, channel_layout=None)


def reference(model: onnx.ModelProto, x: Any, *, optimized: bool) -> list[Any]:
    import onnxruntime as ort

    options = ort.SessionOptions()
    options.intra_op_num_threads = 1
    if not optimized:
        options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    return list(session.run(None, {"x": x}))


def compiled(model: onnx.ModelProto, tag: str | Target = HERE, in_float: str | None = None) -> Any:
    """Return the engine of a model of which only kernels with ``in_float`` in their names are in float."""
    target = Target.from_tag(tag) if isinstance(tag, str) else tag
    expect(target)
    library = build(model, target, replace(OPTIONS, amx=AMX and target.tag == HERE))
    reported = [row["operator"] for row in library.metadata["compile"]["fallbacks"]]
    assert bool(reported) == (in_float is not None)
    assert all(in_float in name for name in reported if in_float is not None)
    return load(library.to_bytes(), target)


def check(net: Net, *outputs: str, tag: str = HERE, optimized: bool = False, spread: float = 40.0) -> None:
    """Compare on values that reach both ends of the input's range."""
    model = net.finish(*outputs)
    x = (net.random.standard_normal(net.shape) * spread).astype(np.float32)
    for found, wanted in zip(compiled(model, tag)(x), reference(model, x, optimized=optimized), strict=True):
        assert len(np.unique(wanted)) > 3
        np.testing.assert_array_equal(found, wanted)


def assembly_of(model: onnx.ModelProto, tag: str, kernel: str = "dense") -> str:
    """Return the machine code of a model's product, or of its kernels with another word in their names."""
    import tvm
    from tvm import tirx

    from forge_pipeline.codegen.lowering import lower
    from forge_pipeline.codegen.onnx_import.importer import import_model, prepare
    from forge_pipeline.codegen.tiled import PASS_CONFIG
    from forge_pipeline.codegen.tir.lowering import pipeline
    from forge_pipeline.codegen.tir.math import vector_math

    vector_math.install()
    target = Target.from_tag(tag)
    module = lower(import_model(prepare(model)), target, OPTIONS).module
    kernels = {
        variable: function.with_attr("global_symbol", variable.name_hint)
        for variable, function in module.functions_items()
        if isinstance(function, tirx.PrimFunc) and kernel in variable.name_hint
    }
    with target.tvm(), tvm.transform.PassContext(opt_level=3, config=dict(PASS_CONFIG)):
        built = pipeline.build(tvm.IRModule(kernels), target)
    return str(built.inspect_source("asm"))
