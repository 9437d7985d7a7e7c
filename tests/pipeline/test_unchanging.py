"""What a stage reads is what its key says: whatever changes in between, nothing wrong is recorded or delivered."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import yaml
from onnx import numpy_helper

from benchmarks.memory import large_model
from forge_pipeline.api.load import load as load_model
from forge_pipeline.data import Dataset
from forge_pipeline.errors import ForgeError
from forge_pipeline.frontends import Source
from forge_pipeline.locate import conf_dir
from forge_pipeline.pipeline.build import run_stages, source_inputs
from forge_pipeline.pipeline.deliver import deliver
from forge_pipeline.pipeline.hydra_app import compose
from forge_pipeline.pipeline.runner import External, Input, Output, Runner
from forge_pipeline.pipeline.stage_configs import slices
from forge_pipeline.store import Store
from tests.support.paths import ROOT
from tests.support.tiny import write_model

SAMPLES = 16


@dataclass(frozen=True)
class Hooked:
    """An input to which something happens between its digest and its value."""

    inner: Input
    hook: Callable[[], object]

    def digest(self) -> Any:
        return self.inner.digest()

    def value(self) -> Any:
        self.hook()
        return self.inner.value()


def _options(stage: str) -> dict[str, Any]:
    return dict(yaml.safe_load((conf_dir() / stage / "default.yaml").read_text()))


@pytest.fixture
def store(tmp_path: Path) -> Any:
    with Store(tmp_path / "store") as store:
        yield store


@pytest.fixture
def loaded(store: Store, model: Path) -> Output:
    return Runner(store=store).run("load", _options("load"), {"source": External(Source(model))})


def _refused(store: Store, stage: str, options: Any, inputs: dict[str, Input | None], name: str, **more: Any) -> None:
    before = store.actions()
    with pytest.raises(ForgeError) as refusal:
        Runner(store=store, **more).run(stage, options, inputs)
    assert name in refusal.value.where
    assert store.actions() == before


def _exchange(path: Path, other: bytes) -> None:
    path.with_name("other").write_bytes(other)
    path.with_name("other").replace(path)


def _write_with_old_times(path: Path, other: bytes) -> None:
    status = path.stat()
    path.write_bytes(other)
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))


def _link(path: Path, other: bytes) -> None:
    path.with_name("other").write_bytes(other)
    path.unlink()
    path.symlink_to("other")


CHANGES = {"exchanged": _exchange, "written with its old times": _write_with_old_times, "made a link": _link}


@pytest.mark.parametrize("change", CHANGES)
def test_a_model_that_changes_between_its_digest_and_its_reading_is_refused(
    store: Store, model: Path, tmp_path: Path, change: str
) -> None:
    other = write_model(tmp_path / "b.onnx", seed=1).read_bytes()
    source = Hooked(External(Source(model)), lambda: CHANGES[change](model, other))
    _refused(store, "load", _options("load"), {"source": source}, model.name)
    built = Runner(store=store).run("load", _options("load"), {"source": External(Source(model))})
    assert not built.hit


def test_a_model_that_is_exchanged_while_it_is_read_and_put_back_is_refused(
    store: Store, model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from forge_pipeline.stages import load

    run, content = load.run, model.read_bytes()

    def put_back(config: Any, source: Source) -> Any:
        try:
            return run(config, source)
        finally:
            model.with_name("away").replace(model)

    def exchange() -> None:
        model.rename(model.with_name("away"))
        write_model(model, seed=1)

    monkeypatch.setattr(load, "run", put_back)
    source = Hooked(External(Source(model)), exchange)
    _refused(store, "load", _options("load"), {"source": source}, model.name)
    assert model.read_bytes() == content


@pytest.mark.parametrize("inline", [0, 1 << 30])
def test_external_data_that_changes_before_it_is_read_is_refused(
    store: Store, model: Path, tmp_path: Path, inline: int
) -> None:
    folder = tmp_path / "apart"
    folder.mkdir()
    onnx.save(onnx.load(model), folder / "net.onnx", save_as_external_data=True, location="net.bin", size_threshold=100)
    data = folder / "net.bin"
    changed = bytes(byte ^ 1 for byte in data.read_bytes())
    source = Hooked(External(Source(folder / "net.onnx")), lambda: data.write_bytes(changed))
    _refused(store, "load", {**_options("load"), "inline_bytes": inline}, {"source": source}, data.name)


def test_external_data_that_changes_while_it_is_copied_into_the_store_is_refused(
    store: Store, model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from forge_pipeline.stages import load

    run, folder = load.run, tmp_path / "apart"
    folder.mkdir()
    network = onnx.load(model)
    network.graph.initializer[0].CopyFrom(numpy_helper.from_array(np.ones((8, 3, 3, 3), np.float32), "w"))
    onnx.save(network, folder / "net.onnx", save_as_external_data=True, location="net.bin", size_threshold=100)
    data = folder / "net.bin"

    def then_change(config: Any, source: Source) -> Any:
        result = run(config, source)
        data.write_bytes(bytes(byte ^ 1 for byte in data.read_bytes()))
        return result

    monkeypatch.setattr(load, "run", then_change)
    options = {**_options("load"), "inline_bytes": 0}
    _refused(store, "load", options, {"source": External(Source(folder / "net.onnx"))}, data.name)


def _npz(folder: Path, seed: int) -> Path:
    rng = np.random.default_rng(seed)
    np.savez(folder / "s.npz", x=rng.normal(size=(8, 3, 12, 12)).astype(np.float32))
    return folder / "s.npz"


def _npy(folder: Path, seed: int) -> Path:
    np.save(folder / "s.npy", np.random.default_rng(seed).normal(size=(8, 3, 12, 12)).astype(np.float32))
    return folder / "s.npy"


def _npz_folder(folder: Path, seed: int) -> Path:
    (folder / "s").mkdir(exist_ok=True)
    for index in range(3):
        x = np.random.default_rng(seed + index).normal(size=(3, 12, 12)).astype(np.float32)
        np.savez(folder / "s" / f"{index}.npz", x=x)
    return folder / "s"


def _images(folder: Path, seed: int) -> Path:
    from PIL import Image

    (folder / "s").mkdir(exist_ok=True)
    for index in range(3):
        pixels = np.random.default_rng(seed + index).integers(0, 255, (12, 12, 3), np.uint8)
        Image.fromarray(pixels).save(folder / "s" / f"{index}.png")
    return folder / "s"


@pytest.mark.every(2)
@pytest.mark.parametrize("write", [_npz, _npy, _npz_folder, _images])
def test_samples_that_change_between_their_digest_and_their_reading_are_refused(
    store: Store, loaded: Output, tmp_path: Path, write: Callable[[Path, int], Path]
) -> None:
    path = write(tmp_path, 0)
    section = compose([f"data={'images' if write is _images else 'npz'}", f"data.path={path}"])["data"]
    if write is _images:
        section["image"] |= {"resize": None, "crop": None}
    places = ("path", "eval_path")
    options = {**_options("calibrate"), "data": {key: value for key, value in section.items() if key not in places}}
    data = Hooked(External(Dataset.from_config(section)), lambda: write(tmp_path, 5))
    ambient = {"ambient": {"progress": lambda stage: None}}
    _refused(store, "calibrate", options, {"model": loaded, "data": data}, path.stem, **ambient)


def test_a_function_that_gives_other_samples_each_time_is_refused(
    store: Store, loaded: Output, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "never_the_same.py").write_text(
        "import numpy as np\nrng = np.random.default_rng()\n"
        "def samples():\n    return [rng.normal(size=(3, 12, 12)).astype(np.float32) for _ in range(4)]\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    section = compose(["data=npz", "data.path=never_the_same:samples"])["data"]
    options = {**_options("calibrate"), "data": {k: v for k, v in section.items() if k not in ("path", "eval_path")}}
    data = External(Dataset.from_config(section))
    ambient = {"ambient": {"progress": lambda stage: None}}
    _refused(store, "calibrate", options, {"model": loaded, "data": data}, "calibrate: data", **ambient)


def test_a_users_own_pass_that_is_edited_before_it_is_imported_is_refused(
    store: Store, loaded: Output, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = tmp_path / "edited_passes.py"
    module.write_text("PASSES = {}\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    options = slices(compose(["model.path=x", "fold=basic", "fold.imports=[edited_passes]"]))["fold"]
    edited = Hooked(loaded, lambda: module.write_text("PASSES = {}  # another\n"))
    _refused(store, "fold", options, {"model": edited}, module.name)


def test_a_loaded_model_whose_file_is_written_to_is_not_read_on(tmp_path: Path) -> None:
    path, weights = tmp_path / "m.onnx", tmp_path / "weights.bin"
    large_model(path, 1, width=256)
    module = load_model(path, inline_bytes=1000)
    assert module.is_mapped
    fingerprint = module.fingerprint
    _exchange(weights, b"another file under its name")
    assert module.fingerprint == fingerprint, "the file that was opened is as it was"
    large_model(path, 1, width=256)
    module = load_model(path, inline_bytes=1000)
    weights.write_bytes(bytes(byte ^ 1 for byte in weights.read_bytes()))
    for attempt in (lambda: module.fingerprint, lambda: module.compile(output_path=tmp_path / "out")):
        with pytest.raises(ForgeError, match=r"weights\.bin: expected a file that stays as it is while it is read"):
            attempt()
    assert not (tmp_path / "out").exists()


def test_code_that_is_edited_after_it_was_imported_does_not_run_under_the_edited_files_key(
    store: Store, loaded: Output, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = tmp_path / "imported_passes.py"
    module.write_text("PASSES = {}\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    options = slices(compose(["model.path=x", "fold=basic", "fold.imports=[imported_passes]"]))["fold"]
    runner = Runner(store=store)
    assert not runner.run("fold", options, {"model": loaded}).hit
    assert runner.run("fold", options, {"model": loaded}).hit
    module.write_text("PASSES = {}  # another\n")
    with pytest.raises(ForgeError, match=r"imported_passes\.py: expected the code that this process has imported"):
        runner.run("fold", options, {"model": loaded})


SWAP = """
import sys
from pathlib import Path
from forge_pipeline.frontends.source import Source
digest, model = Source.digest, Path(sys.argv[1])
def and_then_exchange(self):
    found = digest(self)
    if (other := model.with_name("other.onnx")).exists():
        other.replace(model)
    return found
Source.digest = and_then_exchange
from forge_pipeline.cli import main
main(sys.argv[2:])
"""


def test_a_run_whose_model_is_exchanged_in_between_ends_with_its_name_and_delivers_nothing(
    forge: Any, model: Path, tmp_path: Path
) -> None:
    good = model.read_bytes()
    write_model(model.with_name("other.onnx"), seed=1)
    arguments = ["run", f"model.path={model}", f"out={tmp_path / 'out'}", "fold=none", "quantize=none"]
    done = subprocess.run(
        [sys.executable, "-c", SWAP, str(model), *arguments],
        env={**os.environ, "FORGE_STORE": str(tmp_path / "store"), "PYTHONPATH": str(ROOT)},
        cwd=tmp_path, capture_output=True, text=True, check=False, timeout=300,
    )  # fmt: skip
    assert done.returncode == 1, done.stderr
    assert done.stderr == (
        f"error: {model}: expected a file that stays as it is while it is read, "
        "found other content, or another file in its place\n"
        "fix: run this again once nothing writes to it\n"
    )
    assert not (tmp_path / "out").exists()
    assert forge("store", "ls").stdout == "empty\n"
    assert model.read_bytes() != good


def _spoiled(path: Path) -> bytes:
    """Return the model with other weights: as valid, and wrong."""
    model = onnx.load(path)
    for tensor in model.graph.initializer:
        array = numpy_helper.to_array(tensor)
        if array.dtype == np.int8:
            tensor.CopyFrom(numpy_helper.from_array(-array, tensor.name))
    return model.SerializeToString()


@pytest.mark.every(2)
@pytest.mark.parametrize("place", ["delivered", "stored"])
def test_a_quantized_model_that_is_edited_while_others_are_built_of_it_leaves_no_wrong_result(
    model: Path, data: Path, tmp_path: Path, warm: Any, place: str
) -> None:
    config = compose([f"model.path={model}", f"data.path={data}", "quantize=static"])
    shutil.copytree(warm.store, tmp_path / "untouched")
    (tmp_path / "out").mkdir()
    told: list[str] = []

    def run(samples: int | None, announce: Any = lambda output: None, *, name: str = "store") -> dict[str, Output]:
        config["evaluate"]["samples"] = samples
        with Store(tmp_path / name, on_damage=told.append) as store:
            runner = Runner(
                store=store,
                ambient={
                    "password": lambda stage: None,
                    "entropy": lambda stage: os.urandom,
                    "dump": lambda stage: None,
                    "shelf": lambda stage: None,
                    "device": lambda stage: None,
                    "quiet": lambda stage: nullcontext,
                },
                announce=announce,
            )
            parts = slices(config)
            outputs = run_stages(runner, parts, source_inputs(config))
            deliver(outputs, parts, tmp_path / "out", sealed=False)
        return outputs

    def edit(output: Output) -> None:
        if output.stage.name == "compile":
            path = stored if place == "stored" else tmp_path / "out" / "model.onnx"
            path.chmod(0o600)
            path.write_bytes(wrong)

    def score() -> float:
        return float(json.loads((tmp_path / "out" / "metrics.json").read_text())["quantized"])

    run(SAMPLES, name="untouched")
    expected = score()
    first = run(None)
    assert all(output.hit for output in first.values())
    stored = first["quantize"].files()["model.onnx"]
    sound, wrong = stored.read_bytes(), _spoiled(stored)
    if place == "stored":
        with pytest.raises(ForgeError, match="an object that stays as it is while it is read"):
            run(SAMPLES, edit)
        again = run(SAMPLES)
        assert not again["quantize"].hit and not again["evaluate"].hit
        assert [str(stored) in line for line in told] == [True, True], "damaged, and then missing"
    else:
        assert not run(SAMPLES, edit)["evaluate"].hit
        assert run(SAMPLES)["evaluate"].hit
        assert told == []
    assert stored.read_bytes() == (tmp_path / "out" / "model.onnx").read_bytes() == sound
    assert score() == expected
