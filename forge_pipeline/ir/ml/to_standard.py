"""A model without operators of ai.onnx.ml, ensembles of trees apart, and with numbers in the place of text."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import onnx
from onnx import ModelProto, NodeProto, TypeProto, ValueInfoProto, helper, version_converter

from forge_pipeline.ir.functions import inline_functions
from forge_pipeline.ir.labels import set_labels
from forge_pipeline.ir.ml import encoders, features, linear, svm, trees
from forge_pipeline.ir.ml.builder import INT64, ML, STRING, Builder, Unusual
from forge_pipeline.ir.traversal import every_node

OLDEST, USUAL = 11, 18
"""The first operator set that has what is written, and the one of a model that imports none."""

TREES = 3
"""The version of ai.onnx.ml that has ensembles of doubles."""

Rule = Callable[[Builder, NodeProto, Mapping[str, Any]], None]


def zip_map(graph: Builder, node: NodeProto, attributes: Mapping[str, Any]) -> None:
    """A map from labels to scores for each row stays the scores; the labels are noted."""
    graph.node("Identity", node.input[0], result=node.output[0])
    texts = attributes.get("classlabels_strings", ())
    listed = tuple(bytes(text).decode() for text in texts) or tuple(attributes.get("classlabels_int64s", ()))
    graph.classes[node.output[0]] = listed


RULES: Mapping[str, Rule] = MappingProxyType(
    {
        "ArrayFeatureExtractor": features.array_feature_extractor,
        "Binarizer": features.binarizer,
        "CategoryMapper": encoders.category_mapper,
        "FeatureVectorizer": features.feature_vectorizer,
        "Imputer": features.imputer,
        "LabelEncoder": encoders.label_encoder,
        "LinearClassifier": linear.linear_classifier,
        "LinearRegressor": linear.linear_regressor,
        "Normalizer": features.normalizer,
        "OneHotEncoder": encoders.one_hot_encoder,
        "SVMClassifier": svm.svm_classifier,
        "SVMRegressor": svm.svm_regressor,
        "Scaler": features.scaler,
        "TreeEnsemble": trees.tree_ensemble,
        "TreeEnsembleClassifier": trees.tree_classifier,
        "TreeEnsembleRegressor": trees.tree_regressor,
        "ZipMap": zip_map,
    }
)
"""How each operator of ai.onnx.ml is written out."""

KEPT = frozenset({"TreeEnsemble", "TreeEnsembleRegressor"})
"""What stays: the code generator knows them."""

MOVES = frozenset(
    {"Compress", "Concat", "Expand", "Flatten", "Gather", "GatherElements", "GatherND", "Identity", "Reshape", "Slice",
     "Squeeze", "Tile", "Transpose", "Unsqueeze", "Where"}
)  # fmt: skip
"""Operators that move elements, whatever these are."""

ENCODERS = ("cats_strings", "classes_strings", "keys_strings", "keys_tensor")
"""Attributes that name the words of an operator's input."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Written:
    """A model, and why nodes of it are as they were, by the name of their first result."""

    model: ModelProto
    why: Mapping[str, str]


def written_out(model: ModelProto) -> Written:
    """Return ``model`` with operators of ai.onnx.ml written out as ONNX's, and text as numbers; itself without any."""
    if not any(_is_to_write(node) for node in every_node(model)):
        return Written(model=model, why={})
    raised = _in_opset(inline_functions(model))
    if raised is None:
        return Written(model=model, why={})
    graph, why = Builder.of(raised), dict[str, str]()
    graph.opsets[ML] = trees.NEWEST if any(node.op_type == "TreeEnsemble" for node in raised.graph.node) else TREES
    for value in raised.graph.input:
        _read_as_numbers(graph, raised, value)
    for node in raised.graph.node:
        before = len(graph.nodes)
        try:
            _write(graph, node)
        except Unusual as reason:
            del graph.nodes[before:]
            graph.add(node)
            why[node.output[0]] = str(reason)
    return Written(model=_assembled(raised, graph), why=why)


def _is_to_write(node: NodeProto) -> bool:
    """Return whether a node is no ensemble's, or one that transforms its sums."""
    return node.domain == ML and (
        node.op_type not in KEPT or any(item.name == "post_transform" for item in node.attribute)
    )


def _in_opset(model: ModelProto) -> ModelProto | None:
    """Return a copy of ``model`` in an operator set that has what is written; None where it cannot be brought there."""
    version = next((item.version for item in model.opset_import if item.domain in ("", "ai.onnx")), 0)
    raised = ModelProto()
    raised.CopyFrom(model)
    if not version:
        raised.opset_import.append(helper.make_opsetid("", USUAL))
    elif version < OLDEST:
        try:
            return version_converter.convert_version(raised, OLDEST)
        except (RuntimeError, version_converter.ConvertError, onnx.shape_inference.InferenceError):
            return None
    return raised


def _write(graph: Builder, node: NodeProto) -> None:
    """Add what a node is written out as. Unusual where it cannot be."""
    attributes = {item.name: helper.get_attribute_value(item) for item in node.attribute}
    if node.domain == ML:
        if node.op_type not in RULES:
            raise Unusual("maps are no arrays")
        RULES[node.op_type](graph, node, attributes)
        return
    texts = [name for name in node.input if name in graph.texts]
    if not texts:
        graph.add(node)
        return
    if node.op_type != "Equal" and node.op_type not in MOVES:
        raise Unusual("an operator on text")
    words = tuple(dict.fromkeys(word for name in texts for word in graph.texts[name]))
    written = NodeProto()
    written.CopyFrom(node)
    for place, name in enumerate(node.input):
        if name in graph.texts and graph.texts[name] != words:
            written.input[place] = encoders.renumbered(graph, name, words)
    graph.add(written)
    if node.op_type != "Equal":
        graph.texts[node.output[0]] = words


def _read_as_numbers(graph: Builder, model: ModelProto, value: ValueInfoProto) -> None:
    """Let an input of text be the number of a word, where operators say which words there are."""
    if value.type.tensor_type.elem_type != STRING:
        return
    reached, words = {value.name}, dict[str, None]()
    for node in model.graph.node:
        if not reached.isdisjoint(node.input):
            if node.op_type in MOVES or node.op_type == "ArrayFeatureExtractor":
                reached |= set(node.output)
            words |= dict.fromkeys(_words(node))
    if words:
        graph.texts[value.name] = tuple(words)
        graph.types[value.name] = _numbers(value.type)


def _words(node: NodeProto) -> Iterator[str]:
    for item in node.attribute:
        if item.name in ENCODERS:
            texts = item.t.string_data if item.type == item.TENSOR else item.strings
            yield from (bytes(text).decode() for text in texts)


def _numbers(kind: TypeProto) -> TypeProto:
    found = TypeProto()
    found.CopyFrom(kind)
    found.tensor_type.elem_type = INT64
    return found


def _assembled(model: ModelProto, graph: Builder) -> ModelProto:
    """Return ``model`` with the nodes, constants and types of ``graph``."""
    made = ModelProto()
    made.CopyFrom(model)
    del made.graph.node[:], made.graph.initializer[:], made.graph.value_info[:], made.opset_import[:]
    made.graph.node.extend(graph.nodes)
    used = {name for node in every_node(made) for name in node.input} | {value.name for value in made.graph.output}
    made.graph.initializer.extend(tensor for name, tensor in graph.tensors.items() if name in used)
    domains = {node.domain for node in every_node(made)}
    opsets = {**{item.domain: item.version for item in model.opset_import}, **graph.opsets}
    made.opset_import.extend(
        helper.make_opsetid(domain, version)
        for domain, version in opsets.items()
        if domain in ("", "ai.onnx") or domain in domains
    )
    for value in (*made.graph.input, *made.graph.output):
        known = graph.types.get(value.name)
        if known is not None and not _is_so(value.type, known):
            value.type.CopyFrom(known)
    set_labels(made, _labels(made, graph))
    return made


def _is_so(stated: TypeProto, known: TypeProto) -> bool:
    """Return whether a type that a file states can be the one that was inferred; exporters guess sizes."""
    if stated.WhichOneof("value") != "tensor_type" or stated.tensor_type.elem_type == STRING:
        return False
    if not (stated.tensor_type.HasField("shape") and known.tensor_type.HasField("shape")):
        return True
    dims = (stated.tensor_type.shape.dim, known.tensor_type.shape.dim)
    return len(dims[0]) == len(dims[1]) and all(
        a.dim_value == b.dim_value
        for a, b in zip(*dims, strict=True)
        if a.HasField("dim_value") and b.HasField("dim_value")
    )


def _labels(model: ModelProto, graph: Builder) -> dict[str, dict[str, list[Any]]]:
    found: dict[str, dict[str, list[Any]]] = {}
    for value in (*model.graph.input, *model.graph.output):
        if value.name in graph.texts:
            found[value.name] = {"values": list(graph.texts[value.name])}
        elif value.name in graph.classes:
            found[value.name] = {"columns": list(graph.classes[value.name])}
    return found
