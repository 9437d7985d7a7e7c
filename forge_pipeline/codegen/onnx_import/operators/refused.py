"""Operators that mean nothing here, by name, each with the reason."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any, Final

from forge_pipeline.codegen.onnx_import.node import Converter, NodeImport

REASONS: Final[Mapping[str, str]] = {
    **dict.fromkeys(
        ("Multinomial", "RandomNormal", "RandomNormalLike", "RandomUniform", "RandomUniformLike"),
        "random numbers: a compiled model gives the same results for the same inputs",
    ),
    "ImageDecoder": "it reads an image's file format: decode before the model",
    **dict.fromkeys(("RegexFullMatch", "StringConcat", "StringNormalizer", "StringSplit", "TfIdfVectorizer"), "text"),
    **dict.fromkeys(("Adagrad", "Adam", "Gradient", "Momentum"), "training"),
}


def _refuse(reason: str, node: NodeImport) -> Any:
    raise NotImplementedError(reason)


CONVERTERS: Mapping[str, Converter] = {name: partial(_refuse, reason) for name, reason in REASONS.items()}
