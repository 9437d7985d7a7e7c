"""What ``compile`` does for every module: the stages `compile` and `encrypt`, and a folder with their files."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, Literal

from forge_pipeline.content import Content, write
from forge_pipeline.errors import ConfigError, ForgeError, did_you_mean

if TYPE_CHECKING:
    from forge_pipeline.ir import ONNXModule
    from forge_pipeline.target import Target
    from forge_pipeline.target.spec import Description

LIBRARY, KEY, METADATA, RELAX = "model_library.so", "modelKey.bin", "metadata.json", "model_relax.txt"
FILES = (LIBRARY, KEY, METADATA, RELAX)
MOST_FOLDERS = 10_000

STAGED = ("opt_level", "set_float16", "set_channel_layout", "export_relax", "uuid")
"""What the stage `compile` is asked for by the same name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Compilation:
    """What is asked of ``compile``, and said there; ``options`` are further values of conf/compile/default.yaml."""

    target: Description
    host: Description | None
    output_path: Path | str
    opt_level: int
    set_float16: bool
    set_channel_layout: Literal["first", "last"] | None
    export_relax: bool
    export_metadata: bool
    force_overwrite: bool
    uuid: str | None
    encrypt_password: str | bytes | None
    options: Mapping[str, Any]

    def run(self, model: ONNXModule) -> Path:
        """Compile ``model`` and return the folder with the files. A failure leaves nothing."""
        from forge_pipeline.codegen.layout.half_precision import widest
        from forge_pipeline.target.spec import resolved

        target = resolved(self.target, self.host)
        staged = {name: getattr(self, name) for name in STAGED} | dict(self.options)
        if self.set_float16:
            staged.setdefault("float_arithmetic", widest(target, model, staged))
        contents = _built(model, target, staged, self.encrypt_password)
        if not self.export_metadata:
            del contents[METADATA]
        return _delivered(contents, Path(self.output_path), self.force_overwrite)


class Compilable:
    """A module that can be compiled."""

    __slots__ = ()

    def _to_compile(self) -> ONNXModule:
        """Return what is compiled, in ONNX."""
        raise NotImplementedError

    def compile(
        self,
        target: Description = "llvm",
        host: Description | None = None,
        output_path: Path | str = "./compile_output",
        opt_level: int = 3,
        set_float16: bool = False,
        set_channel_layout: Literal["first", "last"] | None = None,
        export_relax: bool = False,
        export_metadata: bool = False,
        force_overwrite: bool = False,
        uuid: str | None = None,
        encrypt_password: str | bytes | None = None,
        **options: Any,
    ) -> Path:
        """Compile for a target, by the stages of the pipeline, and return the folder that holds the files.

        ``target``: a tag of conf/target or of TVM's registry, an option string (``llvm -mcpu=skylake``), JSON or a
        dictionary; ``llvm`` alone is this machine, ``cuda`` alone its GPU. ``host``: the CPU that drives a GPU.
        The folder has ``model_library.so``; with a password, which encrypts it, also ``modelKey.bin``; with
        ``export_relax`` ``model_relax.txt``; with ``export_metadata`` ``metadata.json``. Where ``output_path`` exists,
        the first free ``output_path_1``, ``_2`` ... is made, unless ``force_overwrite`` is true. ``opt_level``: 0 to 4.
        ``set_float16`` stores weights in half precision, and computes in it on a GPU and on CPUs that do.
        ``uuid`` names the artifact; without one, it follows from what is built. ``options`` are further values of
        conf/compile/default.yaml, such as ``generator``; ``dims`` among them lists sizes of open extents, by name, that
        the library has code of its own for.

        Raises TargetError, ConfigError, ModelError, CompileError, VerificationError where the compiled model does not
        compute what this one does, and ForgeError where the folder cannot be written. Then no folder is made.
        """
        compilation = Compilation(
            target=target,
            host=host,
            output_path=output_path,
            opt_level=opt_level,
            set_float16=set_float16,
            set_channel_layout=set_channel_layout,
            export_relax=export_relax,
            export_metadata=export_metadata,
            force_overwrite=force_overwrite,
            uuid=uuid,
            encrypt_password=encrypt_password,
            options=options,
        )
        return compilation.run(self._to_compile())


def _built(model: ONNXModule, machine: Target, values: Mapping[str, Any], password: Any) -> dict[str, Content]:
    from forge_pipeline.config import defaults
    from forge_pipeline.pipeline.runner import InMemory, run_once
    from forge_pipeline.stages import giving
    from forge_pipeline.stages.artifacts import KINDS
    from forge_pipeline.stages.contract import Rest
    from forge_runtime.secret import Secret

    secret = None if password is None else Secret.of_password(password)  # refused before the work, not after
    rest = Rest(inputs=(), target=asdict(machine), preparation={}, has_data=False)
    compiling, sealing = giving("library"), giving("sealed")
    options = compiling.sliced(defaults(f"{compiling.name}/default.yaml"), rest)
    _check_names(values, options, compiling.name)
    _check_dims(values.get("dims"), compiling.name)
    compiled = run_once(
        compiling.name,
        options | dict(values),
        {"model": InMemory(KINDS["model"], model)},
        {"dump": lambda stage: None, "shelf": lambda stage: None},
    )
    sealed = run_once(
        sealing.name,
        sealing.sliced(defaults(f"{sealing.name}/{'none' if secret is None else 'password'}.yaml"), rest),
        {"library": InMemory(KINDS["library"], compiled.output)},
        {"password": lambda stage: secret, "entropy": lambda stage: os.urandom},
    )
    contents = dict(KINDS["sealed"].write(sealed.output))
    if "relax" in compiled.report:
        contents[RELAX] = str(compiled.report["relax"]).encode()
    return contents


def _check_names(values: Mapping[str, Any], options: Mapping[str, Any], where: str) -> None:
    unknown = sorted(values.keys() - options.keys())
    if unknown:
        near = did_you_mean(unknown[0], options)
        raise ConfigError(where, f"options {', '.join(sorted(options))}", ", ".join(unknown), f"{near}correct the name")


def _check_dims(dims: object, where: str) -> None:
    """Raise ConfigError for one size where a list belongs: that is for ``load``."""
    for name, sizes in dims.items() if isinstance(dims, Mapping) else ():
        if isinstance(sizes, int):
            own, only = f"dims={{{name!r}: [{sizes}]}}", f"load(dims={{{name!r}: {sizes}}})"
            fix = f"give {own} for code of its own, or have no other size by {only}"
            raise ConfigError(f"{where}.dims.{name}", "a list of sizes", str(sizes), fix)


def _delivered(contents: Mapping[str, Content], wanted: Path, force: bool) -> Path:
    """Write the files into ``wanted``, or beside it under the first free number; return the folder.

    With ``force`` the folder is used as it is: files of an earlier compilation go, others stay. Everything is complete
    in a folder of its own before any of it is put there. Raises ForgeError where it cannot be written.
    """
    try:
        wanted.parent.mkdir(parents=True, exist_ok=True)
        with TemporaryDirectory(prefix=".compile-", dir=wanted.parent) as staging:
            staged = Path(staging) / "files"
            staged.mkdir()
            for name, content in contents.items():
                with (staged / name).open("wb") as stream:
                    write(content, stream.fileno())
                    os.fsync(stream.fileno())
            if force and wanted.is_dir():
                for name in FILES:
                    if name in contents:
                        (staged / name).replace(wanted / name)
                    else:
                        (wanted / name).unlink(missing_ok=True)
                return wanted
            return _moved(staged, wanted)
    except OSError as error:
        raise ForgeError(
            where=f"output_path={str(wanted)!r}",
            expected="a place that can be written",
            found=error.strerror or type(error).__name__,
            fix="choose another place, or make room in this one",
        ) from error


def _moved(staged: Path, wanted: Path) -> Path:
    for number in range(MOST_FOLDERS):
        folder = wanted if number == 0 else wanted.with_name(f"{wanted.name}_{number}")
        try:
            folder.mkdir()
        except FileExistsError:
            continue
        staged.rename(folder)  # onto the empty folder that is now ours
        return folder
    raise ForgeError(
        where=f"output_path={str(wanted)!r}",
        expected=f"fewer than {MOST_FOLDERS} folders of that name",
        found="all numbers taken",
        fix="remove old ones, or use force_overwrite=True",
    )
