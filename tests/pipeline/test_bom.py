"""The bill of materials of a real delivery: by CycloneDX's own validator, and as a card for people."""

from __future__ import annotations

import json
import shutil
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from forge_pipeline.digest import digest_file
from forge_pipeline.errors import ArtifactError
from forge_pipeline.pipeline.cards.card import card


def test_it_is_valid_for_cyclonedxs_validator(finished: Any) -> None:
    validation = pytest.importorskip("cyclonedx.validation.json")
    schema = pytest.importorskip("cyclonedx.schema")
    pytest.importorskip("jsonschema")
    validator = validation.JsonStrictValidator(schema.SchemaVersion.V1_7)
    text = (finished.out / "bom.cdx.json").read_text()
    assert validator.validate_str(text) is None
    assert validator.validate_str(text.replace('"machine-learning-model"', '"model"')) is not None


def test_it_says_what_the_delivery_is(finished: Any) -> None:
    bom = json.loads((finished.out / "bom.cdx.json").read_text())
    model, metrics = bom["metadata"]["component"], json.loads((finished.out / "metrics.json").read_text())
    assert model["hashes"] == [{"alg": "SHA-256", "content": digest_file(finished.out / "model_library.so")}]
    scores = {item["slice"]: item["value"] for item in model["modelCard"]["quantitativeAnalysis"]["performanceMetrics"]}
    assert scores == {name: str(metrics[name]) for name in ("float", "quantized", "compiled")}
    properties = {item["name"]: item["value"] for item in model["modelCard"]["properties"]}
    assert properties["model.path"] == digest_file(finished.out.parent / "tiny.onnx")
    assert properties["quantize.method"] == "static"
    licences = {item["name"]: item.get("licenses") for item in bom["components"]}
    assert licences["apache-tvm"] == [{"expression": "Apache-2.0"}]
    assert all(licences.values())


def test_the_card_shows_it(forge: Any, finished: Any) -> None:
    done = forge("card", str(finished.out))
    assert done.returncode == 0 and "## Interface" in done.stdout and "| apache-tvm | 0.27" in done.stdout
    assert "<h2>Interface</h2>" in forge("card", str(finished.out), "--html").stdout
    assert forge("card", str(finished.out.parent)).returncode == 1


HOSTILE = "<script>alert(1)</script>|`x`[a](b)\x1b[2J\n# y\u202e"


def test_a_hostile_text_is_escaped(finished: Any, tmp_path: Path) -> None:
    shutil.copy(finished.out / "bom.cdx.json", tmp_path / "bom.cdx.json")
    (tmp_path / "bom.cdx.json").chmod(0o600)
    bom = json.loads((tmp_path / "bom.cdx.json").read_text())
    bom["metadata"]["component"]["modelCard"]["modelParameters"]["inputs"][0]["format"] = HOSTILE
    bom["metadata"]["component"]["name"] = HOSTILE
    (tmp_path / "bom.cdx.json").write_text(json.dumps(bom))
    tags: list[str] = []

    class Reader(HTMLParser):
        def handle_starttag(self, tag: str, attrs: Any) -> None:
            tags.append(tag)

    Reader().feed(card(tmp_path, as_html=True))
    assert "table" in tags and "script" not in tags
    for text in (card(tmp_path, as_html=False), card(tmp_path, as_html=True)):
        assert text.replace("\n", "").isprintable() and "# y" in text.replace("\\", "")
    lines = card(tmp_path, as_html=False).splitlines()
    assert not any(line.startswith("# y") for line in lines)
    assert any(r"\<script\>alert(1)\</script\>\|\`x\`\[a\](b)" in line for line in lines)


@pytest.mark.parametrize("text", ["", "{}", "[1]", '{"metadata": []}', "[" * 100_000])
def test_what_is_no_bill_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "bom.cdx.json").write_text(text)
    with pytest.raises(ArtifactError):
        card(tmp_path, as_html=False)


def test_a_bill_with_an_empty_list_of_digests_is_refused(tmp_path: Path) -> None:
    card_of = {
        "properties": [],
        "considerations": {"technicalLimitations": []},
        "modelParameters": {"inputs": [], "outputs": [], "datasets": [{"name": "d", "contents": {"properties": []}}]},
        "quantitativeAnalysis": {"performanceMetrics": []},
    }
    component = {"name": "m", "description": "", "hashes": [], "modelCard": card_of}
    (tmp_path / "bom.cdx.json").write_text(json.dumps({"metadata": {"component": component}, "components": []}))
    with pytest.raises(ArtifactError, match="found another form"):
        card(tmp_path, as_html=False)
