"""Libraries for aarch64 that keep states, run by an emulator call by call, against ONNX Runtime."""

from __future__ import annotations

import numpy as np
import onnxruntime
import pytest

from forge_pipeline.runners.emulators import Emulator, emulator_for
from forge_pipeline.runners.samples import ran
from tests.support.decoders import SIZE, VOCABULARY, decoder, kept
from tests.support.emulated.aarch64 import QEMU

pytestmark = pytest.mark.skipif(QEMU is None, reason="qemu-aarch64 is not installed: apt-get install qemu-user")

TAG = "raspberry-pi/5"


def test_calls_go_on_from_each_other_on_an_emulated_device() -> None:
    model = decoder(layers=1, groups=2, rotary=True, guarded=True)
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    held = {f"past.0.{part}": np.zeros((1, 2, 0, SIZE), np.float32) for part in ("key", "value")}
    random, feeds, wanted = np.random.default_rng(0), [], []
    for count in (6, *[1] * 12, 3, 1):
        feeds.append({"ids": random.integers(0, VOCABULARY, (1, count))})
        logits, *now = session.run(None, {**feeds[-1], **held})
        wanted.append(logits)
        held = dict(zip(held, now, strict=True))
    library = kept(model, tag=TAG)
    place = emulator_for(library.metadata["target"]["triple"], "", ())
    assert isinstance(place, Emulator)
    with ran(place, library, feeds, runs=0) as run:
        for feed, want in zip(feeds, wanted, strict=True):
            np.testing.assert_allclose(run(feed)["logits"], want, rtol=0, atol=1e-5 * np.abs(want).max())
