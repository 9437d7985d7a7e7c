"""ONNXModule: an ONNX model with what people ask of it. Importing this module does not import onnx."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from forge_pipeline.errors import ModelError
from forge_pipeline.ir.external_data import INLINE_BYTES
from forge_pipeline.ir.values import fed

if TYPE_CHECKING:
    import numpy as np
    import onnx

    from forge_pipeline.ir.canonical import Canonical
    from forge_pipeline.ir.external_data.reader import OpenModel
    from forge_pipeline.ir.graph import Graph

Shape = tuple[int | str, ...]


MAX_SHOWN_BYTES = 1 << 40  # a model may be looked at that is too large to build


class ONNXModule:
    """An ONNX model. Two modules are equal when they have the same structure, whatever their weights.

    ``hash()`` and ``==`` look at structure, ``fingerprint`` at structure and weights; all three are blind to
    names of inner values and nodes, to storage and to everything else that the canonical form leaves out.
    """

    __slots__ = ("_file", "_inline_bytes", "_model")

    def __init__(self, model: onnx.ModelProto, folder: Path | str | None = None) -> None:
        """Wrap ``model``; ``folder`` is where its external data is, if it has any, which then stays there."""
        self._model = model
        self._file = _outside(model, None if folder is None else Path(folder))
        self._inline_bytes = INLINE_BYTES

    @classmethod
    def mapped(cls, model: onnx.ModelProto) -> Self:
        """Wrap a model whose large weights refer to open files (see ``ir.external_data.mapped``), where they stay."""
        return cls(model).kept_outside()

    @classmethod
    def from_file(cls, path: Path | str, *, own: Mapping[str, Path] | None = None) -> Self:
        """Open a model. Its weights stay in the file, or beside it, until ``mod`` is asked for.

        Shapes, operators and the fingerprint need no more than that. ``own`` are data files that this project wrote,
        by the name that the model has for them. Raises ModelError where it is damaged.
        """
        from forge_pipeline.ir.external_data.reader import open_model

        opened = open_model(Path(path), own)
        module = cls(opened.model)
        module._file = opened
        return module

    @property
    def mod(self) -> onnx.ModelProto:
        """The wrapped model itself, not a copy: what is changed in it is changed in the module.

        It has all its weights inside: of a model of any size, they come into memory. See ``light``.
        """
        if self._file is not None:
            from forge_pipeline.ir.external_data.reader import with_weights

            self._model, self._file = with_weights(self._file), None
        return self._model

    @property
    def light(self) -> onnx.ModelProto:
        """The wrapped model; if its weights are more than INLINE_BYTES, with references to the files they are in.

        Such references are for this package (``ir.external_data.mapped``), and good for as long as this module is.
        Raises ModelError.
        """
        if self._file is None or self._file.outside <= self._inline_bytes:
            return self.mod
        from forge_pipeline.ir.external_data.reader import with_references

        self._file = with_references(self._file)
        return self._file.model

    def kept_outside(self) -> Self:
        """Leave the large weights of this module in the files they are in, however few they are; return the module."""
        self._inline_bytes = 0
        return self

    @property
    def outside_bytes(self) -> int:
        """How many bytes of weights are still in files."""
        return 0 if self._file is None else self._file.outside

    @property
    def is_mapped(self) -> bool:
        """Whether ``light`` has references in the place of large weights."""
        return self.outside_bytes > self._inline_bytes

    @property
    def _form(self) -> Canonical:
        from forge_pipeline.ir.canonical import canonical

        return canonical(self._model, external=self._file.external if self._file else None)

    def to_bytes(self) -> bytes:
        """Serialise with all weights inside: same content, same bytes. Raises ModelError over protobuf's 2 GiB."""
        from google.protobuf.message import EncodeError  # type: ignore[import-untyped]

        try:
            return bytes(self.mod.SerializeToString(deterministic=True))
        except (EncodeError, ValueError) as error:
            raise ModelError(
                where=f"model {self._model.graph.name!r}",
                expected="at most 2 GiB in one protobuf message",
                found=str(error),
                fix="write it with save(path), which puts large weights into a file beside it",
            ) from error

    def save(self, path: Path | str, *, inline_bytes: int = INLINE_BYTES) -> None:
        """Write the model to ``path``; of more than ``inline_bytes``, weights go to ``path`` with ``.data`` at its end.

        Same content, same bytes, the name of the data file aside. Both are complete before either takes its place.
        Raises ModelError for a place that cannot be written.
        """
        from forge_pipeline.ir.external_data.writer import save

        save(self, Path(path), inline_bytes)

    def canonical(self) -> ONNXModule:
        """Return a module in canonical form: equal fingerprint, equal ``to_bytes()``. Raises ModelError."""
        from forge_pipeline.ir.canonical import by_reference, whole

        return ONNXModule.mapped(by_reference(self._form)) if self.is_mapped else ONNXModule(whole(self._form))

    @property
    def fingerprint(self) -> str:
        """SHA-256 over the canonical form, weights included, as 64 hexadecimal digits. Raises ModelError."""
        from forge_pipeline.ir.fingerprint import digest, pieces

        return digest(pieces(self._form))

    @property
    def structure(self) -> str:
        """SHA-256 over the canonical form without the content of weights. Raises ModelError."""
        from forge_pipeline.ir.fingerprint import digest, pieces

        return digest(pieces(self._form, weights=False))

    def __hash__(self) -> int:
        return int(self.structure[:15], 16)

    def __eq__(self, other: object) -> bool:
        return self.structure == other.structure if isinstance(other, ONNXModule) else NotImplemented

    def __iter__(self) -> Iterator[onnx.NodeProto]:
        return iter(self._model.graph.node)

    def __repr__(self) -> str:
        return (
            f"ONNXModule({', '.join(self.input_names)} -> {', '.join(self.output_names)}; "
            f"{len(self._model.graph.node)} nodes, {len(self._model.graph.initializer)} weights)"
        )

    def copy(self) -> Self:
        """Return a module with a model of its own."""
        import onnx

        duplicate = onnx.ModelProto()
        duplicate.CopyFrom(self.light)
        made = type(self)(duplicate)
        made._inline_bytes = self._inline_bytes
        return made

    @property
    def operators(self) -> dict[str, int]:
        """How often each operator occurs, subgraphs included; ``domain.Name`` outside ONNX's own domain."""
        from forge_pipeline.ir.traversal import every_node

        counts: dict[str, int] = {}
        for node in every_node(self._model):
            name = f"{node.domain}.{node.op_type}" if node.domain not in ("", "ai.onnx") else node.op_type
            counts[name] = counts.get(name, 0) + 1
        return dict(sorted(counts.items()))

    @property
    def _inputs(self) -> list[onnx.ValueInfoProto]:
        return fed(self._model.graph)

    @property
    def input_names(self) -> list[str]:
        """Names of the inputs that must be fed: an initializer that is listed as an input is not one."""
        return [value.name for value in self._inputs]

    @property
    def input_shapes(self) -> list[Shape]:
        """Shapes of the inputs: a number, a symbolic name, or ``?`` for each dimension. Raises ModelError."""
        return [_shape(value) for value in self._inputs]

    @property
    def input_dtypes(self) -> list[str]:
        """Element types of the inputs, as numpy and ml_dtypes name them. Raises ModelError."""
        return [_dtype(value) for value in self._inputs]

    @property
    def input_count(self) -> int:
        """The number of inputs that must be fed."""
        return len(self._inputs)

    @property
    def output_names(self) -> list[str]:
        """Names of the outputs, in order."""
        return [value.name for value in self._model.graph.output]

    @property
    def output_shapes(self) -> list[Shape]:
        """Shapes of the outputs, as ``input_shapes``. Raises ModelError where the model does not give one."""
        return [_shape(value) for value in self._model.graph.output]

    @property
    def output_dtypes(self) -> list[str]:
        """Element types of the outputs, as ``input_dtypes``. Raises ModelError."""
        return [_dtype(value) for value in self._model.graph.output]

    @property
    def output_count(self) -> int:
        """The number of outputs."""
        return len(self._model.graph.output)

    def describe_inputs(self) -> list[dict[str, Any]]:
        """Return ``name``, ``shape`` and ``dtype`` of each input, as plain JSON. Raises ModelError."""
        return described(self.input_names, self.input_shapes, self.input_dtypes)

    def describe_outputs(self) -> list[dict[str, Any]]:
        """Return ``name``, ``shape`` and ``dtype`` of each output, as plain JSON. Raises ModelError."""
        return described(self.output_names, self.output_shapes, self.output_dtypes)

    @property
    def main(self) -> Graph:
        """The main graph, to look at and to edit."""
        from forge_pipeline.ir.graph import Graph

        return Graph(self.mod.graph)

    @property
    def graphs(self) -> list[Graph]:
        """The main graph, then every subgraph of control flow, outer ones first."""
        from forge_pipeline.ir.graph import Graph
        from forge_pipeline.ir.traversal import every_graph

        return [Graph(graph) for graph in every_graph(self.mod)]

    @property
    def graph_count(self) -> int:
        """The number of graphs, the main one included."""
        return len(self.graphs)

    @property
    def subgraph_count(self) -> int:
        """The number of graphs within the main one."""
        return len(self.graphs) - 1

    def describe(self) -> dict[str, Any]:
        """Return interface, operators, and every layer with shape and cost, as ``ir.describe`` documents it.

        Raises ModelError for an invalid model.
        """
        from forge_pipeline.ir.display.describe import describe
        from forge_pipeline.ir.type_inference import check_types

        form = self._form
        return describe(form, check_types(form, max_value_bytes=MAX_SHOWN_BYTES))

    def _repr_svg_(self) -> str:
        """Show the graph in a notebook."""
        from forge_pipeline.ir.display.svg import draw

        return draw(self.describe())

    def get_inference_function(self, target: str = "llvm") -> Callable[..., np.ndarray | list[np.ndarray]]:
        """Return ``f(input0, input1, ...)`` on numpy arrays: ONNX Runtime without graph optimisations.

        ``target`` is ``llvm`` (or ``cpu``) or ``cuda``. The function gives one array, or a list where the
        model has several outputs. It is for checking numbers, not for measuring speed. Raises ConfigError
        and ModelError.
        """
        from forge_pipeline.ir.reference.interpreter import inference_function

        return inference_function(self.light, self.input_names, target)


def _outside(model: onnx.ModelProto, folder: Path | None) -> OpenModel | None:
    """Return a model that refers to open files, or to files in ``folder``, with what reads them; else None."""
    if folder is None and not any(tensor.data_location for tensor in model.graph.initializer):
        return None
    from forge_pipeline.ir.external_data.mapped import mapped_files
    from forge_pipeline.ir.external_data.reader import OpenModel
    from forge_pipeline.ir.external_data.resolve import ExternalFiles

    mapped = mapped_files(model)
    if folder is None and not mapped:
        return None  # where its data is, nobody has said: what needs it says so
    return OpenModel(model=model, external=ExternalFiles(folder=folder), mapped_files=mapped)


def described(names: Sequence[str], shapes: Sequence[Shape], dtypes: Sequence[str]) -> list[dict[str, Any]]:
    """Return ``name``, ``shape`` and ``dtype`` of each value, as plain JSON."""
    rows = zip(names, shapes, dtypes, strict=True)
    return [{"name": name, "shape": list(shape), "dtype": dtype} for name, shape, dtype in rows]


def _shape(value: onnx.ValueInfoProto) -> Shape:
    if not value.type.HasField("tensor_type") or not value.type.tensor_type.HasField("shape"):
        raise ModelError(
            where=f"value {value.name!r}",
            expected="a tensor with a known number of dimensions",
            found="a sequence, map or optional" if value.type.WhichOneof("value") else "no shape",
            fix="export the model with the shapes of its inputs and outputs",
        )
    return tuple(
        dim.dim_value if dim.dim_value > 0 else dim.dim_param or "?" for dim in value.type.tensor_type.shape.dim
    )


def _dtype(value: onnx.ValueInfoProto) -> str:
    from forge_pipeline.ir.tensors import dtype_name

    return dtype_name(value.type.tensor_type.elem_type, where=f"value {value.name!r}")
