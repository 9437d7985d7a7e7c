"""The module's own calls: calibrate, split and quantize in place, with the rules that users of Forge know."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest

from forge_pipeline.data import Feed
from forge_pipeline.errors import ConfigError, DataError, ModelError
from forge_pipeline.ir import ONNXModule
from forge_pipeline.quantization.accuracy.evaluator import Evaluator
from forge_pipeline.quantization.calibration.probes import Probe
from forge_pipeline.quantization.network import Network, prepare
from forge_pipeline.quantization.onnx_module import QuantizableModule


@pytest.fixture
def module(net: ONNXModule) -> QuantizableModule:
    return QuantizableModule(net.copy().mod)


def noise(net: ONNXModule, module: ONNXModule, feeds: list[Feed]) -> float:
    onnx.checker.check_model(module.mod, full_check=True)
    return Evaluator.of(Network(prepare(net.mod)), [Probe.of(feed, None) for feed in feeds]).sqnr(module.mod)


def test_calibrate_then_quantize_is_static(net: ONNXModule, module: QuantizableModule, feeds: list[Feed]) -> None:
    assert (module.is_calibrated, module.is_quantized, module.is_split_tensors) == (False, False, False)
    module.calibrate(feed["image"] for feed in feeds)
    assert module.is_calibrated
    module.quantize(calib_method="minmax", per_channel=True)
    assert module.is_quantized
    assert "DynamicQuantizeLinear" not in module.operators
    assert noise(net, module, feeds) > 28.0


def test_quantize_without_calibration_is_dynamic(net: ONNXModule, module: QuantizableModule, feeds: list[Feed]) -> None:
    module.quantize()
    assert "DynamicQuantizeLinear" in module.operators
    assert noise(net, module, feeds) > 25.0


def test_samples_come_as_arrays_sequences_or_mappings(module: QuantizableModule, feeds: list[Feed]) -> None:
    images = [feed["image"] for feed in feeds[:3]]
    found = []
    for data in (images, [image[0] for image in images], [[image] for image in images], feeds[:3]):
        module.calibrate(data)
        assert module._ranges is not None
        found.append(module._ranges.to_bytes())
    assert len(set(found)) == 1


def test_without_reset_statistics_add_up(module: QuantizableModule, feeds: list[Feed]) -> None:
    module.calibrate(feeds)
    assert module._ranges is not None
    whole = module._ranges.to_bytes()
    module.calibrate(feeds[:5])
    module.calibrate(feeds[5:], reset=False)
    assert module._ranges.to_bytes() == whole


@pytest.mark.parametrize("method", ["float16", "none", "statik"])
def test_a_quant_type_that_is_none_of_the_three_is_refused(module: QuantizableModule, method: str) -> None:
    with pytest.raises(ConfigError, match=rf"one of static, dynamic, any, found '{method}'"):
        module.quantize(quant_type=method)
    assert not module.is_quantized


def test_splitting_after_calibration_takes_force_and_discards_it(
    net: ONNXModule, module: QuantizableModule, feeds: list[Feed]
) -> None:
    module.calibrate(feeds)
    with pytest.raises(DataError) as refusal:
        module.split_tensors()
    assert refusal.value.fix == "call split_tensors(force=True) and calibrate again"
    module.split_tensors(force=True)
    assert (module.is_calibrated, module.is_split_tensors) == (False, True)
    with pytest.raises(DataError, match="splitting discarded it"):
        module.quantize(quant_type="static")
    module.calibrate(feeds)
    module.quantize(quant_type="static", calib_method="minmax")
    assert noise(net, module, feeds) > 24.0


def test_what_gives_no_samples_is_refused(module: QuantizableModule, feeds: list[Feed], tmp_path: Path) -> None:
    path = tmp_path / "samples.npz"
    np.savez(path, image=np.concatenate([feed["image"] for feed in feeds]))
    archive = np.load(path)
    for given, found in (
        (path, "a path (PosixPath)"),
        (str(tmp_path), "a path (str)"),
        (archive, "a mapping of image"),
        (feeds[0], "a mapping of image"),
        (None, "an object of NoneType"),
        (np.float32(1), "an object of float32"),
    ):
        with pytest.raises(DataError) as refusal:
            module.calibrate(given)
        assert (refusal.value.where, refusal.value.found) == ("calibrate()", found)
        assert "calibrate(" in refusal.value.fix or "a list of samples" in refusal.value.fix
    module.calibrate(archive["image"])
    assert module.is_calibrated
    archive.close()


def with_stored_weights(model: onnx.ModelProto) -> onnx.ModelProto:
    """Return the model with the weights of its convolutions as bytes, decoded in front of these."""
    for node in [node for node in model.graph.node if node.op_type == "Conv"]:
        (tensor,) = (tensor for tensor in model.graph.initializer if tensor.name == node.input[1])
        array = onnx.numpy_helper.to_array(tensor)
        scale = np.float32(np.abs(array).max() / 127)
        name = tensor.name
        tensor.CopyFrom(onnx.numpy_helper.from_array(np.rint(array / scale).astype(np.int8), name))
        model.graph.initializer.append(onnx.numpy_helper.from_array(scale, f"{name}_scale"))
        decoder = onnx.helper.make_node("DequantizeLinear", [name, f"{name}_scale"], [f"{name}_float"])
        model.graph.node.insert(0, decoder)
        node.input[1] = f"{name}_float"
    return model


@pytest.mark.parametrize("method", ["static", "dynamic"])
def test_weights_that_are_stored_as_integers_are_decoded_first(net: ONNXModule, feeds: list[Feed], method: str) -> None:
    """As the stage has it, which gets them folded: arithmetic is what decides."""
    stored = QuantizableModule(with_stored_weights(net.copy().mod))
    original = stored.copy()
    assert not stored.is_quantized
    if method == "static":
        stored.calibrate(feeds)
    stored.quantize(quant_type=method, calib_method="minmax")
    assert stored.is_quantized
    assert noise(original, stored, feeds) > 24.0
    with pytest.raises(ModelError, match="one that computes with integers already"):
        stored.quantize()


def test_a_copy_keeps_the_calibration_and_leaves_the_original(module: QuantizableModule, feeds: list[Feed]) -> None:
    module.calibrate(feeds[:2])
    duplicate = module.copy()
    duplicate.quantize()
    assert (duplicate.is_quantized, module.is_quantized, module.is_calibrated) == (True, False, True)


def test_a_quantized_module_is_not_quantized_again(module: QuantizableModule) -> None:
    module.quantize()
    for call in (module.quantize, module.split_tensors, lambda: module.calibrate([])):
        with pytest.raises(ModelError, match="expected a model in float"):
            call()


def test_a_wrong_sample_is_refused_by_number_and_input(module: QuantizableModule, feeds: list[Feed]) -> None:
    with pytest.raises(DataError) as refusal:
        module.calibrate([feeds[0], {"image": np.zeros((2, 2), np.float32)}])
    assert refusal.value.where == "calibration sample 1, input 'image'"
    with pytest.raises(DataError, match=r"calibration sample 0, input 'image': expected an array, found nothing"):
        module.calibrate([{"picture": feeds[0]["image"]}])
    assert not module.is_calibrated


def test_a_misspelt_option_is_refused(module: QuantizableModule) -> None:
    with pytest.raises(ConfigError, match=r"quantize\.per_chanel"):
        module.quantize(per_chanel=True)
    with pytest.raises(ConfigError, match=r"quantize\.activation_dtype"):
        module.quantize(activation_dtype="int7")
