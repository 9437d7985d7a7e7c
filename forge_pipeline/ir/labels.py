"""What the numbers of a model's inputs and outputs stand for, kept with the model: the words of a classifier's labels.

An array holds no text. A value that is text in the file is the number of a word, and its words are listed here
(`values`), as are the classes whose scores the columns of an output are (`columns`).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from onnx import ModelProto

KEY = "forge.labels"
"""The entry of a model's metadata, in JSON: name of an input or output -> one of KINDS -> words or numbers in order."""

KINDS = ("values", "columns")

Labels = dict[str, dict[str, list[str] | list[int]]]


def labels_of(model: ModelProto) -> Labels:
    """Return the labels of a model's inputs and outputs; what is no such list is left out."""
    text = next((entry.value for entry in model.metadata_props if entry.key == KEY), "{}")
    try:
        found = json.loads(text)
    except ValueError:
        return {}
    names = {value.name for value in (*model.graph.input, *model.graph.output)}
    listed = found.items() if isinstance(found, dict) else ()
    return {name: kinds for name, kinds in listed if name in names and _are_labels(kinds)}


def _are_labels(kinds: Any) -> bool:
    return isinstance(kinds, dict) and all(
        kind in KINDS and isinstance(words, list) and all(type(word) in (str, int) for word in words)
        for kind, words in kinds.items()
    )


def set_labels(model: ModelProto, labels: Mapping[str, Any]) -> None:
    """Note the labels of a model, in the place of those it has."""
    kept = [entry for entry in model.metadata_props if entry.key != KEY]
    del model.metadata_props[:]
    model.metadata_props.extend(kept)
    if labels:
        model.metadata_props.add(key=KEY, value=json.dumps(labels, sort_keys=True))
