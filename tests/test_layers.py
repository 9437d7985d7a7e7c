"""Imports point one way, start-up stays light, and every stage is present wherever a stage must be."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from graphlib import TopologicalSorter
from pathlib import Path

import pytest
import yaml

from forge_pipeline.stages import STAGES
from tests.support.paths import ROOT

PACKAGE, TESTS = ROOT / "forge_pipeline", ROOT / "tests"

FLOORS = (
    {"carrier", "errors", "ffi", "locate", "scratch", "width"},
    {"children", "config", "content", "limits", "registry", "report"},
    {"digest", "exits"},
    {"crypto", "data", "ir", "store"},
    {"frontends", "passes", "relax", "runtime"},
    {"quantization", "target"},
    {"codegen", "evaluation"},
    {"packaging", "runners"},
    {"stages"},
    {"pipeline"},
    {"api"},
    {"cli", "__init__"},
    {"__main__"},
)
"""A package imports what lies on the floors below its own, for types too, and nothing beside or above it."""

FLOOR = {package: number for number, floor in enumerate(FLOORS) for package in floor}
MODULES = {
    ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"): path
    for path in sorted(PACKAGE.rglob("*.py"))
}


def _package(module: str) -> str:
    return module.split(".")[1] if "." in module else "__init__"


def _imports(path: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            inner = [f"{node.module}.{alias.name}" for alias in node.names]
            yield from (name if name in MODULES else node.module for name in inner)


IMPORTS = {module: {name for name in _imports(path) if name != module} for module, path in MODULES.items()}


def _unit(module: str) -> str:
    """Return what has a place among its neighbours: a folder, or a module of a package that has folders."""
    path = MODULES[module]
    folder = path.parent
    divided = folder != PACKAGE and any((inner / "__init__.py").is_file() for inner in folder.iterdir())
    return module if divided or folder == PACKAGE else ".".join(folder.relative_to(ROOT).parts)


def test_every_package_has_a_floor() -> None:
    assert {_package(module) for module in MODULES} == set(FLOOR)


@pytest.mark.parametrize("package", sorted(FLOOR))
def test_a_package_imports_only_what_lies_below_it(package: str) -> None:
    wrong = [
        f"{module} imports {name}"
        for module, names in IMPORTS.items()
        if _package(module) == package
        for name in sorted(names & set(MODULES))
        if _package(name) != package and FLOOR[_package(name)] >= FLOOR[package]
    ]
    assert wrong == []


@pytest.mark.parametrize("level", ["modules", "folders"])
def test_imports_form_no_circle(level: str) -> None:
    graph: dict[str, set[str]] = {}
    for module, names in IMPORTS.items():
        known = names & set(MODULES)
        if level == "modules":
            graph[module] = known
        else:
            graph.setdefault(_unit(module), set()).update(_unit(name) for name in known if _unit(name) != _unit(module))
    TopologicalSorter(graph).prepare()  # raises CycleError, which names the circle


def test_no_folder_is_crowded_and_no_module_too_long() -> None:
    crowded = {str(folder): len(list(folder.glob("*.py"))) for folder in {path.parent for path in MODULES.values()}}
    assert {folder: count for folder, count in crowded.items() if count > 23} == {}
    assert {
        module: lines for module, path in MODULES.items() if (lines := len(path.read_text().splitlines())) > 500
    } == {}


OF_NO_PACKAGE = {"aarch64", "emulated", "examples", "memcheck", "native", "support", "x86_emulated"}
"""Folders of tests that are about machines, examples or the native runtime, and the one with what tests share."""


def test_tests_lie_where_what_they_test_lies() -> None:
    folders = {path.parent.relative_to(TESTS) for path in TESTS.rglob("test_*.py")}
    stray = [folder for folder in folders if folder.parts and folder.parts[0] not in OF_NO_PACKAGE]
    assert [str(folder) for folder in sorted(stray) if not (PACKAGE / folder / "__init__.py").is_file()] == []
    assert list((TESTS / "support").rglob("test_*.py")) == []


def test_what_tests_share_lies_in_a_folder_of_its_own() -> None:
    own = ("tests.", "conftest", "test_")
    wrong = [
        f"{path.relative_to(ROOT)} imports {name}"
        for path in sorted(TESTS.rglob("*.py"))
        for name in _imports(path)
        if name.startswith(own) and not name.startswith("tests.support")
    ]
    assert wrong == []


@pytest.mark.parametrize(
    ("library", "owners"),
    [
        ("tvm", {"codegen", "target", "relax"}),
        ("cryptography", {"crypto"}),
        ("hydra", {"pipeline"}),
        ("click", {"cli"}),
        ("dvc", set()),
    ],
)
def test_a_third_party_library_is_used_in_its_own_place_only(library: str, owners: set[str]) -> None:
    users = {
        _package(module)
        for module, names in IMPORTS.items()
        if any(name == library or name.startswith(library + ".") for name in names)
    }
    assert users <= owners


def test_what_runs_on_a_device_needs_numpy_alone() -> None:
    known = {*sys.stdlib_module_names, "numpy", "forge_runtime"}
    wrong = [
        f"{path.name} imports {name}"
        for path in sorted((ROOT / "forge_runtime").glob("*.py"))
        for name in _imports(path)
        if name.split(".")[0] not in known and (path.name, name) != ("interface.py", "ml_dtypes")
    ]
    assert wrong == []


def test_a_build_imports_no_compiler_before_it_compiles() -> None:
    modules = ["cli", "pipeline.build", "pipeline.hydra_app", "api.load", *(f"stages.{name}" for name in STAGES)]
    imports = "; ".join(f"import forge_pipeline.{name}" for name in modules)
    code = f"{imports}; import sys; print(sorted({{'tvm', 'torch', 'onnx', 'onnxruntime'}} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


@pytest.mark.parametrize("name", STAGES)
def test_a_stage_has_a_module_a_configuration_and_a_row_in_the_dvc_file(name: str) -> None:
    pipeline = yaml.safe_load((ROOT / "dvc.yaml").read_text())["stages"]
    missing = [
        what
        for what, present in {
            f"forge_pipeline/stages/{name}.py": (PACKAGE / "stages" / f"{name}.py").is_file(),
            f"conf/{name}/*.yaml": any((ROOT / "conf" / name).glob("*.yaml")),
            f"dvc.yaml: {name}": name in pipeline,
        }.items()
        if not present
    ]
    assert missing == []
