"""Files that ONNX Runtime's own tools write: optimizers, the quantizer, and a session that saves what it optimized."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from pathlib import Path

import onnx
import onnxruntime as ort
import pytest

from forge_pipeline.ir.canonical import canonical_model
from forge_pipeline.ir.qdq.to_standard import in_standard
from forge_pipeline.ir.reference.interpreter import Interpreter
from tests.support.encoder import HEADS, WIDTH, encoder, tokens
from tests.support.microsoft import MICROSOFT
from tests.support.sums import assert_close

Tool = Callable[[Path], Path]


def optimizer(path: Path) -> Path:
    """Fuse as ``python -m onnxruntime.transformers.optimizer`` does."""
    from onnxruntime.transformers import optimizer

    out = path.with_name("fused.onnx")
    optimizer.optimize_model(str(path), "bert", num_heads=HEADS, hidden_size=WIDTH, opt_level=0).save_model_to_file(
        str(out)
    )
    return out


def quantizer(path: Path) -> Path:
    """Quantize products, with scales that are measured when the model runs."""
    from onnxruntime.quantization import quantize_dynamic

    out = path.with_name("quantized.onnx")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        quantize_dynamic(path, out, extra_options={"DefaultTensorType": onnx.TensorProto.FLOAT})
    return out


def session(path: Path) -> Path:
    """Save what a session makes of a model, where that is of no one machine."""
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_ENABLE_EXTENDED
    options.optimized_model_filepath = str(path.with_name("session.onnx"))
    options.log_severity_level = 4
    ort.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    return path.with_name("session.onnx")


def half(path: Path) -> Path:
    """Store weights, and compute, in half precision."""
    from onnxruntime.transformers.float16 import convert_float_to_float16

    out = path.with_name("half.onnx")
    onnx.save(convert_float_to_float16(onnx.load(path), keep_io_types=True, disable_shape_infer=True), out)
    return out


FILES: dict[str, tuple[tuple[Tool, ...], set[str], float]] = {
    "optimizer": ((optimizer,), {"Attention", "BiasGelu", "EmbedLayerNormalization", "SkipLayerNormalization"}, 1e-5),
    "session": ((session,), {"BiasGelu", "FusedMatMul"}, 1e-5),
    "optimizer, quantizer": ((optimizer, quantizer), {"QAttention", "QEmbedLayerNormalization"}, 2e-2),
    "optimizer, quantizer, session": ((optimizer, quantizer, session), {"DynamicQuantizeMatMul", "QAttention"}, 2e-2),
    "quantizer, session": ((quantizer, session), {"DynamicQuantizeMatMul"}, 2e-2),
}
"""The tools in their order, some of the operators that they leave, and the difference allowed, of the largest."""


@pytest.mark.parametrize(("tools", "opset"), [*((name, 17) for name in FILES), ("optimizer", 11), ("session", 12)])
def test_an_encoder_that_was_optimized(tools: str, opset: int, tmp_path: Path) -> None:
    steps, operators, within = FILES[tools]
    path = tmp_path / "encoder.onnx"
    onnx.save(encoder(opset=opset), path)
    for step in steps:
        path = step(path)
    model = onnx.load(path)
    assert operators <= {node.op_type for node in model.graph.node if node.domain == MICROSOFT}
    written = canonical_model(in_standard(model))
    assert {entry.domain for entry in written.opset_import} == {""}
    one, other = Interpreter(model), Interpreter(written)
    for batch, count in ((2, 7), (3, 5)):
        feed = tokens(batch, count)
        wanted, found = next(iter(one(feed).values())), next(iter(other(feed).values()))
        assert_close(found, wanted, within=within)


def test_an_encoder_in_half_precision(tmp_path: Path) -> None:
    """ONNX Runtime has attention in half precision on GPUs only: the reference is what it was before."""
    path = tmp_path / "encoder.onnx"
    onnx.save(encoder(), path)
    written = canonical_model(in_standard(onnx.load(half(optimizer(path)))))
    onnx.checker.check_model(written, full_check=True)
    feed = tokens(2, 7)
    wanted, found = (next(iter(Interpreter(model)(feed).values())) for model in (onnx.load(path), written))
    assert_close(found, wanted, within=4e-3)
