"""Runtimes for phones and boards beside which models may be measured: MNN, ncnn, LiteRT.

MNN and ncnn get the model converted by their own converters (pip install MNN ncnn pnnx), with its sizes fixed, and
compute in float32, as the others do. LiteRT (pip install ai-edge-litert), with XNNPACK as it comes, gets TensorFlow
Lite files as they are: of ONNX files it has none. The converter of MNN is called as a function: its command installs a
logging service's package and reports to it.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

CONVERTER_SECONDS = 300


class NoFileError(Exception):
    """Why a runtime has no file of a model."""


def _made(command: Sequence[str], gives: Path) -> Path:
    name = Path(command[0]).name
    try:
        done = subprocess.run(
            command, cwd=gives.parent, capture_output=True, text=True, timeout=CONVERTER_SECONDS, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise NoFileError(f"{name}: {error}") from error
    if done.returncode != 0 or not gives.is_file():
        raise NoFileError(f"{name}: {' '.join((done.stderr or done.stdout).split())[-160:] or 'no file'}")
    return gives


def mnn_file(source: Path, onnx: Path, inputs: Mapping[str, np.ndarray]) -> Path:
    """Return what MNN's converter makes of an ONNX file. Raises NoFileError."""
    made = onnx.with_suffix(".mnn")
    options = ["mnnconvert", "-f", "ONNX", "--modelFile", str(onnx), "--MNNModel", str(made), "--bizCode", "benchmark"]
    return _made([sys.executable, "-c", f"import _tools; _tools.mnnconvert({options!r})"], made)


def ncnn_file(source: Path, onnx: Path, inputs: Mapping[str, np.ndarray]) -> Path:
    """Return ncnn's description of an ONNX file, beside which its weights lie. Raises NoFileError."""
    kinds = {"float32": "f32", "int64": "i64", "int32": "i32"}
    try:
        shapes = ",".join(f"[{','.join(map(str, a.shape))}]{kinds[a.dtype.name]}" for a in inputs.values())
    except KeyError as error:
        raise NoFileError(f"pnnx takes no input of type {error}") from error
    pnnx = str(Path(sys.executable).with_name("pnnx"))
    return _made([pnnx, str(onnx), f"inputshape={shapes}", "fp16=0"], onnx.with_name(f"{onnx.stem}.ncnn.param"))


def litert_file(source: Path, onnx: Path, inputs: Mapping[str, np.ndarray]) -> Path:
    """Return a TensorFlow Lite file itself. Raises NoFileError for any other."""
    if source.suffix != ".tflite":
        raise NoFileError("it runs TensorFlow Lite files alone")
    return source


def mnn(model: Path, threads: int, given: dict[str, np.ndarray]) -> Callable[[], Any]:
    """Run with MNN: inputs are handed over and the first output is taken as an array in each run."""
    import MNN

    interpreter = MNN.Interpreter(str(model))
    session = interpreter.createSession({"backend": "CPU", "precision": "high", "numThread": threads})
    halide = {"float32": MNN.Halide_Type_Float, "int32": MNN.Halide_Type_Int, "int64": MNN.Halide_Type_Int}
    pairs = []
    for name, array in given.items():
        held = np.ascontiguousarray(array if array.dtype != np.int64 else array.astype(np.int32))
        kind = halide[held.dtype.name]
        tensor = MNN.Tensor(held.shape, kind, held, MNN.Tensor_DimensionType_Caffe)
        pairs.append((interpreter.getSessionInput(session, name), tensor))
    output = next(iter(interpreter.getSessionOutputAll(session).values()))
    taken = MNN.Tensor(output.getShape(), output.getDataType(), MNN.Tensor_DimensionType_Caffe)

    def run() -> np.ndarray:
        for port, tensor in pairs:
            port.copyFrom(tensor)
        interpreter.runSession(session)
        output.copyToHostTensor(taken)
        return np.asarray(taken.getNumpyData())

    return run


def ncnn(model: Path, threads: int, given: dict[str, np.ndarray]) -> Callable[[], Any]:
    """Run with ncnn in float32: arrays are wrapped without their batch of one, and the first output is taken."""
    import ncnn as library

    net = library.Net()
    net.opt.num_threads = threads
    for option in ("use_fp16_packed", "use_fp16_storage", "use_fp16_arithmetic", "use_bf16_storage"):
        setattr(net.opt, option, False)
    weights = model.with_suffix(".bin")
    if net.load_param(str(model)) != 0 or net.load_model(str(weights)) != 0:
        raise NoFileError("ncnn does not load it")
    arrays = [
        np.ascontiguousarray(array[0] if array.ndim > 1 and len(array) == 1 else array) for array in given.values()
    ]

    def run() -> np.ndarray:
        extractor = net.create_extractor()
        for index, array in enumerate(arrays):
            extractor.input(f"in{index}", library.Mat(array))
        status, found = extractor.extract("out0")
        if status != 0:
            raise NoFileError(f"ncnn gives no output: {status}")
        return np.array(found)

    return run


def litert(model: Path, threads: int, given: dict[str, np.ndarray]) -> Callable[[], Any]:
    """Run with LiteRT, whose kernels for floats are XNNPACK's."""
    from ai_edge_litert.interpreter import Interpreter

    interpreter = Interpreter(str(model), num_threads=threads)
    ports = interpreter.get_input_details()
    for port, array in zip(ports, given.values(), strict=True):
        interpreter.resize_tensor_input(port["index"], array.shape)
    interpreter.allocate_tensors()
    first = interpreter.get_output_details()[0]["index"]

    def run() -> np.ndarray:
        for port, array in zip(ports, given.values(), strict=True):
            interpreter.set_tensor(port["index"], array)
        interpreter.invoke()
        return np.asarray(interpreter.get_tensor(first))

    return run


OTHERS: Mapping[str, tuple[Callable[..., Path], Callable[..., Callable[[], Any]]]] = {
    "mnn": (mnn_file, mnn),
    "ncnn": (ncnn_file, ncnn),
    "litert": (litert_file, litert),
}
"""What makes the file that a runtime loads, and what runs it."""
