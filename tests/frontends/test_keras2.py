"""Files of Keras 2: what Keras 3 wrote, with the configuration that tf.keras 2 has for the same model."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import numpy as np
import pytest

from forge_pipeline import load
from forge_pipeline.errors import ModelError
from forge_pipeline.frontends import keras2
from tests.support.once import once
from tests.support.paths import ROOT
from tests.support.sums import assert_same_sums, terms_of

WRITE = """
import os
os.environ["KERAS_BACKEND"] = "torch"
import h5py, json, keras, numpy
L = keras.layers
keras.utils.set_random_seed(0)
random = numpy.random.default_rng(0)

def in_keras2(layer, nested=False):
    # The keys that tf.keras 2 wrote, and without those that Keras 3 has added.
    config, name = dict(layer["config"]), layer["class_name"]
    for key in ("registered_name", "build_config", "module"):
        layer.pop(key, None)
    if isinstance(config.get("dtype"), dict):
        config["dtype"] = config["dtype"]["config"]["name"]
    if name == "InputLayer":
        config["batch_input_shape"] = config.pop("batch_shape")
    if name in ("LSTM", "GRU", "ConvLSTM1D", "RNN"):
        config["time_major"] = False
        for key in ("zero_output_for_mask", "use_cudnn", "seed"):
            config.pop(key, None)
    if name in ("LSTM", "GRU"):
        config["implementation"] = 2
    if name in ("DepthwiseConv2D", "SeparableConv2D", "Conv2DTranspose"):
        config["groups"] = 1
    if name == "LeakyReLU":
        config["alpha"] = config.pop("negative_slope")
    if name == "ReLU" and config["threshold"]:
        layer["class_name"], config = "ThresholdedReLU", {"name": config["name"], "theta": config["threshold"]}
    for key in ("layer", "cell", "backward_layer"):
        if isinstance(config.get(key), dict):
            config[key] = in_keras2(config[key])
    if name == "Functional":
        layer["name"] = layer.get("name", config["name"])
    if "layers" in config:
        config["layers"] = [in_keras2(inner) for inner in config["layers"]]
    layer["config"] = config
    if "inbound_nodes" in layer:
        layer["inbound_nodes"] = [node_of(node) for node in layer["inbound_nodes"]]
    return layer

def node_of(node):
    further = {key: place(value) for key, value in node["kwargs"].items()}
    given = node["args"][0] if isinstance(node["args"][0], list) else node["args"]
    return [[*place(item), further] for item in given]

MODELS_INSIDE = set()

def place(value):
    if isinstance(value, dict) and value.get("class_name") == "__keras_tensor__":
        name, call, index = value["config"]["keras_history"]
        return [name, call + (name in MODELS_INSIDE), index]
    return [place(item) for item in value] if isinstance(value, list) else value

def write(name, model, feeds, version="2.6.0", edit=lambda config: config):
    for weight in model.weights:
        if weight.dtype == "float32":
            weight.assign(random.uniform(0.1, 0.5, tuple(weight.shape)))
    made = keras.tree.flatten(model(feeds if len(feeds) > 1 else feeds[0], training=False))
    numpy.savez(name + ".npz", *feeds, **{f"y{n}": y.detach().numpy() for n, y in enumerate(made)})
    MODELS_INSIDE.clear()
    MODELS_INSIDE.update(layer.name for layer in model.layers if hasattr(layer, "layers"))
    model.save(name + ".h5")
    with h5py.File(name + ".h5", "r+") as file:
        for place in (file, file["model_weights"]):
            place.attrs["keras_version"] = version
        config = in_keras2(json.loads(json.dumps(keras.saving.serialize_keras_object(model))))
        file.attrs["model_config"] = json.dumps(edit(config))

def data(*shape):
    return random.standard_normal(shape).astype("float32")

def chain(name, shape, feed, *layers, **more):
    write(name, keras.Sequential([keras.Input(shape, name="x"), *layers]), [feed], **more)

chain("image", (8, 8, 3), data(2, 8, 8, 3), L.DepthwiseConv2D(3), L.BatchNormalization(), L.LeakyReLU(0.2),
      L.SeparableConv2D(4, 3), L.ReLU(threshold=0.5), L.Conv2DTranspose(3, 3, strides=2))
chain("nested", (5, 4), data(2, 5, 4), L.Bidirectional(L.LSTM(3, return_sequences=True)), L.TimeDistributed(L.Dense(2)),
      L.GRU(3), version="2.4.0")
chain("masked", (5,), numpy.array([[1, 2, 0, 3, 0], [4, 5, 6, 0, 0]], "float32"), L.Embedding(9, 4, mask_zero=True),
      L.Bidirectional(L.GRU(3)))
chain("convolved", (4, 6, 2), data(3, 4, 6, 2), L.ConvLSTM1D(3, 3, padding="same"))

def hard(config):
    for layer in config["config"]["layers"]:
        if "recurrent_activation" in layer["config"]:
            layer["config"]["recurrent_activation"] = "hard_sigmoid"
    return config

def slope(x):
    return keras.ops.clip(0.2 * x + 0.5, 0, 1)

chain("hard", (4, 3), data(2, 4, 3), L.LSTM(3, recurrent_activation=slope), edit=hard)

def plain_list(config):
    first, *others = config["config"]["layers"]
    others[0]["config"]["batch_input_shape"] = first["config"]["batch_input_shape"]
    return {"class_name": "Sequential", "config": others}

chain("listed", (4,), data(3, 4), L.Dense(3), L.Dense(2), version="2.0.5", edit=plain_list)

source, target = keras.Input((4, 3), name="source"), keras.Input((3, 2), name="target")
_, h, c = L.LSTM(3, return_state=True)(source)
decoded = L.LSTM(3, return_sequences=True, name="decoder")(target, initial_state=[h, c])

def in_one_list(config):
    (decoder,) = [layer for layer in config["config"]["layers"] if layer["name"] == "decoder"]
    ((first,),) = decoder["inbound_nodes"]
    states = first[3].pop("initial_state")
    decoder["inbound_nodes"] = [[first, *[[*state, {}] for state in states]]]
    return config

write("states", keras.Model([source, target], decoded), [data(2, 4, 3), data(2, 3, 2)], edit=in_one_list)

query, value = keras.Input((4, 6), name="query"), keras.Input((3, 6), name="value")
attended = L.MultiHeadAttention(2, 3)(query, value)

def by_name(config):
    layer = config["config"]["layers"][-1]
    ((first, second),) = layer["inbound_nodes"]
    layer["inbound_nodes"] = [[[*first[:3], {"value": second[:3]}]]]
    layer["config"] |= {"query_shape": None, "key_shape": None, "value_shape": None}
    return config

write("attention", keras.Model([query, value], attended), [data(2, 4, 6), data(2, 3, 6)], edit=by_name)

inner_input = keras.Input((4,))
inner = keras.Model(inner_input, L.Dense(3)(inner_input), name="inner")
left, right = keras.Input((4,), name="left"), keras.Input((4,), name="right")
total = L.Add(name="total")([inner(left), inner(right)])
def sum_of_tensorflow(config):
    layer = config["config"]["layers"][-1]
    ((first, second),) = layer["inbound_nodes"]
    layer |= {"class_name": "TFOpLambda", "config": {"name": "total", "function": "__operators__.add"},
              "inbound_nodes": [[*first[:3], {"y": second[:3], "name": None}]]}
    return config

write("twice", keras.Model([left, right], total), [data(2, 4), data(2, 4)], edit=sum_of_tensorflow)

chain("open", (None, 4), data(2, 250, 4), L.SeparableConv1D(3, 3), L.Cropping1D(100), L.TimeDistributed(L.Dense(2)))
chain("steps", (None, 4), data(2, 6, 4), L.SimpleRNN(3))
"""


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    """Return the folder with the files and what the models in them compute."""

    def make(folder):
        command = [sys.executable, "-W", "ignore", "-c", WRITE]
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr[-3000:]

    return once(tmp_path_factory, "keras2-models", make)


def check(folder, name, **options):
    module = load(folder / f"{name}.h5", **options)
    with np.load(folder / f"{name}.npz") as arrays:
        feeds = [arrays[f"arr_{position}"] for position in range(len(module.input_names))]
        found = module.get_inference_function()(*feeds)
        found = found if isinstance(found, list | tuple) else [found]
        for position, value in enumerate(found):
            assert_same_sums(value, arrays[f"y{position}"], terms=terms_of(module.mod))
    return module


@pytest.mark.every(5)
@pytest.mark.parametrize(
    "name", ["image", "nested", "masked", "convolved", "hard", "listed", "states", "attention", "twice"]
)
def test_a_file_of_keras_2_computes_what_it_did(written, name):
    assert check(written, name).input_shapes[0][0] == "N"


@pytest.mark.long
def test_a_layer_that_takes_from_an_open_length_keeps_it_open(written):
    assert check(written, "open").input_shapes == [("N", "x_1", 4)]


def test_a_recurrent_layer_is_given_the_size_of_its_open_length(written):
    with pytest.raises(ModelError, match=r"found x_1 open.*\nfix: say what it is: model\.dims='\{x_1: SIZE\}'"):
        load(written / "steps.h5")
    assert check(written, "steps", dims={"x_1": 6}).input_shapes == [("N", 6, 4)]


def model(class_name, **config):
    layer = {"class_name": class_name, "config": {"name": "layer", **config}}
    return {"class_name": "Sequential", "config": {"name": "model", "layers": [layer]}}


REFUSED = [
    (model("LSTM", units=2, time_major=True), "'time_major' = True"),
    (model("DepthwiseConv2D", kernel_size=3, groups=3), "'groups' = 3"),
    (model("LocallyConnected1D", filters=2), "a layer 'LocallyConnected1D'"),
    (model("TFOpLambda", function="math.cumsum"), "a layer 'TFOpLambda' of 'math.cumsum'"),
    (model("UpSampling2D", interpolation="bicubic"), "the interpolation 'bicubic'"),
    (model("Bidirectional", layer={"class_name": "CuDNNLSTM", "config": {}}), "a layer 'CuDNNLSTM'"),
    (model("Dense", units=2, output_dim=2), "'output_dim' = 2"),
    ({"class_name": "Mine", "config": {}}, "'Mine'"),
]

READ = """
import json, os, sys
os.environ["KERAS_BACKEND"] = "torch"
from forge_pipeline.errors import ModelError
from forge_pipeline.frontends.keras2 import as_keras3

def refusal(config):
    try:
        as_keras3(config)
    except ModelError as error:
        return error.found

print(json.dumps([refusal(config) for config in json.load(sys.stdin)]))
"""


def test_what_keras_3_would_not_do_is_refused():
    configs = json.dumps([config for config, _ in REFUSED])
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", READ], input=configs, capture_output=True, text=True, check=False,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    assert json.loads(done.stdout) == [found for _, found in REFUSED]


@pytest.mark.parametrize(("version", "old"), [(b"2.0.5", True), ("2.15.0", True), (None, True), ("3.15.1", False)])
def test_the_files_version_says_whether_keras_2_wrote_it(version, old):
    assert keras2.is_keras2(version) is old
