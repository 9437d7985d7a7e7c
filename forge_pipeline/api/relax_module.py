"""RelaxModule as users hold it: Forge's RelayModule on today's TVM.

Looking and editing happen on Relax. Calibrating, quantizing and compiling happen on ONNX, the pipeline's one
interchange form: the model that the module was made from, or the ONNX form of the module, checked against it.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec

import onnx

from forge_pipeline.api.compile import Compilable
from forge_pipeline.api.onnx_module import ONNXModule
from forge_pipeline.errors import CompileError, ModelError
from forge_pipeline.ffi import torch_hidden
from forge_pipeline.ir import ONNXModule as BaseONNXModule
from forge_pipeline.ir.tensors import DTYPES, SMALL

with torch_hidden():  # here TVM is imported
    from forge_pipeline.relax import tensorrt
    from forge_pipeline.relax.module import IRModule
    from forge_pipeline.relax.module import RelaxModule as BaseModule
    from forge_pipeline.relax.to_onnx.checked import checked_export

if TYPE_CHECKING:
    import numpy as np

    from forge_pipeline.target.spec import Description


P = ParamSpec("P")


def _in_place(method: Callable[Concatenate[ONNXModule, P], None]) -> Callable[Concatenate[RelaxModule, P], None]:
    """Return a method that does what ``method`` does to the ONNX form, and makes the Relax module follow."""

    @functools.wraps(method)
    def changed(self: RelaxModule, /, *args: P.args, **kwargs: P.kwargs) -> None:
        source = self._source().copy()
        method(source, *args, **kwargs)
        self._follow(source)

    return changed


class RelaxModule(BaseModule, Compilable):
    """A module of TVM's Relax that can be looked at, edited, calibrated, quantized and compiled, each in place.

    Two are equal when they have the same structure, whatever their weights.

    ``params`` are the weights among the parameters of `main`, by name (or as ``relax.frontend.detach_params`` gives
    them). With ``fold_constants`` they become constants of the graph, and what depends on constants alone is computed;
    without, they stay parameters, which ``params`` lists. ``fold_batch_norms`` takes batch normalisations into the
    weights before them, and so makes constants of the weights too. ``inline_partitions`` first takes back what was
    partitioned. Raises ModelError for a module without a function `main` in Relax, and for weights that do not fit.
    """

    __slots__ = ("_onnx",)

    def __init__(
        self,
        mod: IRModule,
        params: Mapping[str, Any] | None = None,
        inline_partitions: bool = False,
        fold_constants: bool = True,
        fold_batch_norms: bool = True,
    ) -> None:
        self._onnx: ONNXModule | None = None
        super().__init__(mod, params, inline_partitions, fold_constants, fold_batch_norms)

    # --- from and to ONNX --------------------------------------------------------------------------------------------

    @classmethod
    def from_onnx(cls, model: onnx.ModelProto | BaseONNXModule | bytes | Path | str, **options: Any) -> RelaxModule:
        """Return an ONNX model (object, module, bytes or path) in Relax; ``options`` are those of the class.

        Raises CompileError that lists every operator without a form in Relax, ModelError for a damaged model.
        """
        if isinstance(model, str | Path):
            source = ONNXModule.from_file(model)
        elif isinstance(model, bytes):
            source = ONNXModule(onnx.load_model_from_string(model))
        else:
            source = ONNXModule((model if isinstance(model, BaseONNXModule) else BaseONNXModule(model)).copy().mod)
        _check(source.mod)
        _refuse_small_types(source.mod)
        module = cls(_imported(source), **options)
        module._adopt(source)
        return module

    def to_onnx(self) -> ONNXModule:
        """Return the module as an ONNXModule of its own.

        That is the model it was made from, where it was not changed since; otherwise the ONNX form of its operators,
        run against the module on random numbers. Raises ModelError that lists the operators without such a form, and
        VerificationError where the two differ.
        """
        return self._source().copy()

    def _source(self) -> ONNXModule:
        if self._onnx is None:
            module = tensorrt.inlined(self._mod)
            self._onnx = ONNXModule(checked_export(module, self.output_names, self._weights))
        return self._onnx

    def _adopt(self, source: ONNXModule) -> None:
        self._onnx, self._names = source, source.output_names

    def replace(self, mod: IRModule) -> None:
        """Take ``mod`` in place of the module: calibration, and the model it was made from, no longer belong to it."""
        super().replace(mod)
        self._onnx = None

    def _copy_to(self, other: BaseModule) -> None:
        super()._copy_to(other)
        other._onnx = None if self._onnx is None else self._onnx.copy()  # type: ignore[attr-defined]

    # --- state -------------------------------------------------------------------------------------------------------

    @property
    def is_calibrated(self) -> bool:
        """True when statistics of the present graph are there to quantize with."""
        return self._onnx is not None and self._onnx.is_calibrated

    @property
    def is_quantized(self) -> bool:
        """True when the module computes with integers."""
        operators = self.operators
        return (
            "quantize" in operators or "dequantize" in operators or (self._onnx is not None and self._onnx.is_quantized)
        )

    @property
    def is_split_tensors(self) -> bool:
        """True after `split_tensors`."""
        return self._onnx is not None and self._onnx.is_split_tensors

    # --- changing, in place ------------------------------------------------------------------------------------------

    def set_batch_size(self, batch_size: int) -> None:
        """Fix the leading dimension of the inputs, in place. Raises ModelError where the module cannot follow."""
        if self._onnx is None:
            super().set_batch_size(batch_size)
            return
        source = self._onnx.copy()
        source.set_batch_size(batch_size)
        self._follow(source)

    def calibrate(self, calib_data: Iterable[Any], reset: bool = True, use_cuda: bool = False) -> None:
        """Track the activations on ``calib_data``; see ``ONNXModule.calibrate``."""
        self._source().calibrate(calib_data, reset, use_cuda)

    quantize = _in_place(ONNXModule.quantize)

    split_tensors = _in_place(ONNXModule.split_tensors)

    def _follow(self, source: ONNXModule) -> None:
        """Become what ``source`` is."""
        mod = _imported(source)
        self._mod, self._weights = mod, {}
        self._adopt(source)

    # --- running and compiling ---------------------------------------------------------------------------------------

    def get_inference_function(self, target: Description = "llvm") -> Callable[..., np.ndarray | list[np.ndarray]]:
        """Return ``f(input0, input1, ...)`` on numpy arrays: each operator one plain kernel of TVM, nothing fused.

        It gives one array, or a list where the module has several outputs. It is for checking numbers, not for
        measuring speed. ``target`` is as for ``compile``. Raises CompileError and TargetError.
        """
        from forge_pipeline.target.spec import resolved

        with torch_hidden():
            return self.inference_function(resolved(target).spec())

    def _to_compile(self) -> ONNXModule:
        """Return the ONNX form; raise CompileError for a module that is partitioned for TensorRT."""
        if self.is_tensorrt:
            _refuse_tensorrt()
        return self._source()


def _check(model: onnx.ModelProto) -> None:
    """Raise ModelError for what TVM's importer would take, and ONNX does not allow."""
    try:
        onnx.checker.check_model(model)
    except (onnx.checker.ValidationError, ValueError) as error:
        raise ModelError(
            where="RelaxModule.from_onnx",
            expected="a valid ONNX model",
            found=" ".join(str(error).split())[:500],
            fix="correct the node it names, or export the model again",
        ) from error


def _imported(source: BaseONNXModule) -> IRModule:
    with torch_hidden():
        from forge_pipeline.codegen.onnx_import.importer import import_model, prepare

        return import_model(prepare(source.copy().mod))


def _refuse_small_types(model: onnx.ModelProto) -> None:
    """Raise CompileError for inputs and outputs of types that Relax has as bytes, of which it does not say the type."""
    kinds = {value.name: value.type.tensor_type.elem_type for value in (*model.graph.input, *model.graph.output)}
    found = [f"{name!r} ({DTYPES[kind]})" for name, kind in kinds.items() if kind in SMALL]
    if found:
        raise CompileError(
            where="RelaxModule.from_onnx",
            expected="inputs and outputs of types that Relax computes with",
            found=", ".join(found),
            fix="compile it from ONNX (`ONNXModule.compile`), or cast them inside the model",
        )


def _refuse_tensorrt() -> None:
    found = (
        "TVM has it, and artifacts here hold CPU or CUDA kernels"
        if tensorrt.tensorrt_is_built_in()
        else "TVM without TensorRT"
    )
    raise CompileError(
        where="compile of a module partitioned for TensorRT",
        expected="a pipeline with TensorRT: TVM built with it, and artifacts that hold its engines",
        found=found,
        fix="call inline_partitions() and compile, or give `module.mod` to a TVM that is built with TensorRT",
    )
