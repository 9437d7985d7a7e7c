"""Every front end against its framework: `python -m benchmarks.frontends` prints the table of docs/models.md.

One process a row, since Keras's backend is fixed at its import. A row whose framework is not installed says so.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

import forge_pipeline
from forge_pipeline.frontends.agreement import relative_difference

SHARED = Path(__file__).resolve().parents[2] / "shared"
FIXTURES = Path(__file__).resolve().parents[1] / "tests" / "frontends" / "tflite" / "models"
DYNAMIC_RANGE = ("dynamic", "kws")
Row = tuple[str, str, float]  # model, by which way, largest relative difference


def _found(module: Any, feeds: list[np.ndarray]) -> list[np.ndarray]:
    import onnxruntime

    options = onnxruntime.SessionOptions()  # its integer kernels for AVX2 saturate; the plain ones do not
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = onnxruntime.InferenceSession(module.to_bytes(), options, providers=["CPUExecutionProvider"])
    return list(session.run(None, dict(zip(module.input_names, feeds, strict=True))))


def _worst(module: Any, feeds: list[np.ndarray], wanted: list[np.ndarray]) -> float:
    pairs = zip(_found(module, feeds), wanted, strict=True)
    return max(relative_difference(got, expected) for got, expected in pairs)


def _torch_modules() -> dict[str, tuple[Any, tuple[Any, ...]]]:
    import torch
    from torch import nn

    torch.manual_seed(0)

    class Last(nn.Module):  # type: ignore[misc]
        def __init__(self, kind: Any) -> None:
            super().__init__()
            self.layer, self.dense = kind(5, 16, batch_first=True), nn.Linear(16, 3)

        def forward(self, x: Any) -> Any:
            return self.dense(self.layer(x)[0][:, -1])

    class Block(nn.Module):  # type: ignore[misc]
        def __init__(self, inner: int, outer: int, stride: int) -> None:
            super().__init__()
            self.first = nn.Sequential(
                nn.Conv2d(inner, outer, 3, stride, 1, bias=False), nn.BatchNorm2d(outer), nn.ReLU(),
                nn.Conv2d(outer, outer, 3, 1, 1, bias=False), nn.BatchNorm2d(outer),
            )  # fmt: skip
            self.short = nn.Identity() if stride == 1 else nn.Conv2d(inner, outer, 1, stride)

        def forward(self, x: Any) -> Any:
            return torch.relu(self.first(x) + self.short(x))

    stages = [Block(16, 16, 1), Block(16, 32, 2), Block(32, 32, 1), Block(32, 64, 2)]
    residual = nn.Sequential(
        nn.Conv2d(3, 16, 3, 1, 1), *stages, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, 9)
    )
    encoder = nn.TransformerEncoder(nn.TransformerEncoderLayer(32, 4, 64, batch_first=True), 2)
    return {
        "residual CNN": (residual, (torch.randn(2, 3, 32, 32),)),
        "transformer encoder": (encoder, (torch.randn(2, 12, 32),)),
        "LSTM, `y[:, -1]`": (Last(nn.LSTM), (torch.randn(2, 7, 5),)),
        "GRU, `y[:, -1]`": (Last(nn.GRU), (torch.randn(2, 7, 5),)),
    }


def _torch_rows() -> Iterator[Row]:
    import torch

    from forge_pipeline.codegen.onnx_import.torch_export import import_program
    from forge_pipeline.frontends.torch import trials

    for name, (module, inputs) in _torch_modules().items():
        module.eval()
        dynamic = tuple({0: torch.export.Dim.DYNAMIC} for _ in inputs)
        program = torch.export.export(module, inputs, dynamic_shapes={next(iter(_arguments(module))): dynamic[0]})
        with tempfile.TemporaryDirectory() as folder:
            torch.export.save(program, Path(folder, "m.pt2"))
            loaded = forge_pipeline.load(Path(folder, "m.pt2"))
            yield f"{name} (.pt2)", "torch.onnx, dynamo", _compared(loaded, module)
            torch.jit.trace(module, inputs, check_trace=False).save(Path(folder, "m.pt"))
            declared = forge_pipeline.Declared(name="x", shape=("N", *inputs[0].shape[1:]))
            traced = forge_pipeline.load(Path(folder, "m.pt"), inputs=[declared])
            yield f"{name} (TorchScript)", "torch.onnx, TorchScript", _compared(traced, module)
        fixed = torch.export.export(module, inputs)
        relax = import_program(fixed)
        yield f"{name} (to Relax)", relax.path, _relax_worst(relax.module, trials(fixed))


def _arguments(module: Any) -> list[str]:
    import inspect

    return list(inspect.signature(module.forward).parameters)


def _compared(loaded: Any, module: Any) -> float:
    import torch

    shape = [3 if isinstance(extent, str) else extent for extent in loaded.input_shapes[0]]
    feed = np.random.default_rng(5).standard_normal(shape).astype("float32")
    with torch.no_grad():
        return _worst(loaded, [feed], [module(torch.from_numpy(feed)).numpy()])


def _relax_worst(module: Any, trials: Iterator[tuple[dict[str, np.ndarray], list[np.ndarray]]]) -> float:
    import tvm
    from tvm import relax

    machine = relax.VirtualMachine(tvm.compile(module, "llvm"), tvm.cpu())
    worst = 0.0
    for feeds, wanted in trials:
        result = machine["main"](*(tvm.runtime.tensor(array) for array in feeds.values()))
        found = [result] if hasattr(result, "numpy") else list(result)
        worst = max(worst, *(relative_difference(g.numpy(), e) for g, e in zip(found, wanted, strict=True)))
    return worst


def _keras_rows() -> Iterator[Row]:
    import os

    os.environ["KERAS_BACKEND"] = "torch"
    import keras

    layers = keras.layers
    image, sequence = keras.Input((24, 24, 3)), keras.Input((10, 6))
    y = layers.ReLU()(layers.BatchNormalization()(layers.Conv2D(8, 3, padding="same", strides=2)(image)))
    y = layers.Flatten()(layers.MaxPool2D()(layers.SeparableConv2D(12, 3, padding="same")(y)))
    ids = keras.Input((7,), dtype="int32")
    z = layers.Embedding(20, 8)(ids)
    z = layers.LayerNormalization()(layers.MultiHeadAttention(2, 4)(z, z))
    states = layers.LSTM(8, return_sequences=True)(sequence)
    models = {
        "separable CNN": keras.Model(image, layers.Dense(5, activation="softmax")(y)),
        "LSTM and GRU": keras.Model(
            sequence,
            layers.Dense(3)(layers.Bidirectional(layers.GRU(6))(states)),
        ),
        "attention": keras.Model(ids, layers.Dense(3)(layers.Flatten()(z))),
    }
    way = "Keras on torch, torch.onnx"
    random = np.random.default_rng(0)
    with tempfile.TemporaryDirectory() as folder:
        for name, model in models.items():
            shape = (3, *model.inputs[0].shape[1:])
            feed = random.standard_normal(shape).astype("float32")
            if model.inputs[0].dtype == "int32":
                feed = random.integers(0, 20, shape).astype("int32")
            wanted = model(feed, training=False).detach().numpy()
            for suffix in ("keras", "h5"):
                path = Path(folder, f"m.{suffix}")
                model.save(path)
                yield f"{name} (.{suffix})", way, _worst(forge_pipeline.load(path), [feed], [wanted])
    path = SHARED / "models" / "mlperf_tiny_resnet8" / "resnet8.h5"
    if path.is_file():
        model = keras.saving.load_model(path, compile=False)
        feed = np.random.default_rng(0).uniform(0, 255, (3, 32, 32, 3)).astype("float32")
        wanted = model(feed, training=False).detach().numpy()
        yield "mlperf_tiny resnet8 (.h5)", way, _worst(forge_pipeline.load(path), [feed], [wanted])


def _tensorflow_rows() -> Iterator[Row]:
    sys.path.insert(0, str(FIXTURES))
    import make
    import tensorflow as tf

    for name in ("network", "moves"):
        function = getattr(make, name)
        with tempfile.TemporaryDirectory() as folder:
            holder = tf.Module()
            holder.function = function
            tf.saved_model.save(holder, folder, signatures=function.get_concrete_function(make.IMAGE))
            module = forge_pipeline.load(folder)
            feed = np.random.default_rng(3).standard_normal((1, 8, 8, 3))
            wanted = function(tf.constant(feed.astype("float32")))
            expected = [wanted[key].numpy() for key in module.output_names]
            yield f"{name} (SavedModel)", "tf2onnx", _worst(module, [feed.astype("float32")], expected)


def _tflite_rows() -> Iterator[Row]:
    from ai_edge_litert.interpreter import Interpreter

    paths = [FIXTURES / f"{name}.tflite" for name in ("float", "float16", "numbers", "moves", "dynamic", "int8")]
    for path in [*paths, *sorted((SHARED / "models").glob("*/*.tflite"))]:
        module = forge_pipeline.load(path)
        interpreter = Interpreter(str(path))
        interpreter.allocate_tensors()
        (given,) = interpreter.get_input_details()
        random = np.random.default_rng(2)
        feed = random.standard_normal(given["shape"]).astype("float32")
        if given["dtype"] is np.int8:
            feed = random.integers(-128, 128, given["shape"]).astype("int8")
        interpreter.set_tensor(given["index"], feed)
        interpreter.invoke()
        wanted = {item["name"]: interpreter.get_tensor(item["index"]) for item in interpreter.get_output_details()}
        if interpreter.get_signature_list():
            wanted = interpreter.get_signature_runner()(**{module.input_names[0]: feed})
        yield path.name, "own reader", _worst(module, [feed], [wanted[name] for name in module.output_names])
        if path.stem in DYNAMIC_RANGE:
            yield from _hybrid_rows(path, module, feed, wanted)


def _hybrid_rows(path: Path, module: Any, feed: np.ndarray, fast: Any) -> Iterator[Row]:
    """Compare with the interpreter's plain kernels, whose rounding is known, and these with its default ones."""
    from ai_edge_litert.interpreter import Interpreter, OpResolverType

    from tests.support.frontends.hybrid import rounded

    interpreter = Interpreter(str(path), experimental_op_resolver_type=OpResolverType.BUILTIN_REF)
    interpreter.allocate_tensors()
    interpreter.set_tensor(interpreter.get_input_details()[0]["index"], feed)
    interpreter.invoke()
    wanted = {item["name"]: interpreter.get_tensor(item["index"]) for item in interpreter.get_output_details()}
    if interpreter.get_signature_list():
        wanted = interpreter.get_signature_runner()(**{module.input_names[0]: feed})
    expected = [wanted[name] for name in module.output_names]
    same = forge_pipeline.ONNXModule(rounded(module.copy().mod))
    yield f"{path.name}, rounded as its plain kernels", "own reader", _worst(same, [feed], expected)
    spread = max(relative_difference(fast[name], wanted[name]) for name in module.output_names)
    yield f"{path.name}, its default kernels beside its plain ones", "LiteRT alone", spread


ROWS: dict[str, Callable[[], Iterator[Row]]] = {
    "PyTorch": _torch_rows,
    "Keras": _keras_rows,
    "TensorFlow": _tensorflow_rows,
    "TensorFlow Lite": _tflite_rows,
}


def main() -> None:
    """Print the whole table, or the rows of one framework."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("framework", nargs="?", choices=ROWS, help="all of them by default")
    chosen = parser.parse_args().framework
    if chosen:
        for model, way, difference in ROWS[chosen]():
            print(f"| {chosen} | {model} | {way} | {difference:.1e} |", flush=True)
        return
    print("| framework | model | way | largest relative difference |\n|---|---|---|---|", flush=True)
    for framework in ROWS:
        command = [sys.executable, "-W", "ignore", "-m", "benchmarks.frontends", framework]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        print(done.stdout, end="")
        if done.returncode:
            print(f"| {framework} | | stopped: {done.stderr.strip().splitlines()[-1]} | |", flush=True)


if __name__ == "__main__":
    main()
