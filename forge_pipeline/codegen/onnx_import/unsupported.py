"""Uses of supported operators that TVM's importer gets wrong without a word: each is refused, with its reason.

Found by running ONNX's own node tests through the compiler; what could be mended is in ``converters`` instead.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from forge_pipeline.codegen.onnx_import.attention import attention_trap
from forge_pipeline.codegen.onnx_import.facts import Facts
from forge_pipeline.codegen.onnx_import.recurrent import SUPPORTED

if TYPE_CHECKING:
    import onnx


Trap = Callable[["onnx.NodeProto", Facts], Iterator[str]]


def _attribute(node: onnx.NodeProto, name: str, default: Any) -> Any:
    from onnx import helper

    return next((helper.get_attribute_value(item) for item in node.attribute if item.name == name), default)


def _input(node: onnx.NodeProto, index: int) -> str:
    return node.input[index] if index < len(node.input) else ""


def _is_off(node: onnx.NodeProto, index: int, facts: Facts) -> bool:
    """Return whether a flag that is an input is absent or the constant false."""
    value = facts.constant(_input(node, index))
    return not _input(node, index) or (value is not None and not value.any())


def _uses_more_than_first(node: onnx.NodeProto, facts: Facts) -> bool:
    return any(name in facts.used for name in node.output[1:] if name)


def _batch_normalization(node: onnx.NodeProto, facts: Facts) -> Iterator[str]:
    if _attribute(node, "training_mode", 0) or _uses_more_than_first(node, facts):
        yield "training mode"


def _dropout(node: onnx.NodeProto, facts: Facts) -> Iterator[str]:
    if not _is_off(node, 2, facts):
        yield "training mode"
    if _uses_more_than_first(node, facts):
        yield "its mask is used"


def _layer_normalization(node: onnx.NodeProto, facts: Facts) -> Iterator[str]:
    if _uses_more_than_first(node, facts):
        yield "mean and deviation are used"


def _rms_normalization(node: onnx.NodeProto, facts: Facts) -> Iterator[str]:
    if _attribute(node, "axis", -1) != -1 and len(facts.shapes.get(_input(node, 1), (0, 0))) != 1:
        yield "over more than the last dimension"


def _max_pool(node: onnx.NodeProto, facts: Facts) -> Iterator[str]:
    if _uses_more_than_first(node, facts):
        yield "indices are used"


def _bit_shift(node: onnx.NodeProto, facts: Facts) -> Iterator[str]:
    amount = facts.constant(_input(node, 1))
    if amount is None or (amount < 0).any() or (amount >= 8 * amount.dtype.itemsize).any():
        yield "shifts by what is not a constant within the width of the type"


def _mod(node: onnx.NodeProto, facts: Facts) -> Iterator[str]:
    if not _attribute(node, "fmod", 0) and facts.dtype(_input(node, 0)) in ("float16", "float32", "float64"):
        yield "floating point without fmod"


def _roi_align(node: onnx.NodeProto, facts: Facts) -> Iterator[str]:
    if _attribute(node, "mode", b"avg") == b"max":
        yield "mode max"


def _needs_constants(*indices: int) -> Trap:
    def trap(node: onnx.NodeProto, facts: Facts) -> Iterator[str]:
        for index in indices:
            name = _input(node, index)
            if name and name not in facts.constants:
                yield f"input {index} is not a constant"

    return trap


def _resize(node: onnx.NodeProto, facts: Facts) -> Iterator[str]:
    mode, dtype = _attribute(node, "mode", b"nearest").decode(), facts.dtype(node.input[0])
    transformation = _attribute(node, "coordinate_transformation_mode", b"half_pixel").decode()
    if mode != "nearest" and dtype and "float" not in dtype:
        yield f"{mode} of {dtype}"
    if transformation == "tf_crop_and_resize" and facts.constant(_input(node, 1)) is None:
        yield "a roi that is not a constant"
    if _attribute(node, "antialias", 0) or transformation == "tf_crop_and_resize":
        asked = "antialias" if _attribute(node, "antialias", 0) else transformation
        if not _keeps_what_is_open(node, facts):
            yield f"{asked} of an extent that is not known"


def _keeps_what_is_open(node: onnx.NodeProto, facts: Facts) -> bool:
    """Return whether only axes with known extents are resized; where that cannot be told here, the converter tells."""
    before, scales = facts.shapes.get(node.input[0]), facts.constant(_input(node, 2))
    if before is None:
        return False
    axes = _attribute(node, "axes", range(len(before)))
    if scales is None or len(scales) != len(axes):
        return True
    return all(before[axis] is not None or scale == 1 for axis, scale in zip(axes, scales, strict=True))


def _recurrent(node: onnx.NodeProto, facts: Facts) -> Iterator[str]:
    shape = facts.shapes.get(node.input[0], ())
    steps = shape[1 if _attribute(node, "layout", 0) else 0] if len(shape) == 3 else None
    lengths = facts.constant(_input(node, 4))
    if _input(node, 4) and (lengths is None or (lengths != steps).any()):
        yield "sequences of several lengths"
    if any(item.name == "clip" for item in node.attribute) or _attribute(node, "input_forget", 0):
        yield "clip or input_forget"
    unknown = {name.decode() for name in _attribute(node, "activations", ())} - SUPPORTED
    if unknown:
        yield f"activation {', '.join(sorted(unknown))}"


def _top_k(node: onnx.NodeProto, facts: Facts) -> Iterator[str]:
    if facts.dtype(_input(node, 0)) in ("uint16", "uint32", "uint64", "int16"):
        yield "a type that TVM's runtime does not sort"


def _reduction(node: onnx.NodeProto, facts: Facts) -> Iterator[str]:
    if 0 in facts.shapes.get(node.input[0], ()):
        yield "over an empty set"
    if _input(node, 1) and _input(node, 1) not in facts.constants:
        yield "axes are not a constant"


TRAPS: Mapping[str, Trap] = MappingProxyType(
    {
        "Attention": attention_trap,
        "BatchNormalization": _batch_normalization,
        "BitShift": _bit_shift,
        "Dropout": _dropout,
        "GRU": _recurrent,
        "LSTM": _recurrent,
        "LayerNormalization": _layer_normalization,
        "MaxPool": _max_pool,
        "Mod": _mod,
        "NonMaxSuppression": _needs_constants(2, 3, 4),
        "RMSNormalization": _rms_normalization,
        "RNN": _recurrent,
        "Resize": _resize,
        "Upsample": _resize,
        "RoiAlign": _roi_align,
        "TopK": _top_k,
        **dict.fromkeys(
            (
                *("ReduceL1", "ReduceL2", "ReduceLogSum", "ReduceLogSumExp", "ReduceMax", "ReduceMean", "ReduceMin"),
                *("ReduceProd", "ReduceSum", "ReduceSumSquare"),
            ),
            _reduction,
        ),
    }
)
