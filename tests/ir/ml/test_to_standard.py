"""Operators of ai.onnx.ml, written out as ONNX's: the same numbers in ONNX Runtime."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from forge_pipeline.ir.canonical import canonical_model
from forge_pipeline.ir.labels import labels_of
from forge_pipeline.ir.ml.to_standard import KEPT, RULES, written_out
from forge_pipeline.ir.qdq.to_standard import in_standard
from forge_pipeline.ir.reference.interpreter import Interpreter
from tests.support.forests import ML, Forest, as_doubles, model_of
from tests.support.sums import assert_close

FLOAT, DOUBLE, INT64, STRING = TensorProto.FLOAT, TensorProto.DOUBLE, TensorProto.INT64, TensorProto.STRING
KINDS = {np.dtype(np.float32): FLOAT, np.dtype(np.float64): DOUBLE, np.dtype(np.int64): INT64,
         np.dtype(np.int32): TensorProto.INT32, np.dtype(object): STRING}  # fmt: skip
RANDOM: Any = np.random.default_rng(0)
ROWS: Any = RANDOM.standard_normal((7, 4)).astype(np.float32)
INTEGERS: Any = RANDOM.integers(-2, 5, (7, 4))
CLASSES = {"classlabels_ints": [4, 7, 9]}


def normal(*shape: int) -> Any:
    return np.random.default_rng(sum(shape)).standard_normal(shape).astype(np.float32).reshape(-1).tolist()


def one(
    operator: str,
    inputs: Mapping[str, Any],
    outputs: Mapping[str, int],
    *,
    opset: int = 18,
    ml: int = 3,
    **attributes: Any,
) -> onnx.ModelProto:
    node = helper.make_node(operator, list(inputs), list(outputs), name="it", domain=ML, **attributes)
    shapes = {name: (KINDS[array.dtype], ["n", *array.shape[1:]]) for name, array in inputs.items()}
    return model_of([node], shapes, dict(outputs), opset=opset, ml=ml)


def check(model: onnx.ModelProto, feeds: Mapping[str, Any], *, within: float = 1e-5) -> onnx.ModelProto:
    """Compare a model with what it is written out as, text as the numbers of words; return that."""
    written = written_out(model)
    assert not written.why
    made = canonical_model(written.model)
    assert all(node.domain != ML or node.op_type in KEPT for node in made.graph.node)
    labels = labels_of(made)

    def numbers(name: str, array: Any) -> Any:
        array = np.asarray(array)
        if array.dtype.kind not in "OUS":
            return array
        words = labels[name]["values"]
        return np.vectorize(lambda word: words.index(word) if word in words else -1)(array).astype(np.int64)

    wanted = run(model, feeds)
    found = Interpreter(made)({name: numbers(name, array) for name, array in feeds.items()})
    assert list(found) == list(wanted)
    for name, given in wanted.items():
        is_map, columns = isinstance(given, list), labels.get(name, {}).get("columns", ())
        expected = np.array([[row[label] for label in columns] for row in given]) if is_map else given
        assert found[name].shape == expected.shape
        assert_close(found[name], numbers(name, expected), within=within)
    for value in made.graph.output:
        kind = helper.np_dtype_to_tensor_dtype(found[value.name].dtype)
        value.CopyFrom(helper.make_tensor_value_info(value.name, kind, found[value.name].shape))
    onnx.checker.check_model(made, full_check=True)
    return made


def run(model: onnx.ModelProto, feeds: Mapping[str, Any]) -> dict[str, Any]:
    """Run a model that may give maps or text."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    session = onnxruntime.InferenceSession(model.SerializeToString(), options)
    return dict(zip([item.name for item in session.get_outputs()], session.run(None, dict(feeds)), strict=True))


FEATURES: list[tuple[str, Any, dict[str, Any]]] = [
    ("Scaler", ROWS, {"offset": [1.0, 2.0, 3.0, 4.0], "scale": [0.5, 1.0, 2.0, 3.0]}),
    ("Scaler", INTEGERS, {"offset": [1.0], "scale": [0.5]}),
    ("Scaler", ROWS.astype(np.float64), {"offset": [0.0] * 4, "scale": [1.0] * 4}),
    ("Normalizer", ROWS, {"norm": "L1"}),
    ("Normalizer", ROWS, {"norm": "L2"}),
    ("Normalizer", ROWS * [[0], [1], [1], [1], [1], [0], [1]], {"norm": "MAX"}),
    ("Normalizer", INTEGERS * (INTEGERS > 3), {"norm": "L2"}),
    ("Binarizer", ROWS, {"threshold": 0.25}),
    ("Imputer", np.where(ROWS > 1, np.nan, ROWS).astype(np.float32),
     {"imputed_value_floats": [1.0, 2.0, 3.0, 4.0], "replaced_value_float": float("nan")}),
    ("Imputer", np.maximum(ROWS, 0), {"imputed_value_floats": [9.0], "replaced_value_float": 0.0}),
    ("Imputer", INTEGERS, {"imputed_value_int64s": [7], "replaced_value_int64": 3}),
    ("OneHotEncoder", INTEGERS[:, :1], {"cats_int64s": [3, 0, 1]}),
    ("OneHotEncoder", INTEGERS.astype(np.float32), {"cats_int64s": [3, 0, -1]}),
    ("LabelEncoder", INTEGERS, {"keys_int64s": [0, 1, 3], "values_int64s": [10, 20, 30], "default_int64": 5}),
    ("LabelEncoder", INTEGERS, {"keys_int64s": [0, 1, 10**9], "values_floats": [0.5, 1.5, 2.5]}),
    ("LabelEncoder", INTEGERS[:, 0], {"keys_int64s": [0, 1, -2], "values_strings": ["ash", "oak", "ash"]}),
    ("LabelEncoder", np.maximum(ROWS, 0), {"keys_floats": [0.0, 1.0], "values_floats": [7.0, 8.0]}),
]  # fmt: skip


@pytest.mark.parametrize("opset", [11, 18])
@pytest.mark.parametrize(("operator", "x", "attributes"), FEATURES)
def test_features_are_prepared_as_before(operator: str, x: Any, attributes: dict[str, Any], opset: int) -> None:
    kind = KINDS[x.dtype] if operator in ("Binarizer", "Imputer") else FLOAT
    if operator == "LabelEncoder":
        kind = STRING if "values_strings" in attributes else INT64 if "values_int64s" in attributes else FLOAT
    x = x if x.dtype in KINDS else x.astype(np.float32)
    check(one(operator, {"x": x}, {"y": kind}, opset=opset, **attributes), {"x": x})


def test_keys_and_values_may_be_tensors_with_a_key_that_is_no_number() -> None:
    x = np.array([[1.0, np.nan, 2.0]])
    attributes = {
        name: numpy_helper.from_array(np.array(values, np.float64))
        for name, values in (("keys_tensor", [1.0, np.nan]), ("values_tensor", [5.0, 6.0]), ("default_tensor", [7.0]))
    }
    check(one("LabelEncoder", {"x": x}, {"y": DOUBLE}, ml=4, **attributes), {"x": x})


@pytest.mark.parametrize("widths", [[4, 4], [2, 4], [6, 3]])
def test_columns_are_joined_cut_and_filled(widths: list[int]) -> None:
    feeds = {"a": ROWS, "b": 2 * ROWS}
    check(one("FeatureVectorizer", feeds, {"y": FLOAT}, inputdimensions=widths), feeds)


def test_elements_are_taken_along_the_last_axis() -> None:
    node = helper.make_node("ArrayFeatureExtractor", ["x", "at"], ["y"], domain=ML)
    at = {"at": np.array([[2, 0]])}
    check(model_of([node], {"x": (FLOAT, ["n", 4])}, {"y": FLOAT}, constants=at), {"x": ROWS})
    check(model_of([node], {"x": (FLOAT, [4])}, {"y": FLOAT}, constants=at), {"x": ROWS[0]})


TRANSFORMS = ("NONE", "SOFTMAX", "LOGISTIC", "SOFTMAX_ZERO", "PROBIT")
CONDITIONED = {"PROBIT": 1e-4}
"""The inverse of erf near a half: it subtracts nearly equal numbers, so a unit of its operand becomes many."""


@pytest.mark.parametrize("transform", TRANSFORMS)
@pytest.mark.parametrize("x", [ROWS, ROWS.astype(np.float64), INTEGERS], ids=["float", "double", "int64"])
def test_a_linear_classifier_of_three_classes(transform: str, x: Any) -> None:
    scale = 0.02 if transform == "PROBIT" else 1.0
    weights = [scale * value for value in normal(3, 4)]
    model = one("LinearClassifier", {"x": x}, {"y": INT64, "z": FLOAT}, coefficients=weights,
                intercepts=[0.5, 0.4, 0.6], post_transform=transform, **CLASSES)  # fmt: skip
    check(model, {"x": x}, within=CONDITIONED.get(transform, 1e-5))


@pytest.mark.parametrize("transform", ["NONE", "LOGISTIC"])
@pytest.mark.parametrize("labels", [{"classlabels_strings": ["no", "yes"]}, {"classlabels_ints": [3, 8]}])
def test_a_linear_classifier_of_one_score(transform: str, labels: dict[str, Any]) -> None:
    kind = STRING if "classlabels_strings" in labels else INT64
    model = one("LinearClassifier", {"x": ROWS}, {"y": kind, "z": FLOAT}, coefficients=normal(4), intercepts=[0.1],
                post_transform=transform, **labels)  # fmt: skip
    check(model, {"x": ROWS})


@pytest.mark.parametrize("targets", [1, 3])
@pytest.mark.parametrize("transform", ["NONE", "LOGISTIC"])
def test_a_linear_regressor(targets: int, transform: str) -> None:
    model = one("LinearRegressor", {"x": ROWS}, {"y": FLOAT}, coefficients=normal(targets, 4), targets=targets,
                intercepts=normal(targets), post_transform=transform)  # fmt: skip
    check(model, {"x": ROWS})


KERNELS = {"LINEAR": [0.5, 0.0, 3.0], "POLY": [0.5, 1.0, 2.0], "RBF": [0.3, 0.0, 3.0], "SIGMOID": [0.2, 0.1, 3.0]}


def svm(classes: int, kernel: str, *, has_probabilities: bool = False, **attributes: Any) -> onnx.ModelProto:
    counts, pairs = [3, 2, 4, 2][:classes], classes * (classes - 1) // 2
    if has_probabilities:
        attributes |= {"prob_a": [-1.5, -0.8, -1.2, -1.0, -2.0, -0.5][:pairs], "prob_b": normal(pairs)}
    return one(
        "SVMClassifier", {"x": ROWS}, {"y": INT64, "z": FLOAT}, kernel_type=kernel, kernel_params=KERNELS[kernel],
        vectors_per_class=counts, support_vectors=normal(sum(counts), 4), rho=normal(pairs),
        coefficients=normal(classes - 1, sum(counts)), classlabels_ints=[3, 5, 2, 8][:classes], **attributes,
    )  # fmt: skip


@pytest.mark.parametrize("classes", [2, 3, 4])
@pytest.mark.parametrize("kernel", KERNELS)
def test_support_vectors_vote(classes: int, kernel: str) -> None:
    check(svm(classes, kernel), {"x": ROWS}, within=1e-4)


@pytest.mark.parametrize("transform", ["LOGISTIC", "SOFTMAX"])
@pytest.mark.parametrize("classes", [2, 3])
def test_votes_are_transformed(classes: int, transform: str) -> None:
    check(svm(classes, "RBF", post_transform=transform), {"x": ROWS}, within=1e-4)


@pytest.mark.parametrize("classes", [2, 3, 4])
def test_probabilities_of_pairs_are_coupled(classes: int) -> None:
    check(svm(classes, "RBF", has_probabilities=True), {"x": ROWS}, within=1e-4)


@pytest.mark.parametrize("scale", [1.0, -1.0])
def test_a_support_vector_machine_without_vectors_is_linear(scale: float) -> None:
    for classes in (2, 3):
        weights = [scale * abs(value) for value in normal(classes, 4)]
        model = one("SVMClassifier", {"x": ROWS}, {"y": INT64, "z": FLOAT}, rho=[0.2], coefficients=weights,
                    kernel_params=KERNELS["LINEAR"], classlabels_ints=[3, 5, 2][:classes])  # fmt: skip
        check(model, {"x": ROWS})


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("one_class", [0, 1])
def test_support_vectors_regress(kernel: str, one_class: int) -> None:
    model = one("SVMRegressor", {"x": ROWS}, {"y": FLOAT}, kernel_type=kernel, kernel_params=KERNELS[kernel],
                n_supports=5, support_vectors=normal(5, 4), coefficients=normal(5), rho=[0.1],
                one_class=one_class)  # fmt: skip
    check(model, {"x": ROWS}, within=1e-4)


def test_distances_to_far_vectors_are_exact() -> None:
    """Squares of numbers that have much in common lose what they differ in."""
    far = ROWS + np.float32(1000)
    vectors = (np.reshape(normal(5, 4), (5, 4)) + 1000).astype(np.float32)
    model = one("SVMRegressor", {"x": far}, {"y": FLOAT}, kernel_type="RBF", kernel_params=KERNELS["RBF"],
                n_supports=5, support_vectors=vectors.reshape(-1).tolist(), coefficients=normal(5),
                rho=[0.1])  # fmt: skip
    check(model, {"x": far}, within=1e-3)


def classifier(
    forest: Forest, labels: int, *, opset: int = 18, ids: int | None = None, **attributes: Any
) -> onnx.ModelProto:
    given = forest.attributes()
    del given["n_targets"]
    for name in ("ids", "nodeids", "treeids", "weights"):
        given[f"class_{name}"] = given.pop(f"target_{name}")
    if ids is not None:
        given["class_ids"] = [ids] * len(given["class_ids"])
    given |= attributes
    kind = FLOAT
    if forest.dtype == np.float64:
        given, kind = as_doubles(given), DOUBLE
    label = {"classlabels_strings": ["ash", "oak", "yew"][:labels]}
    node = helper.make_node("TreeEnsembleClassifier", ["x"], ["y", "z"], domain=ML, **label, **given)
    return model_of([node], {"x": (kind, ["n", forest.features])}, {"y": STRING, "z": FLOAT}, opset=opset)


@pytest.mark.parametrize("transform", TRANSFORMS)
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_trees_classify_into_three(transform: str, dtype: Any) -> None:
    forest = Forest(targets=3, dtype=dtype)
    small = [abs(value) / 50 for value in forest.attributes()["target_weights"]]
    weights = {"class_weights": small} if transform == "PROBIT" else {}
    check(classifier(forest, 3, post_transform=transform, **weights), {"x": forest.samples(20)})


@pytest.mark.parametrize("base", [[], [0.1], [0.4, -0.2, 0.3]])
def test_trees_of_one_class_each_classify(base: list[float]) -> None:
    forest = Forest(targets=3, own_target=True, trees=6)
    values = {"base_values": base} if len(base) == 3 else {}
    check(classifier(forest, 3, **values), {"x": forest.samples(20)})


def test_a_class_that_no_leaf_speaks_of_is_not_the_best() -> None:
    """Two of three classes have leaves, and all of their weights are below zero."""
    forest = Forest(targets=2, own_target=True, trees=4)
    below = [-abs(value) for value in forest.attributes()["target_weights"]]
    check(classifier(forest, 3, class_weights=below), {"x": forest.samples(20)})


@pytest.mark.parametrize("transform", ["NONE", "LOGISTIC", "SOFTMAX"])
@pytest.mark.parametrize("are_positive", [False, True])
@pytest.mark.parametrize("ids", [0, 1])
def test_trees_with_one_sum_classify_into_two(transform: str, are_positive: bool, ids: int) -> None:
    forest = Forest(trees=2)
    given = forest.attributes()["target_weights"]
    weights = [abs(value) / 2 for value in given] if are_positive else given
    model = classifier(forest, 2, ids=ids, post_transform=transform, class_weights=weights)
    check(model, {"x": forest.samples(20)})


def test_trees_with_one_sum_start_from_a_base_value() -> None:
    forest = Forest(trees=3)
    check(classifier(forest, 2, ids=0, base_values=[0.3], post_transform="LOGISTIC"), {"x": forest.samples(20)})


def test_integers_are_compared_as_floats() -> None:
    model = classifier(Forest(targets=3), 3)
    model.graph.input[0].type.tensor_type.elem_type = INT64
    check(model, {"x": INTEGERS})


def test_maps_of_scores_become_columns_with_names() -> None:
    forest = Forest(targets=3)
    model = classifier(forest, 3)
    node = helper.make_node("ZipMap", ["z"], ["maps"], domain=ML, classlabels_strings=["ash", "oak", "yew"])
    model.graph.node.append(node)
    del model.graph.output[1]
    kind = helper.make_map_type_proto(STRING, helper.make_tensor_type_proto(FLOAT, []))
    model.graph.output.append(helper.make_value_info("maps", helper.make_sequence_type_proto(kind)))
    made = check(model, {"x": forest.samples(9)})
    assert labels_of(made) == {"y": {"values": ["ash", "oak", "yew"]}, "maps": {"columns": ["ash", "oak", "yew"]}}


def test_text_is_the_number_of_a_word_from_input_to_output() -> None:
    """Columns of text are joined, chosen from, encoded, and decoded again."""
    nodes = [
        helper.make_node("Concat", ["a", "b"], ["both"], axis=1),
        helper.make_node("LabelEncoder", ["both"], ["number"], domain=ML, keys_strings=["yew", "ash"],
                         values_int64s=[1, 2], default_int64=0),
        helper.make_node("OneHotEncoder", ["a"], ["hot"], domain=ML, cats_strings=["ash", "oak"]),
        helper.make_node("ArrayFeatureExtractor", ["words", "picked"], ["word"], domain=ML),
        helper.make_node("Squeeze", ["column", "axis"], ["picked"]),
        helper.make_node("Gather", ["number", "first"], ["column"], axis=1),
    ]  # fmt: skip
    nodes = [*nodes[:3], nodes[5], nodes[4], nodes[3]]
    texts = {"a": np.array([["ash"], ["oak"], ["elm"]], object), "b": np.array([["yew"], ["ash"], ["yew"]], object)}
    constants = {"words": np.array(["none", "is yew", "is ash"], object), "axis": np.array([1]), "first": np.array([1])}
    model = model_of(nodes, {name: (STRING, ["n", 1]) for name in texts},
                     {"number": INT64, "hot": FLOAT, "word": STRING}, constants=constants)  # fmt: skip
    made = check(model, texts)
    assert labels_of(made)["a"] == {"values": ["yew", "ash", "oak"]}
    assert labels_of(made)["word"] == {"values": ["none", "is yew", "is ash"]}


def test_distances_of_onnx_runtime_may_stand_before_such_operators() -> None:
    """Neighbours by CDist: what it gives is known, though it is written out later."""
    nodes = [
        helper.make_node("Scaler", ["x"], ["scaled"], domain=ML, offset=[0.5], scale=[2.0]),
        helper.make_node("CDist", ["scaled", "rows"], ["far"], domain="com.microsoft", metric="euclidean"),
        helper.make_node("TopK", ["far", "three"], ["least", "near"], axis=1, largest=0),
        helper.make_node("Flatten", ["near"], ["flat"]),
        helper.make_node("ArrayFeatureExtractor", ["labels", "flat"], ["y"], domain=ML),
    ]
    constants = {"rows": ROWS[:5], "three": np.array([3]), "labels": np.arange(5, dtype=np.float32) ** 2}
    model = model_of(nodes, {"x": (FLOAT, ["n", 4])}, {"y": FLOAT}, constants=constants)
    model.opset_import.append(helper.make_opsetid("com.microsoft", 1))
    written = written_out(model)
    assert not written.why
    assert {node.domain for node in written.model.graph.node} == {"", "com.microsoft"}
    feeds = {"x": ROWS[:1]}
    found = Interpreter(canonical_model(in_standard(written.model)))(feeds)["y"]
    assert_close(found, run(model, feeds)["y"], within=0)


def test_a_model_without_such_operators_is_left_as_it_is() -> None:
    model = model_of([helper.make_node("Relu", ["x"], ["y"])], {"x": (FLOAT, ["n", 4])}, {"y": FLOAT})
    assert written_out(model).model is model


@pytest.mark.parametrize("opset", [0, 7, 9])
def test_a_model_in_an_old_operator_set_or_in_none_is_brought_to_one_that_has_what_is_written(opset: int) -> None:
    made = check(one("Scaler", {"x": ROWS}, {"y": FLOAT}, opset=opset, offset=[1.0], scale=[2.0]), {"x": ROWS})
    assert made.opset_import[0].version >= 11


def test_what_cannot_be_arrays_stays_and_is_said() -> None:
    nodes = [
        helper.make_node("Scaler", ["x"], ["scaled"], domain=ML, offset=[1.0], scale=[1.0]),
        helper.make_node("Cast", ["scaled"], ["text"], to=STRING),
        helper.make_node("LabelEncoder", ["text"], ["y"], domain=ML, keys_strings=["1"], values_int64s=[3]),
    ]
    written = written_out(model_of(nodes, {"x": (FLOAT, ["n", 4])}, {"y": INT64}))
    assert written.why == {"y": "text that is not known when the model is built"}
    assert [node.op_type for node in written.model.graph.node if node.domain == ML] == ["LabelEncoder"]


def test_every_operator_that_is_written_out_is_tested() -> None:
    tested = {operator for operator, *_ in FEATURES}
    tested |= {"ArrayFeatureExtractor", "FeatureVectorizer", "LinearClassifier", "LinearRegressor", "SVMClassifier",
               "SVMRegressor", "TreeEnsemble", "TreeEnsembleClassifier", "TreeEnsembleRegressor", "ZipMap",
               "CategoryMapper"}  # fmt: skip
    assert tested == set(RULES)


@pytest.mark.parametrize("to_text", [False, True])
def test_categories_are_mapped_both_ways(to_text: bool) -> None:
    x = INTEGERS[:, 0] if to_text else np.array(["ash", "elm", "oak"], object)
    model = one("CategoryMapper", {"x": x}, {"y": STRING if to_text else INT64}, cats_int64s=[1, 3],
                cats_strings=["ash", "oak"], default_string="other", default_int64=-5)  # fmt: skip
    check(model, {"x": x})


def new_ensemble(transform: int) -> onnx.ModelProto:
    arrays = {"nodes_modes": np.array([0, 0], np.uint8), "nodes_splits": np.array([0.25, 0.5], np.float32),
              "leaf_weights": np.array([0.1, 0.2, 0.4, 0.3], np.float32)}  # fmt: skip
    tensors = {name: numpy_helper.from_array(value, name) for name, value in arrays.items()}
    return one(
        "TreeEnsemble", {"x": ROWS}, {"y": FLOAT}, ml=5, n_targets=2, aggregate_function=1, post_transform=transform,
        tree_roots=[0, 1], nodes_featureids=[0, 1], nodes_trueleafs=[1, 1], nodes_truenodeids=[0, 2],
        nodes_falseleafs=[1, 1], nodes_falsenodeids=[1, 3], leaf_targetids=[0, 0, 1, 1], **tensors,
    )  # fmt: skip


@pytest.mark.parametrize("transform", [0, 3, 4])
def test_the_new_ensemble_keeps_its_post_transform(transform: int) -> None:
    check(new_ensemble(transform), {"x": ROWS})


@pytest.mark.parametrize("transform", [1, 2])
def test_a_number_that_means_two_transforms_is_refused(transform: int) -> None:
    assert "SOFTMAX in the standard" in written_out(new_ensemble(transform)).why["y"]
