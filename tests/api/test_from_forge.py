"""docs/from_forge.md, row by row: each name exists and does what its row says."""

from __future__ import annotations

import inspect
import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import numpy_helper, parser

import forge_pipeline
from forge_pipeline import Engine, ONNXModule, RelaxModule
from forge_pipeline.errors import CompileError, ConfigError, DataError, ModelError, SecretError, TargetError
from forge_pipeline.ffi import torch_hidden
from forge_pipeline.target.spec import resolved
from tests.support.paths import ROOT, SHARED
from tests.support.sums import assert_close, assert_same_sums

PAGE = ROOT / "docs" / "from_forge.md"
REFERENCE = SHARED / "reference"

GRAPH = """
<ir_version: 10, opset_import: ["": 18]>
net (float[N, 3, 8, 8] x) => (float[N, 5] scores)
{
    c = Conv<pads=[1, 1, 1, 1]>(x, k)
    n = BatchNormalization(c, gamma, beta, mean, variance)
    r = Relu(n)
    p = GlobalAveragePool(r)
    f = Flatten(p)
    scores = MatMul(f, w)
}
"""
SHAPES = {"k": (4, 3, 3, 3), "gamma": (4,), "beta": (4,), "mean": (4,), "variance": (4,), "w": (4, 5)}
TERMS = 3 * 3 * 3 + 2 + 8 * 8 + 4
"""Of the network's sums, one layer behind the other."""
UUID = "123e4567-e89b-12d3-a456-426614174000"


def network(seed: int = 0) -> onnx.ModelProto:
    rng = np.random.default_rng(seed)
    model = parser.parse_model(GRAPH)
    for name, shape in SHAPES.items():
        model.graph.initializer.append(numpy_helper.from_array(rng.uniform(0.5, 1.5, shape).astype(np.float32), name))
    return model


@dataclass(frozen=True, kw_only=True)
class World:
    """What the rows are tried on. ``module`` is made from TVM's own module: no ONNX model is behind it."""

    model: onnx.ModelProto
    raw: Any
    module: RelaxModule
    images: np.ndarray
    scores: np.ndarray
    folder: Path

    def fresh(self) -> RelaxModule:
        return self.module.copy()

    def same(self, module: RelaxModule | ONNXModule, within: float = 1e-4) -> bool:
        far = np.abs(module.get_inference_function()(self.images) - self.scores).max()
        return bool(far <= within * np.abs(self.scores).max())


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> World:
    with torch_hidden():
        from tvm.relax.frontend.onnx import from_onnx
    model = network()
    images = np.random.default_rng(1).standard_normal((2, 3, 8, 8)).astype(np.float32)
    raw = from_onnx(model)
    module = RelaxModule(raw)
    module.to_onnx()  # once, and the copies have it too
    return World(
        model=model,
        raw=raw,
        module=module,
        images=images,
        scores=ONNXModule(model).get_inference_function()(images),
        folder=tmp_path_factory.mktemp("compiled"),
    )


@pytest.fixture(scope="module")
def compiled(world: World) -> dict[str, Path]:
    """Two compilations into one output path: by a dictionary, with everything; then half precision under a password."""
    target = {"kind": "llvm", "mcpu": resolved("llvm").cpu, "num-cores": 1, "keys": ["cpu"], "model": "unknown"}
    path = world.folder / "out"
    plain = world.module.compile(
        target, output_path=path, opt_level=1, export_relax=True, export_metadata=True, uuid=UUID
    )
    sealed = world.module.compile(
        "llvm",
        output_path=path,
        set_float16=True,
        set_channel_layout="last",
        encrypt_password="secret",
        generator="stock",
    )
    return {"plain": plain, "sealed": sealed}


def parameters(function: Callable[..., Any]) -> dict[str, Any]:
    return {
        name: p.default
        for name, p in inspect.signature(function).parameters.items()
        if p.kind is p.POSITIONAL_OR_KEYWORD
    }


# --- loading ---


def _load_onnx(world: World) -> None:
    for load in (forge_pipeline.from_onnx, forge_pipeline.load):
        module = load(world.model.SerializeToString())
        assert isinstance(module, ONNXModule)
        assert world.same(module)
    assert RelaxModule.from_onnx(module).input_names == ["x"]


def _load_torch(world: World) -> None:
    torch = pytest.importorskip("torch")
    network = torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.ReLU()).eval()
    module = forge_pipeline.from_torch(network, [("rows", (2, 4))])
    rows = np.random.default_rng(0).standard_normal((2, 4)).astype(np.float32)
    with torch.no_grad():
        wanted = network(torch.from_numpy(rows)).numpy()
    assert_close(module.get_inference_function()(rows), wanted, within=1e-4)
    assert RelaxModule.from_onnx(module).output_shapes == [(2, 3)]


def _refuses_others(name: str) -> Callable[[World], None]:
    """The kinds of file are tested in tests/frontends, where their packages are installed."""

    def check(world: World) -> None:
        function = getattr(forge_pipeline, name)
        with pytest.raises(ModelError, match="a model"):
            function(world.folder / "nothing_there")
        with pytest.raises(ModelError, match=r"object of builtins\.object"):
            function(object())

    return check


def _torch_arguments(world: World) -> None:
    known = parameters(forge_pipeline.from_torch)
    assert list(known)[:3] == ["script_module", "input_infos", "default_type"]
    assert known["default_type"] == "float32"


def _shape(world: World) -> None:
    for name in ("from_onnx", "from_keras", "from_tensorflow"):
        assert list(parameters(getattr(forge_pipeline, name))) == ["model", "shape"]
    module = forge_pipeline.from_onnx(world.model, {"x": (4, 3, 8, 8)})
    assert (module.input_shapes, module.output_shapes) == ([(4, 3, 8, 8)], [(4, 5)])


def _shape_dict(world: World) -> None:
    assert list(parameters(forge_pipeline.from_tflite)) == ["model", "shape_dict"]


def _no_option(*names: str) -> Callable[[World], None]:
    def check(world: World) -> None:
        for name in names:
            with pytest.raises(
                ConfigError, match=f"load: {name}: .* found one of Forge's importers\\nfix: leave it out"
            ):
                forge_pipeline.from_onnx(world.model, **{name: "value"})

    return check


# --- modules ---


def _constructor(world: World) -> None:
    assert list(parameters(RelaxModule)) == ["mod", "params", "inline_partitions", "fold_constants", "fold_batch_norms"]
    assert list(parameters(RelaxModule).values())[1:] == [None, False, True, True]
    assert "nn.batch_norm" not in world.module.operators
    unfolded = RelaxModule(world.raw, fold_constants=False, fold_batch_norms=False)
    assert unfolded.operators["nn.batch_norm"] == 1
    assert world.same(world.module)
    assert world.same(unfolded)


def _from_onnx(world: World) -> None:
    path = world.folder / "m.onnx"
    path.write_bytes(world.model.SerializeToString())
    made = [
        RelaxModule.from_onnx(x) for x in (world.model, ONNXModule(world.model), path.read_bytes(), path, str(path))
    ]
    assert len({module.fingerprint for module in made}) == 1
    assert world.same(made[0])


def _onnx_module(world: World) -> None:
    module = ONNXModule(world.model)
    assert module.mod is world.model
    assert world.same(module)


def _mod(world: World) -> None:
    import tvm

    assert isinstance(world.module.mod, tvm.IRModule)
    assert isinstance(ONNXModule(world.model).mod, onnx.ModelProto)


def _typed_mod(world: World) -> None:
    from tvm import relax

    assert relax.analysis.well_formed(world.module.typed_mod) is not False
    assert {value.name for value in ONNXModule(world.model).typed_mod.graph.value_info} >= {"c", "n", "r", "p", "f"}
    broken = ONNXModule(world.model).copy()
    broken.mod.graph.node[0].input[1] = "nobody"
    with pytest.raises(ModelError):
        _ = broken.typed_mod


def _main(world: World) -> None:
    assert [node.op_type for node in world.module.main][:2] == ["nn.conv2d", "add"]
    assert [node.op_type for node in ONNXModule(world.model).main][:2] == ["Conv", "BatchNormalization"]


def _graphs(world: World) -> None:
    assert list(world.module.graphs) == ["main"]
    assert len(ONNXModule(world.model).graphs) == 1


def _counts(name: str) -> Callable[[World], None]:
    def check(world: World) -> None:
        module = world.fresh()
        module.partition_for_tensorrt()
        wanted = {"graph_count": (1, 2), "subgraph_count": (0, 1)}[name]
        assert (getattr(world.module, name), getattr(module, name)) == wanted
        assert getattr(ONNXModule(world.model), name) == wanted[0]

    return check


def _params(world: World) -> None:
    from tvm import relax
    from tvm.relax.frontend.onnx import from_onnx

    detached, weights = relax.frontend.detach_params(from_onnx(world.model, keep_params_in_input=True))
    kept = RelaxModule(detached, weights, fold_constants=False, fold_batch_norms=False)
    assert set(kept.params) == set(SHAPES)
    assert world.same(kept)
    assert RelaxModule(detached, weights).params == {} == world.module.params
    assert ONNXModule(world.model).params == {}


def _operators(world: World) -> None:
    assert world.module.operators == {"add": 1, "matmul": 1, "mean": 1, "nn.conv2d": 1, "nn.relu": 1, "reshape": 1} or (
        world.module.operators["nn.conv2d"] == world.module.operators["matmul"] == 1
    )
    assert ONNXModule(world.model).operators["Conv"] == 1


def _interface(name: str, wanted: Any) -> Callable[[World], None]:
    def check(world: World) -> None:
        assert getattr(world.module, name) == wanted
        assert getattr(ONNXModule(world.model), name) == wanted

    return check


def _input_nodes(world: World) -> None:
    assert [(node.op_type, node.name) for node in world.module.input_nodes] == [("input", "x")]
    assert [node.op_type for node in ONNXModule(world.model).input_nodes] == ["Conv"]


def _output_node(world: World) -> None:
    assert world.module.output_node.inputs == world.module.main.outputs
    assert ONNXModule(world.model).output_node.op_type == "MatMul"
    assert len(world.module.output_nodes) == 1


def _fingerprint(world: World) -> None:
    other = RelaxModule.from_onnx(network(seed=1))
    same = RelaxModule.from_onnx(network())
    assert same.fingerprint == RelaxModule.from_onnx(world.model).fingerprint != other.fingerprint
    assert re.fullmatch("[0-9a-f]{64}", same.fingerprint)
    assert ONNXModule(network()).fingerprint != ONNXModule(network(seed=1)).fingerprint


def _identity(world: World) -> None:
    for kind in (RelaxModule.from_onnx, ONNXModule):
        one, other = kind(network()), kind(network(seed=1))
        assert (one == other, hash(one) == hash(other)) == (True, True)
    changed = world.fresh()
    changed.main.insert("nn.relu", changed.main.outputs[0])
    assert changed != world.module


def _iterates(world: World) -> None:
    assert [(str(variable.name_hint), type(function).__name__) for variable, function in world.module] == [
        ("main", "Function")
    ]
    assert next(node.op_type for node in ONNXModule(world.model)) == "Conv"


def _copy(world: World) -> None:
    module = world.fresh()
    module.calibrate(world.images)
    duplicate = module.copy()
    assert duplicate.is_calibrated
    duplicate.quantize()
    assert (duplicate.is_quantized, module.is_quantized) == (True, False)


def _is_calibrated(world: World) -> None:
    for module in (world.fresh(), ONNXModule(world.model).copy()):
        assert not module.is_calibrated
        module.calibrate(world.images)
        assert module.is_calibrated


def _is_quantized(world: World) -> None:
    for module in (world.fresh(), ONNXModule(world.model).copy()):
        assert not module.is_quantized
        module.quantize(quant_type="dynamic")
        assert module.is_quantized


def _is_split(world: World) -> None:
    for module in (world.fresh(), ONNXModule(world.model).copy()):
        assert not module.is_split_tensors
        module.split_tensors()
        assert module.is_split_tensors


def _is_tensorrt(world: World) -> None:
    module = world.fresh()
    module.partition_for_tensorrt()
    assert (world.module.is_tensorrt, module.is_tensorrt, ONNXModule(world.model).is_tensorrt) == (False, True, False)


def _set_batch_size(world: World) -> None:
    for module in (world.fresh(), RelaxModule.from_onnx(world.model), ONNXModule(world.model).copy()):
        for size in (4, 2):
            module.set_batch_size(size)
            assert (module.input_shapes, module.output_shapes) == ([(size, 3, 8, 8)], [(size, 5)])


def _inference(world: World) -> None:
    found = world.module.get_inference_function("llvm")(world.images)
    assert isinstance(found, np.ndarray)
    assert_same_sums(found, world.scores, terms=TERMS)


def _split_tensors(world: World) -> None:
    module = world.fresh()
    module.calibrate(world.images)
    with pytest.raises(DataError, match="a module without calibration"):
        module.split_tensors()
    module.split_tensors(force=True)
    assert (module.is_split_tensors, module.is_calibrated) == (True, False)
    assert module.operators["nn.conv2d"] == 2
    assert world.same(module)


def _inline(world: World) -> None:
    module = world.fresh()
    module.partition_for_tensorrt()
    module.inline_partitions()
    assert (module.subgraph_count, module.operators) == (0, world.module.operators)
    assert world.same(module)


# --- partitions, calibration, quantization ---


def _flag(name: str, **shapes: Any) -> Callable[[World], None]:
    """The effect of each flag on graphs that have what it removes is tested in tests/modules."""

    def check(world: World) -> None:
        assert parameters(RelaxModule.partition_for_tensorrt)[name] is True
        module = world.fresh()
        module.partition_for_tensorrt(**{name: False})
        assert module.is_tensorrt

    return check


def _calib_data(world: World) -> None:
    forms = [world.images, [world.images[:1]], [{"x": world.images[0]}], [[world.images[0]]]]
    for form in forms:
        module = world.fresh()
        module.calibrate(form)
        assert module.is_calibrated


def _reset(world: World) -> None:
    small, large = [world.images[0]], [100 * world.images[0]]
    outputs = []
    for reset in (True, False):
        module = world.fresh()
        module.calibrate(large)
        module.calibrate(small, reset=reset)
        module.quantize(calib_method="minmax")
        outputs.append(np.abs(module.get_inference_function()(world.images) - world.scores).max())
    assert outputs[0] < outputs[1]  # a range that still holds the large sample has coarser steps


def _use_cuda(world: World) -> None:
    module = world.fresh()
    with pytest.raises(ConfigError, match="statistics are computed on the CPU"):
        module.calibrate(world.images, use_cuda=True)
    assert not module.is_calibrated
    module.calibrate(world.images, use_cuda=False)
    assert module.is_calibrated


def _quantized(world: World, **options: Any) -> ONNXModule:
    module = world.fresh()
    module.calibrate([image * scale for image in world.images for scale in (0.3, 0.6, 1.0, 2.0)])
    module.quantize(**options)
    assert module.is_quantized
    return module.to_onnx()


def _zero_point_types(module: ONNXModule, operator: str) -> set[str]:
    constants = {t.name: numpy_helper.to_array(t) for t in module.mod.graph.initializer}
    nodes = [node for node in module.mod.graph.node if node.op_type == operator]
    return {str(constants[node.input[2]].dtype) for node in nodes if len(node.input) > 2}


def _activation_dtype(world: World) -> None:
    assert _zero_point_types(_quantized(world, activation_dtype="uint8"), "QuantizeLinear") == {"uint8"}
    assert _zero_point_types(_quantized(world), "QuantizeLinear") == {"int8"}


def _kernel_dtype(world: World) -> None:
    module = _quantized(world, activation_dtype="uint8", kernel_dtype="int8")
    assert {"uint8", "int8"} <= _zero_point_types(module, "DequantizeLinear")


def _bias_dtype(world: World) -> None:
    assert "int32" in _zero_point_types(_quantized(world), "DequantizeLinear")


def _per_channel(world: World) -> None:
    sizes = []
    for per_channel in (False, True):
        module = _quantized(world, per_channel=per_channel)
        constants = {t.name: numpy_helper.to_array(t) for t in module.mod.graph.initializer}
        scales = [constants[n.input[1]] for n in module.mod.graph.node if n.op_type == "DequantizeLinear"]
        kernels = [
            s
            for s, n in zip(scales, (n for n in module.mod.graph.node if n.op_type == "DequantizeLinear"), strict=True)
            if n.input[0] in constants and constants[n.input[0]].ndim == 4
        ]
        sizes.append(max(scale.size for scale in kernels))
    assert sizes == [1, 4]


def _calib_method(world: World) -> None:
    prints = {m: _quantized(world, calib_method=m).fingerprint for m in ("average", "entropy", "minmax", "percentile")}
    assert len(set(prints.values())) > 1


def _quant_type(world: World) -> None:
    static, dynamic = _quantized(world, quant_type="static"), _quantized(world, quant_type="dynamic")
    assert "DynamicQuantizeLinear" in dynamic.operators
    assert "DynamicQuantizeLinear" not in static.operators
    assert "DynamicQuantizeLinear" not in _quantized(world, quant_type="any").operators
    with pytest.raises(DataError, match="a calibrated module"):
        world.fresh().quantize(quant_type="static")


# --- compile ---


def _runs(folder: Path, world: World) -> None:
    engine = Engine(folder / "model_library.so", threads=1)
    assert_same_sums(engine(world.images)[0], world.scores, terms=TERMS)


def _sealed_engine(compiled: dict[str, Path]) -> Engine:
    return Engine(compiled["sealed"] / "model_library.so", compiled["sealed"] / "modelKey.bin", "secret", threads=1)


def _metadata(folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((folder / "metadata.json").read_text())
    return found


def _target(world: World, compiled: dict[str, Path]) -> None:
    _runs(compiled["plain"], world)
    here = resolved("llvm")
    assert _metadata(compiled["plain"])["target"]["cpu"] == here.cpu
    assert resolved('{"kind": "llvm", "mcpu": "znver3"}').cpu == resolved("llvm -mcpu=znver3").cpu == "znver3"
    assert resolved("raspberry-pi/5").tag == "raspberry-pi/5"
    assert resolved("aws/cpu/c5.large").cpu == "skylake-avx512"


def _host(world: World, compiled: dict[str, Path]) -> None:
    driven = resolved("cuda -arch=sm_86", "llvm -mcpu=skylake")
    assert (driven.kind, driven.cuda_arch, driven.cpu) == ("cuda", "sm_86", "skylake")
    assert resolved({"kind": "cuda", "arch": "sm_90", "host": {"kind": "llvm", "mcpu": "skylake"}}).cpu == "skylake"
    with pytest.raises(TargetError, match="a CPU is its own host"):
        world.module.compile("llvm", host="raspberry-pi/5", output_path=world.folder / "never")
    assert not (world.folder / "never").exists()


def _output_path(world: World, compiled: dict[str, Path]) -> None:
    assert (compiled["plain"].name, compiled["sealed"].name) == ("out", "out_1")
    assert parameters(RelaxModule.compile)["output_path"] == "./compile_output"


def _opt_level(world: World, compiled: dict[str, Path]) -> None:
    assert parameters(RelaxModule.compile)["opt_level"] == 3
    assert _metadata(compiled["plain"])["compile"]["opt_level"] == 1


def _float16(world: World, compiled: dict[str, Path]) -> None:
    engine = _sealed_engine(compiled)
    assert (engine.metadata["compile"]["float16"], engine.outputs[0].dtype) == (True, "float32")
    np.testing.assert_allclose(engine(world.images)[0], world.scores, rtol=2e-2, atol=2e-2)


def _channel_layout(world: World, compiled: dict[str, Path]) -> None:
    for module in (RelaxModule, ONNXModule):
        assert parameters(module.compile)["set_channel_layout"] is None
    assert _sealed_engine(compiled).metadata["compile"]["channel_layout"] == "last"


def _export_relax(world: World, compiled: dict[str, Path]) -> None:
    assert "R.nn.conv2d" in (compiled["plain"] / "model_relax.txt").read_text()


def _export_metadata(world: World, compiled: dict[str, Path]) -> None:
    assert _metadata(compiled["plain"])["inputs"][0]["name"] == "x"
    assert not (compiled["sealed"] / "metadata.json").exists()


def _force_overwrite(world: World, compiled: dict[str, Path]) -> None:
    path = world.folder / "again"
    path.mkdir()
    (path / "modelKey.bin").write_text("of an earlier compilation")
    (path / "notes.txt").write_text("the user's")
    assert ONNXModule(world.model).compile(output_path=path, opt_level=1, force_overwrite=True) == path
    assert sorted(file.name for file in path.iterdir()) == ["model_library.so", "notes.txt"]
    _runs(path, world)


def _uuid(world: World, compiled: dict[str, Path]) -> None:
    assert _metadata(compiled["plain"])["uuid"] == UUID


def _password(world: World, compiled: dict[str, Path]) -> None:
    assert sorted(file.name for file in compiled["sealed"].iterdir()) == ["modelKey.bin", "model_library.so"]


def _library(world: World, compiled: dict[str, Path]) -> None:
    assert {"metadata.json", "model_library.so", "model_relax.txt"} == {
        file.name for file in compiled["plain"].iterdir()
    }


def _engine(world: World, compiled: dict[str, Path]) -> None:
    library, key = compiled["sealed"] / "model_library.so", compiled["sealed"] / "modelKey.bin"
    for given in ((), (key, "wrong")):
        with pytest.raises(SecretError):
            Engine(library, *given)


def _tensorrt(world: World) -> None:
    module = world.fresh()
    module.partition_for_tensorrt()
    with pytest.raises(CompileError, match="TVM without TensorRT"):
        module.compile()


# --- targets ---

AARCH64 = {"kind": "llvm", "mtriple": "aarch64-linux-gnu", "mcpu": "cortex-a76"}


def _word(name: str, value: Any, attribute: str | None, wanted: Any = None) -> Callable[[World], None]:
    def check(world: World) -> None:
        target = resolved({**AARCH64, name: value})
        if attribute is None:
            assert target == resolved(AARCH64)
        else:
            assert getattr(target, attribute) == wanted

    return check


def _refused_word(name: str, bad: Any, *harmless: Any) -> Callable[[World], None]:
    def check(world: World) -> None:
        with pytest.raises(TargetError, match=f"target.{name}"):
            resolved({**AARCH64, name: bad})
        for value in harmless:
            assert resolved({**AARCH64, name: value}) == resolved(AARCH64)

    return check


def _kind(world: World) -> None:
    assert (resolved(AARCH64).kind, resolved("cuda -arch=sm_86").kind) == ("llvm", "cuda")
    with pytest.raises(TargetError, match="llvm or cuda"):
        resolved({"kind": "opencl"})


def _mcpu(world: World) -> None:
    assert resolved("llvm -mcpu=cascadelake").cpu == "cascadelake"
    with pytest.raises(TargetError, match="did you mean 'skylake'"):
        resolved("llvm -mcpu=skylakee")


def _host_word(world: World) -> None:
    assert resolved({"kind": "cuda", "arch": "sm_86", "host": AARCH64}).triple == "aarch64-linux-gnu"


def _tags(name: str, ours: str, theirs: str) -> Callable[[World], None]:
    def check(world: World) -> None:
        function = getattr(forge_pipeline, name)
        assert {ours, theirs} <= set(function())
        rows = dict(function(verbose=True))
        assert list(rows) == function()
        assert "kind" in rows[ours]

    return check


# --- editing ---


def _graph(world: World) -> None:
    for module in (world.module, ONNXModule(world.model)):
        assert len(module.main) == len(list(module.main))
        assert module.main.inputs == ["x"]
        assert len(module.main.outputs) == 1
        assert module.main.constants


def _node(world: World) -> None:
    for module, name in ((world.module, "nn.relu"), (ONNXModule(world.model), "Relu")):
        (relu,) = module.main.find(name)
        assert relu.op_type == name
        assert relu.producers[0].consumers == [relu]
        assert (len(relu.inputs), len(relu.outputs), relu.attributes) == (1, 1, {})
        assert isinstance(relu.name, str)


def _edit(name: str) -> Callable[[World], None]:
    def check(world: World) -> None:
        for module, relu, tanh in (
            (world.fresh(), "nn.relu", "tanh"),
            (ONNXModule(world.model).copy(), "Relu", "Tanh"),
        ):
            graph = module.main
            (node,) = graph.find(relu)
            if name == "find":
                assert graph.find(where=lambda found, node=node: found == node) == [node]
            elif name == "insert":
                graph.insert(tanh, node.outputs[0])
                assert graph.find(tanh)[0].producers == graph.find(relu)
            elif name == "replace":
                graph.replace(node, tanh, *node.inputs)
                assert (len(graph.find(tanh)), graph.find(relu)) == (1, [])
            elif name == "remove":
                graph.remove(node)
                assert graph.find(relu) == []
            else:
                other = node.producers[0].inputs[0]
                graph.rewire(node, 0, other)
                assert graph.find(relu)[0].inputs == [other]
            before = module.fingerprint
            with pytest.raises(ModelError):
                graph.insert(tanh, "nobody")
            assert module.fingerprint == before

    return check


MODULES: dict[str, Callable[..., None]] = {
    "RelayModule(mod, params, inline_partitions, fold_constants, fold_batch_norms)": _constructor,
    "RelayModule.from_onnx": _from_onnx,
    "ONNXModule(model)": _onnx_module,
    "mod": _mod,
    "typed_mod": _typed_mod,
    "main": _main,
    "graphs": _graphs,
    "graph_count": _counts("graph_count"),
    "subgraph_count": _counts("subgraph_count"),
    "params": _params,
    "operators": _operators,
    "input_count": _interface("input_count", 1),
    "input_shapes": _interface("input_shapes", [("N", 3, 8, 8)]),
    "input_dtypes": _interface("input_dtypes", ["float32"]),
    "input_nodes": _input_nodes,
    "output_count": _interface("output_count", 1),
    "output_shapes": _interface("output_shapes", [("N", 5)]),
    "output_dtypes": _interface("output_dtypes", ["float32"]),
    "output_node": _output_node,
    "fingerprint": _fingerprint,
    "__hash__": _identity,
    "__eq__": _identity,
    "__iter__": _iterates,
    "copy": _copy,
    "is_tensorrt": _is_tensorrt,
    "is_calibrated": _is_calibrated,
    "is_quantized": _is_quantized,
    "is_split_tensors": _is_split,
    "set_batch_size": _set_batch_size,
    "get_inference_function": _inference,
    "split_tensors": _split_tensors,
    "inline_partitions": _inline,
}
LOADING: dict[str, Callable[..., None]] = {
    "from_onnx": _load_onnx,
    "from_torch": _load_torch,
    "from_tensorflow": _refuses_others("from_tensorflow"),
    "from_keras": _refuses_others("from_keras"),
    "from_tflite": _refuses_others("from_tflite"),
    "script_module": _torch_arguments,
    "model": _shape,
    "shape_dict": _shape_dict,
    "dtype": _no_option("dtype", "dtype_dict"),
    "opset": _no_option("opset"),
    "freeze_params": _no_option("freeze_params"),
    "layout": _no_option("layout", "convert_config"),
    "custom_convert_map": _no_option("custom_convert_map", "use_parser_friendly_name", "keep_quantized_weight"),
    "outputs": _no_option("outputs"),
    "export_node_renamed_model_path": _no_option("export_node_renamed_model_path"),
}
CHECKS: dict[str, dict[str, Callable[..., None]]] = {
    "Loading": LOADING,
    "Modules": MODULES,
    "`partition_for_tensorrt`": {
        name: _flag(name)
        for name in ("remove_stacks", "simplify_batch_matmul", "simplify_scalar_add", "remove_no_mac_subgraphs")
    },
    "`calibrate`": {"calib_data": _calib_data, "reset": _reset, "use_cuda": _use_cuda},
    "`quantize`": {
        "activation_dtype": _activation_dtype,
        "kernel_dtype": _kernel_dtype,
        "bias_dtype": _bias_dtype,
        "per_channel": _per_channel,
        "calib_method": _calib_method,
        "quant_type": _quant_type,
    },
    "`compile`": {
        "target": _target,
        "host": _host,
        "output_path": _output_path,
        "opt_level": _opt_level,
        "set_float16": _float16,
        "set_channel_layout": _channel_layout,
        "export_relay": _export_relax,
        "export_metadata": _export_metadata,
        "force_overwrite": _force_overwrite,
        "uuid": _uuid,
        "encrypt_password": _password,
        "model_library.so": _library,
        "pylre.LatentRuntimeEngine(library, key, password)": _engine,
    },
    "A target as a dictionary": {
        "kind": _kind,
        "mcpu": _mcpu,
        "mtriple": _word("mtriple", "aarch64-linux-android", "libc", "bionic"),
        "mattr": _word("mattr", ["+crypto"], "features", ("+crypto",)),
        "mabi": _word("mabi", "lp64", "abi", "lp64"),
        "num-cores": _word("num-cores", 3, "cores", 3),
        "host": _host_word,
        "keys": _word("keys", ["arm_cpu"], None),
        "device": _word("device", "arm_cpu", None),
        "model": _word("model", "rk3588", None),
        "libs": _refused_word("libs", ["mkl"], []),
        "system-lib": _refused_word("system-lib", True, False),
        "runtime": _refused_word("runtime", "crt", "cpp"),
        "mfloat-abi": _refused_word("mfloat-abi", "soft", "hard"),
    },
    "Lists of targets": {
        "list_cuda_tags": _tags("list_cuda_tags", "cuda/sm_86", "nvidia/nvidia-a100"),
        "list_x86_tags": _tags("list_x86_tags", "x86-64/v3", "aws/cpu/c5.large"),
        "list_arm_tags": _tags("list_arm_tags", "raspberry-pi/5", "raspberry-pi/4b-aarch64"),
        "list_android_tags": _tags("list_android_tags", "android/cpu", "arm/pixel2"),
        "list_target_tags": _tags("list_target_tags", "riscv64/generic", "nvidia/nvidia-a100"),
    },
    "Editing": {
        "Graph": _graph,
        "Node": _node,
        "graph.find(op_type, name=, where=)": _edit("find"),
        "graph.insert(op_type, value, ...)": _edit("insert"),
        "graph.replace(node, op_type, ...)": _edit("replace"),
        "graph.remove(node)": _edit("remove"),
        "graph.rewire(node, index, value)": _edit("rewire"),
    },
}
LONG = {("Loading", "from_torch")}
"""Rows that import a framework."""
ROWS = [(section, name) for section, rows in CHECKS.items() for name in rows]


def page_rows() -> list[tuple[str, str]]:
    """Return section and name of each row of the page, in order; a row without a name of Forge's goes by ours."""
    found, section = [], ""
    for line in PAGE.read_text().splitlines():
        if line.startswith("#"):
            section = line.lstrip("# ")
        elif line.startswith("|") and not line.startswith(("| Forge", "|---")):
            cells = [cell.strip() for cell in line.strip("|").split("|")]
            names = [re.findall("`([^`]+)`", cell) for cell in cells[:2]]
            found.append((section, (names[0] or names[1])[0]))
    return found


def test_every_row_of_the_page_is_tried_and_none_other() -> None:
    assert page_rows() == ROWS


@pytest.mark.skipif(not REFERENCE.is_dir(), reason="Forge's pages are not at hand")
def test_every_name_of_forges_pages_has_a_row() -> None:
    api = (REFERENCE / "forge_relay_module_api.txt").read_text()
    names = set(re.findall(r"^(\w+)\n(?:class-attribute\n)?(?:instance-attribute\n|property\n)*¶", api, re.MULTILINE))
    names |= set(re.findall(r"^([a-z_]+|__\w+__) \|$", api, re.MULTILINE))
    names |= set(re.findall(r"^(\w+)\n\|", api, re.MULTILINE)) - {
        "Returns",
        "obj",
        "int",
        "bool",
        "RelayModule",
        "None",
    }
    loading = (REFERENCE / "forge_model_loading_api.txt").read_text()
    names |= set(re.findall(r"^(\w+)\n\|", loading, re.MULTILINE)) | set(re.findall(r"forge\.(from_\w+)", loading))
    guide = (REFERENCE / "forge_compilation_guide.txt").read_text()
    names |= set(re.findall(r"^([\w-]+) : ", guide, re.MULTILINE)) | set(
        re.findall(r"^(list_\w+_tags)\(", guide, re.MULTILINE)
    )
    names -= {"required", "bool", "int", "str", "obj", "property"}  # headings of other columns
    text = PAGE.read_text()
    missing = sorted(name for name in names if name[0].islower() and not re.search(rf"(?<![\w-]){name}(?![\w-])", text))
    assert len(names) > 50
    assert missing == []


@pytest.mark.every(3)
@pytest.mark.parametrize(
    ("section", "name"),
    [
        pytest.param(*row, id=" ".join(row).replace("`", ""), marks=pytest.mark.long if row in LONG else ())
        for row in ROWS
    ],
)
def test_a_name_does_what_its_row_says(section: str, name: str, world: World, request: pytest.FixtureRequest) -> None:
    check = CHECKS[section][name]
    if section == "`compile`":
        check(world, request.getfixturevalue("compiled"))
    else:
        check(world)


def test_compiling_a_partitioned_module_says_that_there_is_no_tensorrt(world: World) -> None:
    _tensorrt(world)
