"""Whether a sealed library holds the one that its provenance names."""

from __future__ import annotations

import hashlib
from pathlib import Path

from forge_pipeline.content import opened
from forge_pipeline.crypto import envelope, keyfile
from forge_pipeline.errors import VerificationError
from forge_pipeline.packaging.executable import inside
from forge_pipeline.pipeline.trust.statements import Statement
from forge_pipeline.stages import giving
from forge_pipeline.stages.artifacts import KEY, KINDS, MODEL_FILES, SEALED_FILES
from forge_runtime.secret import Secret

COMPILING = giving("library").name


def check_sealed(folder: Path, statement: Statement, password: Secret) -> str:
    """Decrypt the library of a delivery, in memory of two chunks; return what to say of it.

    Raises VerificationError where it is another than the provenance says, and what opening it raises.
    """
    made = statement.stages.get(COMPILING)
    if not statement.is_sealed or KEY not in statement.subject or made is None:
        raise VerificationError(str(folder), "a sealed library", "one in clear", "leave --password out")
    sealed = KINDS["sealed"].read({name: folder / name for name in SEALED_FILES if (folder / name).exists()})
    model, digest = inside(sealed.model), hashlib.sha256()
    envelope.decrypt(
        opened(model), len(model), lambda pair: keyfile.unwrap(sealed.key or b"", password, pair=pair), digest.update,
        where=str(folder),
    )  # fmt: skip
    wanted = made.outputs.get(MODEL_FILES["library"])
    if digest.hexdigest() != wanted:
        raise VerificationError(
            str(folder), f"the library of its provenance sealed in it, {wanted}", digest.hexdigest(),
            "what was sealed is not what was compiled: ask who built it",
        )  # fmt: skip
    return "sealed    holds the library of the provenance"
