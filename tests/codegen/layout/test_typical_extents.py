"""What open extents are taken for where algorithms are chosen: those of images of two sizes, layer by layer."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from onnx import helper

from forge_pipeline.codegen.float32.conv.dynamic_shape import WIDTHS, typical
from forge_pipeline.codegen.float32.conv.geometry import Geometry
from forge_pipeline.codegen.float32.conv.winograd.open_size import choose_group
from forge_pipeline.codegen.float32.conv.winograd.tiles import LARGE
from forge_pipeline.codegen.layout.typical_extents import IMAGES, typical_extents
from forge_pipeline.codegen.onnx_import.importer import imported, prepare
from forge_pipeline.codegen.tir.machine import Machine
from forge_pipeline.target import Target
from tests.support.tiled import assert_same, compiled, kernels_of, model

HALVED = {"strides": [2, 2], "pads": [1] * 4}


def weights(*shape: int) -> np.ndarray:
    return (np.random.default_rng(0).normal(size=shape) / shape[1]).astype(np.float32)


def test_a_layer_behind_strides_has_smaller_images() -> None:
    nodes = [
        helper.make_node("Conv", [name, "w"], [result], **HALVED)
        for name, result in (("x", "a"), ("a", "b"), ("b", "y"))
    ]
    found = imported(prepare(model(nodes, {"x": (1, 8, "height", 100)}, {"w": weights(8, 8, 3, 3)})))
    sizes = typical_extents(found.module, found.extents)
    assert sizes["height"] == IMAGES == (224, 640)
    assert {(112, 320), (56, 160)} <= set(sizes.values())


def test_only_images_have_sizes_that_are_known() -> None:
    joined = [helper.make_node("Concat", ["x", "z"], ["y"], axis=2)]
    found = imported(prepare(model(joined, {"x": (1, 8, "height", 5), "z": (1, 8, "more", 5)}, {})))
    ((name, _),) = found.extents
    assert typical_extents(found.module, found.extents) == {"height": IMAGES, "more": IMAGES, name: (448, 1280)}
    flat = [helper.make_node("Reshape", ["x", "shape"], ["y"])]
    found = imported(prepare(model(flat, {"x": ("batch", 8, "height", 5)}, {"shape": np.array([-1, 5])})))
    assert found.extents
    assert typical_extents(found.module, found.extents) == {"height": IMAGES}  # the batch decides, too
    tokens = [helper.make_node("Concat", ["x", "x"], ["y"], axis=1)]
    found = imported(prepare(model(tokens, {"x": (1, "tokens", 8)}, {})))
    assert typical_extents(found.module, found.extents) == {}


def test_sizes_that_are_not_known_are_those_of_a_detectors_maps() -> None:
    image = Geometry(
        channels=8,
        filters=8,
        groups=1,
        size=(None, 7),
        kernel=(3, 3),
        strides=(1, 1),
        padding=(1,) * 4,
        dilation=(1, 1),
    )  # type: ignore[arg-type]
    assert [each.size for each in typical(image)] == [(width, 7) for width in WIDTHS]


def test_few_tiles_of_many_channels_are_no_larger_than_an_image_has() -> None:
    """Winograd's tiles of a classifier's last images, 7 x 7 and 20 x 20, are 4 and 25; of a detector's maps, many."""
    image = Geometry(
        channels=512,
        filters=512,
        groups=1,
        size=(7, 7),
        kernel=(3, 3),
        strides=(1, 1),
        padding=(1,) * 4,
        dilation=(1, 1),
    )
    machine = Machine.of(Target.from_tag("x86-64/v4"))
    few, many = (
        choose_group(machine, 512, 512 // machine.lanes, LARGE, [replace(image, size=(side, side)) for side in sides])
        for sides in ((7, 20), WIDTHS)
    )
    assert few.pixels < many.pixels
    assert -(-4 // few.pixels) * few.pixels <= 6


def test_the_last_layers_of_a_classifier_compute_what_they_do_at_any_size() -> None:
    nodes = [
        helper.make_node("MaxPool", ["x"], ["p"], kernel_shape=[32, 32], strides=[32, 32], ceil_mode=1),
        helper.make_node("Conv", ["p", "w"], ["y"], pads=[1] * 4),
    ]
    source = model(nodes, {"x": (1, 128, "height", "width")}, {"w": weights(128, 128, 3, 3)})
    assert "conv2d_open_winograd" in kernels_of(compiled(source))
    assert_same(source, [{"height": h, "width": w} for h, w in ((224, 224), (33, 70), (640, 480))], terms=2000)
