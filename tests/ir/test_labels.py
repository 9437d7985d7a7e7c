"""What the numbers of an interface stand for stays with a model, and counts as a part of it."""

from __future__ import annotations

import onnx
import pytest
from onnx import TensorProto, helper

from forge_pipeline.ir.canonical import canonical_model
from forge_pipeline.ir.fingerprint import fingerprint
from forge_pipeline.ir.labels import KEY, labels_of, set_labels


def identity() -> onnx.ModelProto:
    ends = [helper.make_tensor_value_info(name, TensorProto.INT64, ["n"]) for name in ("x", "y")]
    graph = helper.make_graph([helper.make_node("Abs", ["x"], ["y"])], "graph", ends[:1], ends[1:])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10)


def labelled(*words: str) -> onnx.ModelProto:
    model = identity()
    set_labels(model, {"y": {"values": list(words)}})
    return model


def test_the_canonical_form_keeps_labels_and_its_bytes_are_those_of_the_fingerprint() -> None:
    import hashlib

    made = canonical_model(labelled("ash", "oak"))
    assert labels_of(made) == {"y": {"values": ["ash", "oak"]}}
    assert fingerprint(made) == hashlib.sha256(made.SerializeToString(deterministic=True)).hexdigest()


def test_models_of_other_words_are_other_models() -> None:
    assert len({fingerprint(model) for model in (identity(), labelled("ash"), labelled("oak"))}) == 3


def test_new_labels_take_the_place_of_old_ones_and_other_metadata_stays() -> None:
    model = labelled("ash")
    model.metadata_props.add(key="author", value="somebody")
    set_labels(model, {"x": {"columns": [4, 7]}})
    assert labels_of(model) == {"x": {"columns": [4, 7]}}
    assert [entry.key for entry in model.metadata_props] == ["author", KEY]
    set_labels(model, {})
    assert labels_of(model) == {}


@pytest.mark.parametrize(
    "text",
    [
        "no JSON",
        "[1]",
        '{"z": {"values": ["a"]}}',
        '{"y": ["a"]}',
        '{"y": {"rows": ["a"]}}',
        '{"y": {"values": [1.5]}}',
    ],
)
def test_what_is_no_list_of_labels_is_left_out(text: str) -> None:
    model = identity()
    model.metadata_props.add(key=KEY, value=text)
    assert labels_of(model) == {}
    assert not canonical_model(model).metadata_props
