"""Converter for DynamicQuantizeLinear, whose range is one kernel that a generator can recognise by its name."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tvm import te

MEASURE = "measure_range"
LEVELS = 255


def convert_dynamic_quantize(builder: Any, inputs: list[Any], attributes: dict[str, Any], opset: int) -> Any:
    """Return bytes, scale and zero point; a tensor of zeros has the scale 1, as in ONNX Runtime."""
    from tvm import relax

    found = builder.emit_te(_range, inputs[0], primfunc_name_hint=MEASURE)
    scale, zero = (builder.emit(relax.TupleGetItem(found, index)) for index in range(2))
    integers = relax.op.quantize(inputs[0], scale, zero, axis=0, out_dtype="uint8")
    return relax.Tuple([builder.emit(builder.normalize(integers)), scale, zero])


def _range(values: te.Tensor) -> list[te.Tensor]:
    from tvm import te, tirx

    def extreme(reduce: Any) -> Any:
        axes = [te.reduce_axis((0, extent)) for extent in values.shape]
        return te.compute((), lambda: reduce(values(*axes), axis=axes) if axes else values())

    zero, levels = tirx.const(0, "float32"), tirx.const(LEVELS, "float32")
    least, greatest = extreme(te.min), extreme(te.max)
    low = te.compute((), lambda: tirx.min(least(), zero))
    high = te.compute((), lambda: tirx.max(greatest(), zero))
    scale = te.compute(
        (), lambda: tirx.Select(high() == low(), tirx.const(1, "float32"), (high() - low()) / levels), name="scale"
    )
    place = te.compute(
        (),
        lambda: tirx.nearbyint(tirx.max(tirx.min(zero - low() / scale(), levels), zero)).astype("uint8"),
        name="zero",
    )
    return [scale, place]
