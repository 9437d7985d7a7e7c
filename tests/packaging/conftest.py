"""One model for a linker and for a loader, and an archive of it for this machine."""

from __future__ import annotations

import importlib.util
import pickle
from dataclasses import replace
from pathlib import Path

import pytest

from forge_pipeline.codegen.build import build
from forge_pipeline.codegen.link import loadable
from forge_pipeline.packaging.objects import package_objects
from forge_pipeline.target import Target
from tests.support.native import HERE, TILED, convolutions
from tests.support.once import once
from tests.support.packaged import Packaged


@pytest.fixture(scope="session")
def packaged(tmp_path_factory: pytest.TempPathFactory) -> Packaged:
    if importlib.util.find_spec("ziglang") is None or HERE not in ("x86_64", "aarch64", "riscv64"):
        pytest.skip("needs ziglang, and a CPU that has a native runtime")

    def make(folder: Path) -> None:
        target = Target.from_tag("host")
        model = convolutions()
        for value in (*model.graph.input, *model.graph.output):
            value.type.tensor_type.shape.dim[0].dim_value = 1
        library = build(model, target, replace(TILED, relocatable=True))
        shared = replace(library, elf=loadable(bytes(library.elf), target))
        (folder / "packaged").write_bytes(pickle.dumps(Packaged(target, shared, package_objects(library, target))))

    found: Packaged = pickle.loads((once(tmp_path_factory, "packaged", make) / "packaged").read_bytes())
    return found
