"""ONNX forms of the kernels that TVM's front ends write in place of operators: extremes of two tensors, and padding.

A kernel is told by its name, and what it does besides is read from its text; ``checked_export`` then runs both forms on
the same numbers, so that a kernel which is called so and does something else is noticed.
"""

from __future__ import annotations

import re
from typing import Any, Final

from forge_pipeline.relax.to_onnx.exporter import Exporter, Unsupported
from forge_pipeline.relax.to_onnx.tensors import dtype_of, static_shape

EXTREMES: Final = {"maximum": "Max", "minimum": "Min"}
_READS = re.compile(r"T\.reads\(\w+\[(.*?)\]\)")
_INDEX = re.compile(r"v_\w+(?: - (?:T\.int64\()?(\d+)\)?)?")
_VALUE = re.compile(r", T\.\w+\((-?[\d.e+-]+)\)\)\s*$")


def kernel(call: Any) -> str:
    """Return the name of the kernel that a call_tir calls, less the number that tells it from others."""
    return str(call.args[0].name_hint).rstrip("0123456789_")


def is_known(call: Any) -> bool:
    """Return whether a kernel of that name has a form in ONNX."""
    return kernel(call) in EXTREMES or kernel(call) == "pad"


def convert_kernel(maker: Exporter, call: Any, known: dict[str, Any], function: Any, inputs: list[str]) -> str:
    """Return the value of a call_tir; a row as those of ``export_tensors``."""
    name = kernel(call)
    if name in EXTREMES and len(inputs) == 2:
        return maker.node(EXTREMES[name], *inputs)
    if name == "pad" and len(inputs) == 1:
        return _pad(maker, call, maker.module[function].script(show_meta=False), inputs[0])
    raise Unsupported(f"the kernel {name} of {len(inputs)} tensors")


def _pad(maker: Exporter, call: Any, text: str, x: str) -> str:
    """The widths stand nowhere but in the kernel: in the indices at which it reads."""
    before_shape = static_shape(call.args[1].fields[0], "which a kernel pads")
    after_shape = static_shape(call, "which a kernel pads")
    reads = _READS.search(text)
    indices = [_INDEX.fullmatch(item.strip()) for item in reads[1].split(",")] if reads else []
    lines = [line for line in text.splitlines() if "if_then_else" in line]
    value = _VALUE.search(lines[0]) if len(lines) == 1 else None
    if len(indices) != len(before_shape) or not all(indices) or (lines and value is None):
        raise Unsupported("a kernel called pad that does not read like one")
    begins = [int(index[1] or 0) for index in indices if index is not None]
    ends = [a - b - n for a, b, n in zip(after_shape, before_shape, begins, strict=True)]
    pads = maker.constant([*begins, *ends], "int64", "pads")
    return maker.node("Pad", x, pads, maker.constant(float(value[1]) if value else 0.0, dtype_of(call)))
