"""MediaPipe's operators compute what its kernels compute, written here loop by loop (mediapipe/util/tflite/operations).

Of the second versions, a whole model (face_landmark_with_attention) was compared with MediaPipe itself: 6e-7.
"""

from __future__ import annotations

import math

import numpy as np
import onnx
import pytest

from forge_pipeline.errors import ModelError
from forge_pipeline.frontends.tflite import convert
from tests.support.frontends.tflite_cases import session, written
from tests.support.sums import assert_close

SUBSET = [3, 0, 4, 2, 5, 5]


@pytest.fixture
def converted(tmp_path):
    """Return a function from a case's name and inputs to the outputs of the converted model."""

    def compute(name, *inputs):
        model = convert.convert(written(tmp_path, f"mediapipe_{name}"), ()).model
        onnx.checker.check_model(model, full_check=True)
        run = session(model)
        feed = dict(zip([value.name for value in run.get_inputs()], inputs, strict=True))
        return run.run(None, feed)

    return compute


def close(found, wanted):
    assert_close(found, wanted, within=1e-5)


def normal(*shape, seed=0):
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


def pooled(x, padding, stride_x, stride_y, wide, high):
    batch, height, width, channels = x.shape
    if padding == 1:
        rows, columns = -(-height // stride_y), -(-width // stride_x)
    else:
        rows, columns = (height - high) // stride_y + 1, (width - wide) // stride_x + 1
    top = max(0, (rows - 1) * stride_y + high - height) // 2
    left = max(0, (columns - 1) * stride_x + wide - width) // 2
    largest, places = np.zeros((2, batch, rows, columns, channels), np.float32)
    for n, y, x_, c in np.ndindex(largest.shape):
        most, place = -np.inf, 0
        for dy in range(high):
            for dx in range(wide):
                in_y, in_x = y * stride_y - top + dy, x_ * stride_x - left + dx
                if 0 <= in_y < height and 0 <= in_x < width and x[n, in_y, in_x, c] > most:
                    most, place = x[n, in_y, in_x, c], dy * wide + dx
        largest[n, y, x_, c], places[n, y, x_, c] = most, place + 0.1
    return largest, places


def test_a_pool_tells_where_in_its_window_the_largest_is(converted):
    x = normal(2, 5, 6, 3)
    for found, wanted in zip(converted("pool", x), pooled(x, 1, 2, 1, 3, 2), strict=True):
        close(found, wanted)
    x = normal(1, 4, 6, 3, seed=1)
    largest, places = pooled(x, 2, 2, 2, 2, 2)
    for found, wanted in zip(converted("pool_valid", x), (np.maximum(largest, 0), places), strict=True):
        close(found, wanted)


def test_what_a_pool_took_goes_back_to_its_place(converted):
    x, places = normal(2, 2, 3, 4), np.random.default_rng(3).integers(0, 6, (2, 2, 3, 4)) + np.float32(0.1)
    wanted = np.zeros((2, 4, 9, 4), np.float32)
    for n, y, x_, c in np.ndindex(x.shape):
        place = int(places[n, y, x_, c])
        wanted[n, y * 2 + place // 3, x_ * 3 + place % 3, c] = x[n, y, x_, c]
    close(converted("unpool", x, places.astype(np.float32))[0], wanted)


def test_a_transposed_convolution_finds_its_own_size(converted):
    x, random = normal(1, 5, 4, 3), np.random.default_rng(5)
    kernel, bias = random.normal(size=(2, 4, 3, 3)).astype(np.float32), np.float32([0.5, -1])
    cuts = [max(0, taps - (extent - 1) % 2 - 1) for taps, extent in ((4, 5), (3, 4))]
    sizes = [2 * (extent - 1) + taps - cut for extent, taps, cut in zip((5, 4), (4, 3), cuts, strict=True)]
    wanted = np.tile(bias, (1, *sizes, 1)).astype(np.float32)
    for y, x_, dy, dx in np.ndindex(5, 4, 4, 3):
        to_y, to_x = 2 * y - cuts[0] // 2 + dy, 2 * x_ - cuts[1] // 2 + dx
        if 0 <= to_y < sizes[0] and 0 <= to_x < sizes[1]:
            wanted[0, to_y, to_x] += kernel[:, dy, dx] @ x[0, y, x_]
    close(converted("transposed", x)[0], wanted)


def turn(angle):
    return np.array([[math.cos(angle), -math.sin(angle), 0], [math.sin(angle), math.cos(angle), 0], [0, 0, 1]])


def scaled(x, y):
    return np.diag([x, y, 1.0])


def shifted(x, y):
    return np.array([[1, 0, x], [0, 1, y], [0, 0, 1.0]])


def as_matrix(plane):
    whole = np.eye(4)
    whole[:2, [0, 1, 3]] = plane[:2]
    return whole[None].astype(np.float32)


def bounds(points, angle):
    rotated = np.array([turn(angle) @ [*points[i][:2], 1] for i in SUBSET])[:, :2]
    return rotated.max(axis=0), rotated.min(axis=0)


@pytest.mark.parametrize("seed", range(4))
def test_landmarks_give_the_crop_around_them(converted, seed):
    points = (normal(1, 6, 3, seed=seed) + 2) * 20
    (left_x, left_y), (right_x, right_y) = points[0, 1, :2], points[0, 2, :2]
    angle = 0.3 - math.atan2(right_y - left_y, right_x - left_x)
    most, least = bounds(points[0], angle)
    size, middle = most - least, turn(-angle) @ [*(most + least) / 2, 1]
    plane = shifted(*middle[:2]) @ turn(-angle) @ scaled(1.5 * size[0] / 12, 1.2 * size[1] / 8) @ shifted(-6, -4)
    assert_close(converted("landmarks", points)[0], as_matrix(plane), within=1e-4)


@pytest.mark.parametrize("seed", range(2))
def test_landmarks_in_a_range_of_their_own_do_too(converted, seed):
    points = (normal(1, 1, 1, 18, seed=seed) + 2) * 20
    flat = points.reshape(6, 3)
    angle = -math.atan((flat[2, 1] - flat[1, 1]) / (flat[2, 0] - flat[1, 0]))
    most, least = bounds(flat, angle)
    size, middle = (most - least) * 1.25 / 192, turn(-angle) @ [*(most + least) / 2, 1]
    rotation = turn(-angle)
    rotation[:2, 2] = middle[:2] / 192 * 2 - 1
    to_relative = shifted(-1, -1) @ scaled(2 / 11, 2 / 7)
    to_absolute = shifted(31 / 2, 23 / 2) @ scaled(31 / 2, 23 / 2)
    wanted = as_matrix(to_absolute @ rotation @ scaled(*size) @ to_relative)
    assert_close(converted("landmarks_first", points)[0], wanted, within=1e-4)


def cropped(image, matrix, high, wide, half):
    rows, height, width = matrix[0, :2].astype(np.float64), *image.shape[1:3]
    result = np.zeros((1, high, wide, image.shape[3]), np.float32)
    for y, x in np.ndindex(high, wide):
        from_x, from_y = rows @ [x + half, y + half, 0, 1] - half
        if not (0 <= from_x <= width - 1 and 0 <= from_y <= height - 1):
            continue
        low_x, low_y = math.floor(from_x), math.floor(from_y)
        for dy, dx in np.ndindex(2, 2):
            if low_y + dy < height and low_x + dx < width:
                share = (1 - abs(low_y + dy - from_y)) * (1 - abs(low_x + dx - from_x))
                result[0, y, x] += np.float32(share) * image[0, low_y + dy, low_x + dx]
    return result


@pytest.mark.parametrize(("name", "half"), [("crop", 0.5), ("crop_first", 0.0)])
def test_a_crop_is_zero_outside_of_the_image(converted, name, half):
    image = normal(1, 7, 9, 2)
    for angle, x, y in ((0.0, 0.0, 0.0), (0.4, 1.2, -0.7), (-1.1, 3.0, 5.5)):
        matrix = as_matrix(shifted(x, y) @ turn(angle) @ scaled(1.3, 0.9))
        wanted = cropped(image, matrix, 5, 6, half)
        close(converted(name, image, matrix)[0], wanted)
        assert (wanted != 0).any()


def test_landmarks_are_moved_by_a_matrix(converted):
    matrix = as_matrix(shifted(2, -1) @ turn(0.7))
    points = normal(1, 7, 3)
    wanted = points.copy()
    wanted[..., :2] = points[..., :2] @ matrix[0, :2, :2].T + matrix[0, :2, 3]
    close(converted("transform", points, matrix)[0], wanted)
    flat = normal(1, 1, 1, 14)
    wanted = flat.reshape(7, 2) @ matrix[0, :2, :2].T + 4 * matrix[0, :2, 3]
    close(converted("transform_first", flat, matrix)[0], wanted.reshape(flat.shape))


def test_an_image_is_read_at_places_that_are_given(converted):
    image, places = normal(2, 4, 5, 3), normal(2, 4, 5, 2) * 3 + 2
    wanted = np.zeros_like(image)
    for n, y, x in np.ndindex(2, 4, 5):
        from_x, from_y = places[n, y, x]
        for to_y, to_x in np.ndindex(4, 5):
            share = max(0, 1 - abs(to_y - from_y)) * max(0, 1 - abs(to_x - from_x))
            wanted[n, y, x] += share * image[n, to_y, to_x]
    close(converted("resample", image, places)[0], wanted)


def test_options_that_are_cut_are_refused(tmp_path):
    path = written(tmp_path, "mediapipe_landmarks")
    path.write_bytes(path.read_bytes().replace(b"subset_idxs", b"subset_wxyz"))
    with pytest.raises(
        ModelError, match="options of 'custom Landmarks2TransformMatrix': expected a number, or numbers"
    ):
        convert.convert(path, ())
