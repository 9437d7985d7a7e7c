"""Archives of strangers: what would leave its folder, explode, or run when it is read is refused, and why."""

from __future__ import annotations

import json
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from forge_pipeline.errors import ConfigError, ModelError
from forge_pipeline.frontends import keras_config, pt2, torchscript
from forge_pipeline.frontends.contract import Declared
from forge_pipeline.frontends.zips import open_zip
from forge_pipeline.ir.external_data.file_kinds import kind_of
from tests.support.paths import ROOT


def archive(path, entries, compression=zipfile.ZIP_STORED):
    with zipfile.ZipFile(path, "w", compression) as target:
        for name, content in entries:
            target.writestr(name, content)
    return path


def link(name):
    entry = zipfile.ZipInfo(name)
    entry.external_attr = 0o120777 << 16
    return entry


@pytest.mark.parametrize(
    ("entries", "found"),
    [
        ([("../../etc/cron.d/x", b"")], "leads out of its folder: '../../etc/cron.d/x'"),
        ([("/etc/passwd", b"")], "leads out of its folder: '/etc/passwd'"),
        ([("a\\..\\b", b"")], "leads out of its folder"),
        ([(link("weights"), b"/etc/passwd")], "a link: 'weights'"),
    ],
)
def test_an_entry_that_leads_elsewhere_is_refused(tmp_path, entries, found):
    with pytest.raises(ModelError, match=f"(?s){found}"), open_zip(archive(tmp_path / "m", entries)):
        pass


def test_two_entries_of_one_name_are_refused(tmp_path):
    with pytest.warns(UserWarning, match="Duplicate name"):
        path = archive(tmp_path / "m", [("a", b"1"), ("a", b"2")])
    with pytest.raises(ModelError, match="two entries of one name: 'a'"), open_zip(path):
        pass


def test_a_bomb_is_refused_before_anything_is_unpacked(tmp_path):
    path = archive(tmp_path / "m", [("zeros", bytes(80 << 20))], zipfile.ZIP_DEFLATED)
    with pytest.raises(ModelError, match=r"an entry that grows from .* to 83886080 bytes"), open_zip(path):
        pass


def test_a_bomb_of_many_small_entries_is_refused(tmp_path):
    path = archive(tmp_path / "m", [(f"zeros{i}", bytes(10 << 20)) for i in range(9)], zipfile.ZIP_DEFLATED)
    with pytest.raises(ModelError, match="a zip bomb"), open_zip(path):
        pass


def test_a_cut_archive_is_refused(tmp_path):
    path = archive(tmp_path / "m", [("a", b"x" * 1000)])
    path.write_bytes(path.read_bytes()[:-30])
    with pytest.raises(ModelError, match="a damaged one"), open_zip(path):
        pass


SYMBOL = "Symbol('s40', positive=True, integer=True)"


def program(tmp_path, *, target="torch.ops.aten.relu.default", size=SYMBOL, payload="weight_0", pickled=False, more=()):
    graph = {
        "nodes": [{"target": target, "inputs": []}],
        "sym_int_values": {"n": {"as_expr": {"expr_str": size, "hint": None}}},
        "in_spec": "[1, {}]",
    }
    weights = {"config": {"w": {"path_name": payload, "use_pickle": pickled}}}
    entries = [
        ("m/archive_format", b"pt2"),
        ("m/models/model.json", json.dumps({"graph_module": {"graph": graph}})),
        ("m/data/weights/model_weights_config.json", json.dumps(weights)),
        ("m/data/weights/weight_0", b"0123"),
        *more,
    ]
    return archive(tmp_path / "m.pt2", entries)


def test_an_exported_program_of_data_alone_passes(tmp_path):
    pt2.check(program(tmp_path))


@pytest.mark.parametrize(
    "size",
    [
        "2*s0 + 1",
        f"Add({SYMBOL}, Integer(2))",
        "Max(1, s0//2)",
        "Eq(s0, 4) & (s1 < 3)",
        "Float('0.5', precision=53)*s0",
        "GreaterThan(Symbol('u1', integer=True), Integer(0))",  # as torch.export checks sizes that data decides
        "Or(Equality(s0, Integer(4)), Not(StrictLessThan(s1, Integer(3))))",
    ],
)
def test_arithmetic_on_sizes_passes(tmp_path, size):
    pt2.check(program(tmp_path, size=size))


@pytest.mark.parametrize(
    "size",
    [
        "__import__('os').system('id')",
        "().__class__",
        "exec('x')",
        "Symbol('s0').subs(1)",
        "Symbol('x', a=True) if open('y') else 0",
        "eval(s0)",
        "lambda: s0",
        "GreaterThan(eval(s0), Integer(0))",
        "[s0]",
        7,
    ],
)
def test_a_size_that_would_be_evaluated_as_code_is_refused(tmp_path, size):
    with pytest.raises(ModelError, match="found the size "):
        pt2.check(program(tmp_path, size=size))


@pytest.mark.parametrize(
    "target",
    [
        "torch.hub.load_state_dict_from_url",
        "torch.load",
        "torch.ops.load_library",
        "torch.ops.aten.from_file.default",
        "torch.ops.mine.custom.default",
        "_operator.methodcaller",
        "math.__loader__.load_module",
        "os.system",
        "#aoti:x",
    ],
)
def test_an_operator_outside_pytorchs_own_is_refused(tmp_path, target):
    with pytest.raises(ModelError, match="found the operator "):
        pt2.check(program(tmp_path, target=target))


@pytest.mark.parametrize(
    ("change", "found"),
    [
        ({"pickled": True}, "a pickled tensor or object"),
        ({"payload": "opaque_obj_0"}, "a pickled tensor or object"),
        ({"payload": "../../x"}, "a pickled tensor or object"),
        ({"more": [("m/data/aotinductor/model/x.so", b"")]}, "which may be code or a pickle"),
        ({"more": [("m/data/constants/custom_obj_0", b"")]}, "which may be code or a pickle"),
        ({"more": [("m/models/other.json", b"{}")]}, "2 programs"),
        ({"more": [("serialized_exported_program.json", b"{}")]}, "before 2.8, whose weights are pickled"),
    ],
)
def test_what_pytorch_would_unpickle_or_load_is_refused(tmp_path, change, found):
    with pytest.raises(ModelError, match=found):
        pt2.check(program(tmp_path, **change))


@pytest.mark.parametrize(
    "line",
    [
        "torch.from_file('x', True, 4)",
        "torch.save(x, 'y')",
        "ops.image.read_file('x')",
        "ops.aten.from_file('x')",
        "__torch__.torch.classes.mine.Thing",
    ],
)
def test_torchscript_that_reaches_files_or_libraries_is_refused(tmp_path, line):
    code = f"def forward(self, x):\n  return {line}\n"
    path = archive(tmp_path / "m.pt", [("m/data.pkl", b""), ("m/code/__torch__.py", code)])
    with pytest.raises(ModelError, match=r"expected a module of PyTorch's own operators"):
        torchscript.convert(path, (Declared(name="x", shape=(1,)),))


def test_torchscript_without_declared_inputs_says_how_to_declare_them(tmp_path):
    path = archive(tmp_path / "m.pt", [("m/data.pkl", b""), ("m/code/__torch__.py", "")])
    with pytest.raises(ConfigError, match=r"model.inputs: .*\nfix: declare them, as in model.inputs=\[{name"):
        torchscript.convert(path, ())


def config(class_name, module="keras.layers", **more):
    layer = {"class_name": class_name, "module": module, "config": {"name": "layer", **more}}
    return json.dumps({"class_name": "Functional", "module": "keras", "config": {"layers": [layer]}})


def test_keras_layers_pass(tmp_path):
    keras_config.check_config(tmp_path, config("Dense", units=4))


@pytest.mark.parametrize(
    ("text", "found"),
    [
        (config("Lambda"), "'Lambda' in layer 'layer', which runs code of the file"),
        (config("TorchModuleWrapper"), "which runs code of the file"),
        (config("Dense", activation={"class_name": "__lambda__", "config": {}}), "which runs code of the file"),
        (config("system", module="os"), "the custom object 'system' in layer 'layer' of 'os'"),
        (config("x", module="keras_evil"), "the custom object"),
        (config("StringLookup", vocabulary="/etc/passwd"), "the file name '/etc/passwd' as 'vocabulary'"),
        ("{", "no JSON"),
        ("[" * 100_000, "no JSON"),
    ],
)
def test_a_keras_configuration_that_names_code_or_files_is_refused(tmp_path, text, found):
    with pytest.raises(ModelError, match=found):
        keras_config.check_config(tmp_path, text)


def test_a_keras_archive_with_more_than_a_model_is_refused(tmp_path):
    entries = [("config.json", config("Dense")), ("model.weights.h5", b""), ("assets/x.txt", b"")]
    with pytest.raises(ModelError, match=r"an entry 'assets/x\.txt'"):
        keras_config.check_archive(archive(tmp_path / "m.keras", entries))


def test_an_hdf5_file_that_refers_to_others_is_refused(tmp_path):
    h5py = pytest.importorskip("h5py")

    def made(name, fill):
        path = tmp_path / name
        with h5py.File(path, "w") as file:
            file.attrs["model_config"] = config("Dense")
            fill(file)
        return path

    def outside(file):
        file["w"] = h5py.ExternalLink("/etc/passwd", "/")

    def stored(file):
        file.create_dataset("w", (4,), "i1", external=[(str(tmp_path / "secret"), 0, 4)])

    (tmp_path / "secret").write_bytes(b"abcd")
    keras_config.check_hdf5(made("good", lambda file: file.create_dataset("w", data=[1.0])))
    for name, fill, found in (("link", outside, "a link 'w'"), ("external", stored, "data 'w' in another file")):
        with pytest.raises(ModelError, match=found):
            keras_config.check_hdf5(made(name, fill))
    (tmp_path / "cut").write_bytes((tmp_path / "good").read_bytes()[:300])
    with pytest.raises(ModelError, match=r"found a damaged or cut file\nfix"):
        keras_config.check_hdf5(tmp_path / "cut")


@pytest.mark.every(2)
@pytest.mark.parametrize(
    ("kind", "packages", "extra"),
    [
        ("pt2", "torch, onnxscript", "torch"),
        ("torchscript", "torch, onnxscript", "torch"),
        ("keras", "keras, torch, onnxscript", "keras"),
        ("tflite", "tflite", "tflite"),
        ("savedmodel", "tensorflow, tf2onnx", "tensorflow"),
    ],
)
def test_without_its_extra_a_model_is_refused_with_the_command_that_installs_it(tmp_path, kind, packages, extra):
    path = tmp_path / "model"
    if kind == "savedmodel":
        path.mkdir()
        (path / "saved_model.pb").write_bytes(b"")
    elif kind == "tflite":
        path.write_bytes(b"\x1c\0\0\0TFL3" + bytes(100))
    else:
        entry = {"pt2": "m/archive_format", "torchscript": "m/code/__torch__.py", "keras": "config.json"}[kind]
        beside = "model.weights.h5" if kind == "keras" else "m/data.pkl"
        archive(path, [(entry, b""), (beside, b"")])
    assert kind_of(path) == kind
    code = (
        "import sys; from pathlib import Path; from forge_pipeline import ForgeError, load\n"
        "try: load(sys.argv[1])\n"
        "except ForgeError as error: print(error)"
    )
    done = subprocess.run(
        [sys.executable, "-S", "-c", code, str(path)],
        env={"PYTHONPATH": f"{ROOT}:{_packages(tmp_path)}"}, capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert done.stdout.splitlines() == [
        f"{path}: expected {packages}, to read {_title(kind)}, found not installed",
        f"fix: pip install 'forge-pipeline[{extra}]'",
    ]


def _title(kind):
    from forge_pipeline.ir.external_data.file_kinds import KINDS

    return KINDS[kind].title


def _packages(tmp_path):
    """Return a folder with this environment's packages but those of the extras."""
    import numpy

    hidden = ("torch", "onnxscript", "keras", "tflite", "tensorflow", "tf2onnx")
    folder = tmp_path / "packages"
    folder.mkdir()
    for entry in Path(numpy.__file__).parents[1].iterdir():
        if not entry.name.lower().startswith(hidden) and entry.suffix != ".pth":
            (folder / entry.name).symlink_to(entry)
    return folder
