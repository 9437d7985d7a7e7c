"""Random quantized models: whatever operators meet, they compile for every target, and store what ONNX Runtime does."""

from __future__ import annotations

from random import Random
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from forge_pipeline.codegen.build import build
from forge_pipeline.target import Target
from tests.support.emulated.choice import CHOSEN, load
from tests.support.int8.compare import HERE, OPTIONS, PLAIN, SDOT, VNNI, reference
from tests.support.int8.random_models import grown

TARGETS = (VNNI, SDOT, "raspberry-pi/4b", "arm/neoverse-v1", "x86-64/v2", "x86-64/v4")
"""Targets that a model is compiled for besides the one that runs it."""

DIFFERENT = 0.01
"""Share of a result that may be another step: of a table's values, ONNX Runtime's are less exact."""


def check(draw: Random) -> None:
    """Grow a model, compile it for a target that runs and for another one, and compare with ONNX Runtime."""
    net, model = grown(draw)
    build(model, Target.from_tag(draw.choice(TARGETS)), OPTIONS)
    target = Target.from_tag(draw.choice([HERE] if CHOSEN else [PLAIN, HERE]))
    run = load(build(model, target, OPTIONS).to_bytes(), target)
    x = (net.random.standard_normal(net.shape) * 30).astype(np.float32)
    for found, wanted in zip(run(x), reference(model, x, optimized=False), strict=True):
        assert found.shape == wanted.shape
        assert np.mean(np.abs(found - wanted) > 1e-4 * np.maximum(1, np.abs(wanted))) <= DIFFERENT


def settled(examples: int) -> Any:
    checks = [HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.large_base_example]
    return settings(max_examples=examples, deadline=None, suppress_health_check=checks)


SEEDED = st.integers(0, 1 << 32).map(Random)
"""Random numbers that a failure names by their seed."""


@pytest.mark.long
@settled(6)
@given(SEEDED)
def test_a_random_model_stores_what_onnx_runtime_stores(draw: Random) -> None:
    check(draw)


@pytest.mark.long
@settled(300)
@given(SEEDED)
def test_many_random_models_store_what_onnx_runtime_stores(draw: Random) -> None:
    check(draw)
