"""CUDA kernels compiled to machine code where there is no GPU, so that a device needs neither compiler nor source.

TVM's compiler keeps CUDA source as it is unless its CUDA runtime is loaded, which wants NVIDIA's driver libraries.
Only names are needed of those while nothing is launched: stubs with the names in them are linked here, and each
source goes through nvcc before TVM packs it.
"""

from __future__ import annotations

import ctypes
import importlib.util
import os
import shutil
import subprocess
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import tvm
import tvm_ffi
from tvm.ir import GenericConst

from forge_pipeline import children
from forge_pipeline.codegen.link import stub_library
from forge_pipeline.errors import CompileError, TargetError
from forge_pipeline.target import Target

RUNTIME = "libtvm_runtime_cuda.so"
CREATE = "ffi.Module.create.cuda"
SECONDS = 600
NVCC_OPTIONS = ("--cubin", "-O3", "--expt-relaxed-constexpr", "-std=c++17", "-frandom-seed=forge")
"""Not --use_fast_math: it gained 1 % of a MobileNetV2, and sines were off by 3e-4, logarithms near 1 by 2e-3."""
DRIVER = {
    "libcuda.so.1": (
        *("cuFuncSetAttribute", "cuGetErrorName", "cuGetErrorString", "cuLaunchKernelEx", "cuModuleGetFunction"),
        *("cuModuleLoadData", "cuModuleUnload", "cuTensorMapEncodeTiled", "cuDeviceGetName"),
    ),
    "libcudart.so.13": tuple(
        f"cuda{name}"
        for name in (
            *("DeviceGetAttribute", "EventCreate", "EventDestroy", "EventElapsedTime", "EventRecord", "Free"),
            *("EventSynchronize", "FreeHost", "GetDevice", "GetDeviceCount", "GetDeviceProperties", "GetErrorName"),
            *("GetErrorString", "GetLastError", "GraphDestroy", "GraphExecDestroy", "GraphInstantiate", "Malloc"),
            *("GraphLaunch", "MallocHost", "MemGetInfo", "MemcpyAsync", "MemcpyPeerAsync", "PeekAtLastError"),
            *("SetDevice", "StreamBeginCapture", "StreamCreate", "StreamCreateWithFlags", "StreamDestroy"),
            *("StreamEndCapture", "StreamSynchronize", "StreamWaitEvent"),
        )
    ),
}


def check_constants(module: tvm.IRModule, tag: str) -> None:
    """Raise CompileError where a result has no elements: TVM's virtual machine writes such a constant, and cannot read
    it."""
    constants: list[GenericConst] = []
    tvm_ffi.structural_walk(module, [(GenericConst, constants.append)])
    if any(0 in getattr(constant.value, "shape", ()) for constant in constants):
        raise CompileError(
            where=f"constants for {tag}",
            expected="tensors that have elements, on a GPU",
            found="a result without any",
            fix="leave that result out of the model, or compile it for the CPU of that machine",
        )


def compile_kernels_with_nvcc(target: Target) -> list[CompileError]:
    """Make TVM, in this process, turn CUDA source into machine code for ``target`` as soon as it has generated it.

    The list that is returned receives nvcc's refusals: TVM lets nothing but their last line through. Raises
    TargetError where there is no nvcc, or TVM's CUDA runtime cannot be loaded.
    """
    nvcc = find_nvcc(target)
    create = tvm_ffi.get_global_func(CREATE, allow_missing=True) or _load_runtime(target)

    refusals: list[CompileError] = []
    kept: list[Any] = []  # for as long as the process runs: to free a module is a matter for the driver

    def compiled(code: Any, form: str, functions: Any, sources: Mapping[str, Any]) -> Any:
        if form == "cuda":
            text = code if isinstance(code, bytes) else str(code).encode()
            try:
                code, form, sources = to_cubin(text, target, nvcc), "cubin", {}
            except CompileError as error:
                refusals.append(error)
                raise
        kept.append(create(code, form, functions, sources))
        return kept[-1]

    tvm_ffi.register_global_func(CREATE, compiled, override=True)
    return refusals


def find_nvcc(target: Target) -> Path:
    """Return CUDA's compiler: $CUDA_HOME/bin/nvcc, else the one on PATH. Raises TargetError where there is none."""
    home = os.environ.get("CUDA_HOME")
    found = str(Path(home) / "bin" / "nvcc") if home else shutil.which("nvcc", path=children.environment().get("PATH"))
    if found is None or not Path(found).exists():
        raise TargetError(
            where=f"target {target.tag}",
            expected="CUDA's compiler, nvcc",
            found="none: " + (f"CUDA_HOME is {home}" if home else "it is not on PATH, and CUDA_HOME is not set"),
            fix="install the CUDA toolkit, or choose the CPU of that machine as the target",
        )
    return Path(found)


def to_cubin(source: bytes, target: Target, nvcc: Path) -> bytes:
    """Return ``source`` compiled for the GPU of ``target``. Raises CompileError with nvcc's words."""
    with tempfile.TemporaryDirectory(prefix="forge-cuda-") as folder:
        (Path(folder) / "kernels.cu").write_bytes(source)
        command = [str(nvcc), *NVCC_OPTIONS, f"-arch={target.cuda_arch}", "-o", "kernels.cubin", "kernels.cu"]
        environment = children.environment()
        try:
            done = subprocess.run(
                command, cwd=folder, env=environment, capture_output=True, text=True, timeout=SECONDS, check=False
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            raise _refused(target, str(error)) from error
        if done.returncode != 0:
            raise _refused(target, " ".join((done.stderr or done.stdout).split())[:400])
        return (Path(folder) / "kernels.cubin").read_bytes()


def _refused(target: Target, found: str) -> CompileError:
    return CompileError(
        where=f"nvcc for {target.tag}",
        expected=f"kernels that compile for {target.cuda_arch}",
        found=found,
        fix="use a CUDA toolkit that supports this GPU (13 dropped all before sm_75); CUDA_HOME chooses one",
    )


def _load_runtime(target: Target) -> Any:
    """Load TVM's CUDA runtime on stubs of NVIDIA's libraries, to pack modules with; nothing can be launched by it."""
    package = importlib.util.find_spec("tvm")
    path = Path(package.origin).parent / "lib" / RUNTIME if package and package.origin else Path(RUNTIME)
    with tempfile.TemporaryDirectory(prefix="forge-stubs-") as folder:
        try:
            for name, symbols in DRIVER.items():
                version = name if name.startswith("libcudart") else None
                stub = stub_library(name, symbols, "elf_x86_64", Path(folder), version=version)
                ctypes.CDLL(str(stub), ctypes.RTLD_GLOBAL)
            ctypes.CDLL(str(path), ctypes.RTLD_GLOBAL)
        except OSError as error:
            raise TargetError(
                where=f"target {target.tag}",
                expected=f"{RUNTIME} of the apache-tvm wheel",
                found=str(error),
                fix="build on x86-64 Linux with the pinned apache-tvm",
            ) from error
    return tvm_ffi.get_global_func(CREATE)
