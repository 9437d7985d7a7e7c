"""Weights that stay in a file while their model is worked with: a tensor refers to a range of an open file.

Such a reference has the form of ONNX's external data, with a location that no file can have and nobody can guess: it
is good in this process for as long as somebody holds the file. The file is mapped once, and what was read of it is
given back (``release``), so that a model of any size takes the memory of what is looked at.
"""

from __future__ import annotations

import mmap
import os
import secrets
import tempfile
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import Any, Final

import numpy as np
from onnx import GraphProto, ModelProto, TensorProto, helper, numpy_helper

from forge_pipeline.content import FileRange, OpenFile, writing_temporarily
from forge_pipeline.errors import ModelError
from forge_pipeline.ir.tensors import bit_width, byte_count

PAGE: Final = mmap.ALLOCATIONGRANULARITY

WINDOW: Final = 1 << 20
"""Bytes of a file that are looked at in one go."""

LEAST: Final = 1 << 16
"""Bytes below which a new constant is kept in memory."""

_MARK: Final = "\0"  # no file can have this in its name
_files: weakref.WeakValueDictionary[str, MappedFile] = weakref.WeakValueDictionary()

_mapped: weakref.WeakValueDictionary[int, mmap.mmap] = weakref.WeakValueDictionary()
"""What is mapped, by its address: arrays that have been through TVM no longer know where they are from."""

Array = np.ndarray[Any, Any]


class MappedFile:
    """A file that tensors refer to. ``location`` is how they name it."""

    __slots__ = ("__weakref__", "_mapped", "begin", "end", "file", "location")

    def __init__(self, file: OpenFile, *, begin: int = 0, end: int | None = None, location: str | None = None) -> None:
        self.file, self.begin, self.end = file, begin, file.size if end is None else end
        self.location = location or _MARK + secrets.token_hex(16)
        self._mapped: mmap.mmap | None = None
        _files[self.location] = self

    def window(self, start: int, length: int) -> memoryview:
        """Return a window onto a range of the file, which lies between ``begin`` and ``end``. Raises ModelError.

        To read behind the end of a file that was cut after it was mapped would end the process.
        """
        self.file.check()
        if start + length > self.file.size:
            raise ModelError(
                where="a model's weights",
                expected="a file that stays as it is while it is read",
                found="one that became shorter",
                fix="load the model again once nothing writes to it",
            )
        if self._mapped is None:
            size = self.end - self.begin
            self._mapped = mmap.mmap(self.file.descriptor, size, access=mmap.ACCESS_READ, offset=self.begin)
            _mapped[np.frombuffer(self._mapped, np.uint8).ctypes.data] = self._mapped
        return memoryview(self._mapped)[start - self.begin : start - self.begin + length]

    def windows(self, start: int, length: int) -> Iterator[memoryview]:
        """Yield a range in windows; each is good until the next, and takes no memory after it."""
        for position in range(start, start + length, WINDOW):
            size = min(WINDOW, start + length - position)
            yield self.window(position, size)
            if self._mapped is not None:
                page = (position - self.begin) // mmap.PAGESIZE * mmap.PAGESIZE
                self._mapped.madvise(mmap.MADV_DONTNEED, page, position - self.begin + size - page)

    def release(self) -> None:
        """Give back the memory of what was read of the mapping; arrays on it stay good."""
        if self._mapped is not None:
            self._mapped.madvise(mmap.MADV_DONTNEED)


class SpillFile:
    """A temporary file that takes new constants of a model whose weights do not fit into memory twice.

    If it is ``named``, it has a name until nobody holds it any more: ONNX Runtime opens what it is to map.
    """

    def __init__(self, *, named: bool) -> None:
        descriptor, path = tempfile.mkstemp(prefix="forge-weights-")
        self._file = OpenFile(descriptor)
        if named:
            weakref.finalize(self._file, Path(path).unlink, missing_ok=True)
        else:
            Path(path).unlink()
        self._tensors: list[MappedFile] = []

    def array(self, array: Array) -> Array:
        """Return a read-only array with the same content, on the file."""
        mapped, start = self._written(array)
        return _view(mapped, start, array.dtype, array.size).reshape(array.shape)

    def tensor(self, array: Array, name: str) -> TensorProto:
        """Return a tensor with the content of ``array``, on the file; this holds it until it ends itself."""
        tensor = TensorProto(name=name, data_type=helper.np_dtype_to_tensor_dtype(array.dtype), dims=array.shape)
        if bit_width(tensor.data_type) < 8:  # several to a byte
            array = np.frombuffer(numpy_helper.from_array(array).raw_data, np.uint8)
        mapped, start = self._written(array)
        self._tensors.append(mapped)
        refer(tensor, mapped, start, array.nbytes)
        return tensor

    def _written(self, array: Array) -> tuple[MappedFile, int]:
        start = -(-self._file.size // PAGE) * PAGE
        whole = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
        done = 0
        with writing_temporarily():
            while done < whole.nbytes:
                done += os.pwrite(self._file.descriptor, whole[done:].data, start + done)
        for other in tuple(_files.values()):
            other.release()  # what it was made from
        mapped = MappedFile(self._file, begin=start, end=start + whole.nbytes)  # a mapping does not grow with its file
        return mapped, start


_spill_file: ContextVar[SpillFile | None] = ContextVar("spill_file", default=None)


@contextmanager
def spilling(wanted: bool = True, *, named: bool = True) -> Iterator[None]:
    """Inside, new constants of at least LEAST bytes go to a temporary file (see Spill), if ``wanted``."""
    token = _spill_file.set(SpillFile(named=named) if wanted else None)
    try:
        yield
    finally:
        _spill_file.reset(token)


def spill(array: Array) -> Array:
    """Return ``array``, or where constants are spilled the same on the spill file."""
    file = _spill_file.get()
    return array if file is None or array.nbytes < LEAST else file.array(array)


def tensor_of(array: Array, name: str) -> TensorProto:
    """Return a tensor with the content of ``array``; where constants are spilled, on the spill file."""
    file = _spill_file.get()
    if file is None or array.nbytes < LEAST:
        return numpy_helper.from_array(array, name)
    return file.tensor(array, name)


def release_view(array: Array) -> None:
    """Give back the memory of an array that is a view of a file; nothing where it is another."""
    address = array.ctypes.data
    mapped = _mapped.get(address)
    if mapped is not None and array.nbytes <= len(mapped):
        mapped.madvise(mmap.MADV_DONTNEED)


def is_mapped(tensor: TensorProto) -> bool:
    """Whether a tensor's content is in a file that this process holds."""
    return mapped_file_of(tensor) is not None


def mapped_file_of(tensor: TensorProto) -> MappedFile | None:
    """Return the file that a tensor refers to; None where the tensor has its content, or it is elsewhere."""
    if tensor.data_location == TensorProto.EXTERNAL:
        for entry in tensor.external_data:
            if entry.key == "location":
                return _files.get(entry.value)
    return None


def mapped_files(model: ModelProto) -> tuple[MappedFile, ...]:
    """Return the files that the weights of the main graph refer to, each once: to be kept as long as the model."""
    found = (mapped_file_of(tensor) for tensor in model.graph.initializer)
    return tuple(dict.fromkeys(mapped for mapped in found if mapped is not None))


def release(model: ModelProto) -> None:
    """Give back the memory of what was read of the weights of ``model``."""
    for mapped in mapped_files(model):
        mapped.release()


def refer(tensor: TensorProto, mapped: MappedFile, start: int, length: int) -> None:
    """Make a tensor refer to a range of ``mapped``, in the place of what it has."""
    tensor.ClearField("raw_data")
    del tensor.external_data[:]
    tensor.data_location = TensorProto.EXTERNAL
    for key, value in (("location", mapped.location), ("offset", str(start)), ("length", str(length))):
        tensor.external_data.add(key=key, value=value)


def put_inside(tensor: TensorProto, content: bytes) -> None:
    """Give a tensor its content, in the place of a reference."""
    tensor.raw_data = content
    tensor.ClearField("external_data")
    tensor.ClearField("data_location")


def windows_of(tensor: TensorProto) -> Iterator[memoryview] | None:
    """Return the content of a mapped tensor in windows (see ``MappedFile.windows``); None for another."""
    found = _place(tensor)
    return None if found is None else found[0].windows(found[1], found[2])


def check_place(tensor: TensorProto, mapped: MappedFile, start: int, length: int, *, name: str = "the file") -> None:
    """Raise ModelError unless a range is as long as the tensor's type and shape say, and within the file ``name``."""
    expected, size = byte_count(tensor), min(mapped.end, mapped.file.size)
    if length != expected or start + length > size:
        raise ModelError(
            where=f"tensor {tensor.name[:80]!r}",
            expected=f"{expected} bytes for type {tensor.data_type} and shape {list(tensor.dims[:8])}",
            found=f"{length} bytes" + ("" if start + length <= size else f", past the end of {name}"),
            fix="copy the model again together with its data files, or export it again",
        )


def range_of(tensor: TensorProto) -> FileRange | None:
    """Return where the content of a mapped tensor is; None for another."""
    found = _place(tensor)
    return None if found is None else FileRange(found[0].file, found[1], found[2])


def array_of(tensor: TensorProto) -> Array:
    """Return a tensor's elements: of one that is mapped, where its type allows, a view that is not to be written."""
    found = _place(tensor)
    if found is None:
        return np.asarray(numpy_helper.to_array(tensor))
    mapped, start, length = found
    if bit_width(tensor.data_type) < 8:
        packed = TensorProto(data_type=tensor.data_type, dims=tensor.dims)
        packed.raw_data = bytes(mapped.window(start, length))
        return np.asarray(numpy_helper.to_array(packed))
    dtype = helper.tensor_dtype_to_np_dtype(tensor.data_type)
    return _view(mapped, start, dtype, length // dtype.itemsize).reshape(tuple(tensor.dims))


def same_content(model: ModelProto, other: ModelProto) -> bool:
    """Whether two models are written alike and their weights lie in the same places of the same files."""
    first, second = (ModelProto.FromString(item.SerializeToString()) for item in (model, other))
    for item in (first, second):
        for tensor in item.graph.initializer:
            mapped = mapped_file_of(tensor)
            if mapped is not None:
                status = os.fstat(mapped.file.descriptor)
                tensor.external_data[0].value = f"{status.st_dev}:{status.st_ino}"
    return bool(first.SerializeToString(deterministic=True) == second.SerializeToString(deterministic=True))


def outline(model: ModelProto) -> ModelProto:
    """Return a copy whose mapped weights are inputs of the same type: what checkers take. Itself without any."""
    if not any(is_mapped(tensor) for tensor in model.graph.initializer):
        return model
    result = ModelProto()
    result.CopyFrom(model)
    split_off(result.graph)
    return result


def split_off(graph: GraphProto) -> None:
    """Turn the mapped weights of a graph into inputs, in place."""
    kept = [tensor for tensor in graph.initializer if not is_mapped(tensor)]
    gone = [tensor for tensor in graph.initializer if is_mapped(tensor)]
    listed = {value.name for value in graph.input}
    graph.input.extend(
        helper.make_tensor_value_info(tensor.name, tensor.data_type, list(tensor.dims))
        for tensor in gone
        if tensor.name not in listed
    )
    copies = [TensorProto.FromString(tensor.SerializeToString()) for tensor in kept]
    del graph.initializer[:]
    graph.initializer.extend(copies)


def _place(tensor: TensorProto) -> tuple[MappedFile, int, int] | None:
    """Return where a mapped tensor's content is: file, start, length. Raises ModelError where that does not fit."""
    if tensor.data_location != TensorProto.EXTERNAL:
        return None
    entries = {entry.key: entry.value for entry in tensor.external_data}
    mapped = _files.get(entries.get("location", ""))
    if mapped is None:
        return None
    start, length = int(entries["offset"]), int(entries["length"])
    check_place(tensor, mapped, start, length)
    return mapped, start, length


def _view(mapped: MappedFile, start: int, dtype: np.dtype[Any], count: int) -> Array:
    if not count:
        return np.empty(0, dtype)
    return np.frombuffer(mapped.window(start, count * dtype.itemsize), np.uint8).view(dtype)
