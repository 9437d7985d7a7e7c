"""The public names, each importable, each what it says."""

from __future__ import annotations

import subprocess
import sys

import pytest

import forge_pipeline

NAMES = {
    "Declared",
    "Engine",
    "ForgeError",
    "ONNXModule",
    "RelaxModule",
    "Target",
    "build",
    "from_keras",
    "from_onnx",
    "from_tensorflow",
    "from_tflite",
    "from_torch",
    "list_android_tags",
    "list_arm_tags",
    "list_cuda_tags",
    "list_target_tags",
    "list_x86_tags",
    "load",
}


def test_the_public_surface_is_this_list() -> None:
    assert set(forge_pipeline.__all__) == set(dir(forge_pipeline)) == NAMES


@pytest.mark.parametrize("name", sorted(NAMES))
def test_a_public_name_can_be_imported(name: str) -> None:
    assert callable(getattr(forge_pipeline, name))


def test_an_unknown_name_is_refused_as_python_does() -> None:
    with pytest.raises(AttributeError, match="has no attribute 'engine'"):
        getattr(forge_pipeline, "engine")  # noqa: B009  the point of the test


def test_importing_the_package_imports_nothing_of_others() -> None:
    code = "import sys, forge_pipeline; print(sorted({'numpy', 'onnx', 'tvm', 'hydra', 'click'} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


@pytest.mark.parametrize("name", ["ONNXModule", "RelaxModule"])
def test_a_module_of_the_public_surface_calibrates_quantizes_and_compiles(name: str) -> None:
    wanted = {"calibrate", "quantize", "split_tensors", "is_calibrated", "is_quantized", "compile"}
    assert wanted <= set(dir(getattr(forge_pipeline, name)))
