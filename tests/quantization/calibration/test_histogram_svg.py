"""The picture of the ranges."""

from __future__ import annotations

from xml.etree import ElementTree

from forge_pipeline.data import Feed
from forge_pipeline.ir import ONNXModule
from forge_pipeline.quantization.calibration.histogram_svg import histograms_svg
from forge_pipeline.quantization.calibration.observe import calibrate


def test_every_value_has_a_strip_with_its_range(net: ONNXModule, feeds: list[Feed]) -> None:
    ranges = calibrate(net, feeds, total=len(feeds), histogram_values=1000)
    picture = histograms_svg(ranges)
    assert picture == histograms_svg(ranges)
    root = ElementTree.fromstring(picture)
    space = "{http://www.w3.org/2000/svg}"
    assert {title.text for title in root.iter(f"{space}title")} == set(ranges)
    texts = [text.text for text in root.iter(f"{space}text")]
    stem = ranges["stem_relu"]
    assert f"{stem.low:.5g} .. {stem.high:.5g}" in texts
    assert "24 samples" in texts
