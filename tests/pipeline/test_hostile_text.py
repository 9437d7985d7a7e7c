"""Names that command terminals, or that XML cannot hold: in models, records and file names, by the command line."""

from __future__ import annotations

import json
import os
import subprocess
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

from forge_pipeline.evaluation.plot import layers_svg
from forge_pipeline.ir.display.html import html
from forge_pipeline.report import About, Build, render
from forge_pipeline.store import Action
from forge_pipeline.store.actions import encode

CONTROLS = [chr(code) for code in (*range(0x20), *range(0x7F, 0xA0))]
BIDI = [chr(code) for code in (0x061C, 0x200E, 0x200F, *range(0x202A, 0x202F), *range(0x2066, 0x206A))]
OTHERS = ["\u2028", "\u2029", "\ufeff", "\ufffe", "\uffff"]
HOSTILE = "".join((*CONTROLS, *BIDI, *OTHERS)) + "]]></text></svg><script>&\"'"
FORGED = "x\nerror: forged\x1b]0;owned\x07\x1b[2J"


def write(path: Path, name: str) -> Path:
    """Write a model all of whose names are, or hold, ``name``."""
    graph = helper.make_graph(
        [
            helper.make_node("Gemm", [name, f"w{name}"], [f"g{name}"], name=f"n{name}"),
            helper.make_node("Relu", [f"g{name}"], [f"o{name}"], name=f"m{name}"),
        ],
        f"t{name}",
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, [f"d{name}", 4])],
        [helper.make_tensor_value_info(f"o{name}", TensorProto.FLOAT, [f"d{name}", 3])],
        [numpy_helper.from_array(np.ones((4, 3), np.float32), f"w{name}")],
        doc_string=name,
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=10, producer_name=name)
    path.write_bytes(model.SerializeToString())
    return path


def printable(done: subprocess.CompletedProcess[str]) -> str:
    """Return all that was printed; only lines that a terminal prints, of which none is forged."""
    said = done.stdout + done.stderr
    for line in said.splitlines():
        assert line.isprintable(), line
        assert not line.startswith("error: forged")
    assert len(said) < 8000
    assert "Traceback" not in said
    return said


@pytest.mark.every(3)
@pytest.mark.parametrize("name", [HOSTILE, FORGED, "long" * 16_000], ids=["controls", "forged", "long"])
def test_a_models_names_are_shown_and_drawn_without_what_a_terminal_obeys(
    forge: Any, tmp_path: Path, name: str
) -> None:
    model, svg = write(tmp_path / "m.onnx", name), tmp_path / "m.svg"
    done = forge("inspect", str(model), "--svg", str(svg))
    assert done.returncode == 0, done.stderr
    printable(done)
    root = ElementTree.parse(svg).getroot()
    assert not [child for child in root.iter() if child.tag.endswith("script")]
    assert all(text.isprintable() for child in root.iter() for text in (child.text or "").split("\n"))
    described = forge("inspect", str(model), "--json")
    assert described.stdout.isascii()
    assert json.loads(described.stdout)["inputs"][0]["name"] == name


@pytest.mark.every(9)
@pytest.mark.parametrize("name", [HOSTILE, FORGED, "long" * 25_000], ids=["controls", "forged", "long"])
def test_a_failing_run_names_what_is_wrong_in_two_printable_lines(forge: Any, tmp_path: Path, name: str) -> None:
    model, data = write(tmp_path / "m.onnx", name), tmp_path / "d.npz"
    np.savez(data, other=np.ones((4, 4), np.float32), another=np.ones((4, 4), np.float32))
    done = forge("run", f"model.path={model}", f"data.path={data}", "quantize=static", f"out={tmp_path / 'out'}")
    assert done.returncode == 1, done.stdout
    printable(done)
    failure = done.stderr[done.stderr.index("error: ") :].splitlines()
    assert [line.partition(":")[0] for line in failure] == ["error", "fix"]


def test_a_file_name_is_shown_without_what_a_terminal_obeys(forge: Any, tmp_path: Path) -> None:
    name = os.fsencode(tmp_path) + b"/" + FORGED.encode() + b"\xff\xc2\x9b\xe2\x80\xae.onnx"
    for command in (
        ["inspect", name],
        ["run", b"model.path=" + name],
        ["store", "--path", name, "ls"],
        ["password", name],
    ):
        done = forge(*command)
        assert done.returncode in (0, 1), done.stderr
        printable(done)
    assert r"\x1b" in printable(forge("inspect", name))


def test_a_hostile_record_is_listed_in_one_printable_line(forge: Any, tmp_path: Path) -> None:
    folder = tmp_path / "store" / "actions" / "v1"
    reports: list[dict[str, Any]] = [
        {"stage": HOSTILE, "config": {"target": {"tag": FORGED}}},
        {"stage": "s" * 100_000, "config": {"target": {"tag": "t" * 100_000}}},
        {"stage": ["load"], "config": [1]},
        {"stage": None, "config": {"target": "host"}},
        {},
    ]
    for index, report in enumerate(reports):
        key = f"{index:064x}"
        action = Action(
            key=key, outputs={f"f{FORGED}": "0" * 64}, sizes={f"f{FORGED}": 10**400}, seconds=1e300, report=report
        )
        path = folder / key[:2] / key[2:]
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(encode(action))
    done = forge("store", "ls")
    assert done.returncode == 0, done.stderr
    printable(done)
    assert len(done.stdout.splitlines()) == len(reports)


def test_pictures_and_pages_of_hostile_names_are_well_formed(forge: Any, tmp_path: Path) -> None:
    layer = {"layer": HOSTILE, "operator": HOSTILE, "noise_share": 50.0, "own_sqnr_db": 20.0, "sqnr_db": 20.0}
    ElementTree.fromstring(layers_svg([layer]))
    metrics = {"metric": HOSTILE, "samples": 1, "float": 1.0, "quantized": 1.0, "compiled": None, "not_run": HOSTILE}
    metrics |= {f"size_{kind}_bytes": 1 for kind in ("float", "quantized", "library")}
    value = {"name": HOSTILE, "dtype": HOSTILE, "shape": [HOSTILE]}
    build = Build(
        target=HOSTILE,
        metrics=metrics,
        layers=[layer],
        metadata={"target": {"triple": HOSTILE}, "inputs": [value], "outputs": [value], "tools": {HOSTILE: HOSTILE}},
        stages=[{"stage": HOSTILE, "seconds": 1.0, "action_key": HOSTILE, "outputs": {HOSTILE: HOSTILE}}],
        artifact=HOSTILE,
        artifact_bytes=1,
        encrypted=False,
    )
    page = render([build], About(model=HOSTILE, commit=HOSTILE, written=HOSTILE))
    picture = page[page.index("<svg") : page.index("</svg>") + 6]
    ElementTree.fromstring(picture)
    described = forge("inspect", str(write(tmp_path / "m.onnx", HOSTILE)), "--json")
    for text in (page, html(json.loads(described.stdout))):
        assert "<script" not in text
        assert all(line.isprintable() for line in text.split("\n"))
        HTMLParser().feed(text)
