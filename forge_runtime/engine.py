"""Run a compiled model: load the artifact, check what goes in, return what comes out."""

from __future__ import annotations

import copy
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from forge_runtime.errors import ConfigError
from forge_runtime.interface import Array, Interface, State, Tensor
from forge_runtime.library import MAX_THREADS
from forge_runtime.limits import Limits
from forge_runtime.model import FileOrBytes, Made, Model, Trust, name_of
from forge_runtime.padding import padded
from forge_runtime.profile import KernelTime, profile
from forge_runtime.secret import Secret
from forge_runtime.session import Session


class Engine:
    """A compiled model, ready to run. It may be shared by threads, which then take turns, and by forked processes.

        engine = Engine("out/host/model_library.so", "out/host/modelKey.bin", password)
        (scores,) = engine(image)

    ``library`` and ``key`` are files or their contents. ``threads`` is how many a run may use, whoever calls among
    them, by default one for each physical core. An encrypted model is decrypted into memory of this process and never
    touches a disk.

    A library may have code of its own for some sizes (`model.dims` with a list). With ``pad``, a call of other sizes is
    filled up with zeros to the next of them, and its outputs are cut to what was asked for: right for a batch, and for
    sequences whose padding the model is told of by a mask of zeros. Without it, such a call takes the code for any
    size, or is refused where there is none.

    With ``trusted``, public keys as lines `ssh-ed25519 AAAA...` or .pub files with such lines, the library must be
    signed by one of them: by ``signature``, a file or its contents, else by the file beside it whose name has `.sig`
    at its end.

    Of a library for several CPUs (`target=[A,B]`), the best variant that this one runs is opened, or the one
    that ``variant`` names; ``metadata["target"]["tag"]`` is its name.

    ``max_bytes`` bounds the library's size, and ``max_kdf_bytes`` the memory that deriving the key may take, before
    either is used; by default both are the memory that is free.

    A model that was compiled with `compile.state` remembers: what a call gives of its ``states`` is read by the next.
    ``reset`` begins anew, ``truncate`` goes back to a prompt, ``session`` gives another engine on the same library,
    with states of its own.

    Raises ArtifactError for a file that is damaged, altered, cut off or made for another machine, SecretError for a
    missing or wrong key or password, UntrustedError for what no trusted key signed, ConfigError for an impossible
    number of threads, and for trusted keys that are none. Nothing of the file is executed before all of it was checked.
    """

    def __init__(
        self,
        library: FileOrBytes | Made,
        key: FileOrBytes | None = None,
        password: Secret | bytes | str | None = None,
        *,
        threads: int | None = None,
        pad: bool = False,
        trusted: Sequence[str | os.PathLike[str]] | None = None,
        signature: FileOrBytes | None = None,
        variant: str | None = None,
        max_bytes: int | None = None,
        max_kdf_bytes: int | None = None,
    ) -> None:
        self._where = "model library"
        self._interface = Interface(inputs=(), outputs=())  # for the repr in the traceback of a refusal
        given, password = password, None  # no local shows it, neither now nor in the traceback of a refusal
        try:
            secret = None if given is None else Secret.of_password(given)
        finally:
            del given
        limits = Limits.of(max_bytes, max_kdf_bytes)
        self._where = name_of(library, "model library")
        count = _check_threads(threads)
        model = Model(library, key, secret, limits, Trust.of(trusted, signature), variant)
        self._interface, self._metadata, self._pad = model.interface, model.metadata, pad
        if pad and self.states:
            raise ConfigError(
                "pad", "a model without states", "one that keeps them", "leave it out: padding would be kept"
            )
        self._session = Session(model, count)
        self._count = len(model.interface.inputs)

    def __call__(self, *args: object, **named: object) -> list[Array]:
        """Run the model on arrays given in order, by name, or as one list or dict; return outputs in order.

        Shapes and dtypes must be those of ``inputs``; nothing is cast. Raises DataError, naming the input.
        """
        values: Sequence[object]
        if args and not named and len(args) == self._count and type(args[0]) is np.ndarray:
            values = args
        else:
            values = self._interface.positional(args, named)
        with self._session.lock:
            plan = self._session.last
            found = None if plan is None else plan.call(values)
            return self._called(values) if found is None else found

    def _called(self, values: Sequence[object]) -> list[Array]:
        call = self._interface.checked(values)
        found = padded(self._interface, call, self._session.call) if self._pad else None
        return self._session.call(call.arrays) if found is None else found

    def run(self, *args: object, **named: object) -> dict[str, Array]:
        """Do as a call does; return outputs by name."""
        return dict(zip((tensor.name for tensor in self.outputs), self(*args, **named), strict=True))

    def profile(self, *args: object, runs: int = 10, apart: bool = False, **named: object) -> list[KernelTime]:
        """Run the model ``runs`` times; return what each kernel took in the quickest run, most time first.

        Inputs are given as in a call. With ``apart``, a kernel that several layers share has a row for each place that
        calls it. Other threads wait.
        """
        if not _is_whole(runs) or runs < 1:
            raise ConfigError("profile: runs", "a whole number, at least 1", _named(runs), "leave it out for 10")
        values = self._interface.positional(args, named)
        with self._session.lock:
            before = self._session.length

            def run() -> object:
                if self.states:
                    self._session.rewind(before)
                return self._called(values)

            fallbacks = self._metadata.get("compile", {}).get("fallbacks", ())
            return profile(lambda: self._session.places(run), runs, fallbacks, apart=apart)

    @property
    def states(self) -> tuple[State, ...]:
        """What is kept from call to call, in order; none of most models."""
        return self._interface.states

    @property
    def length(self) -> int:
        """How many tokens the caches have; 0 where no state grows."""
        with self._session.lock:
            return self._session.length

    def reset(self) -> None:
        """Begin anew: caches are empty, and other states zero."""
        self.truncate(0)

    def truncate(self, length: int) -> None:
        """Forget all but the first ``length`` tokens, at no cost: what comes next goes on from there.

        Raises ConfigError for more than there are, and where a state that does not grow knows no earlier one.
        """
        if not _is_whole(length):
            raise ConfigError("truncate: length", "a number of tokens", _named(length), "give a whole number")
        with self._session.lock:
            self._session.rewind(int(length))

    def session(self) -> Engine:
        """Return another engine on the same library and weights, with memory and states of its own."""
        other = copy.copy(self)
        other._session = Session(self._session.model, self._session.threads)
        return other

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


def available_cores() -> int:
    """Return the number of physical cores that this process may use: two threads of a core share its vector units."""
    cpus = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else range(os.cpu_count() or 1)
    return max(1, len({_siblings(cpu) for cpu in cpus}))


def _siblings(cpu: int) -> str:
    path = Path(f"/sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list")
    return path.read_text() if path.exists() else str(cpu)


def _check_threads(threads: int | None) -> int:
    most = min(os.cpu_count() or 1, MAX_THREADS)
    if threads is None:
        return min(available_cores(), most)
    if not _is_whole(threads) or not 1 <= threads <= most:
        raise ConfigError("threads", f"1 to {most}, this machine's CPUs", _named(threads), "leave it out for all cores")
    return int(threads)


def _is_whole(value: object) -> bool:
    return isinstance(value, int | np.integer) and not isinstance(value, bool)


def _named(value: object) -> str:
    return repr(value)[:40] if isinstance(value, str) else str(value)[:40]
