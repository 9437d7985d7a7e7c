"""Attention in AMX's tiles, on a CPU that has them: of rounded queries, keys, shares and values of any sizes."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import onnx
import onnxruntime
import pytest

from forge_pipeline.codegen.build import build
from forge_pipeline.codegen.float32.products.amx_attention import FEWEST_COLUMNS, FEWEST_ROWS
from forge_pipeline.codegen.lowering import lower
from forge_pipeline.codegen.onnx_import.importer import import_model, prepare
from forge_pipeline.target import Target
from forge_pipeline.target.host import CPUINFO, parse_cpuinfo
from forge_runtime.engine import Engine
from tests.support.half_net import HALVES, attention_net
from tests.support.int8.amx import AMX

PAIRS = replace(HALVES, float_arithmetic="bfloat16", amx=True)
SIZES: dict[str, tuple[tuple[int | str, ...], int, int, int, int]] = {
    "a sentence": ((1, 4), 128, 128, 64, 64),
    "patches of several images": ((2, 3), 197, 197, 64, 64),
    "columns and steps that fill nothing": ((4,), 50, 77, 40, 80),
    "one tile of steps and of values": ((1, 2), 64, 70, 8, 16),
    "any number of images": (("batch", 3), 197, 197, 64, 64),
    "many columns": ((2,), 130, 2050, 32, 32),
    "a block of rows": ((2,), 32, 64, 32, 32),
}


def attention(case: str) -> tuple[onnx.ModelProto, dict[str, np.ndarray]]:
    batches, rows, columns, depth, width = SIZES[case]
    shapes: dict[str, tuple[int | str, ...]] = {
        "q": (*batches, rows, depth), "k": (*batches, depth, columns), "v": (*batches, columns, width),
        "mask": (*[1] * len(batches), 1, columns),
    }  # fmt: skip
    random = np.random.default_rng(rows)
    feeds = {
        name: random.standard_normal([2 if size == "batch" else int(size) for size in shape]).astype(np.float32)
        for name, shape in shapes.items()
    }
    feeds["mask"][..., ::3] = -np.inf
    return attention_net(shapes), feeds


@pytest.mark.parametrize("case", SIZES)
def test_blocks_of_rows_are_multiplied_in_tiles_by_keys_and_by_values(case: str) -> None:
    lowered = lower(import_model(prepare(attention(case)[0])), Target.from_tag(AMX), PAIRS)
    scripts = [
        kernel.script() for name, kernel in lowered.module.functions_items() if name.name_hint.startswith("attention")
    ]
    assert not lowered.fallbacks
    assert scripts
    for script in scripts:
        assert script.count("tdpbf16ps") >= 2
        assert script.count("ldtilecfg") == 1


@pytest.mark.skipif(
    not CPUINFO.exists() or not parse_cpuinfo(CPUINFO.read_text())[1] >= {"amx_bf16"}, reason="this CPU has no AMX"
)
@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("case", SIZES)
def test_shares_and_values_are_rounded_and_nothing_else(case: str, threads: int) -> None:
    model, feeds = attention(case)
    (wanted,) = onnxruntime.InferenceSession(model.SerializeToString()).run(None, feeds)
    (found,) = Engine(build(model, Target.from_tag(AMX), PAIRS).to_bytes(), threads=threads)(**feeds)
    np.testing.assert_allclose(found, wanted, rtol=0, atol=2.0**-7 * np.abs(wanted).max())


@pytest.mark.parametrize(("rows", "columns"), [(FEWEST_ROWS - 1, 128), (128, FEWEST_COLUMNS - 1)])
def test_few_rows_or_columns_are_multiplied_in_vectors(rows: int, columns: int) -> None:
    shapes = {"q": (2, rows, 32), "k": (2, 32, columns), "v": (2, columns, 32), "mask": (1, 1, columns)}
    lowered = lower(import_model(prepare(attention_net(shapes))), Target.from_tag(AMX), PAIRS)
    assert not any("tdpbf16ps" in kernel.script() for _, kernel in lowered.module.functions_items())
