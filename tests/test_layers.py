"""Imports point one way, start-up stays light, and every stage is present wherever a stage must be."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from forge_pipeline.stages import STAGES

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "forge_pipeline"

FOUNDATION = {"content", "errors", "registry", "digest", "config", "locate", "exits"}
MAY_IMPORT = {
    **dict.fromkeys(FOUNDATION, FOUNDATION),
    "target": FOUNDATION | {"runtime"},
    "store": FOUNDATION,
    "crypto": FOUNDATION,
    "runtime": FOUNDATION | {"crypto"},
    "ir": FOUNDATION,
    "data": FOUNDATION | {"ir"},
    "frontends": FOUNDATION | {"ir"},
    "passes": FOUNDATION | {"ir"},
    "quantization": FOUNDATION | {"ir", "data", "passes", "target"},
    "codegen": FOUNDATION | {"ir", "target", "runtime", "frontends"},
    "evaluation": FOUNDATION | {"ir", "data", "passes", "runtime", "quantization", "target"},
    "report": FOUNDATION,
}
MAY_IMPORT["modules"] = FOUNDATION | {"ir", "quantization", "target", "runtime", "crypto", "codegen", "stages"}
MAY_IMPORT["stages"] = FOUNDATION | set(MAY_IMPORT)
MAY_IMPORT["loading"] = FOUNDATION | {"frontends", "stages", "modules"}
MAY_IMPORT["pipeline"] = FOUNDATION | set(MAY_IMPORT)
MAY_IMPORT["cli"] = FOUNDATION | set(MAY_IMPORT)
ENTRY_POINTS = {"__init__", "__main__"}


def _units() -> Iterator[tuple[str, Path]]:
    for path in sorted(PACKAGE.rglob("*.py")):
        yield path.relative_to(PACKAGE).parts[0].removesuffix(".py"), path


def _imports(path: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text())):
        names = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module:
            names = (
                [node.module] if node.module != "forge_pipeline" else [f"forge_pipeline.{a.name}" for a in node.names]
            )
        yield from names


@pytest.mark.parametrize("unit", sorted({unit for unit, _ in _units()} - ENTRY_POINTS))
def test_a_package_imports_only_what_lies_below_it(unit: str) -> None:
    assert unit in MAY_IMPORT, f"{unit} has no place in the layering yet"
    allowed = MAY_IMPORT[unit] | {unit}
    wrong = [
        f"{path.relative_to(ROOT)} imports {name}"
        for owner, path in _units()
        if owner == unit
        for name in _imports(path)
        if name.startswith("forge_pipeline.") and name.split(".")[1] not in allowed
    ]
    assert wrong == []


@pytest.mark.parametrize(
    ("library", "owners"),
    [
        ("tvm", {"codegen", "target", "ir"}),
        ("cryptography", {"crypto"}),
        ("hydra", {"pipeline"}),
        ("click", {"cli"}),
        ("dvc", set()),
    ],
)
def test_a_third_party_library_is_used_in_its_own_place_only(library: str, owners: set[str]) -> None:
    users = {
        unit for unit, path in _units() for name in _imports(path) if name == library or name.startswith(library + ".")
    }
    assert users <= owners


@pytest.mark.parametrize("name", STAGES)
def test_a_stage_has_a_module_a_configuration_a_script_and_a_row_in_the_dvc_file(name: str) -> None:
    pipeline = yaml.safe_load((ROOT / "dvc.yaml").read_text())["stages"]
    missing = [
        what
        for what, present in {
            f"forge_pipeline/stages/{name}.py": (PACKAGE / "stages" / f"{name}.py").is_file(),
            f"conf/{name}/*.yaml": any((ROOT / "conf" / name).glob("*.yaml")),
            f"stages/{name}.py": (ROOT / "stages" / f"{name}.py").is_file(),
            f"dvc.yaml: {name}": name in pipeline,
        }.items()
        if not present
    ]
    assert missing == []


def test_the_report_waits_for_every_target_of_the_matrix() -> None:
    targets = yaml.safe_load((ROOT / "conf" / "config.yaml").read_text())["matrix"]["targets"]
    waits = yaml.safe_load((ROOT / "dvc.yaml").read_text())["stages"]["report"]["deps"]
    wanted = [f"out/{target}/{name}" for target in targets for name in ("metrics.json", "model_library.so")]
    assert waits == wanted
