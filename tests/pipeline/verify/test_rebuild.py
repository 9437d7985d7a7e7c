"""`verify --rebuild` and `--against` on real builds: the same again, or the first stage that differs and where."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from forge_pipeline.crypto.signing import read_key
from forge_pipeline.digest import canonical_json, digest_file
from forge_pipeline.errors import ForgeError, UntrustedError, VerificationError
from forge_pipeline.pipeline.trust import delivery
from forge_pipeline.pipeline.verify.checks import Checks, verify
from forge_pipeline.pipeline.verify.rebuild import Materials


@pytest.fixture
def keys(tmp_path: Path) -> list[Path]:
    """Return the private keys of two builders."""
    for name in ("one", "two"):
        delivery.keygen(tmp_path / name, f"builder {name}")
    return [tmp_path / "one", tmp_path / "two"]


@pytest.fixture
def built(finished: Any, keys: list[Path], tmp_path: Path) -> Callable[..., Path]:
    """Return a function that gives a copy of a build, with its provenance edited if asked for, signed by a builder."""

    def deliver(builder: int = 0, edit: Callable[[dict[str, Any], Path], None] = lambda statement, out: None) -> Path:
        out = Path(shutil.copytree(finished.out, tmp_path / f"out-{builder}"))
        statement = json.loads((out / "provenance.json").read_text())
        edit(statement, out)
        _replace(out / "provenance.json", canonical_json(statement) + b"\n")
        delivery.sign(out, read_key([f"file:{keys[builder]}"]))
        return out

    return deliver


def _replace(path: Path, content: bytes) -> None:
    path.unlink()
    path.write_bytes(content)


def checked(out: Path, keys: list[Path], **checks: Any) -> str:
    return verify(out, [key.with_name(f"{key.name}.pub") for key in keys], Checks(**checks))


def materials(finished: Any) -> Materials:
    folder = finished.out.parent
    return Materials(model=folder / "tiny.onnx", data=str(folder / "samples.npz"))


def stages(statement: dict[str, Any]) -> dict[str, Any]:
    made: dict[str, Any] = statement["predicate"]["buildDefinition"]["internalParameters"]["stages"]
    return made


def test_a_build_is_the_same_again(finished: Any, built: Callable[..., Path], keys: list[Path]) -> None:
    lines = checked(built(), keys, rebuild=materials(finished)).splitlines()
    assert lines[-1] == "rebuilt   equal: load, fold, calibrate, quantize, compile, evaluate, encrypt"


@pytest.mark.long
def test_another_tool_version_is_named(finished: Any, built: Callable[..., Path], keys: list[Path]) -> None:
    def edit(statement: dict[str, Any], out: Path) -> None:
        stages(statement)["compile"]["tools"]["ziglang"] = "0.16.0"

    with pytest.raises(VerificationError) as caught:
        checked(built(edit=edit), keys, rebuild=materials(finished))
    assert caught.value.where == "stage compile"
    assert caught.value.found.startswith('tools.ziglang: "0.16.0" in the delivery, "0.17.0" built here')


def slip_in(statement: dict[str, Any], out: Path, known: tuple[str, ...]) -> None:
    """Put another library into a delivery, its digest into all files: in the statement, as ``known``."""
    library = bytearray((out / "model_library.so").read_bytes())
    before = digest_file(out / "model_library.so")
    library[5000] ^= 1
    _replace(out / "model_library.so", library)
    digest = digest_file(out / "model_library.so")
    bill = (out / "bom.cdx.json").read_bytes()
    _replace(out / "bom.cdx.json", bill.replace(before.encode(), digest.encode()))
    for item in (*statement["subject"], *statement["predicate"]["runDetails"]["byproducts"]):
        if item["name"] in known:
            item["digest"]["sha256"] = digest
    manifest = (out / "manifest.json").read_bytes()
    _replace(out / "manifest.json", manifest.replace(before.encode(), digest.encode()))


@pytest.mark.long
def test_a_builder_who_slips_in_another_library_is_found_out(
    finished: Any, built: Callable[..., Path], keys: list[Path]
) -> None:
    """All is signed by the builder, and every digest fits: only to build it again tells."""
    known = "model_library.so", "compile/model_library.so", "encrypt/model_library.so"
    out = built(edit=lambda statement, out: slip_in(statement, out, known))
    assert "builder one" in checked(out, keys)
    with pytest.raises(VerificationError) as caught:
        checked(out, keys, rebuild=materials(finished))
    assert caught.value.where == "stage compile"
    assert caught.value.found == "model_library.so: other bytes; model_library.so: from byte 5000 of the code"


def test_a_statement_whose_stages_gave_something_else_is_refused(built: Callable[..., Path], keys: list[Path]) -> None:
    """The stages are told as they were, so that they build again: the library is another one."""
    out = built(edit=lambda statement, out: slip_in(statement, out, ("model_library.so",)))
    with pytest.raises(ForgeError, match="expected stages that gave what is delivered"):
        checked(out, keys)

    def hide(statement: dict[str, Any], out: Path) -> None:
        statement["predicate"]["buildDefinition"]["externalParameters"]["options"]["encrypt"]["method"] = "password"

    with pytest.raises(ForgeError, match="expected stages that gave what is delivered"):
        checked(built(1, hide), keys)


def test_another_model_is_refused_before_it_is_built(
    finished: Any, built: Callable[..., Path], keys: list[Path], tmp_path: Path
) -> None:
    other = tmp_path / "other.onnx"
    other.write_bytes(materials(finished).model.read_bytes() + b"\x12\x00")
    with pytest.raises(ForgeError, match=r"^model\.path: expected the content with digest"):
        checked(built(), keys, rebuild=Materials(model=other, data=materials(finished).data))
    with pytest.raises(ForgeError, match=r"^data\.path: expected the content with digest .* found None"):
        checked(built(1), keys, rebuild=Materials(model=materials(finished).model))


def test_two_builders_agree_or_the_stage_is_named(built: Callable[..., Path], keys: list[Path], tmp_path: Path) -> None:
    def edit(statement: dict[str, Any], out: Path) -> None:
        for item in statement["predicate"]["runDetails"]["byproducts"]:
            if item["name"] == "quantize/model.onnx":
                item["digest"]["sha256"] = "0" * 64

    one, two = built(), built(1)
    assert checked(one, keys, against=two).splitlines()[-1] == "agreed    builder two built the same"
    with pytest.raises(VerificationError, match="a statement that another key signed"):
        checked(one, keys, against=one)
    with pytest.raises(UntrustedError):
        checked(one, keys[:1], against=two)
    shutil.rmtree(two)
    with pytest.raises(VerificationError, match=r"^stage quantize: .*found model\.onnx: other bytes"):
        checked(one, keys, against=built(1, edit))


def test_what_was_not_signed_is_no_provenance(built: Callable[..., Path], keys: list[Path]) -> None:
    out = built()
    statement = (out / "provenance.json").read_bytes()
    _replace(out / "provenance.json", statement.replace(b'"python":"3', b'"python":"4'))
    with pytest.raises(ForgeError, match="expected the statement that was signed, found another"):
        checked(out, keys)
    _replace(out / "provenance.json", statement)
    (out / "provenance.intoto.jsonl").unlink()
    with pytest.raises(UntrustedError, match=r"no provenance\.intoto\.jsonl beside it"):
        checked(out, keys)


def test_the_command(forge: Any, finished: Any, built: Callable[..., Path], keys: list[Path]) -> None:
    trusted = ("--trusted", f"{keys[0]}.pub")
    done = forge("verify", str(built()), *trusted, "--rebuild")
    assert (done.returncode, done.stdout) == (2, "") and "give --model FILE" in done.stderr
