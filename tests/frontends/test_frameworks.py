"""Models of PyTorch and Keras through the importers for real: numbers, names, open sizes, refusals, same bytes."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import forge_pipeline
from forge_pipeline import Declared, load
from forge_pipeline.errors import ConfigError, ModelError
from forge_pipeline.frontends import Source
from forge_pipeline.frontends.contract import Limits
from forge_pipeline.frontends.table import import_model, tools_for
from tests.support.paths import ROOT, SHARED
from tests.support.sums import assert_same_sums, terms_of

IMAGE = Declared(name="image", shape=("N", 3, 8, 8))


def computed(module, **feeds):
    found = module.get_inference_function()(*feeds.values())
    return found if isinstance(found, list | tuple) else [found]


@pytest.fixture(scope="module")
def exported(made):
    """Return the exported program as it is loaded."""
    return load(made / "net.pt2")


def test_an_exported_program_keeps_its_names_and_batch(made, exported):
    module = exported
    assert (module.input_names, module.output_names) == (["image"], ["logits", "features"])
    (batch, *rest), outputs = module.input_shapes[0], module.output_shapes
    assert isinstance(batch, str)
    assert rest == [3, 8, 8]
    assert outputs == [(batch, 4), (batch, 8)]
    with np.load(made / "torch.npz") as expected:
        for value, name in zip(computed(module, image=expected["image"]), module.output_names, strict=True):
            assert_same_sums(value, expected[name], terms=terms_of(module.mod))


@pytest.mark.long  # that its bytes are the same in another process and folder is seen with objects, below
def test_an_exported_program_gives_the_same_bytes_whatever_its_name(made, exported, tmp_path, monkeypatch):
    elsewhere = tmp_path / "other.bin"
    elsewhere.write_bytes((made / "net.pt2").read_bytes())
    monkeypatch.setenv("PYTHONHASHSEED", "17")
    monkeypatch.chdir(tmp_path)
    assert load("other.bin").to_bytes() == exported.to_bytes()


def test_torchscript_takes_the_names_and_sizes_that_are_declared(made):
    module = load(made / "net.pt", inputs=[IMAGE])
    assert (module.input_names, module.output_names) == (["image"], ["output"])
    assert (module.input_shapes, module.output_shapes) == ([("N", 3, 8, 8)], [("N", 4)])
    with np.load(made / "torch.npz") as expected:
        (found,) = computed(module, image=expected["image"])
        assert_same_sums(found, expected["scripted"], terms=terms_of(module.mod))


@pytest.mark.long  # a plain endless loop is in test_apart.py
def test_torchscript_that_never_ends_is_stopped(made):
    with pytest.raises(ModelError, match="imported within 12 seconds, found an importer that was still running"):
        import_model(
            Source(made / "loop.pt"),
            inputs=(Declared(name="x", shape=(4,)),),
            limits=Limits(memory=8 << 30, seconds=12),
        )


def test_torchscript_that_writes_a_file_is_refused(made):
    with pytest.raises(ModelError, match=r"found 'torch.from_file' in"):
        load(made / "writer.pt", inputs=[Declared(name="x", shape=(4,))])


def test_torchscript_that_holds_a_class_of_a_library_is_refused_by_its_name(made):
    with pytest.raises(ModelError, match=r"found '__torch__.torch.classes' in 'packed/code/__torch__/torch/ao/"):
        load(made / "packed.pt", inputs=[Declared(name="x", shape=("N", 4))])


TRACED = """
import numpy, torch
torch.manual_seed(0)
layer = torch.nn.TransformerEncoderLayer(16, 2, 32, batch_first=True)
x = torch.randn(5, 7, 16)
module = torch.jit.trace(torch.nn.TransformerEncoder(layer, 1).eval(), (x,), check_trace=False)
module.save("traced.pt")
numpy.savez("traced.npz", x=x.numpy(), y=module(x).detach().numpy())
"""


@pytest.mark.long
@pytest.mark.parametrize(
    "file", ["Stateful.pt", "Assigning.pt", "InPart.pt", "Detached.pt", "Stateful.pt2", "Decomposed.pt2"]
)
def test_a_model_that_writes_to_what_it_keeps_between_calls_is_refused(made, file):
    inputs = [] if file.endswith("pt2") else [Declared(name="x", shape=(1, 4))]
    with pytest.raises(ModelError) as refusal:
        load(made / file, inputs=inputs)
    assert refusal.value.found == "one that writes to what it keeps between calls: state"
    assert "inputs and outputs of `forward`" in refusal.value.fix


def test_a_model_may_write_to_what_it_makes_itself(made):
    (found,) = computed(load(made / "Scratch.pt", inputs=[Declared(name="x", shape=(1, 4))]), x=np.ones((1, 4), "f4"))
    np.testing.assert_array_equal(found, np.ones((1, 4), "f4"))


@pytest.mark.long
def test_a_traced_encoder_whose_projections_are_one_matrix_keeps_an_open_batch(tmp_path):
    command = [sys.executable, "-W", "ignore", "-c", TRACED]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    module = load(tmp_path / "traced.pt", inputs=[Declared(name="x", shape=("N", 7, 16))])
    assert module.output_shapes == [("N", 7, 16)]
    with np.load(tmp_path / "traced.npz") as expected:
        assert_same_sums(computed(module, x=expected["x"])[0], expected["y"], terms=terms_of(module.mod))


def test_a_state_dict_is_never_read(made):
    with pytest.raises(ModelError, match="found a pickled PyTorch checkpoint, which runs code when it is read"):
        load(made / "state.pt")


@pytest.mark.parametrize("name", ["net.keras", pytest.param("net.h5", marks=pytest.mark.long)])
def test_a_keras_model_keeps_its_names_and_batch(made, name):
    module = load(made / name)
    assert (module.input_names, module.output_names) == (["image"], ["probs"])
    assert (module.input_shapes, module.output_shapes) == ([("N", 12, 12, 3)], [("N", 5)])
    with np.load(made / "keras.npz") as expected:
        (found,) = computed(module, image=expected["image"])
        assert_same_sums(found, expected["probs"], terms=terms_of(module.mod))


@pytest.mark.long
@pytest.mark.parametrize("name", [pytest.param("chain.keras", marks=pytest.mark.long), "chain.h5"])
def test_a_sequential_keras_model_keeps_its_names_and_batch(made, name):
    module = load(made / name)
    assert (module.input_names, module.output_names) == (["x"], ["y"])
    assert (module.input_shapes, module.output_shapes) == ([("N", 2)], [("N", 1)])


@pytest.mark.every(2)
@pytest.mark.parametrize("suffix", ["keras", "h5"])
def test_a_lambda_and_a_custom_layer_are_refused_with_what_to_do(made, suffix):
    with pytest.raises(ModelError, match=r"'Lambda' in layer 'lambda.*', which runs code of the file"):
        load(made / f"lambda.{suffix}")
    with pytest.raises(ModelError, match=r"the custom object 'mine>Twice'|the custom object 'Twice'") as refusal:
        load(made / f"custom.{suffix}")
    assert "model.export(" in refusal.value.fix


def test_weights_without_a_model_are_refused(made):
    with pytest.raises(ModelError, match="found weights without a model"):
        load(made / "only.weights.h5")


@pytest.mark.long  # a small model of each format is above
@pytest.mark.skipif(not SHARED.is_dir(), reason="needs ../shared/models and ../shared/eval")
def test_the_real_h5_model_scores_what_its_onnx_form_scores():
    with np.load(SHARED / "eval" / "cifar10_1200.npz") as archive:
        x, labels = archive["x"].astype(np.float32), archive["y"]
    folder = SHARED / "models" / "mlperf_tiny_resnet8"
    scores = [int((run(load(folder / name), x).argmax(1) == labels).sum()) for name in ("resnet8.onnx", "resnet8.h5")]
    assert scores == [927, 927]


def run(module, feed):
    import onnxruntime

    session = onnxruntime.InferenceSession(module.to_bytes(), providers=["CPUExecutionProvider"])
    (found,) = session.run(None, {module.input_names[0]: feed})
    return found


def test_declared_inputs_are_refused_where_the_file_says_what_they_are(made):
    with pytest.raises(ConfigError, match=r"expected nothing: a PyTorch exported program .* says what its inputs are"):
        load(made / "net.pt2", inputs=[IMAGE])


def test_the_importers_versions_are_tools_of_the_action_key(made):
    from forge_pipeline.pipeline.build import model_input
    from forge_pipeline.pipeline.runner import key_parts, tool_version
    from forge_pipeline.stages import STAGES

    keys = {
        name: key_parts(STAGES["load"], {}, {"source": model_input(made / name)})["tools"]
        for name in ("net.pt2", "net.keras")
    }
    assert keys["net.pt2"] == {name: tool_version(name) for name in ("onnx", "onnxscript", "torch")}
    assert keys["net.keras"].keys() == {"keras", "onnx", "onnxscript", "torch"}
    assert tools_for(Path("examples/digits/digits.onnx")) == ()


OBJECTS = """
import sys, numpy, torch
import onnx, forge_pipeline as forge
from tests.support.frontends.make_models import Net, Script
image = torch.from_numpy(numpy.load(sys.argv[1])["image"])
torch.manual_seed(0)
net = Net().eval()
size = {"image": {0: torch.export.Dim("batch")}}
wanted = net(image)["logits"].detach().numpy()
shape = ("image", ("N", 3, 8, 8))
for name, module in {
    "module": forge.load(net, inputs=[image], dynamic_shapes=size),
    "trace": forge.from_torch(torch.jit.trace(Script().eval(), image), [shape]),
}.items():
    assert isinstance(module, forge.ONNXModule)
    assert module.input_names == ["image"] and module.input_shapes[0][1:] == (3, 8, 8), module
    assert isinstance(module.input_shapes[0][0], str)
    if name == "module":
        found = module.get_inference_function()(image.numpy())[0]
        assert abs(found - wanted).max() <= 1e-5
        assert module.to_bytes() == open("wanted.onnx", "rb").read()
        again = forge.load(onnx.load_from_string(module.to_bytes()))
        assert again.to_bytes() == module.to_bytes() == forge.load(module.to_bytes()).to_bytes()
        assert forge.from_onnx(module.mod, {"image": (2, 3, 8, 8)}).output_shapes == [(2, 4), (2, 8)]
for bad, said in ((net.train(), "training mode"), (object(), "an object of builtins.object")):
    try:
        forge.load(bad, inputs=[image])
    except forge.ForgeError as error:
        assert said in str(error), error
    else:
        raise AssertionError(said)
print("done")
"""


@pytest.mark.long
def test_objects_of_frameworks_load_as_their_files_do(made, exported, tmp_path):
    (tmp_path / "wanted.onnx").write_bytes(exported.to_bytes())
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", OBJECTS, str(made / "torch.npz")],
        cwd=tmp_path, capture_output=True, text=True, check=False,
        env=os.environ | {"PYTHONPATH": str(ROOT), "PYTHONHASHSEED": "17"},
    )  # fmt: skip
    assert done.stdout == "done\n", done.stderr[-3000:]


def test_a_path_of_the_wrong_kind_of_argument_is_refused(tmp_path):
    with pytest.raises(ModelError, match="expected inputs as Declared"):
        load(tmp_path / "m.pt", inputs=[np.zeros(3)])
    assert "load" in forge_pipeline.__all__


@pytest.mark.long
def test_a_saved_model_keeps_its_signature(tmp_path):
    tensorflow = pytest.importorskip("tensorflow", reason="the extra [tensorflow] is not installed")
    holder = tensorflow.Module()
    weight = tensorflow.constant(np.random.default_rng(0).standard_normal((8, 5)).astype("float32"))
    spec = tensorflow.TensorSpec([None, 8], tensorflow.float32, name="sample")
    holder.function = tensorflow.function(lambda sample: {"scores": tensorflow.nn.softmax(sample @ weight)})
    signature = holder.function.get_concrete_function(spec)
    tensorflow.saved_model.save(holder, str(tmp_path / "saved"), signatures=signature)
    module = load(tmp_path / "saved")
    assert (module.input_names, module.output_names) == (["sample"], ["scores"])
    assert (module.input_shapes, module.output_shapes) == ([("N", 8)], [("N", 5)])
    feed = np.random.default_rng(1).standard_normal((3, 8)).astype("float32")
    (found,) = computed(module, sample=feed)
    assert_same_sums(found, holder.function(feed)["scores"].numpy(), terms=terms_of(module.mod))
    holder.reader = tensorflow.function(tensorflow.io.read_file)
    text = tensorflow.TensorSpec([], tensorflow.string, name="name")
    unsafe = holder.reader.get_concrete_function(text)
    tensorflow.saved_model.save(holder, str(tmp_path / "unsafe"), signatures=unsafe)
    with pytest.raises(ModelError, match="found the operator ReadFile"):
        load(tmp_path / "unsafe")
