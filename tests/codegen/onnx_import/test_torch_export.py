"""Exported programs of PyTorch become Relax: directly where that computes the same, by way of ONNX where not."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from tests.support.paths import ROOT

PROGRAM = """
import torch
from torch import nn
from forge_pipeline.codegen.onnx_import.torch_export import import_program
from forge_pipeline.errors import ModelError

class Last(nn.Module):  # TVM 0.27 reads outside the tensor for the index -1
    def __init__(self):
        super().__init__()
        self.layer = nn.GRU(3, 4, batch_first=True)
    def forward(self, x):
        return {"last": self.layer(x)[0][:, -1]}

class Windows(nn.Module):
    def forward(self, x):
        return torch.unfold_copy(x, 1, 2, 1)

class Distances(nn.Module):
    def forward(self, x, y):
        return torch.special.bessel_j0(x)

direct = import_program(torch.export.export(Last().eval(), (torch.randn(2, 5, 3),)))
assert (direct.path, direct.input_names, direct.output_names) == ("direct", ("x",), ("last",)), direct
assert "computes what PyTorch computes" in direct.reason
around = import_program(torch.export.export(Windows(), (torch.randn(4, 8),)))
assert around.path == "onnx" and "unfold" in around.reason, around
assert len(around.module["main"].params) == 1
try:
    import_program(torch.export.export(Distances(), (torch.randn(4, 3), torch.randn(5, 3))))
except ModelError as error:
    assert "bessel" in error.found, error
else:
    raise AssertionError("neither way knows this operator")
print("done")
"""


@pytest.mark.long
def test_a_program_goes_the_direct_way_where_it_is_right_and_around_where_it_is_not() -> None:
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", PROGRAM],
        capture_output=True, text=True, check=False, env=os.environ | {"PYTHONPATH": str(ROOT)},
    )  # fmt: skip
    assert done.stdout == "done\n", done.stderr[-3000:]
