"""evaluate: what it measures, that it measures the same twice, and how it refuses a build that lost too much."""

from __future__ import annotations

import platform
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from onnx import ModelProto, numpy_helper, parser

from forge_pipeline.codegen.build import build
from forge_pipeline.codegen.options import Options
from forge_pipeline.config import bind
from forge_pipeline.data import Dataset, Preparation
from forge_pipeline.data.fitting import input_specs
from forge_pipeline.errors import ConfigError, DataError, VerificationError
from forge_pipeline.ir import ONNXModule
from forge_pipeline.locate import conf_dir
from forge_pipeline.runners.emulators import emulator
from forge_pipeline.runtime.bundle import Library
from forge_pipeline.stages import compile as compiling
from forge_pipeline.stages import evaluate
from forge_pipeline.target import Target
from tests.support.decoders import decoder, kept

SAMPLES, CALIBRATION, FEATURES, CLASSES = 120, 20, 12, 6
DATA = Preparation(calibration_samples=CALIBRATION, shuffle=False, seed=0, scale=1.0, offset=0.0, image=None)


def options(stage: str) -> dict[str, Any]:
    return dict(yaml.safe_load((conf_dir() / stage / "default.yaml").read_text()))


def config(**changes: Any) -> evaluate.Config:
    place = {"runner": "host", "target": {"tag": "host"}, "device": None, "emulator": [], "ran_in": "host"}
    values = {**options("evaluate"), **place, "data": asdict(DATA), **changes}
    del values["emulators"]  # of all targets
    return bind(evaluate.Config, values, where="evaluate")


def classifier(*, steps: tuple[float, float] | None = None, batch: str = "N") -> ONNXModule:
    """Two dense layers; ``steps`` quantizes the output of each with that step."""
    lines = ["[dense_one] h = MatMul(x, w1)", "[dense_two] y = MatMul(h, w2)"]
    if steps is not None:
        lines = [
            "[dense_one] h = MatMul(x, w1)",
            "h_q = QuantizeLinear(h, s1, z) h_dq = DequantizeLinear(h_q, s1, z)",
            "[dense_two] l = MatMul(h_dq, w2)",
            "l_q = QuantizeLinear(l, s2, z) y = DequantizeLinear(l_q, s2, z)",
        ]
    model: ModelProto = parser.parse_model(
        '<ir_version: 10, opset_import: ["": 21]>'
        f"main (float[{batch}, {FEATURES}] x) => (float[{batch}, {CLASSES}] y) {{ {' '.join(lines)} }}"
    )
    random = np.random.default_rng(1)
    weights = {"w1": random.standard_normal((FEATURES, 16)), "w2": random.standard_normal((16, CLASSES))}
    tensors = {name: value.astype(np.float32) for name, value in weights.items()}
    if steps is not None:
        tensors |= {"s1": np.float32(steps[0]), "s2": np.float32(steps[1]), "z": np.int8(0)}
    model.graph.initializer.extend(numpy_helper.from_array(np.asarray(v), name) for name, v in tensors.items())
    return ONNXModule(model)


FINE, COARSE = (0.15, 0.3), (8.0, 0.3)


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    """Labels that the float model gets right, all but every tenth."""
    x = np.random.default_rng(2).standard_normal((SAMPLES, FEATURES)).astype(np.float32)
    y = np.asarray(classifier().get_inference_function()(x)).argmax(axis=1)
    y[::10] = (y[::10] + 1) % CLASSES
    path = tmp_path_factory.mktemp("data") / "samples.npz"
    np.savez(path, x=x, y=y)
    return Dataset.open(str(path))


@pytest.fixture(scope="module")
def compiled() -> Callable[[ONNXModule], Library]:
    known: dict[str, Library] = {}

    def build(model: ONNXModule) -> Library:
        if model.fingerprint not in known:
            target = asdict(Target.from_tag("host"))
            values = {name: value for name, value in options("compile").items() if name != "dump"}
            chosen = bind(compiling.Config, {**values, "target": target}, where="compile")
            known[model.fingerprint] = compiling.run(chosen, model, key="0" * 64).output
        return known[model.fingerprint]

    return build


@pytest.fixture(scope="module")
def foreign() -> Library:
    """What is built for a machine that this one is not."""
    model = parser.parse_model('<ir_version: 10, opset_import: ["": 18]> g (float x) => (float y) { y = Relu(x) }')
    options = Options(generator="stock", opt_level=3, float16=False, channel_layout=None)
    return build(model, Target.from_tag("riscv64/generic"), options)


def measured(foreign: Library, data: Dataset | None, *, steps: Any = FINE, **changes: Any) -> Any:
    return evaluate.run(
        config(**changes), reference=classifier(), model=classifier(steps=steps), library=foreign, data=data
    )


def test_the_compiled_model_is_measured_beside_the_float_and_the_quantized_one(
    data: Dataset, compiled: Callable[[ONNXModule], Library]
) -> None:
    quantized = classifier(steps=FINE)
    library = compiled(quantized)
    result = evaluate.run(
        config(machine="a machine"), reference=classifier(), model=quantized, library=library, data=data
    )
    values = result.output.values
    assert (values["metric"], values["samples"], values["float"]) == ("top1", SAMPLES - CALIBRATION, 90.0)
    assert values["compiled"] == values["quantized"]
    assert 20 < values["quantized_sqnr_db.y"] < 60
    assert values["compiled_sqnr_db.y"] is None or values["compiled_sqnr_db.y"] > values["quantized_sqnr_db.y"]
    speed = result.output.latency
    assert 0 < speed["latency_min_ms"] <= speed["latency_median_ms"]
    assert (speed["latency_runs"], speed["latency_threads"], speed["machine"]) == (100, 1, "a machine")
    assert 0 <= speed["fallback_time_share"] <= 1
    assert [sorted(kernel) for kernel in speed["kernels"]] == [["calls", "layers", "milliseconds", "name", "share"]] * 2
    assert sorted(kernel["layers"] for kernel in speed["kernels"]) == [["dense_one"], ["dense_two"]]
    assert sum(kernel["share"] for kernel in speed["kernels"]) == pytest.approx(1, abs=1e-4)
    assert speed["float_operations"] + speed["int8_operations"] == 2 * (FEATURES * 16 + 16 * CLASSES)
    assert speed["roofline_share"] == pytest.approx(speed["bound_ms"] / speed["latency_min_ms"], rel=1e-4)
    assert speed["cpu"].startswith(platform.machine())
    assert values["size_library_bytes"] == len(library.to_bytes())
    assert values["size_quantized_bytes"] == len(quantized.to_bytes())
    assert result.report["compiled"] == "run on this machine"


def test_all_but_the_latency_is_the_same_twice(data: Dataset, compiled: Callable[[ONNXModule], Library]) -> None:
    quantized = classifier(steps=FINE)
    runs = [
        evaluate.run(config(), reference=classifier(), model=quantized, library=compiled(quantized), data=data)
        for _ in range(2)
    ]
    assert runs[0].output.metrics_bytes() == runs[1].output.metrics_bytes()
    assert runs[0].output.layers_bytes() == runs[1].output.layers_bytes()
    assert runs[0].report == runs[1].report


def test_for_another_machine_everything_but_the_compiled_model_is_measured(data: Dataset, foreign: Library) -> None:
    result = measured(foreign, data)
    assert result.output.values["compiled"] is None
    assert result.output.values["not_run"] == "one made for riscv64-linux-gnu"
    assert result.report["compiled"].startswith("not run: expected a library for this machine")
    assert result.output.latency == {}
    assert result.output.values["float"] == 90.0
    assert result.output.values["drop"] == 90.0 - result.output.values["quantized"]
    assert [record["layer"] for record in result.output.layers] == ["x", "dense_one", "dense_two"]


def test_metrics_are_flat_and_survive_their_files(data: Dataset, foreign: Library) -> None:
    metrics = measured(foreign, data).output
    assert all(value is None or isinstance(value, int | float | str) for value in metrics.values.values())
    files = metrics.metrics_bytes(), metrics.latency_bytes(), metrics.layers_bytes()
    assert evaluate.Metrics.from_bytes(*files) == metrics


def test_a_float_build_is_exact(data: Dataset, foreign: Library) -> None:
    values = measured(foreign, data, steps=None).output.values
    assert (values["drop"], values["quantized_sqnr_db.y"], values["worst_layer"]) == (0.0, None, None)


def test_a_loss_over_the_budget_names_the_layer_to_blame(data: Dataset, foreign: Library) -> None:
    lossy = measured(foreign, data, steps=COARSE).output.values
    assert lossy["drop"] > 2
    with pytest.raises(VerificationError) as caught:
        measured(foreign, data, steps=COARSE, max_drop=2.0)
    share = lossy["worst_layer_noise_share"]
    assert caught.value.expected == "a loss of at most 2 in top1"
    assert caught.value.found.startswith(
        f"a loss of {lossy['drop']:g} (float 90, quantized {lossy['quantized']:g}); "
        f"most noise is added by dense_one (MatMul, {share:g} %), dense_two (MatMul, "
    )
    assert caught.value.fix == (
        "keep layers in float (quantize.keep_float=[dense_one,dense_two]), or raise evaluate.max_drop"
    )


def test_a_loss_within_the_budget_passes(data: Dataset, foreign: Library) -> None:
    drop = measured(foreign, data).output.values["drop"]
    assert measured(foreign, data, max_drop=max(drop, 0.0)).output.values["drop"] == drop


def test_an_error_metric_loses_when_it_grows(foreign: Library) -> None:
    values = measured(foreign, None, metric="mae").output.values
    assert values["float"] == 0.0
    assert values["drop"] == values["quantized"] > 0


def test_no_more_than_the_wanted_samples_are_used(data: Dataset, foreign: Library) -> None:
    assert measured(foreign, data, samples=7).output.values["samples"] == 7


def test_a_fixed_batch_is_measured_whole(data: Dataset, foreign: Library) -> None:
    reference, model = classifier(batch="8"), classifier(steps=FINE, batch="8")
    values = evaluate.run(config(), reference=reference, model=model, library=foreign, data=data).output.values
    assert values["samples"] == 96
    free = measured(foreign, data, samples=96).output.values
    assert (values["float"], values["quantized"]) == (free["float"], free["quantized"])


def test_without_data_random_inputs_show_the_noise(foreign: Library) -> None:
    result = measured(foreign, None)
    assert result.output.values["metric"] == "cosine"
    assert result.output.values["float"] == 1.0
    assert result.report["inputs"] == "random inputs of N=2: no data was given"
    assert result.report["notes"] == ["evaluated on random inputs of N=2: no data was given"]


def test_a_model_that_no_inputs_are_found_for_is_not_measured_and_says_so(foreign: Library) -> None:
    """Seven times 1009 elements are more than anybody would guess: the build goes on, with nothing to show for it."""
    model = parser.parse_model(
        '<ir_version: 10, opset_import: ["": 21]> main (float[N] x) => (float[7, 1009] y)'
        "{ shape = Constant<value_ints = [7, 1009]>() y = Reshape(x, shape) }"
    )
    both = {"reference": ONNXModule(model), "model": ONNXModule(model)}
    result = evaluate.run(config(), **both, library=foreign, data=None)
    values = result.output.values
    assert (values["samples"], values["float"], values["compiled"]) == (0, None, None)
    assert str(values["not_run"]).startswith("ONNX Runtime: ")
    assert result.report["notes"][0].startswith("not evaluated: ")


@pytest.mark.long
def test_inputs_are_made_up_that_the_library_takes(compiled: Callable[[ONNXModule], Library]) -> None:
    """ONNX Runtime pools 3 rows, too, by a window of 40, where steps are larger still."""
    model = ONNXModule(
        parser.parse_model(
            '<ir_version: 10, opset_import: ["": 21]> main (float[1, 1, H, 8] x) => (float[1, 1, R, 8] y)'
            "{ y = MaxPool<kernel_shape = [40, 1], strides = [60, 1]>(x) }"
        )
    )
    result = evaluate.run(config(), reference=model, model=model, library=compiled(model), data=None)
    assert result.report["inputs"] == "random inputs of H=64: no data was given"


def test_a_scalar_sample_stays_a_scalar(foreign: Library, tmp_path: Path) -> None:
    model = parser.parse_model(
        '<ir_version: 10, opset_import: ["": 21]> main (float[N, 4] x, float s) => (float[N, 4] y, float z)'
        "{ y = Mul(x, s) z = ReduceMean<keepdims = 0>(y) }"
    )
    random = np.random.default_rng(0)
    np.savez(tmp_path / "s.npz", x=random.standard_normal((9, 4)), s=random.standard_normal(9))
    specs = input_specs(model)
    feed = next(iter(Dataset.open(str(tmp_path / "s.npz")).samples(DATA, specs, "calibration")))
    assert (feed["x"].shape, feed["s"].shape) == ((1, 4), ())
    both = {"reference": ONNXModule(model), "model": ONNXModule(model)}
    data = Dataset.open(str(tmp_path / "s.npz"))
    assert evaluate.run(config(), **both, library=foreign, data=data).output.values["samples"] > 0


def test_evaluating_on_the_calibration_samples_is_said(foreign: Library, data: Dataset) -> None:
    everything = config(data=asdict(replace(DATA, calibration_samples=SAMPLES)))
    result = evaluate.run(everything, reference=classifier(), model=classifier(), library=foreign, data=data)
    assert result.report["inputs"] == "the calibration samples: there are no others"


def test_labels_that_do_not_fit_the_metric_are_refused(foreign: Library, tmp_path: Path) -> None:
    np.savez(tmp_path / "odd.npz", x=np.zeros((40, FEATURES), np.float32), y=np.full(40, 99))
    with pytest.raises(DataError, match=r"expected classes 0 to 5, the values of 'y', found 99 to 99"):
        measured(foreign, Dataset.open(str(tmp_path / "odd.npz")))


@pytest.mark.parametrize(
    ("option", "value", "expected"),
    [
        ("samples", 0, "at least 1"),
        ("layer_samples", -1, "at least 0"),
        ("latency_runs", 0, "at least 1"),
        ("latency_seconds", 0, "more than 0"),
        ("max_drop", -0.5, "null or at least 0"),
    ],
)
def test_an_option_out_of_range_is_refused(option: str, value: float, expected: str) -> None:
    with pytest.raises(ConfigError) as caught:
        config(**{option: value})
    assert (caught.value.where, caught.value.expected) == (f"evaluate.{option}", expected)


def test_a_misspelt_metric_is_refused_before_any_work() -> None:
    with pytest.raises(ConfigError) as caught:
        config(metric="top_1")
    assert str(caught.value) == (
        "evaluate.metric: expected a metric: cosine, mae, top1, top5, found 'top_1'\n"
        "fix: did you mean 'top1'? choose one of those listed"
    )


def test_an_emulator_gives_scores_of_the_samples_that_it_is_given_and_no_times(data: Dataset) -> None:
    target = Target.from_tag("riscv64/generic")
    if emulator(target.arch) is None:
        pytest.skip(f"qemu-{target.arch} is not installed: apt-get install qemu-user")
    quantized = classifier(steps=FINE)
    chosen = Options(generator="tiled", opt_level=3, float16=False, channel_layout=None)
    library = build(quantized.mod, target, chosen)
    result = evaluate.run(
        config(runner="auto", emulated_samples=30),
        reference=classifier(),
        model=quantized,
        library=library,
        data=data,
    )
    values = result.output.values
    assert (values["samples"], values["compiled"], values["ran_in"]) == (
        30,
        values["quantized"],
        "qemu-riscv64 -cpu rv64",
    )
    assert list(result.output.latency) == ["not_timed"]
    assert result.report["compiled"] == "run by qemu-riscv64 -cpu rv64"


def test_an_emulator_of_ones_own_runs_the_artifact(data: Dataset) -> None:
    target = Target.from_tag("riscv64/generic")
    program = emulator(target.arch)
    if program is None:
        pytest.skip(f"qemu-{target.arch} is not installed: apt-get install qemu-user")
    chosen = Options(generator="tiled", opt_level=3, float16=False, channel_layout=None)
    model = classifier()
    result = evaluate.run(
        config(runner="emulator", emulator=[program, "-cpu", "rv64"], samples=20),
        reference=model,
        model=model,
        library=build(model.mod, target, chosen),
        data=data,
    )
    values = result.output.values
    assert (values["compiled"], values["ran_in"]) == (values["float"], f"{Path(program).name} -cpu rv64")


def test_what_ran_elsewhere_is_compared_with_its_model_there(data: Dataset) -> None:
    target = Target.from_tag("riscv64/generic")
    if emulator(target.arch) is None:
        pytest.skip(f"qemu-{target.arch} is not installed: apt-get install qemu-user")
    chosen = Options(generator="tiled", opt_level=3, float16=False, channel_layout=None)
    other, tolerance = classifier(), {"float32": 1e-4, "float16": 2e-2, "quantized": 0.1}
    weight = other.mod.graph.initializer[1]
    weight.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(weight) * np.float32(1.01), weight.name))
    model, place = classifier(), {"runner": "emulator", "emulated_samples": 4}

    def measure(source: ONNXModule, **changes: Any) -> None:
        library = build(source.mod, target, chosen)
        evaluate.run(config(**place, **changes), reference=model, model=model, library=library, data=data)

    measure(model, tolerance=tolerance)
    measure(other)  # nobody said how exact it is to be
    with pytest.raises(VerificationError, match=r"evaluate, qemu-riscv64.*within 0.0001.*off by.*first layer"):
        measure(other, tolerance=tolerance)


def test_what_runs_nowhere_says_what_would_run_it(
    data: Dataset, foreign: Library, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    result = measured(foreign, data, runner="auto")
    assert result.output.values["not_run"] == "one made for riscv64-linux-gnu"
    assert result.report["notes"] == ["not run: qemu-riscv64 is not installed: apt-get install qemu-user"]


@pytest.mark.long
def test_a_loss_by_compilation_fails_the_build_where_it_is_limited(
    data: Dataset, compiled: Callable[[ONNXModule], Library]
) -> None:
    models = {"reference": classifier(), "model": classifier(steps=FINE)}
    library = compiled(classifier(steps=COARSE))  # not what it is said to be
    evaluate.run(config(), **models, library=library, data=data)
    with pytest.raises(VerificationError, match=r"by compilation.*no layer: compiled once more, the model is right"):
        evaluate.run(config(max_compiled_drop=1.0), **models, library=library, data=data)


def test_a_library_that_keeps_states_is_measured_over_calls_that_go_on_from_each_other() -> None:
    model = ONNXModule(decoder(layers=1))
    result = evaluate.run(config(), reference=model, model=model, library=kept(model.mod), data=None)
    values, times = result.output.values, result.output.latency
    assert (values["samples"], values["ran_in"]) == (9, "host")
    assert values["compiled"] == pytest.approx(1.0, abs=1e-6)
    assert values["compiled_sqnr_db.logits"] > 100
    assert "compiled_sqnr_db.present.0.key" not in values
    assert times["prompt_tokens"] == 16, "the longest prompt of those that are tried that the library has room for"
    for prefix in ("", "prompt_"):
        assert times[f"{prefix}tokens_per_second"] > 0
    assert any(str(row["name"]).startswith("cached_attention") for row in times["kernels"])
