"""Converters from ONNX to Relax that TVM's front end lacks, or whose result would be slow or wrong."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

Converter = Callable[[Any, list[Any], dict[str, Any], int], Any]
"""``(block builder, inputs, attributes, opset) -> expression``; an absent optional input is None or missing."""

CONVERTERS: Mapping[str, Converter] = MappingProxyType({})
