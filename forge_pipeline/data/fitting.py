"""Fits stored samples to a model's inputs: names, batch axis, dtype, scale. Explicit rules, exact refusals."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from forge_pipeline.data.arrays import Row
from forge_pipeline.data.preparation import Image, Preparation
from forge_pipeline.data.sources import Source
from forge_pipeline.errors import DataError

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from onnx import ModelProto

Feed = dict[str, "NDArray[Any]"]
Dims = tuple[int | str, ...]
AS_STORED = Preparation(calibration_samples=1, shuffle=False, seed=0, scale=1.0, offset=0.0, image=None)


@dataclass(frozen=True, slots=True, kw_only=True)
class InputSpec:
    """A model's input. ``shape`` holds lengths and, for axes that may vary, names; ``dtype`` is NumPy's name."""

    name: str
    shape: Dims
    dtype: str


def input_specs(model: ModelProto) -> tuple[InputSpec, ...]:
    """Return the inputs that a caller must feed: those without an initializer."""
    from onnx.helper import tensor_dtype_to_np_dtype

    stored = {tensor.name for tensor in model.graph.initializer}
    specs = []
    for value in model.graph.input:
        if value.name not in stored:
            tensor = value.type.tensor_type
            dims = tuple(dim.dim_value if dim.dim_value > 0 else (dim.dim_param or "?") for dim in tensor.shape.dim)
            dtype = np.dtype(tensor_dtype_to_np_dtype(tensor.elem_type)).name
            specs.append(InputSpec(name=value.name, shape=dims, dtype=dtype))
    return tuple(specs)


@dataclass(frozen=True, slots=True, kw_only=True)
class Fits:
    """How every input is cut from a row; ``group`` rows make one feed (the model's fixed batch)."""

    inputs: tuple[InputSpec, ...]
    names: Mapping[str, str]
    preparation: Preparation
    source: Source
    group: int

    @property
    def columns(self) -> frozenset[str]:
        """The arrays that are read."""
        return frozenset(self.names.values())

    def feed(self, row: Row, index: int) -> Feed:
        """Return one row as a feed with a batch axis of one (or with its own, where it is stored). DataError."""
        feed: Feed = {}
        for spec in self.inputs:
            place = f"{self.source.place(index)}, input {spec.name!r}"
            array = row[self.names[spec.name]]
            if self.source.images and self.preparation.image is not None:
                array = _resized(array, self.preparation.image, place)
            if array.size == 0:
                raise DataError(place, "values", f"an empty array of shape {list(array.shape)}", "remove the sample")
            feed[spec.name] = _typed(_shaped(array, spec, place), spec, self.preparation, place, self.source.images)
        return feed

    def stack(self, group: Sequence[Feed]) -> Feed:
        """Join the feeds of a fixed batch."""
        if len(group) == 1:
            return group[0]
        return {spec.name: np.concatenate([feed[spec.name] for feed in group]) for spec in self.inputs}


def feed_for(inputs: Sequence[InputSpec], sample: Mapping[str, Any], place: str) -> Feed:
    """Return arrays that somebody holds in memory as a feed, by the same rules as stored samples. Raises DataError."""
    feed: Feed = {}
    for spec in inputs:
        where = f"{place}, input {spec.name!r}"
        if spec.name not in sample:
            raise DataError(where, "an array", "nothing", f"give one for each of {[item.name for item in inputs]}")
        array = np.asarray(sample[spec.name])
        if array.size == 0:
            raise DataError(where, "values", f"an empty array of shape {list(array.shape)}", "remove the sample")
        feed[spec.name] = _typed(_shaped(array, spec, where), spec, AS_STORED, where, False)
    return feed


def plan(
    inputs: Sequence[InputSpec],
    names: Mapping[str, str],
    arrays: Mapping[str, tuple[int, ...]],
    preparation: Preparation,
    source: Source,
) -> Fits:
    """Check the first sample's shapes against the inputs, and find how many rows make a feed. Raises DataError."""
    groups: dict[str, int] = {}
    for spec in inputs:
        shape = arrays[names[spec.name]]
        place = f"{source.place(0)}, input {spec.name!r}"
        if source.images:
            _check_dtype(spec, preparation, place)
            groups[spec.name] = _batch(spec)
            continue
        _target_shape(shape, spec, place)
        stored_whole = _matches(shape, spec.shape) and not _matches(shape, spec.shape[1:])
        groups[spec.name] = 1 if stored_whole else _batch(spec)
    if len(set(groups.values())) > 1:
        shown = ", ".join(f"{name!r} takes {group}" for name, group in groups.items())
        raise DataError("data.path", "one batch size for all inputs", shown, "store samples with their batch axis")
    return Fits(
        inputs=tuple(inputs), names=dict(names), preparation=preparation, source=source,
        group=next(iter(groups.values()), 1),
    )  # fmt: skip


def _check_dtype(spec: InputSpec, preparation: Preparation, place: str) -> None:
    """Raise DataError unless the declared preparation makes what the input takes; nothing is left out silently."""
    image = preparation.image
    if image is None:
        return
    if image.dtype not in (None, spec.dtype):
        raise DataError(
            place,
            f"an input of {image.dtype}, as data.image.dtype declares",
            spec.dtype,
            "declare the model's own type",
        )
    changed = (preparation.scale, preparation.offset) != (1.0, 0.0) or any(image.mean) or set(image.std) != {1.0}
    if np.dtype(spec.dtype).kind != "f" and changed:
        raise DataError(
            place, f"pixels as they are, for an input of {spec.dtype}",
            "a scale, an offset, a mean or a standard deviation",
            "set data.scale=1, data.offset=0, data.image.mean to zeros and data.image.std to ones",
        )  # fmt: skip


def _batch(spec: InputSpec) -> int:
    return spec.shape[0] if spec.shape and isinstance(spec.shape[0], int) else 1


def _matches(shape: Sequence[int], dims: Dims) -> bool:
    return len(shape) == len(dims) and all(
        isinstance(dim, str) or size == dim for size, dim in zip(shape, dims, strict=True)
    )


def _target_shape(shape: tuple[int, ...], spec: InputSpec, place: str) -> tuple[int, ...]:
    """Return ``shape`` with the batch axis: added, already there, or with axes of length 1 restored."""
    if spec.shape and _matches(shape, spec.shape[1:]):
        return (1, *shape)
    if _matches(shape, spec.shape):
        return shape
    inner = spec.shape[1:]
    fixed = tuple(dim for dim in inner if isinstance(dim, int))
    if len(fixed) == len(inner) and [s for s in shape if s != 1] == [d for d in fixed if d != 1]:
        return (1, *fixed)
    raise DataError(
        where=place,
        expected=f"shape [{', '.join(map(str, spec.shape))}], or one sample of it",
        found=f"shape {list(shape)}",
        fix="give the samples the model's input shape",
    )


def _shaped(array: NDArray[Any], spec: InputSpec, place: str) -> NDArray[Any]:
    return array.reshape(_target_shape(array.shape, spec, place))


def _typed(array: NDArray[Any], spec: InputSpec, preparation: Preparation, place: str, images: bool) -> NDArray[Any]:
    dtype = np.dtype(spec.dtype)
    if dtype.kind == "f":
        return _floats(array, dtype, preparation, place, images)
    if array.dtype == dtype:
        return np.asarray(array, order="C")
    if array.dtype.kind not in "iub" or dtype.kind not in "iub":
        raise DataError(place, f"{dtype} values", f"{array.dtype} values", f"store them as {dtype}")
    if dtype.kind != "b":
        low, high, limits = int(array.min()), int(array.max()), np.iinfo(dtype)
        if low < limits.min or high > limits.max:
            raise DataError(
                place, f"values that {dtype} can hold ({limits.min} to {limits.max})", f"{low} to {high}",
                "correct the sample",
            )  # fmt: skip
    return array.astype(dtype)


def _floats(
    array: NDArray[Any], dtype: np.dtype[Any], preparation: Preparation, place: str, images: bool
) -> NDArray[Any]:
    if array.dtype.kind not in "fiub":
        raise DataError(place, "real numbers", f"{array.dtype} values", f"store them as {dtype}")
    if array.dtype.kind == "f":
        _check_finite(array, place)
    values = array
    if (preparation.scale, preparation.offset) != (1.0, 0.0):
        values = values.astype(np.float64) * preparation.scale + preparation.offset
    if images and preparation.image is not None:
        values = _normalised(values, preparation.image)
    with np.errstate(over="ignore"):
        result = np.asarray(values, dtype=dtype, order="C")
    if result is not array:
        _check_finite(result, place)
    return result


def _check_finite(array: NDArray[Any], place: str) -> None:
    bad = ~np.isfinite(array)
    if bad.any():
        first = tuple(int(axis) for axis in np.argwhere(bad)[0])
        kind = "NaN" if np.isnan(array[first]) else "infinity"
        raise DataError(
            place, "finite numbers", f"{int(bad.sum())} that are not, the first {kind} at {list(first)}",
            "correct or remove the sample",
        )  # fmt: skip


def _resized(pixels: NDArray[Any], options: Image, place: str) -> NDArray[Any]:
    """Resize, crop and reorder a decoded [height, width, 3] picture. Raises DataError for a crop beyond its edges."""
    from PIL import Image as Pillow

    picture = Pillow.fromarray(pixels)
    if options.color == "gray":
        picture = picture.convert("L")
    if isinstance(options.resize, int):
        ratio = options.resize / min(picture.size)
        size = (max(1, round(picture.width * ratio)), max(1, round(picture.height * ratio)))
        picture = picture.resize(size, Pillow.Resampling.BILINEAR)
    elif options.resize is not None:
        picture = picture.resize((options.resize[1], options.resize[0]), Pillow.Resampling.BILINEAR)
    if options.crop is not None:
        height, width = (options.crop, options.crop) if isinstance(options.crop, int) else options.crop
        if height > picture.height or width > picture.width:
            raise DataError(
                place, f"at least {height} x {width} pixels, as data.image.crop asks for",
                f"{picture.height} x {picture.width}", "set data.image.resize, or a smaller crop",
            )  # fmt: skip
        left, top = (picture.width - width) // 2, (picture.height - height) // 2
        picture = picture.crop((left, top, left + width, top + height))
    array = np.asarray(picture)
    array = array[:, :, None] if array.ndim == 2 else array
    if options.color == "bgr":
        array = array[:, :, ::-1]
    return array.transpose(2, 0, 1) if options.layout == "NCHW" else array


def _normalised(values: NDArray[Any], options: Image) -> NDArray[Any]:
    mean, std = np.asarray(options.mean), np.asarray(options.std)
    if options.layout == "NCHW":
        mean, std = mean[:, None, None], std[:, None, None]
    normalised: NDArray[Any] = (values.astype(np.float64) - mean) / std
    return normalised
