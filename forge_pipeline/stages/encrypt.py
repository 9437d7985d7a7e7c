"""encrypt: library -> sealed. What is delivered for a target: the model, its key file and its public description.

The ciphertext is new each time; the reproducibility promise is for the library that goes in.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from forge_pipeline.crypto import envelope
from forge_pipeline.crypto.envelope import CHUNK_BITS, Sealed
from forge_pipeline.crypto.keyfile import Entropy, Kdf
from forge_pipeline.digest import canonical_json
from forge_pipeline.errors import ConfigError, SecretError
from forge_pipeline.packaging.executable import check_executable, inside, package_executable
from forge_pipeline.packaging.objects import package_objects
from forge_pipeline.registry import Registry
from forge_pipeline.runtime.bundle import Library
from forge_pipeline.runtime.variants import Combined
from forge_pipeline.stages import compile as compile_stage
from forge_pipeline.stages.contract import Form, Hit, Rest, Result, Slice
from forge_pipeline.target import Target
from forge_runtime.secret import Secret

PAYLOAD = "forge-library/2"
PUBLIC = ("format", "inputs", "outputs", "target", "tools", "variants")
"""What of the library's metadata may be read without the password; the rest tells how the model is built."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Config:
    """conf/encrypt/*.yaml, less ``password``: the runner reads that, since where a secret lies is part of no key.

    ``key_ref`` is the user's name for the password. It, ``chunk_kib`` and ``kdf`` are null for the method `none`.
    """

    method: str
    key_ref: str | None
    chunk_kib: int | None
    kdf: Kdf | None
    form: Form = "library"
    target: Target | None = None  # of a program, or of what is for a linker

    def __post_init__(self) -> None:
        """Refuse a program where none runs, and objects that are to be encrypted."""
        if self.form == "executable":
            check_executable(_target(self))
        if self.form == "objects" and self.method != "none":
            raise ConfigError(
                "encrypt.method", "none with package=objects: what is linked into an image lies there in clear",
                self.method, "choose encrypt=none, or package=executable",
            )  # fmt: skip


def sliced(section: Slice, rest: Rest) -> Slice:
    """Leave out where the password is: a part of no key."""
    own = {name: value for name, value in section.items() if name != "password"}
    return {**own, "form": rest.form, "target": None if rest.form == "library" else rest.target}


def localized(values: Slice) -> Slice:
    """Describe this machine's processor for `host`, as the library was compiled for it."""
    return values if values["target"] is None else compile_stage.localized(values)


def accepts(hit: Hit, *, password: Secret | None, entropy: Entropy) -> bool:
    """Refuse an artifact whose key file the password does not open."""
    if password is None:
        return True
    sealed: Sealed = hit.value()
    return envelope.opens(replace(sealed, model=inside(sealed.model)), password)


def seal(config: Config, library: Library | Combined, password: Secret | None, entropy: Entropy) -> Sealed:
    """Return a library, of one CPU or of several, by the configured method."""
    return METHODS.pick(config.method, where="encrypt.method")(config, library, password, entropy)


def run(config: Config, library: Library, password: Secret | None, entropy: Entropy) -> Result:
    """Return what to deliver, by the configured method; ``entropy`` gives all randomness that goes into it."""
    sealed = _objects(config, library) if config.form == "objects" else seal(config, library, password, entropy)
    if config.form == "executable":
        sealed = replace(sealed, model=package_executable(sealed.model, _target(config)), form=config.form)
    report = {"method": config.method, "form": config.form, "key_ref": config.key_ref, "bytes": len(sealed.model)}
    return Result(output=sealed, report=report)


def _plain(config: Config, library: Library | Combined, password: Secret | None, entropy: Entropy) -> Sealed:
    return Sealed(model=library.content(), key=None, metadata=library.metadata_bytes())


def _objects(config: Config, library: Library) -> Sealed:
    """Return the archive and the header."""
    made = package_objects(library, _target(config))
    return Sealed(model=made.archive, key=None, metadata=library.metadata_bytes(), form=config.form, header=made.header)


def _target(config: Config) -> Target:
    if config.target is None:
        raise AssertionError("a slice of another form than library has the target")
    return config.target


def _under_password(config: Config, library: Library | Combined, password: Secret | None, entropy: Entropy) -> Sealed:
    chunk_bits, kdf = _checked(config)
    if password is None:
        raise SecretError(
            "encrypt", "a password", "none: encrypt.password names no place", "choose encrypt=password, or name a place"
        )
    metadata = library.metadata
    model, key, meta = envelope.seal(
        library.content(),
        password,
        meta={"payload": PAYLOAD, "target": {name: metadata["target"][name] for name in ("tag", "triple")}},
        confirmable={name: metadata[name] for name in ("fingerprint", "stage_key")},
        kdf=kdf,
        chunk_bits=chunk_bits,
        entropy=entropy,
    )
    public = {name: metadata[name] for name in PUBLIC if name in metadata}
    return Sealed(model=model, key=key, metadata=canonical_json({**meta, **public}))


def _checked(config: Config) -> tuple[int, Kdf]:
    if config.chunk_kib is None or config.kdf is None or config.key_ref is None:
        raise ConfigError(
            "encrypt", "key_ref, chunk_kib and kdf for the method password", "null", "choose encrypt=password"
        )
    sizes = {1 << bits - 10: bits for bits in CHUNK_BITS}
    if config.chunk_kib not in sizes:
        raise ConfigError(
            "encrypt.chunk_kib",
            f"one of {', '.join(map(str, sizes))}",
            str(config.chunk_kib),
            "1024 suits all but the smallest devices",
        )
    problem = config.kdf.problem()
    if problem is not None:
        raise ConfigError(
            "encrypt.kdf",
            "memory_kib 19456..1048576, passes and lanes 1..16, memory_kib * passes at most 1048576",
            problem,
            "stay within these limits: the runtime refuses others",
        )
    return sizes[config.chunk_kib], config.kdf


Method = Callable[[Config, Library | Combined, Secret | None, Entropy], Sealed]
METHODS: Registry[Method] = Registry("method of encryption", {"none": _plain, "password": _under_password})
