"""A GPU for tests where there is none: CUDA's kernels run on this CPU, below TVM's own runtime (cuda_emulator).

The source is what nvcc would compile, and a block's threads take turns, with barriers and shuffles between them, the
second time last to first: a race between threads mostly shows. What it does not tell is a GPU's rounding of exp and the
like, and speed.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx

from tests.support.cuda_emulator.compile import COMPILE, HERE

LIBRARIES = ("libcuda.so.1", "libcudart.so.13")
BUILD = """
import sys, onnx
from forge_pipeline.codegen.build import build
from forge_pipeline.codegen.options import Options
from forge_pipeline.target import Target
folder, tag, form = sys.argv[1:]
options = Options(generator="auto", opt_level=3, float16=form == "float16", channel_layout=None)
library = build(onnx.load(folder + "/model.onnx"), Target.from_tag(tag), options)
open(folder + "/model_library.so", "wb").write(library.to_bytes())
"""
RUN = """
import os, sys, numpy, onnx, tvm
from tvm.runtime import load_module
from tvm.runtime.vm import VirtualMachine
folder = sys.argv[1]
device = tvm.cuda(0)
machine = VirtualMachine(load_module(folder + "/model_library.so"), device)
given = numpy.load(folder + "/given.npz")
taken = [port.name for port in onnx.load(folder + "/model.onnx").graph.input]
calls = []
for _ in ("launched and captured", "replayed"):
    found = machine["main"](*(tvm.runtime.tensor(given[name], device) for name in taken))
    calls.append([part.numpy() for part in ([found] if hasattr(found, "numpy") else found)])
    os.environ["EMULATED_BACKWARDS"] = "1"
for one, other in zip(*calls):
    numpy.testing.assert_array_equal(one, other)
numpy.savez(folder + "/found.npz", *calls[0])
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Gpu:
    """Where libraries for a GPU are made and run: ``environment`` of processes, and the target they are made for."""

    environment: Mapping[str, str]
    tag: str

    def results(
        self, model: onnx.ModelProto, given: Mapping[str, np.ndarray[Any, Any]], folder: Path, form: str = "float32"
    ) -> list[Any]:
        """Return what a library of ``model`` computes in ``form``; it is made in one process and run in another."""
        onnx.save(model, folder / "model.onnx")
        np.savez(folder / "given.npz", **given)
        for program, arguments in ((BUILD, [self.tag, form]), (RUN, [])):  # who packs for a GPU has stubs of its driver
            command = [sys.executable, "-c", program, str(folder), *arguments]
            done = subprocess.run(command, env=dict(self.environment), capture_output=True, text=True, check=False)
            assert done.returncode == 0, done.stderr[-2000:]
        with np.load(folder / "found.npz") as found:
            return list(found.values())


def emulated(folder: Path) -> Gpu:
    """Make an emulated GPU in an empty folder."""
    (folder / "bin").mkdir()
    nvcc = folder / "bin" / "nvcc"
    nvcc.write_text(f'#!/bin/sh\nexec "{sys.executable}" "{HERE / "compile.py"}" "$@"\n')
    nvcc.chmod(0o755)
    (folder / "versions").write_text(f"{LIBRARIES[1]} {{ global: *; }};\n")
    for name in LIBRARIES:
        named = [f"-Wl,-soname,{name}", *([f"-Wl,--version-script={folder / 'versions'}"] if "rt" in name else [])]
        subprocess.run([*COMPILE, str(HERE / "driver.cpp"), *named, "-o", str(folder / name)], check=True)
    return Gpu(environment={**os.environ, "CUDA_HOME": str(folder), "LD_LIBRARY_PATH": str(folder)}, tag="cuda/sm_90")
