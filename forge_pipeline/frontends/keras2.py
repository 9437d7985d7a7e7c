"""Models that Keras 1.2 to 2 (tf.keras up to TensorFlow 2.15) wrote to `.h5`, as Keras 3 has them.

A configuration says the same in both but for: nested layers, which had no module; keys that Keras 3 does not know; the
calls of layers, whose further tensors it does not find, and which it counts from another number where the layer is a
model; layers and names that have gone; a hard sigmoid of another slope. What Keras 3 cannot do is refused: nothing is
dropped but what has no effect on results or says what Keras 3 does anyway.
"""

from __future__ import annotations

import inspect
from typing import Any, Final

from forge_pipeline.errors import ModelError

_MODELS: Final = {
    "Sequential": ("keras", "Sequential"),
    "Functional": ("keras.src.models.functional", "Functional"),
    "Model": ("keras.src.models.functional", "Functional"),  # what Functional was called before TensorFlow 2.3
}
_RECURRENT: Final = frozenset(
    {"RNN", "SimpleRNN", "LSTM", "GRU", "Bidirectional", "ConvLSTM1D", "ConvLSTM2D", "ConvLSTM3D"}
)
_ARITHMETIC: Final = {
    "__operators__.add": "Add", "math.add": "Add", "math.subtract": "Subtract", "math.multiply": "Multiply",
    "math.truediv": "TrueDivide", "math.divide": "TrueDivide",
}  # fmt: skip
_RESIZED: Final = ("nearest", "bilinear")  # the others have other coefficients in PyTorch
_INNER: Final = frozenset({"layer", "backward_layer", "forward_layer", "cell"})
_NO_EFFECT: Final = frozenset(
    {"trainable", "implementation", "input_length", "batch_input_shape", "input_shape", "query_shape", "key_shape",
     "value_shape", "rng_type", "input_dtype", "autocast", "experimental_autocast", "renorm_momentum", "fused",
     "vocabulary_size"}
)  # fmt: skip
_TRAINING: Final = ("_initializer", "_regularizer", "_constraint")
_HARD_SIGMOID: Final = "keras2_hard_sigmoid"


def is_keras2(version: object) -> bool:
    """Return whether a file of this `keras_version` (None: it has none) is of a Keras before 3."""
    text = version.decode(errors="replace") if isinstance(version, bytes) else str(version or "2")
    return text.partition(".")[0] in {"1", "2"}


def as_keras3(model: Any) -> dict[str, Any]:
    """Return the configuration of a model of Keras 2 as ``keras.saving.deserialize_keras_object`` reads it.

    Raises ModelError for a layer, or a setting of one, that Keras 3 does not have.
    """
    if not isinstance(model, dict) or model.get("class_name") not in _MODELS:
        found = model.get("class_name") if isinstance(model, dict) else model
        raise _refused("model", f"{str(found)[:80]!r}", "a Sequential or functional model")
    return _layer(model)


def objects() -> dict[str, Any]:
    """Return what a configuration of ``as_keras3`` names beside Keras's own objects, by name."""
    import keras

    def keras2_hard_sigmoid(x: Any) -> Any:
        return keras.ops.clip(0.2 * x + 0.5, 0.0, 1.0)

    return {_HARD_SIGMOID: keras2_hard_sigmoid}


def _layer(item: dict[str, Any]) -> dict[str, Any]:
    import keras

    name, config = item.get("class_name"), item.get("config")
    if name in _MODELS:
        module, name = _MODELS[name]
        config = _sequential(config) if name == "Sequential" else _functional(config)
        return {"module": module, "class_name": name, "config": config, "registered_name": name}
    if not isinstance(config, dict):
        raise _refused(str(name), "no configuration", "a layer with one")
    config = dict(config)
    if config.get("name"):
        config["name"] = _plain(config["name"])
    if name == "TFOpLambda" and config.get("function") in _ARITHMETIC:
        operation = _ARITHMETIC[config["function"]]
        return {"module": "keras.src.ops.numpy", "class_name": operation, "config": {"name": config.get("name")},
                "registered_name": operation}  # fmt: skip
    if name == "ThresholdedReLU":
        name, config["threshold"] = "ReLU", config.pop("theta", 1.0)
    known = getattr(keras.layers, str(name), None)
    if known is None:
        kind = f"{str(name)[:80]!r}" + (f" of {config['function']!r:.80}" if "function" in config else "")
        raise _refused(str(config.get("name")), f"a layer {kind}", "layers that Keras 3 has")
    if config.get("interpolation", "nearest") not in _RESIZED:
        found = f"the interpolation {config['interpolation']!r:.80}"
        raise _refused(str(config.get("name")), found, f"one of {', '.join(_RESIZED)}")
    if name == "InputLayer":
        config = {"batch_shape": config.pop("batch_input_shape", None), **config}
    if name in {"GRU", "GRUCell"}:
        config.setdefault("reset_after", False)  # which Keras had before it knew the other way
    if name == "LeakyReLU":
        config["negative_slope"] = config.pop("alpha", config.get("negative_slope", 0.3))
    allowed = _parameters(known)
    kept = {key: _value(key, value) for key, value in config.items() if key in allowed}
    for key in config.keys() - allowed:
        if not _is_vain(key, config[key]):
            raise _refused(
                f"{name} {str(config.get('name'))!r:.80}", f"{key!r:.80} = {config[key]!r:.80}",
                "settings that Keras 3 has",
            )  # fmt: skip
    return {"module": "keras.layers", "class_name": name, "config": kept, "registered_name": None}


def _is_vain(key: str, value: object) -> bool:
    """Return whether a setting that Keras 3 does not know has no effect, or switches off what it cannot do."""
    off = value is None or value is False or (key == "groups" and value == 1)
    return off or key in _NO_EFFECT or key.endswith(_TRAINING)


def _parameters(known: type) -> set[str]:
    """Return the names of what a class of Keras 3 can be made with."""
    names: set[str] = set()
    for owner in known.__mro__:
        if "__init__" in vars(owner):
            parameters = inspect.signature(vars(owner)["__init__"]).parameters.values()
            names |= {item.name for item in parameters if item.kind is not item.VAR_KEYWORD}
            if all(item.kind is not item.VAR_KEYWORD for item in parameters):
                break
    return names - {"self", "batch_input_shape"}


def _value(key: str, value: Any) -> Any:
    """Return a setting with the layers in it as Keras 3 has them, and the hard sigmoid that Keras 2 has."""
    import keras

    if isinstance(value, list):
        return [_value(key, item) for item in value] if key != "axis" or len(value) > 1 else value[0]
    if key == "dtype" and isinstance(value, dict):
        return value.get("config", {}).get("name")
    if key in {"activation", "recurrent_activation"} and value == "hard_sigmoid":
        return {"class_name": "function", "config": _HARD_SIGMOID, "module": None, "registered_name": _HARD_SIGMOID}
    if isinstance(value, dict) and "class_name" in value:
        name = str(value["class_name"])
        if key in _INNER or name in _MODELS or hasattr(keras.layers, name) or key == "cells":
            return _layer(value)
    return value


def _sequential(config: Any) -> dict[str, Any]:
    """Return a chain of layers that begins with its input. Before Keras 2.2.3 it was a plain list."""
    config = dict(config) if isinstance(config, dict) else {"name": "sequential", "layers": config}
    layers = list(config.get("layers") or [])
    first = layers[0].get("config") if layers and isinstance(layers[0], dict) else None
    if isinstance(first, dict) and layers[0].get("class_name") != "InputLayer" and first.get("batch_input_shape"):
        given = {"batch_input_shape": first["batch_input_shape"], "name": f"{first.get('name')}_input"}
        dtype = first.get("input_dtype") or first.get("dtype")
        layers.insert(0, {"class_name": "InputLayer", "config": given | ({"dtype": dtype} if dtype else {})})
    kept = {"name": config.get("name"), "layers": [_layer(item) for item in layers]}
    return kept | {key: config[key] for key in ("build_input_shape",) if key in config}


def _functional(config: Any) -> dict[str, Any]:
    """Return a graph of layers whose calls are as Keras 3 writes them."""
    layers = config.get("layers") if isinstance(config, dict) else None
    if not isinstance(layers, list) or not all(isinstance(item, dict) for item in layers):
        raise _refused("model", "a model without layers", "the layers of a functional model")
    first = {item.get("name"): _first_call(item) for item in layers}
    chains = {item["name"]: first[item["name"]] for item in layers if item.get("class_name") == "Sequential"}
    return {
        **{key: config.get(key) for key in ("name", "trainable")},
        "input_layers": _places(config.get("input_layers"), {}),
        "output_layers": _places(config.get("output_layers"), chains),  # Keras itself counts a functional one's
        "layers": [
            _layer(item)
            | {"name": _plain(item.get("name")),
               "inbound_nodes": [_call(item, node, first) for node in item.get("inbound_nodes", ())]}
            for item in layers
        ],
    }  # fmt: skip


def _first_call(layer: dict[str, Any]) -> int:
    """Return the number of a layer's first call. Models in models had one from their own inputs, which was 0."""
    inner = layer.get("config")
    layers = inner.get("layers") if isinstance(inner, dict) else inner
    if layer.get("class_name") == "Sequential" and isinstance(layers, list) and layers:
        first = layers[0]
        return int(first.get("class_name") == "InputLayer" or "batch_input_shape" in first.get("config", {}))
    return int(layer.get("class_name") in _MODELS)


def _plain(name: Any) -> Any:
    return name.replace("/", "_").replace(".", "_") if isinstance(name, str) else name  # they are paths of names now


def _call(layer: dict[str, Any], node: Any, first: dict[Any, int]) -> dict[str, Any]:
    """Return one call of ``layer``, whose tensors are the outputs of other layers."""
    items = [node] if isinstance(node, list) and node and isinstance(node[0], str) else node
    if not isinstance(items, list) or not all(isinstance(item, list) and len(item) > 2 for item in items):
        raise _refused(str(layer.get("name")), f"a call with {node!r:.80}", "calls with outputs of other layers")
    tensors = [item[2] if item[0] == "_CONSTANT_VALUE" else _tensors(item[:3], first) for item in items]
    further = items[0][3] if items and len(items[0]) > 3 else {}
    keywords = {key: _tensors(value, first) for key, value in further.items() if value is not None}
    if layer.get("class_name") == "TFOpLambda" and "y" in keywords:
        return {"args": [*tensors, keywords.pop("y")], "kwargs": keywords}
    if len(tensors) > 1 and layer.get("class_name") in _RECURRENT:
        tensors, keywords["initial_state"] = tensors[:1], tensors[1:]
    return {"args": tensors if len(tensors) == 1 else [tensors], "kwargs": keywords}


def _tensors(value: Any, first: dict[Any, int]) -> Any:
    """Return an argument with the tensors that it names."""
    if isinstance(value, list) and len(value) == 3 and isinstance(value[0], str) and value[0] in first:
        place = [_plain(value[0]), value[1] - first[value[0]], value[2]]
        found = {"shape": [], "dtype": "float32", "keras_history": place}  # Keras looks the tensor up
        return {"class_name": "__keras_tensor__", "config": found}
    return [_tensors(item, first) for item in value] if isinstance(value, list) else value


def _places(value: Any, first: dict[Any, int]) -> Any:
    """Return the places of inputs or outputs with the calls of each layer counted from its number in ``first``.

    One alone is no list of one: a Keras 2 model returned it so.
    """
    if isinstance(value, list) and len(value) == 1:
        return _places(value[0], first)
    if isinstance(value, dict):
        return {key: _places(item, first) for key, item in value.items()}
    if isinstance(value, list) and len(value) == 3 and isinstance(value[0], str):
        return [_plain(value[0]), value[1] - first.get(value[0], 0), value[2]]
    return [_places(item, first) for item in value] if isinstance(value, list) else value


def _refused(where: str, found: str, expected: str) -> ModelError:
    return ModelError(
        where=f"Keras 2 file: {where[:100]}",
        expected=expected,
        found=found,
        fix="replace it and save the model again, or convert it where it was made, with "
        "python -m tf2onnx.convert --keras MODEL.h5 --output MODEL.onnx",
    )
