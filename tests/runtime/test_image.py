from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forge_pipeline.runtime.image import open_image


@given(parts=st.lists(st.binary(max_size=9000), max_size=4))
def test_an_image_holds_what_was_written(parts: list[bytes]) -> None:
    with open_image(None) as image:
        for part in parts:
            image.write(part)
        assert image.freeze() == b"".join(parts)


def test_the_contents_outlive_the_image() -> None:
    with open_image(None) as image:
        image.write(b"contents")
        contents = image.freeze()
    assert contents == b"contents"
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(image.descriptor)


def test_a_frozen_image_cannot_be_changed_in_any_way() -> None:
    with open_image(None) as image:
        image.write(b"contents")
        contents = image.freeze()
        for change in (
            lambda: os.pwrite(image.descriptor, b"x", 0),
            lambda: os.write(image.descriptor, b"x"),
            lambda: os.ftruncate(image.descriptor, 0),
            lambda: os.ftruncate(image.descriptor, 99),
        ):
            with pytest.raises(PermissionError):
                change()
        with pytest.raises(TypeError):
            contents[0] = 1
        again = os.open(image.path, os.O_RDWR)  # the owner may open it anew, and is stopped by the seals as well
        with pytest.raises(PermissionError):
            os.pwrite(again, b"x", 0)
        os.close(again)


def test_no_two_images_have_the_same_path_even_where_a_descriptor_is_used_again() -> None:
    descriptors, paths = set(), set()
    for _ in range(300):
        with open_image(None) as image:
            image.write(b"x")
            assert Path(image.path).read_bytes() == b"x"
            descriptors.add(image.descriptor)
            paths.add(image.path)
    assert len(paths) == 300
    assert len(descriptors) < 300
    assert max(map(len, paths)) < 200


def test_an_image_is_not_inherited_by_other_programs() -> None:
    with open_image(None) as image:
        assert not os.get_inheritable(image.descriptor)


def test_an_image_on_disk_is_private_and_gone_afterwards(tmp_path: Path) -> None:
    with open_image(tmp_path) as image:
        image.write(b"contents")
        assert image.freeze() == b"contents"
        path = Path(image.path)
        assert path.parent.parent == tmp_path
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    assert list(tmp_path.iterdir()) == []
