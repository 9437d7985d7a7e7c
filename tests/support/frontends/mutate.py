"""Models of ONNX's own node tests, changed at random: as messages, whose structure is known, and as bytes.

``mutant(number)`` is the same bytes each time. Most mutants still parse, since what parses goes further; the values
that are put in are those that break readers: sizes at the edge of their types, names that are paths, references to
nothing, graphs within themselves, weights that are not there or are elsewhere.
"""

from __future__ import annotations

import importlib
import random
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message
from onnx import TensorProto, helper, numpy_helper

OPERATORS = (
    "adagrad", "affinegrid", "attention", "batch_normalization", "cast", "clip", "concat", "constantofshape", "conv",
    "convtranspose", "einsum", "expand", "gather", "gemm", "gridsample", "if_", "layernormalization", "loop", "lstm",
    "maxpool", "optionalgetelement", "pad", "qlinearmatmul", "rangeop", "reshape", "resize", "scan", "sequence_map",
    "slice", "softmax", "split", "string_split", "tile", "topk", "transpose", "where",
)  # fmt: skip
INTEGERS = (0, 1, -1, 2, 3, 7, 21, 100, 255, 1 << 16, 1 << 20, (1 << 31) - 1, 1 << 31, 1 << 40, 1 << 60, (1 << 63) - 1)
STRINGS = (
    "", "x", "y", "../../../../tmp/out", "/etc/passwd", "/dev/zero", "a\x00b", "$(touch here)", "ai.onnx.ml", "evil",
    "n" * 5000, "\u202e\u0000", "If", "Loop", "Tile", "ConstantOfShape", "Identity", "location", "offset", "length",
    "-1", "99999999999999999999", "model.onnx", ".", "%s%n",
)  # fmt: skip
FLOATS = (0.0, -0.0, 1.0, -1.0, 1e38, -1e38, float("inf"), float("-inf"), float("nan"), 1e-45)
INTEGRAL = (FieldDescriptor.CPPTYPE_INT32, FieldDescriptor.CPPTYPE_INT64, FieldDescriptor.CPPTYPE_UINT64)


@cache
def seeds() -> tuple[bytes, ...]:
    """Return the models that are changed: a few hundred, with control flow, functions, strings and sequences."""
    from onnx.backend.test.case import node

    np.random.seed(0)  # some cases hold drawn constants
    for name in OPERATORS:
        importlib.import_module(f"{node.__name__}.{name}")
    models = [case.model for case in node._NodeTestCases if "_expanded" not in case.name]
    strange = [model for model in models if not all(map(_is_tensor, (*model.graph.input, *model.graph.output)))]
    plain = [model for model in models if all(map(_is_tensor, (*model.graph.input, *model.graph.output)))]
    chosen = [model.SerializeToString() for model in (*plain, *strange[::10])]  # `strange` ones are refused as they are
    return tuple(model for model in (*chosen, *list(_networks()) * 20) if len(model) < 20_000)


def _is_tensor(value: onnx.ValueInfoProto) -> bool:
    return value.type.HasField("tensor_type") and value.type.tensor_type.elem_type != TensorProto.STRING


def _networks() -> Iterator[bytes]:
    """Yield models that node tests are not: weights in every kind of storage, a local function, nested graphs."""
    value = helper.make_tensor_value_info
    inner = helper.make_function(
        "local", "Scaled", ["a"], ["b"], [helper.make_node("Mul", ["a", "a"], ["b"])], [helper.make_opsetid("", 20)]
    )
    weights = [
        numpy_helper.from_array(np.ones((4, 3, 3, 3), "float32"), "w"),
        helper.make_tensor("typed", TensorProto.FLOAT, [4], [1.0, 2.0, 3.0, 4.0]),
        helper.make_tensor("shape", TensorProto.INT64, [2], [0, -1]),
        TensorProto(name="outside", data_type=TensorProto.FLOAT, dims=[4], data_location=TensorProto.EXTERNAL),
    ]
    for key, text in (("location", "weights.bin"), ("offset", "0"), ("length", "16")):
        weights[3].external_data.add(key=key, value=text)
    branch = helper.make_graph([helper.make_node("Identity", ["r"], ["t"])], "branch", [], [value("t", 1, None)])
    nodes = [
        helper.make_node("Conv", ["x", "w", "typed"], ["c"], pads=[1, 1, 1, 1]),
        helper.make_node("Scaled", ["c"], ["s"], domain="local"),
        helper.make_node("Reshape", ["s", "shape"], ["r"]),
        helper.make_node("Constant", [], ["flag"], value=helper.make_tensor("f", TensorProto.BOOL, [], [True])),
        helper.make_node("If", ["flag"], ["i"], then_branch=branch, else_branch=branch),
        helper.make_node("ReduceSum", ["outside"], ["o"]),
        helper.make_node("Add", ["i", "o"], ["y"]),
    ]
    for count in (7, 4):
        last = nodes[count - 1].output[0]
        graph = helper.make_graph(
            nodes[:count],
            "net",
            [value("x", 1, ["N", 3, 8, 8])],
            [value(last, 1, None)],
            weights[: 4 if count > 4 else 3],
        )
        opset = [helper.make_opsetid("", 20), helper.make_opsetid("local", 1)]
        yield helper.make_model(graph, opset_imports=opset, functions=[inner], ir_version=10).SerializeToString()


def mutant(number: int) -> bytes:
    """Return the changed model of this number."""
    rng = random.Random(number)
    content = rng.choice(seeds())
    if rng.random() < 0.75:
        model = onnx.ModelProto.FromString(content)
        for _ in range(rng.choice((1, 1, 1, 2, 3, 6))):
            _change(rng, model)
        content = model.SerializeToString()
    else:
        for _ in range(rng.choice((1, 1, 2, 8))):
            content = change_bytes(rng, content)
    return content


def _messages(message: Message, depth: int = 0) -> Iterator[Message]:
    yield message
    for field, value in message.ListFields() if depth < 60 else ():
        if field.message_type is not None:
            for item in value if field.is_repeated else (value,):
                yield from _messages(item, depth + 1)


def _change(rng: random.Random, model: onnx.ModelProto) -> None:
    """Change one field of one message, in place."""
    everything = list(_messages(model))
    message: Any = rng.choice(everything)
    field = rng.choice(message.DESCRIPTOR.fields)
    present = [known for known, _ in message.ListFields()]
    if present and rng.random() < 0.7:
        field = rng.choice(present)
    if rng.random() < 0.1:
        message.ClearField(field.name)
    elif field.message_type is not None:
        alike = [item for item in everything if item.DESCRIPTOR is field.message_type]
        other = onnx.ModelProto.FromString(rng.choice(seeds())) if rng.random() < 0.2 else None
        alike += [item for item in _messages(other) if item.DESCRIPTOR is field.message_type] if other else []
        _change_message(rng, getattr(message, field.name), field, alike)
    elif field.is_repeated:
        _change_list(rng, getattr(message, field.name), lambda: _scalar(rng, field, everything))
    else:
        setattr(message, field.name, _scalar(rng, field, everything))


def _change_message(rng: random.Random, held: Any, field: FieldDescriptor, alike: list[Any]) -> None:
    copied = type(alike[0])() if alike else None
    if copied is not None:
        copied.CopyFrom(rng.choice(alike))  # of a graph that holds this one, too: it then holds itself
    if not field.is_repeated:
        if copied is not None and copied.ByteSize() < 50_000:
            held.CopyFrom(copied)
    elif copied is not None and rng.random() < 0.6 and copied.ByteSize() < 50_000:
        held.append(copied)
    elif held and rng.random() < 0.5:
        del held[rng.randrange(len(held))]
    elif held:
        held.append(held[rng.randrange(len(held))])
    else:
        held.add()


def _change_list(rng: random.Random, held: Any, scalar: Any) -> None:
    kind = rng.random()
    if held and kind < 0.5:
        held[rng.randrange(len(held))] = scalar()
    elif held and kind < 0.65:
        del held[rng.randrange(len(held))]
    elif kind < 0.95:
        held.append(scalar())
    else:
        held.extend([scalar()] * rng.choice((10, 300)))


def _scalar(rng: random.Random, field: FieldDescriptor, everything: list[Any]) -> Any:
    """Return a value for the field: a hostile one, or one that the model has elsewhere."""
    kind = field.cpp_type
    if kind in INTEGRAL:
        value = rng.choice(INTEGERS) if rng.random() < 0.8 else rng.randrange(40)
        if kind == FieldDescriptor.CPPTYPE_INT32:
            return max(-(1 << 31), min(value * rng.choice((1, -1)), (1 << 31) - 1))
        return abs(value) if kind == FieldDescriptor.CPPTYPE_UINT64 else value * rng.choice((1, -1))
    if kind == FieldDescriptor.CPPTYPE_ENUM:
        return rng.choice(field.enum_type.values).number
    if kind in (FieldDescriptor.CPPTYPE_FLOAT, FieldDescriptor.CPPTYPE_DOUBLE):
        return rng.choice(FLOATS)
    if kind == FieldDescriptor.CPPTYPE_BOOL:
        return rng.random() < 0.5
    if field.type == FieldDescriptor.TYPE_BYTES:
        return rng.choice((b"", b"\x00", b"\xff" * 8, b"../../x", bytes(rng.randrange(200)), b"%s" * 40))
    named = [name for item in everything for name in (*getattr(item, "output", ()), getattr(item, "name", ""))]
    names = [name for name in named if isinstance(name, str)]
    return rng.choice(names) if names and rng.random() < 0.5 else rng.choice(STRINGS)


def change_bytes(rng: random.Random, content: bytes) -> bytes:
    """Cut, repeat, overwrite or flip some of the bytes."""
    start = rng.randrange(len(content) + 1)
    end = min(len(content), start + rng.choice((1, 1, 4, 16, 200)))
    kind = rng.randrange(6)
    if kind == 0:
        return content[:start]
    if kind == 1:
        return content[:start] + content[end:]
    if kind == 2:
        return content[:end] + content[start:]
    if kind == 3:
        return content[:start] + rng.randbytes(end - start) + content[end:]
    if kind == 4:
        return content[:start] + b"\xff\xff\xff\xff\xff\xff\xff\xff\x7f"[-rng.randrange(1, 10) :] + content[end:]
    flipped = bytes(byte ^ (1 << rng.randrange(8)) for byte in content[start:end])
    return content[:start] + flipped + content[end:]


def main(folder: Path, count: int, other: Path | None = None) -> None:
    """Write mutants 0 to ``count`` - 1 into ``folder``; of the file ``other``, if one is given."""
    for number in range(count):
        if other is None:
            content = mutant(number)
        else:
            rng, content = random.Random(number), other.read_bytes()
            for _ in range(rng.choice((1, 2, 4))):
                content = content[:16] + change_bytes(rng, content[16:])
        (folder / f"{number:05}").write_bytes(content)


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), *map(Path, sys.argv[3:]))
