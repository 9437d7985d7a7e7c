"""Run a compiled model with control flow: load the artifact, check what goes in, return what comes out."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from forge_pipeline.content import Made
from forge_pipeline.errors import ConfigError
from forge_pipeline.runtime.arguments import Array
from forge_pipeline.runtime.artifact import FileOrBytes, name_of, open_library
from forge_pipeline.runtime.clock import Clock, KernelTime, profile
from forge_pipeline.runtime.host import ask_for_tiles
from forge_pipeline.runtime.interface import Call, Interface, Tensor
from forge_pipeline.runtime.machine import Machine, available_cores
from forge_pipeline.runtime.sizes import computed
from forge_runtime.limits import Limits
from forge_runtime.secret import Secret


class Interpreted:
    """A compiled model, ready to run. It may be shared by threads, which then take turns, and by forked processes.

        engine = Engine("out/host/model_library.so", "out/host/modelKey.bin", password)
        (scores,) = engine(image)

    ``library`` and ``key`` are files or their contents. ``threads`` is how many a run may use, by default one for
    each physical core; with one, whoever calls computes, with more, one thread of the runtime does. An encrypted model
    is decrypted into sealed memory and never touches a disk; on a system without such memory, or to load by an ordinary
    path, name a ``plaintext_folder``: the library then lies there, readable by this user alone, while it is loaded.

    A library may have code of its own for some sizes (`model.dims` with a list). With ``pad``, a call of other sizes is
    filled up with zeros to the next of them, and its outputs are cut to what was asked for: right for a batch, and for
    sequences whose padding the model is told of by a mask of zeros. Without it, such a call takes the code for any
    size, or is refused where there is none.

    ``max_bytes`` bounds the library's size, and ``max_kdf_bytes`` the memory that deriving the key may take, before
    either is used; by default both are the memory that is free.

    Raises ArtifactError for a file that is damaged, altered, cut off or made for another machine, SecretError for a
    missing or wrong key or password, ConfigError for an impossible number of threads. Nothing of the file is
    executed before all of it was checked.
    """

    def __init__(
        self,
        library: FileOrBytes | Made,
        key: FileOrBytes | None = None,
        password: Secret | bytes | str | None = None,
        *,
        threads: int | None = None,
        pad: bool = False,
        plaintext_folder: str | os.PathLike[str] | None = None,
        max_bytes: int | None = None,
        max_kdf_bytes: int | None = None,
    ) -> None:
        self._where = "model library"
        self._interface = Interface(inputs=(), outputs=(), weights=())  # for the repr in the traceback of a refusal
        given, password = password, None  # no local shows it, neither now nor in the traceback of a refusal
        try:
            secret = None if given is None else Secret.of_password(given)
        finally:
            del given
        folder = None if plaintext_folder is None else Path(plaintext_folder)
        limits = Limits.of(max_bytes, max_kdf_bytes)
        self._where = name_of(library, "model library")
        with open_library(library, key, secret, plaintext_folder=folder, limits=limits) as (found, interface, path):
            self._metadata, self._interface = found.metadata, interface
            if found.metadata.get("compile", {}).get("amx", False):
                ask_for_tiles(where=self._where)
            self._pad = pad
            self._machine = Machine(path, interface, threads=_check_threads(threads), where=self._where)

    def __call__(self, *args: object, **named: object) -> list[Array]:
        """Run the model on arrays given in order, by name, or as one list or dict; return outputs in order.

        Shapes and dtypes must be those of ``inputs``; nothing is cast. Raises DataError, naming the input.
        """
        return self._computed(self._interface.checked(self._interface.positional(args, named)))

    def _computed(self, call: Call) -> list[Array]:
        return computed(self._interface, call, self._machine, pad=self._pad)

    def run(self, *args: object, **named: object) -> dict[str, Array]:
        """Do as a call does; return outputs by name."""
        return dict(zip((tensor.name for tensor in self.outputs), self(*args, **named), strict=True))

    def profile(self, *args: object, runs: int = 10, **named: object) -> list[KernelTime]:
        """Run the model ``runs`` times; return what each kernel took in the quickest run, most time first.

        Inputs are given as in a call. No other thread may use this engine meanwhile.
        """
        call = self._interface.checked(self._interface.positional(args, named))

        def run(clock: Clock) -> None:
            with self._machine.observed(clock):
                self._computed(call)

        return profile(run, runs, self._metadata.get("compile", {}).get("fallbacks", ()))

    @property
    def inputs(self) -> tuple[Tensor, ...]:
        """Name, dtype and shape of each input, in order; a named extent takes any size."""
        return self._interface.inputs

    @property
    def outputs(self) -> tuple[Tensor, ...]:
        """Name, dtype and shape of each output, in order."""
        return self._interface.outputs

    @property
    def metadata(self) -> Mapping[str, Any]:
        """All that the library says about itself: target, fingerprint, tools, how it was quantized and compiled."""
        return self._metadata

    def __repr__(self) -> str:
        def listed(tensors: tuple[Tensor, ...]) -> str:
            return ", ".join(f"{tensor.name} {tensor}" for tensor in tensors)

        return f"Engine({self._where}: {listed(self.inputs)} -> {listed(self.outputs)})"


def _check_threads(threads: int | None) -> int:
    cpus = os.cpu_count() or 1
    if threads is None:
        return available_cores()
    if not 1 <= threads <= cpus:
        raise ConfigError("threads", f"1 to {cpus}, this machine's CPUs", str(threads), "leave it out for all cores")
    return threads
