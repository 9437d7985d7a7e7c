"""What a float run gave is rounded so that another CPU's run gives the same model."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from forge_pipeline.quantization.cross_cpu_agreement import means, outward, rescaling
from tests.support.paths import ROOT

LAST_BITS = 1e-6
reals = st.floats(-1e6, 1e6, allow_nan=False, allow_subnormal=False)
noise = st.floats(-LAST_BITS, LAST_BITS)


@given(one=reals, other=reals)
def test_a_range_keeps_what_it_held_and_grows_by_less_than_a_hundredth(one: float, other: float) -> None:
    low, high = min(one, other), max(one, other)
    for end, found in zip((low, high), outward(low, high), strict=True):
        assert abs(end) * (1 - 1e-4) <= abs(found) <= abs(end) * 1.008
        assert found * end >= 0


@given(significand=st.integers(-255, 255), exponent=st.integers(-20, 20), error=noise)
def test_natural_ends_stay_what_they_are_whatever_the_last_bits(significand: int, exponent: int, error: float) -> None:
    natural = significand * 2.0**exponent
    low, high = sorted((0.0, natural))
    assert outward(low * (1 + error), high * (1 + error)) == (low, high)


def test_two_runs_that_differ_in_their_last_bits_almost_never_disagree() -> None:
    draw = np.random.default_rng(3)
    ends = draw.lognormal(0.0, 3.0, 20_000)
    again = ends * (1 + draw.normal(0.0, 1e-7, ends.shape))
    assert sum(outward(0.0, one) != outward(0.0, other) for one, other in zip(ends, again, strict=True)) <= 8
    factors = (rescaling(ends) != rescaling(again)).sum()
    assert factors <= 2
    rows, others = ends.reshape(-1, 16), again.reshape(-1, 16)
    assert sum((means(one) != means(other)).any() for one, other in zip(rows, others, strict=True)) <= 4


@given(exponent=st.integers(-12, 12), error=st.floats(-0.04, 0.04))
def test_channels_are_rescaled_by_the_nearest_step(exponent: int, error: float) -> None:
    (found,) = rescaling(np.array([2.0**exponent * (1 + error)]))
    assert found == 2.0**exponent


@given(st.lists(st.floats(-1e3, 1e3), min_size=1, max_size=20))
def test_a_mean_is_off_by_at_most_a_thirtieth_of_the_largest(values: list[float]) -> None:
    given_means = np.array(values)
    assert np.abs(means(given_means) - given_means).max() <= np.abs(given_means).max() / 23


SCRIPT = """
import hashlib, sys
import numpy as np
from forge_pipeline import ONNXModule
module = ONNXModule.from_file("examples/digits/digits.onnx")
images = np.load("examples/digits/calibration.npz")["x"][:64]
module.calibrate([image[None] for image in images])
module.quantize("uint8", "int8", per_channel=True, calib_method="auto", improve=["equalize", "correct_bias"])
print(hashlib.sha256(module.to_bytes()).hexdigest())
"""


@pytest.mark.long
def test_a_cpu_without_avx_quantizes_to_the_same_bytes() -> None:
    emulator = shutil.which("qemu-x86_64-static")
    if emulator is None:
        pytest.skip("needs qemu-x86_64-static (Debian: qemu-user-static)")
    python = f"{sys.base_prefix}/bin/python3"
    environment = os.environ | {"PYTHONPATH": f"{ROOT}:{sysconfig.get_path('purelib')}"}

    def quantize(*prefix: str) -> str:
        command = [*prefix, python, "-W", "ignore", "-c", SCRIPT]
        done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        return done.stdout.strip()

    assert quantize(emulator, "-cpu", "Nehalem") == quantize()
