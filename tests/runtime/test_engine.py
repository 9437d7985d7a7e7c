from __future__ import annotations

import random
import threading
import weakref
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

from forge_pipeline.errors import ArtifactError, ConfigError, DataError, MachineError
from forge_pipeline.runtime.bundle import Library
from forge_pipeline.runtime.unpacked import loaded
from forge_runtime.engine import Engine
from forge_runtime.session import STAGED_BYTES
from tests.support.sums import assert_same_sums

WEIGHT = np.arange(32, dtype=np.float32).reshape(8, 4)


@pytest.fixture(scope="module")
def engine(bound_library: Library) -> Engine:
    return Engine(bound_library.to_bytes())


@pytest.fixture
def x() -> np.ndarray:
    return np.random.default_rng(0).normal(size=(5, 8)).astype(np.float32)


def test_a_model_with_its_weights_in_the_file_computes(engine: Engine, x: np.ndarray) -> None:
    product, relu = engine(x)
    assert_same_sums(product, x @ WEIGHT, terms=len(WEIGHT))
    np.testing.assert_array_equal(relu, np.maximum(product, 0))


def test_a_model_with_constants_in_its_code_computes(sum_libraries: list[Library]) -> None:
    a, b = np.ones((2, 3), np.float32), np.full((2, 3), 5, np.float32)
    (total,) = Engine(sum_libraries[0].to_bytes())(a, b)
    np.testing.assert_array_equal(total, np.full((2, 3), 7))


def test_a_model_without_inputs_computes(constant_library: Library) -> None:
    engine = Engine(constant_library.to_bytes())
    for _ in range(2):
        (numbers,) = engine()
        np.testing.assert_array_equal(numbers, [1, 2, 3])


@pytest.mark.parametrize("count", [0, 5, 2 * STAGED_BYTES])
def test_elements_of_four_bits_go_in_and_come_out_as_ml_dtypes_has_them(bytes_library: Library, count: int) -> None:
    engine = Engine(bytes_library.to_bytes())
    x = np.resize(np.arange(-8, 8), count).astype(ml_dtypes.int4)
    (moved,) = engine(x)
    assert moved.dtype == engine.outputs[0].dtype == ml_dtypes.int4
    np.testing.assert_array_equal(moved.view(np.uint8), x.view(np.uint8))
    with pytest.raises(DataError, match="dtype uint8"):
        engine(x.view(np.uint8))


def test_bfloat16_goes_in_and_comes_out_as_ml_dtypes_has_it(halves_library: Library) -> None:
    x = np.array([1.5, -2.25, 3e20], np.float32).astype(ml_dtypes.bfloat16)
    (doubled,) = Engine(halves_library.to_bytes())(x)
    assert doubled.dtype == ml_dtypes.bfloat16
    np.testing.assert_array_equal(doubled, x + x)


def test_weights_in_the_file_and_weights_as_input_give_the_same(
    engine: Engine, free_library: Library, x: np.ndarray
) -> None:
    for bound, free in zip(engine(x), Engine(free_library.to_bytes())(x, WEIGHT), strict=True):
        np.testing.assert_array_equal(bound, free)


def test_inputs_are_taken_by_position_by_name_and_as_one_collection(free_library: Library, x: np.ndarray) -> None:
    engine = Engine(free_library.to_bytes())
    expected = engine(x, WEIGHT)
    for outputs in (
        engine(w=WEIGHT, x=x),
        engine(x, w=WEIGHT),
        engine([x, WEIGHT]),
        engine((x, WEIGHT)),
        engine({"w": WEIGHT, "x": x}),
    ):
        np.testing.assert_array_equal(outputs, expected)


def test_a_profile_has_each_kernel_with_its_share_of_the_time(engine: Engine, x: np.ndarray) -> None:
    before, kernels = engine(x), engine.profile(x, runs=3)
    assert kernels
    assert sum(kernel.share for kernel in kernels) == pytest.approx(1)
    assert all(kernel.calls == 1 and kernel.milliseconds > 0 for kernel in kernels)
    assert [kernel.share for kernel in kernels] == sorted((kernel.share for kernel in kernels), reverse=True)
    assert not any(kernel.is_fallback for kernel in kernels)
    assert {(kernel.name, kernel.place) for kernel in kernels} == {(kernel.name, None) for kernel in kernels}
    np.testing.assert_array_equal(engine(x)[0], before[0])


def test_a_profile_marks_what_the_library_lists_as_fallbacks(bound_library: Library, x: np.ndarray) -> None:
    slow = Engine(bound_library.to_bytes()).profile(x)[0].name
    marked = replace(bound_library, metadata={**bound_library.metadata, "compile": {"fallbacks": [{"operator": slow}]}})
    kernels = Engine(marked.to_bytes()).profile(x)
    assert {kernel.name for kernel in kernels if kernel.is_fallback} == {slow}


def test_run_returns_outputs_by_name(engine: Engine, x: np.ndarray) -> None:
    outputs = engine.run(x=x)
    assert list(outputs) == ["product", "relu"]
    np.testing.assert_array_equal(outputs["relu"], engine(x)[1])


@pytest.mark.parametrize("rows", [1, 2, 17, 300])
def test_a_named_extent_takes_any_size(engine: Engine, rows: int) -> None:
    assert [output.shape for output in engine(np.ones((rows, 8), np.float32))] == [(rows, 4), (rows, 4)]


@pytest.mark.parametrize("offset", [0, 4, 20, 60])
def test_an_input_may_start_at_any_address(engine: Engine, x: np.ndarray, offset: int) -> None:
    room = np.zeros(x.nbytes + 128, np.uint8)
    start = -room.ctypes.data % 64 + offset
    moved = room[start : start + x.nbytes].view(np.float32).reshape(x.shape)
    moved[:] = x
    np.testing.assert_array_equal(engine(moved), engine(x))


def test_an_input_may_be_a_transposed_or_strided_or_read_only_view(engine: Engine, x: np.ndarray) -> None:
    expected = engine(x)
    read_only = x.copy()
    read_only.flags.writeable = False
    wide = np.repeat(x, 2, axis=1)
    for view in (np.asfortranarray(x), wide[:, ::2], read_only, np.broadcast_to(x, x.shape)):
        np.testing.assert_array_equal(engine(view), expected)


@pytest.mark.parametrize("offset", [0, 4, 16])
def test_a_large_input_may_start_at_any_address(engine: Engine, offset: int) -> None:
    room = np.zeros(4 * STAGED_BYTES, np.uint8)
    start = -room.ctypes.data % 64 + offset
    moved = room[start : start + 2 * STAGED_BYTES].view(np.float32).reshape(-1, 8)
    moved[:] = np.random.default_rng(offset).normal(size=moved.shape)
    for given in (moved, np.asfortranarray(moved), moved):
        np.testing.assert_array_equal(engine(given)[0], engine(moved.copy())[0])


def test_large_inputs_are_read_in_place_and_small_ones_copied_with_the_same_result(engine: Engine) -> None:
    rows = STAGED_BYTES // (8 * 4)
    for count in (rows, rows + 1, 1, rows + 1, rows):  # in turn, so that no call reads what another one left
        image = np.random.default_rng(count).normal(size=(count, 8)).astype(np.float32)
        assert_same_sums(engine(image)[0], image @ WEIGHT, terms=len(WEIGHT))


def test_inputs_are_left_as_they_were(engine: Engine, x: np.ndarray) -> None:
    before = x.copy()
    engine(x)
    np.testing.assert_array_equal(x, before)


def test_outputs_belong_to_the_caller(engine: Engine, x: np.ndarray) -> None:
    first, _ = engine(x)
    expected = first.copy()
    second, _ = engine(x)
    second[:] = 0
    engine(-x)
    np.testing.assert_array_equal(first, expected)
    assert first.flags.owndata
    assert first.flags.writeable


def test_large_outputs_keep_what_they_have_while_anybody_has_them(engine: Engine) -> None:
    inputs = [np.full((STAGED_BYTES, 8), value, np.float32) for value in range(6)]
    wanted = [engine(x)[0].copy() for x in inputs]
    held = [engine(x)[0][1:, :1].T for x in inputs]  # views of views
    assert wanted[0].nbytes > STAGED_BYTES
    for own, other in zip(held, wanted, strict=True):
        np.testing.assert_array_equal(own, other[1:, :1].T)


def test_large_outputs_are_written_where_one_was_that_nobody_has(engine: Engine) -> None:
    x = np.ones((STAGED_BYTES, 8), np.float32)
    wanted, held = engine(x)[0].copy(), engine(x)[0]
    first = weakref.ref(engine(x)[0].base)  # nobody has that result any more, but its memory is there
    for _ in range(4):
        result = engine(x)[0]
        assert result.base is first()
        np.testing.assert_array_equal(result, wanted)
        result[...] = -1
        del result
    bases = []
    for _ in range(8):
        result = engine(x)[0]  # the last one is there until now
        bases.append(weakref.ref(result.base))
    alive = [base() for base in bases[2:]]
    assert all(base is not None for base in alive)
    assert len(set(map(id, alive))) == 2
    np.testing.assert_array_equal(held, wanted)


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_models_loaded_one_after_the_other_are_not_confused(
    sum_libraries: list[Library], order: tuple[int, int]
) -> None:
    zero = np.zeros((1, 3), np.float32)
    for index in (*order, *order):
        (total,) = Engine(sum_libraries[index].to_bytes())(zero, zero)
        assert total[0, 0] == index + 1


def test_models_loaded_side_by_side_are_not_confused(sum_libraries: list[Library]) -> None:
    zero = np.zeros((1, 3), np.float32)
    engines = [Engine(library.to_bytes()) for library in sum_libraries * 3]
    assert [engine(zero, zero)[0][0, 0] for engine in engines] == [1, 2, 1, 2, 1, 2]


def test_threads_may_share_an_engine(engine: Engine) -> None:
    wrong: list[int] = []

    def work(seed: int) -> None:
        inputs = np.full((3, 8), seed, np.float32)
        for _ in range(50):
            if not np.array_equal(engine(inputs)[0], inputs @ WEIGHT):
                wrong.append(seed)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(1, 5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


@pytest.mark.parametrize("threads", [1, None])
def test_the_number_of_threads_does_not_change_the_result(
    bound_library: Library, engine: Engine, x: np.ndarray, threads: int | None
) -> None:
    np.testing.assert_array_equal(Engine(bound_library.to_bytes(), threads=threads)(x), engine(x))


@pytest.mark.parametrize(
    "wrong",
    [
        lambda file, x: Engine(file, threads="two"),
        lambda file, x: Engine(file, threads=1.5),
        lambda file, x: Engine(file, variant=3),
        lambda file, x: Engine(file, trusted=3),
        lambda file, x: Engine(file).profile(x, runs="ten"),
        lambda file, x: Engine(file).profile(x, runs=0),
        lambda file, x: Engine(file).truncate("all"),
    ],
)
def test_values_of_other_types_are_refused_in_words(
    bound_library: Library, x: np.ndarray, wrong: Callable[[bytes, np.ndarray], object]
) -> None:
    with pytest.raises(ConfigError, match=r"expected .*, found "):
        wrong(bound_library.to_bytes(), x)


def test_numbers_of_numpys_will_do(bound_library: Library, x: np.ndarray) -> None:
    engine = Engine(bound_library.to_bytes(), threads=np.int64(1))
    assert engine.profile(x, runs=np.int64(1))


@pytest.mark.parametrize("threads", [0, -1, 100_000])
def test_an_impossible_number_of_threads_is_refused(bound_library: Library, threads: int) -> None:
    with pytest.raises(ConfigError, match=rf"^threads: expected 1 to \d+, this machine's CPUs, found {threads}"):
        Engine(bound_library.to_bytes(), threads=threads)


def test_an_engine_describes_itself(engine: Engine, bound_library: Library) -> None:
    assert repr(engine) == "Engine(model library: x float32[n, 8] -> product float32[n, 4], relu float32[n, 4])"
    assert engine.metadata == bound_library.metadata
    assert [tensor.name for tensor in engine.inputs] == ["x"]


@pytest.mark.parametrize(
    ("inputs", "message"),
    [
        (
            [np.zeros((5, 7), np.float32)],
            "input 'x': expected float32[n, 8], found shape [5, 7]"
            "\nfix: pass the shape that the model was compiled for",
        ),
        (
            [np.zeros(8, np.float32)],
            "input 'x': expected float32[n, 8], found shape [8]\nfix: reshape it, or add the batch axis: array[None]",
        ),
        (
            [np.zeros((5, 8))],
            "input 'x': expected float32[n, 8], found dtype float64"
            "\nfix: convert it: array.astype('float32'), if that loses nothing you need",
        ),
        (
            [1.0],
            "input 'x': expected float32[n, 8], found float, no numpy array\nfix: convert it with numpy.asarray",
        ),
        ([], "inputs: expected x float32[n, 8], found no x\nfix: pass one array for each input"),
        ([1, 2], "inputs: expected x float32[n, 8], found 2 arrays\nfix: pass one array for each input"),
        (
            {"X": 1},
            "inputs: expected x float32[n, 8], found unknown input 'X'\nfix: pass each input once",
        ),
    ],
)
def test_a_wrong_input_is_named(engine: Engine, inputs: object, message: str) -> None:
    with pytest.raises(DataError) as refusal:
        engine(inputs)
    assert str(refusal.value) == message


def test_a_scalar_of_numpys_own_is_an_array_without_an_axis(rank_zero_library: Library) -> None:
    engine = Engine(rank_zero_library.to_bytes())
    for value in (np.float32(3), np.array(3, np.float32)):
        (doubled,) = engine(value)
        assert (doubled.shape, float(doubled)) == ((), 6.0)


def test_an_input_given_twice_is_refused(free_library: Library, x: np.ndarray) -> None:
    with pytest.raises(DataError, match="found 'x' twice"):
        Engine(free_library.to_bytes())(x, x=x)


def test_a_misspelt_input_gets_a_suggestion(sides_library: Library) -> None:
    engine = Engine(sides_library.to_bytes())
    with pytest.raises(DataError, match=r"did you mean 'right'\?"):
        engine(left=np.zeros((1, 3), np.float32), rigth=np.zeros((1, 3), np.float32))


def test_one_named_extent_has_one_size(sum_libraries: list[Library]) -> None:
    with pytest.raises(DataError) as refusal:
        Engine(sum_libraries[0].to_bytes())(np.zeros((2, 3), np.float32), np.zeros((4, 3), np.float32))
    assert str(refusal.value) == (
        "input 'b': expected float32[m, 3], found shape [4, 3], while m is 2 on axis 0 of 'a'\nfix: make the two agree"
    )


def test_a_library_for_another_architecture_is_refused(pi_library: Library) -> None:
    with pytest.raises(MachineError, match="found one made for aarch64-linux-gnu"):
        Engine(pi_library.to_bytes())


def test_code_for_another_architecture_is_refused_whatever_the_program_says(bound_library: Library) -> None:
    elf = bytearray(bound_library.elf)
    elf[18:20] = (40).to_bytes(2, "little")
    with pytest.raises(MachineError, match="found that for machine 40"):
        Engine(replace(bound_library, elf=bytes(elf)).to_bytes())


def test_a_library_that_needs_a_missing_cpu_feature_is_refused(bound_library: Library) -> None:
    flag = bound_library.metadata["target"]["cpu_flags"][0]
    other = "z" * len(flag)
    program = bytes(bound_library.program).replace(f"\0{flag}\0".encode(), f"\0{other}\0".encode())
    with pytest.raises(MachineError, match=f"compiled for, found a CPU without {other}"):
        Engine(replace(bound_library, program=program).to_bytes())


def test_a_library_for_a_gpu_is_refused(bound_library: Library) -> None:
    with pytest.raises(ArtifactError, match="expected a library for a CPU"):
        Engine(replace(bound_library, program=b"").to_bytes())


@pytest.mark.parametrize(
    "change",
    [
        {"format": 1},
        {"inputs": [{"name": "x"}]},
        {"inputs": [{"name": "x", "dtype": "complex64", "shape": ["n", 8]}]},
        {"inputs": [{"name": "x", "dtype": "float64", "shape": ["n", 8]}]},
        {"inputs": [{"name": "y", "dtype": "float32", "shape": ["n", 8]}]},
        {"inputs": []},
        {"outputs": [{"name": "product", "dtype": "float32", "shape": ["n", 4]}]},
        {"outputs": 3},
        {"inputs": [{"name": "x", "dtype": "float32", "shape": ["n"] * 9}]},
        {"inputs": [{"name": "x", "dtype": "float32", "shape": ["n", -8]}]},
        {"entries": 3},
    ],
    ids=str,
)
def test_metadata_that_make_no_sense_are_refused(bound_library: Library, change: dict[str, object]) -> None:
    library = replace(bound_library, metadata={**bound_library.metadata, **change})
    with pytest.raises(ArtifactError):
        Engine(library.to_bytes())


def test_a_shared_object_that_is_no_model_is_refused(
    bound_library: Library, foreign_library: Callable[[Path], bytes], tmp_path: Path
) -> None:
    library = replace(bound_library, elf=foreign_library(tmp_path / "created"))
    with pytest.raises(ArtifactError, match="expected a shared object of forge-pipeline"):
        Engine(library.to_bytes())
    assert not (tmp_path / "created").exists()


@pytest.mark.parametrize("missing", ["nowhere.so", ""])
def test_what_is_no_file_is_refused(tmp_path: Path, missing: str) -> None:
    with pytest.raises(ArtifactError, match=r"expected a (regular )?file"):
        Engine(tmp_path / missing)


def test_a_truncated_file_is_refused_at_every_length(bound_library: Library, tmp_path: Path) -> None:
    data = bound_library.to_bytes()
    path = tmp_path / "model_library.so"
    lengths = [0, 1, 4095, 4096, len(data) // 2, len(data) - 1, *random.Random(0).sample(range(len(data)), 30)]
    for length in lengths:
        path.write_bytes(data[:length])
        with pytest.raises(ArtifactError):
            Engine(path)


def test_a_file_that_is_cut_off_after_loading_does_no_harm(bound_library: Library, tmp_path: Path) -> None:
    path = tmp_path / "model_library.so"
    path.write_bytes(bound_library.to_bytes())
    engine = Engine(path)
    path.write_bytes(b"")
    ones = np.ones((1, 8), np.float32)
    np.testing.assert_array_equal(engine(ones)[0], ones @ WEIGHT)


def test_a_library_whose_weights_are_in_a_file_is_loaded_without_a_temporary_file(
    bound_library: Library, x: np.ndarray, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "model_library.so"
    path.write_bytes(bound_library.to_bytes())
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "no folder"))
    assert_same_sums(loaded(Library.from_file(path), threads=1)(x)[0], x @ WEIGHT, terms=len(WEIGHT))
