"""Operators on strings."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from onnx import TensorProto

from forge_pipeline.ir.sizes.operation import Operation, Rule, needed
from forge_pipeline.ir.sizes.value import Known


def concat(op: Operation) -> Sequence[Known]:
    """StringConcat: element by element."""
    return [Known(TensorProto.STRING, op.broadcast(needed(op.shape(0)), needed(op.shape(1))))]


def split(op: Operation) -> Sequence[Known]:
    """StringSplit: parts of each, as many as the longest has, and their counts."""
    shape = needed(op.shape(0))
    return [Known(TensorProto.STRING, (*shape, op.fresh("parts"))), Known(TensorProto.INT64, shape)]


def match(op: Operation) -> Sequence[Known]:
    """RegexFullMatch."""
    return [Known(TensorProto.BOOL, op.shape(0))]


def normalizer(op: Operation) -> Sequence[Known]:
    """StringNormalizer: stop words are left out, so that data says how many are left; one is left at least."""
    shape = needed(op.shape(0))
    if not op.attribute("stopwords"):
        return [Known(TensorProto.STRING, shape)]
    return [Known(TensorProto.STRING, (*shape[:-1], op.fresh("")))]


def tf_idf(op: Operation) -> Sequence[Known]:
    """TfIdfVectorizer: a weight for each word or group of words."""
    width = max(int(place) for place in op.attribute("ngram_indexes")) + 1
    return [Known(TensorProto.FLOAT, (*needed(op.shape(0))[:-1], width))]


RULES: Final[Mapping[str, Rule]] = {
    "StringConcat": concat,
    "StringSplit": split,
    "RegexFullMatch": match,
    "StringNormalizer": normalizer,
    "TfIdfVectorizer": tf_idf,
}
