"""Data: known by content, split once, fitted to the model's inputs by rules that say no exactly."""

from __future__ import annotations

import random
import subprocess
import sys
import zipfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from forge_pipeline.data import Dataset, Image, Preparation
from forge_pipeline.data.fitting import InputSpec
from forge_pipeline.errors import ConfigError, DataError

PLAIN = Preparation(calibration_samples=4, shuffle=False, seed=0, scale=1.0, offset=0.0, image=None)
ROWS = (InputSpec(name="image", shape=("N", 2, 3), dtype="float32"),)


@pytest.fixture
def npz(tmp_path: Path) -> Callable[..., str]:
    def save(name: str = "data.npz", compressed: bool = False, **arrays: Any) -> str:
        (np.savez_compressed if compressed else np.savez)(tmp_path / name, **arrays)
        return str(tmp_path / name)

    return save


def ramp(count: int, dtype: Any = np.float32) -> Any:
    return np.arange(count * 6, dtype=dtype).reshape(count, 2, 3)


def refused(path: str, inputs: tuple[InputSpec, ...] = ROWS, preparation: Preparation = PLAIN) -> DataError:
    with pytest.raises(DataError) as refusal:
        list(Dataset.open(path).samples(preparation, inputs, "calibration"))
    return refusal.value


@given(st.integers(1, 40), st.integers(1, 40), st.booleans(), st.integers(0, 5))
def test_the_parts_cover_the_data_and_share_no_sample(count: int, wanted: int, shuffle: bool, seed: int) -> None:
    class Memory:
        images = False
        shapes = staticmethod(lambda: {"x": (2, 3)})
        count = staticmethod(lambda names: count)
        place = staticmethod(lambda index: f"sample {index}")
        rows = staticmethod(lambda names, indices: ({"x": ramp(count)[index]} for index in indices))
        digest = staticmethod(lambda: "")

    preparation = replace(PLAIN, calibration_samples=wanted, shuffle=shuffle, seed=seed)
    data = Dataset(Memory())
    parts = [data.samples(preparation, ROWS, part) for part in ("calibration", "evaluation")]
    seen = [[int(feed["image"][0, 0, 0]) // 6 for feed in part] for part in parts]
    if count > wanted:
        assert sorted(seen[0] + seen[1]) == list(range(count))
        assert len(seen[0]) == wanted
        assert not parts[1].shared
    else:
        assert seen[0] == seen[1] == list(range(count))
        assert parts[1].shared
    assert shuffle or seen[0] == list(range(min(count, wanted)))


@pytest.mark.parametrize("compressed", [False, True])
def test_samples_come_one_at_a_time_with_a_batch_axis(npz: Callable[..., str], compressed: bool) -> None:
    path = npz(compressed=compressed, x=ramp(10), y=np.arange(10))
    evaluation = Dataset.open(path).samples(PLAIN, ROWS, "evaluation")
    assert len(evaluation) == 6
    for index, feed in enumerate(evaluation, start=4):
        np.testing.assert_array_equal(feed["image"], ramp(10)[index : index + 1])
    labels = evaluation.labels()
    assert labels is not None
    assert labels.tolist() == [4, 5, 6, 7, 8, 9]


def test_every_form_of_storage_gives_the_same_samples(tmp_path: Path, npz: Callable[..., str]) -> None:
    array = ramp(5)
    np.save(tmp_path / "plain.npy", array)
    np.save(tmp_path / "fortran.npy", np.asfortranarray(array))
    folder = tmp_path / "folder"
    folder.mkdir()
    for index, row in enumerate(array):
        np.savez(folder / f"{index}.npz", image=row)
    paths = [
        npz(image=array),
        npz("x.npz", x=array),
        str(tmp_path / "plain.npy"),
        str(tmp_path / "fortran.npy"),
        str(folder),
    ]
    for path in paths:
        feeds = list(Dataset.open(path).samples(PLAIN, ROWS, "calibration"))
        np.testing.assert_array_equal(np.concatenate([feed["image"] for feed in feeds]), array[:4])


def test_a_function_of_a_module_gives_samples(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = "import numpy as np\ndef rows():\n    return ((np.full((2, 3), i, 'f'), i) for i in range(5))\n"
    (tmp_path / "calibration_rows.py").write_text(source)
    monkeypatch.syspath_prepend(str(tmp_path))
    data = Dataset.open("calibration_rows:rows")
    samples = data.samples(PLAIN, ROWS, "calibration")
    assert [int(feed["image"][0, 0, 0]) for feed in samples] == [0, 1, 2, 3]
    labels = samples.labels()
    assert labels is not None
    assert labels.tolist() == [0, 1, 2, 3]
    assert data.digest() == Dataset.open("calibration_rows:rows").digest()


def test_images_are_resized_cropped_and_normalised_and_their_folder_is_the_label(tmp_path: Path) -> None:
    pillow = pytest.importorskip("PIL.Image")
    for folder, value in (("cat", 0), ("dog", 255)):
        (tmp_path / folder).mkdir()
        pillow.fromarray(np.full((20, 30, 3), value, np.uint8)).save(tmp_path / folder / "1.png")
    options = Image(
        resize=10, crop=8, color="rgb", layout="NCHW", mean=(0.5, 0.5, 0.5), std=(0.5, 0.25, 1.0), dtype="float32"
    )
    preparation = replace(PLAIN, scale=1 / 255, image=options)
    spec = (InputSpec(name="image", shape=(1, 3, 8, 8), dtype="float32"),)
    samples = Dataset.open(str(tmp_path)).samples(preparation, spec, "calibration")
    first, second = samples
    assert first["image"].shape == (1, 3, 8, 8)
    np.testing.assert_allclose(first["image"][0, :, 0, 0], [-1.0, -2.0, -0.5])
    np.testing.assert_allclose(second["image"][0, :, 7, 7], [1.0, 2.0, 0.5])
    labels = samples.labels()
    assert labels is not None
    assert labels.tolist() == [0, 1]


def test_the_digest_is_of_the_content_and_not_of_the_place(tmp_path: Path, npz: Callable[..., str]) -> None:
    path = npz(x=ramp(3))
    copy = tmp_path / "elsewhere.npz"
    copy.write_bytes(Path(path).read_bytes())
    assert Dataset.open(path).digest() == Dataset.open(str(copy)).digest()
    before = Dataset.open(path).digest()
    npz(x=ramp(3) + 1)
    assert Dataset.open(path).digest() != before


def test_other_evaluation_data_leaves_what_calibration_sees(npz: Callable[..., str]) -> None:
    path, other = npz(x=ramp(3)), npz("eval.npz", x=ramp(9))
    data = Dataset.open(path, other)
    assert data.for_calibration().digest() == Dataset.open(path).digest()
    assert data.digest() != Dataset.open(path).digest()
    assert len(data.samples(PLAIN, ROWS, "evaluation")) == 9


def test_digesting_a_file_imports_no_numpy(npz: Callable[..., str]) -> None:
    code = (
        "import sys; from forge_pipeline.data import Dataset; "
        f"Dataset.open({npz(x=ramp(3))!r}).digest(); assert 'numpy' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_bytes_become_floats_by_the_declared_scale(npz: Callable[..., str]) -> None:
    path = npz(x=ramp(4, np.uint8))
    preparation = replace(PLAIN, scale=0.5, offset=-1.0)
    feed = next(iter(Dataset.open(path).samples(preparation, ROWS, "calibration")))
    assert feed["image"].dtype == np.float32
    np.testing.assert_array_equal(feed["image"], ramp(4)[:1] * 0.5 - 1.0)


def test_missing_axes_of_length_one_are_restored(npz: Callable[..., str]) -> None:
    spec = (InputSpec(name="image", shape=(1, 1, 2, 3), dtype="float32"),)
    feed = next(iter(Dataset.open(npz(x=ramp(4))).samples(PLAIN, spec, "calibration")))
    assert feed["image"].shape == (1, 1, 2, 3)


def test_samples_with_their_own_batch_axis_are_taken_as_they_are(npz: Callable[..., str]) -> None:
    spec = (
        InputSpec(name="frame", shape=(1, 6), dtype="float32"),
        InputSpec(name="state", shape=(2, 1, 4), dtype="float32"),
    )
    path = npz(frame=np.zeros((5, 6), np.float32), state=np.ones((5, 2, 1, 4), np.float32))
    feed = next(iter(Dataset.open(path).samples(PLAIN, spec, "calibration")))
    assert (feed["frame"].shape, feed["state"].shape) == ((1, 6), (2, 1, 4))


def test_a_fixed_batch_takes_as_many_samples_at_once(npz: Callable[..., str]) -> None:
    spec = (InputSpec(name="image", shape=(3, 2, 3), dtype="float32"),)
    samples = Dataset.open(npz(x=ramp(20), y=np.arange(20))).samples(PLAIN, spec, "evaluation")
    assert [feed["image"].shape for feed in samples] == [(3, 2, 3)] * 5
    labels = samples.labels()
    assert labels is not None
    assert len(labels) == 15
    refusal = refused(npz("few.npz", x=ramp(2)), spec)
    assert refusal.expected == "at least 3 samples, the model's fixed batch"


def test_a_wrong_shape_is_refused_by_sample_and_input(npz: Callable[..., str]) -> None:
    refusal = refused(npz(x=np.zeros((3, 4, 4), np.float32)))
    assert str(refusal) == (
        "data.path, sample 0, input 'image': expected shape [N, 2, 3], or one sample of it, found shape [4, 4]\n"
        "fix: give the samples the model's input shape"
    )


def test_numbers_that_are_not_finite_are_refused_by_place(npz: Callable[..., str]) -> None:
    array = ramp(4)
    array[2, 1, 0] = np.nan
    refusal = refused(npz(x=array))
    assert str(refusal) == (
        "data.path, sample 2, input 'image': expected finite numbers, found 1 that are not, the first NaN at "
        "[0, 1, 0]\nfix: correct or remove the sample"
    )


def test_a_missing_input_is_refused_with_the_nearest_name(npz: Callable[..., str]) -> None:
    refusal = refused(npz(imagee=ramp(3)))
    assert str(refusal) == (
        "data.path: expected an array for the model's input 'image' (or 'x'), found arrays imagee\n"
        "fix: did you mean 'imagee'? name the array after the input"
    )


def test_data_without_samples_is_refused(npz: Callable[..., str]) -> None:
    assert refused(npz(x=ramp(0))).expected == "at least one sample"


def test_arrays_of_different_lengths_are_refused(npz: Callable[..., str]) -> None:
    assert refused(npz(x=ramp(3), y=np.arange(4))).found == "'x' has 3, 'y' has 4"


def test_floats_for_an_integer_input_are_refused(npz: Callable[..., str]) -> None:
    spec = (InputSpec(name="image", shape=("N", 2, 3), dtype="int64"),)
    assert refused(npz(x=ramp(3)), spec).found == "float32 values"
    assert refused(npz(x=ramp(4, np.int32) + 300), (replace(spec[0], dtype="uint8"),)).fix == "correct the sample"


def test_a_pickle_is_never_loaded(npz: Callable[..., str]) -> None:
    assert "Python objects" in refused(npz(x=np.array([{}, {}], dtype=object))).found


@pytest.mark.parametrize("compressed", [False, True])
def test_a_file_cut_short_is_refused(npz: Callable[..., str], compressed: bool) -> None:
    path = Path(npz(compressed=compressed, x=np.random.default_rng(0).normal(size=(200, 2, 3)).astype("f")))
    data = path.read_bytes()
    path.write_bytes(data[:200] + data[-22:])
    with pytest.raises(DataError):
        list(Dataset.open(str(path)).samples(PLAIN, ROWS, "calibration"))


def test_what_is_no_data_is_refused(tmp_path: Path) -> None:
    (tmp_path / "text.npz").write_text("hello")
    (tmp_path / "empty").mkdir()
    for name, found in (("text.npz", "which is neither"), ("empty", "none in"), ("absent.npz", "nothing at")):
        with pytest.raises(DataError) as refusal:
            Dataset.open(str(tmp_path / name))
        assert found in refusal.value.found


def test_a_count_of_no_samples_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"data\.calibration_samples: expected a count of at least 1, found 0"):
        replace(PLAIN, calibration_samples=0)


def test_images_without_a_declared_preparation_are_refused(tmp_path: Path) -> None:
    pillow = pytest.importorskip("PIL.Image")
    pillow.fromarray(np.zeros((4, 4, 3), np.uint8)).save(tmp_path / "1.png")
    assert refused(str(tmp_path)).fix == "choose data=images"


BYTES = Image(resize=None, crop=None, color="rgb", layout="NHWC", mean=(0.0,) * 3, std=(1.0,) * 3, dtype=None)


def pictures(tmp_path: Path, height: int = 20, width: int = 30) -> str:
    pillow = pytest.importorskip("PIL.Image")
    pixels = np.arange(height * width * 3, dtype=np.uint32).reshape(height, width, 3) % 251
    pillow.fromarray(pixels.astype(np.uint8)).save(tmp_path / "1.png")
    return str(tmp_path)


def one_picture(path: str, options: Image, dtype: str, shape: tuple[int, ...]) -> Any:
    spec = (InputSpec(name="image", shape=shape, dtype=dtype),)
    (feed,) = Dataset.open(path).samples(replace(PLAIN, image=options), spec, "calibration")
    return feed["image"]


def test_an_image_takes_a_size_that_is_no_square_and_bytes_stay_bytes(tmp_path: Path) -> None:
    path = pictures(tmp_path)
    resized = one_picture(path, replace(BYTES, resize=(10, 14)), "uint8", (1, 10, 14, 3))
    assert (resized.shape, resized.dtype) == ((1, 10, 14, 3), np.uint8)
    cropped = one_picture(path, replace(BYTES, crop=(6, 8), layout="NCHW", color="bgr"), "uint8", (1, 3, 6, 8))
    whole = one_picture(path, BYTES, "uint8", (1, 20, 30, 3))
    assert (cropped[0] == whole[0, 7:13, 11:19, ::-1].transpose(2, 0, 1)).all()


@pytest.mark.parametrize(
    ("changes", "dtype", "message"),
    [
        (
            {"crop": 24}, "uint8",
            "data.path, sample 0 (1.png), input 'image': expected at least 24 x 24 pixels, as data.image.crop asks "
            "for, found 20 x 30\nfix: set data.image.resize, or a smaller crop",
        ),
        (
            {"dtype": "float32"}, "uint8",
            "data.path, sample 0 (1.png), input 'image': expected an input of float32, as data.image.dtype declares, "
            "found uint8\nfix: declare the model's own type",
        ),
        (
            {"mean": (0.5,) * 3}, "uint8",
            "data.path, sample 0 (1.png), input 'image': expected pixels as they are, for an input of uint8, found a "
            "scale, an offset, a mean or a standard deviation\n"
            "fix: set data.scale=1, data.offset=0, data.image.mean to zeros and data.image.std to ones",
        ),
    ],
)  # fmt: skip
def test_a_preparation_that_does_not_fit_is_refused(
    tmp_path: Path, changes: dict[str, Any], dtype: str, message: str
) -> None:
    with pytest.raises(DataError) as refusal:
        one_picture(pictures(tmp_path), replace(BYTES, **changes), dtype, (1, 24, 24, 3))
    assert str(refusal.value) == message


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"color": "gray"}, "data.image.mean: expected 1 value, one for each channel of gray, found [0.0, 0.0, 0.0]"),
        ({"std": (1.0, 0.0, 1.0)}, "data.image.std: expected values that are not zero, found [1.0, 0.0, 1.0]"),
        ({"resize": (1, 2, 3)}, "data.image.resize: expected null, a length in pixels, or [height, width]"),
        ({"crop": 0}, "data.image.crop: expected null, a length in pixels, or [height, width], found 0"),
    ],
)
def test_a_preparation_that_cannot_be_is_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError) as refusal:
        replace(BYTES, **changes)
    assert str(refusal.value).startswith(message)


HEADERS = [
    "(" * 5000, "-" * 3000 + "1", "1", "{", "{'descr': '<f4', 'fortran_order': False}",
    *(
        f"{{'descr': '{kind}', 'fortran_order': {order}, 'shape': {shape}}}"
        for kind, order, shape in (
            ("<f4", False, (1 << 40, 2, 3)), ("<f4", False, (1 << 40, 0)), ("<f4", False, (-6, 2, 3)),
            ("<f4", True, (6, -3)), ("<f4", True, (1 << 62, 1 << 62)), ("<f4", False, (4, 1 << 63, 1 << 63)),
            ("|V0", False, (4, 2, 3)), ("|S100000000", False, (4, 2)),
        )
    ),
]  # fmt: skip
"""What another program, or somebody hostile, writes where NumPy has text that says what an array is."""


@pytest.mark.parametrize("header", HEADERS, ids=range(len(HEADERS)))
@pytest.mark.parametrize("archived", [False, True])
def test_a_header_that_promises_more_than_there_is_or_says_nothing_is_refused(
    tmp_path: Path, header: str, archived: bool
) -> None:
    text = header.encode() + b"\n"
    array = b"\x93NUMPY\1\0" + len(text).to_bytes(2, "little") + text + bytes(96)
    path = tmp_path / ("data.npz" if archived else "data.npy")
    if archived:
        with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
            archive.writestr("image.npy", array)
    else:
        path.write_bytes(array)
    with pytest.raises(DataError):
        list(Dataset.open(str(path)).samples(PLAIN, ROWS if archived else (replace(ROWS[0], name="x"),), "calibration"))


@pytest.mark.parametrize("compressed", [False, True])
def test_a_changed_archive_is_read_or_refused_and_never_a_crash(npz: Callable[..., str], compressed: bool) -> None:
    path = Path(npz(compressed=compressed, image=ramp(6), y=np.arange(6)))
    sound, chance, refusals = path.read_bytes(), random.Random(9), 0
    for _ in range(400):
        changed = bytearray(sound)
        for _ in range(chance.randrange(1, 5)):
            changed[chance.randrange(len(changed))] = chance.choice((0, 1, 99, 255, chance.randrange(256)))
        path.write_bytes(changed)
        try:
            for part in ("calibration", "evaluation"):
                samples = Dataset.open(str(path)).samples(PLAIN, ROWS, part)  # type: ignore[arg-type]
                list(samples)
                samples.labels()
        except DataError:
            refusals += 1
    assert refusals > 100
