"""The GPU of this machine, or an emulated one."""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess

import pytest

from tests.support.cuda import Gpu, emulated


@pytest.fixture(scope="session")
def gpu(tmp_path_factory: pytest.TempPathFactory) -> Gpu:
    """Return a real GPU where there is one with nvcc."""
    if shutil.which("nvcc") is not None and shutil.which("nvidia-smi") is not None:
        ask = ["nvidia-smi", "--query-gpu=compute_cap", "--format=csv,noheader"]
        capability = subprocess.run(ask, capture_output=True, text=True, check=True).stdout.split()[0]
        return Gpu(environment=os.environ, tag="cuda/sm_" + capability.replace(".", ""))
    if importlib.util.find_spec("ziglang") is None:
        pytest.skip("no GPU is here, and an emulated one needs ziglang")
    return emulated(tmp_path_factory.mktemp("gpu"))
