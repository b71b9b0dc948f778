"""Videos: whole or not at all, and what a player shows of them."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
import pytest

from streamsampler.data.videos import VideoFile, check_video
from streamsampler.errors import UsageError


def test_without_the_library_the_error_says_how_to_install_it(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "av", None)
    with pytest.raises(ImportError, match=r"a video needs PyAV: pip install av \(in a clone"):
        check_video(tmp_path / "a.mp4")


def pictures(n: int, height: int = 48, width: int = 64) -> Any:
    """A white bar that moves to the right."""
    for i in range(n):
        picture = np.zeros((height, width, 3), np.uint8)
        picture[:, 8 * i : 8 * i + 8] = 255
        yield picture


@pytest.mark.extras
@pytest.mark.parametrize(("height", "width"), [(48, 64), (49, 65)])
def test_what_is_written_is_what_a_player_shows(height, width, tmp_path):
    import av

    path = tmp_path / "a.mp4"
    with VideoFile(path) as video:
        for picture in pictures(6, height, width):
            video.add(picture, 12.5)
        assert not path.exists()
    assert video.n_pictures == 6
    with av.open(str(path)) as container:
        stream = container.streams.video[0]
        assert float(stream.average_rate) == 12.5
        shown = [frame.to_ndarray(format="rgb24") for frame in container.decode(video=0)]
    assert len(shown) == 6
    for there, picture in zip(shown, pictures(6, height, width), strict=True):
        assert np.abs(there[:height, :width].astype(int) - picture).mean() < 8
    assert [file.name for file in tmp_path.iterdir()] == ["a.mp4"]


@pytest.mark.extras
def test_nothing_is_left_after_an_exception(tmp_path):
    (tmp_path / "a.mp4").write_bytes(b"before")

    def write(*all_pictures: Any) -> None:
        with VideoFile(tmp_path / "a.mp4") as video:
            for picture in all_pictures:
                video.add(picture, 30)
            raise RuntimeError

    with pytest.raises(RuntimeError):
        write(next(pictures(1)))
    with pytest.raises(UsageError, match="one size"):
        write(next(pictures(1)), next(pictures(1, 10)))
    assert [file.read_bytes() for file in tmp_path.iterdir()] == [b"before"]


@pytest.mark.extras
@pytest.mark.parametrize(
    ("name", "message"),
    [("a.avi", "name it a.mp4"), ("a", "name it a.mp4"), ("no/a.mp4", "no directory"), ("dir.mp4", "is a directory")],
)
def test_names_that_cannot_be_written(name, message, tmp_path):
    (tmp_path / "dir.mp4").mkdir()
    with pytest.raises(UsageError, match=message):
        check_video(tmp_path / name)
