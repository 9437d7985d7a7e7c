"""A program and its regions are the same in every process."""

from __future__ import annotations

import os
import subprocess
import sys

from tests.support.paths import ROOT

CUT = """
import onnx.parser
from forge_pipeline.codegen.regions.cut import cut

found = cut(onnx.parser.parse_model('''<ir_version: 10, opset_import: ["": 18]>
    net (float[N, M, 8] x) => (int64[3, K] y, float[L] z) {
        y = NonZero (x)  turned = Transpose <perm = [1, 0]> (y)  w = Exp (x)  z = GatherND (w, turned)
    }'''))
print(found.program, [(region.inputs, region.outputs) for region in found.regions])
"""


def test_a_program_counts_its_values_and_regions_alike_however_sets_are_ordered() -> None:
    said = {
        subprocess.run(
            [sys.executable, "-c", CUT],
            env=os.environ | {"PYTHONHASHSEED": str(seed), "PYTHONPATH": str(ROOT)},
            check=True,
            capture_output=True,
            text=True,
        ).stdout
        for seed in range(1, 6)
    }
    assert len(said) == 1, said
    assert "region1" in said.pop()
