"""Kernels that were made once, on this disk alone: what a key's machine code is made of is not told by its file.

A file holds a digest, then what that is of: the key, and the kernel. It is sealed as objects are, and lasts as long as
it is used. Losing one costs no more than making it again, so that none waits for the disk.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from forge_pipeline.content import NotPlainError
from forge_pipeline.digest import digest_bytes
from forge_pipeline.store.disk import KERNELS, Damage, Disk, refusing
from forge_pipeline.store.vault import Vault

MOST_BYTES = 64 << 20
"""Of a file; what is larger is none of ours."""
_DIGEST = 64


@dataclass(frozen=True, slots=True)
class Kernels:
    """The kernels of one store. Raises StoreError where they cannot be written."""

    disk: Disk
    vault: Vault
    on_damage: Callable[[str], None]

    def made_by(self, maker: str) -> MadeBy:
        """Return those that ``maker`` made, the code and tools that make them: no other's are the same."""
        return MadeBy(self, maker)

    def get(self, key: str) -> bytes | None:
        """Return a kernel, None without one. A damaged one is told, and moved to quarantine."""
        found, fault = self._read(key)
        if fault:
            damage = self._set_aside(key)
            if damage is not None:
                self.on_damage(f"damaged in the store: {damage}")
        elif found is not None and self.disk.read_only is None:
            with suppress(PermissionError, FileNotFoundError):
                os.utime(self._slot(key))
        return found

    def put(self, key: str, kernel: bytes) -> None:
        """Keep a kernel; not in a store that can only be read, nor one that is as large as no kernel is."""
        content = bytes.fromhex(key) + kernel
        if self.disk.read_only is not None or self.vault.length(_DIGEST + len(content)) > MOST_BYTES:
            return
        with self.disk.draft() as draft:
            writer = self.vault.writer(draft.write)
            writer.write(digest_bytes(content).encode() + content)
            writer.end()
            draft.place(self._slot(key), lasting=False)

    def check(self) -> list[Damage]:
        """Read all of them; return what was damaged, which is in quarantine then."""
        damages = [self._set_aside(key) for key in self.disk.digests(KERNELS) if self._read(key)[1]]
        return [damage for damage in damages if damage is not None]

    def collect(self, *, keep_bytes: float, keep_seconds: float) -> tuple[int, int]:
        """Remove those unused for so long, and the least recently used that do not fit; return bytes freed and kept."""
        slots = [self._slot(key) for key in self.disk.digests(KERNELS)]
        with refusing(self.disk.root / KERNELS):
            states = sorted(((slot.lstat(), slot) for slot in slots), key=lambda item: (-item[0].st_mtime, item[1]))
        oldest, freed, kept = time.time() - keep_seconds, 0, 0
        for state, slot in states:
            if state.st_mtime < oldest or kept + state.st_size > keep_bytes:
                freed += self.disk.remove(slot)
            else:
                kept += state.st_size
        return freed, kept

    def _slot(self, key: str) -> Path:
        return self.disk.slot(KERNELS, key)

    def _read(self, key: str) -> tuple[bytes | None, str]:
        """Return a sound kernel, or what is wrong with its file; neither where there is none."""
        try:
            descriptor = self.disk.opened(self._slot(key))
            length = os.fstat(descriptor).st_size
            if length > MOST_BYTES:
                os.close(descriptor)
                return None, f"{length} bytes, which is too large for one"
            with os.fdopen(self.vault.plain(descriptor), "rb") as stream:
                kept = stream.read()
        except (FileNotFoundError, NotADirectoryError):
            return None, ""
        except NotPlainError as error:
            return None, error.strerror or type(error).__name__
        except OSError as error:  # a medium that fails, or none of this vault
            return None, f"a file that cannot be read ({error.strerror})"
        digest, content = kept[:_DIGEST], kept[_DIGEST:]
        own = bytes.fromhex(key)
        if digest != digest_bytes(content).encode() or content[: len(own)] != own:
            return None, f"{len(kept)} bytes that are another kernel, or none"
        return content[len(own) :], ""

    def _set_aside(self, key: str) -> Damage | None:
        slot = self._slot(key)
        with refusing(slot), self.disk.naming():
            found = self._read(key)[1]  # again: another process may have put a sound one in its place
            if not found:
                return None
            return Damage(
                path=slot, expected="a kernel with its digest", found=found, moved_to=self.disk.set_aside(slot)
            )


@dataclass(frozen=True, slots=True)
class MadeBy:
    """The kernels of one maker: a shelf for the compiler."""

    kernels: Kernels
    maker: str

    def take(self, digests: Sequence[str]) -> Mapping[str, bytes]:
        """Return those of them that are there, sound."""
        found = {digest: self.kernels.get(self._key(digest)) for digest in digests}
        return {digest: kernel for digest, kernel in found.items() if kernel is not None}

    def keep(self, made: Mapping[str, bytes]) -> None:
        """Put kernels there."""
        for digest, kernel in made.items():
            self.kernels.put(self._key(digest), kernel)

    def _key(self, digest: str) -> str:
        return digest_bytes(f"{self.maker}\n{digest}".encode())
