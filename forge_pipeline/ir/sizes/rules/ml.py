"""Operators of ai.onnx.ml: rows of features go in, a row for each comes out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from onnx import TensorProto

from forge_pipeline.ir.sizes import expression as e
from forge_pipeline.ir.sizes.expression import Whole
from forge_pipeline.ir.sizes.operation import Operation, Rule, Unknown, needed
from forge_pipeline.ir.sizes.value import UNKNOWN, Known


def _rows(op: Operation) -> Whole:
    shape = needed(op.shape(0))
    return shape[0] if len(shape) > 1 else 1


def classifier(op: Operation) -> Sequence[Known]:
    """A label and a score for each class; one that has two classes and one weight has two scores all the same."""
    rows = _rows(op)
    strings = op.attribute("classlabels_strings") or op.attribute("classlabels_string")
    numbers = op.attribute("classlabels_int64s") or op.attribute("classlabels_ints")
    labels = strings or numbers
    if not labels:
        raise Unknown
    kind = TensorProto.STRING if strings else TensorProto.INT64
    return [Known(kind, (rows,)), Known(TensorProto.FLOAT, (rows, len(labels)))]


def regressor(op: Operation) -> Sequence[Known]:
    """A value for each target."""
    default = 1
    targets = int(op.attribute("n_targets", op.attribute("targets", default)))
    return [Known(TensorProto.FLOAT, (_rows(op), targets))]


def tree_ensemble(op: Operation) -> Sequence[Known]:
    """TreeEnsemble-5: a value for each target, of the type of the thresholds."""
    return [Known(op.input(0).dtype, (_rows(op), int(op.attribute("n_targets"))))]


def floats(op: Operation) -> Sequence[Known]:
    """Scaler and Normalizer: floats of the same shape."""
    return [Known(TensorProto.FLOAT, op.shape(0))]


def same(op: Operation) -> Sequence[Known]:
    """Imputer and Binarizer: the same shape and type."""
    return [Known(op.input(0).dtype, op.shape(0))]


def one_hot_encoder(op: Operation) -> Sequence[Known]:
    """A new last axis, as long as there are categories."""
    categories = op.attribute("cats_int64s") or op.attribute("cats_strings")
    return [Known(TensorProto.FLOAT, (*needed(op.shape(0)), len(categories)))]


_VALUES: Final = {
    "values_floats": TensorProto.FLOAT,
    "values_int64s": TensorProto.INT64,
    "values_strings": TensorProto.STRING,
}


def label_encoder(op: Operation) -> Sequence[Known]:
    """One value for another; version 1 turns strings into numbers and back."""
    for name, kind in _VALUES.items():
        if op.attribute(name):
            return [Known(kind, op.shape(0))]
    table = op.attribute("values_tensor")
    if table is not None:
        return [Known(int(table.data_type), op.shape(0))]
    back = op.input(0).dtype != TensorProto.STRING
    return [Known(TensorProto.STRING if back else TensorProto.INT64, op.shape(0))]


def feature_extractor(op: Operation) -> Sequence[Known]:
    """ArrayFeatureExtractor: entries of the last axis; a vector becomes a row."""
    shape, picked = needed(op.shape(0)), needed(op.shape(1))
    outer = shape[:-1] if len(shape) > 1 else (1,)
    return [Known(op.input(0).dtype, (*outer, e.product(picked)))]


def feature_vectorizer(op: Operation) -> Sequence[Known]:
    """FeatureVectorizer: the inputs side by side, as wide as the attribute says."""
    widths = [int(width) for width in op.attribute("inputdimensions")]
    return [Known(TensorProto.FLOAT, (_rows(op), sum(widths)))]


def maps(_: Operation) -> Sequence[Known]:
    """ZipMap: a dictionary for each row, of which no size is known."""
    return [UNKNOWN]


RULES: Final[Mapping[str, Rule]] = {
    **dict.fromkeys(("TreeEnsembleClassifier", "LinearClassifier", "SVMClassifier"), classifier),
    **dict.fromkeys(("TreeEnsembleRegressor", "LinearRegressor", "SVMRegressor"), regressor),
    "TreeEnsemble": tree_ensemble,
    "Scaler": floats,
    "Normalizer": floats,
    "Imputer": same,
    "Binarizer": same,
    "OneHotEncoder": one_hot_encoder,
    "LabelEncoder": label_encoder,
    "CategoryMapper": label_encoder,
    "ArrayFeatureExtractor": feature_extractor,
    "FeatureVectorizer": feature_vectorizer,
    "ZipMap": maps,
}
