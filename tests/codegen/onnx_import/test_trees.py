"""Models of classical learners, from a file to a library: the same numbers as ONNX Runtime, and words for labels."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from forge_pipeline.api.load import load
from forge_pipeline.codegen.build import build
from forge_pipeline.codegen.onnx_import.importer import import_model, prepare
from forge_pipeline.codegen.options import Options
from forge_pipeline.errors import CompileError, ModelError
from forge_pipeline.target import Target
from forge_runtime.engine import Engine
from tests.support.forests import ML, Forest, model_of, regressor
from tests.support.sums import assert_close

OPTIONS = Options(generator="tiled", opt_level=3, float16=False, channel_layout=None)
FLOAT, INT64, STRING = TensorProto.FLOAT, TensorProto.INT64, TensorProto.STRING
WORDS = ["ash", "oak", "yew"]


def classifier(forest: Forest) -> onnx.ModelProto:
    """Return features that are scaled, trees, and a map of probabilities for each row, as exporters write them."""
    given = forest.attributes()
    del given["n_targets"]
    for name in ("ids", "nodeids", "treeids", "weights"):
        given[f"class_{name}"] = given.pop(f"target_{name}")
    nodes = [
        helper.make_node("Scaler", ["x"], ["scaled"], domain=ML, offset=[0.5], scale=[2.0]),
        helper.make_node("TreeEnsembleClassifier", ["scaled"], ["label", "sums"], domain=ML, classlabels_strings=WORDS,
                         post_transform="SOFTMAX", **given),
        helper.make_node("ZipMap", ["sums"], ["probabilities"], domain=ML, classlabels_strings=WORDS),
    ]  # fmt: skip
    model = model_of(nodes, {"x": (FLOAT, ["rows", forest.features])}, {"label": STRING, "probabilities": FLOAT})
    kind = helper.make_map_type_proto(STRING, helper.make_tensor_type_proto(FLOAT, []))
    model.graph.output[1].CopyFrom(helper.make_value_info("probabilities", helper.make_sequence_type_proto(kind)))
    return model


def test_a_classifier_of_words_gives_their_numbers_and_says_which_they_are(tmp_path: Path) -> None:
    import onnxruntime

    forest = Forest(targets=3, trees=20, leaves=8)
    model = classifier(forest)
    (tmp_path / "model.onnx").write_bytes(model.SerializeToString())
    session = onnxruntime.InferenceSession(model.SerializeToString())
    library = build(load(tmp_path / "model.onnx").light, Target.from_tag("host"), OPTIONS)
    assert library.metadata["labels"] == {"label": {"values": WORDS}, "probabilities": {"columns": WORDS}}
    engine = Engine(library.to_bytes(), threads=1)
    for rows in (1, 5, 40):
        x = forest.samples(rows)
        x[~np.isfinite(x)] = 3
        labels, maps = session.run(None, {"x": x})
        found = engine.run(x=x)
        assert [WORDS[number] for number in found["label"]] == labels.tolist()
        wanted = [[row[word] for word in WORDS] for row in maps]
        assert_close(found["probabilities"], wanted, within=1e-5)


def test_an_ensemble_is_no_fallback() -> None:
    forest = Forest(dtype=np.float64)
    library = build(regressor(forest), Target.from_tag("host"), OPTIONS)
    assert library.metadata["compile"]["fallbacks"] == []
    (found,) = Engine(library.to_bytes())(forest.samples(3))
    assert found.dtype == np.float32


def test_a_model_that_was_not_loaded_is_written_out_by_the_compiler() -> None:
    node = helper.make_node("Normalizer", ["x"], ["y"], domain=ML, norm="L2")
    module = import_model(prepare(model_of([node], {"x": (FLOAT, ["n", 4])}, {"y": FLOAT})))
    assert "sqrt" in module.script()


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"nodes_featureids": [7] * 200}, "feature 7 of 4"),
        ({"aggregate_function": "MEDIAN"}, "the aggregate MEDIAN"),
        ({"target_ids": [4] * 30}, "a weight of no target"),
    ],
)
def test_an_ensemble_that_contradicts_itself_is_refused_by_name(change: dict[str, Any], said: str) -> None:
    given = Forest().attributes()
    change = {name: value[: len(given[name])] if isinstance(value, list) else value for name, value in change.items()}
    with pytest.raises(CompileError) as caught:
        import_model(prepare(regressor(Forest(), **change)))
    assert f"TreeEnsembleRegressor 'forest' ({said}" in caught.value.found


def test_what_cannot_be_written_out_is_refused_when_it_is_loaded(tmp_path: Path) -> None:
    node = helper.make_node("CastMap", ["x"], ["y"], name="maps", domain=ML)
    model = model_of([node], {"x": (FLOAT, ["n", 4])}, {"y": FLOAT})
    (tmp_path / "model.onnx").write_bytes(model.SerializeToString())
    with pytest.raises(ModelError) as caught:
        load(tmp_path / "model.onnx")
    assert caught.value.found == "'ai.onnx.ml.CastMap' in 'maps' (maps are no arrays)"
