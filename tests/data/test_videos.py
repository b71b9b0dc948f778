"""Videos: whole or not at all, and what a player shows of them."""

from __future__ import annotations

import sys

import numpy as np
import pytest

from streamsampler.environments.filming import VideoFile, check_video
from streamsampler.errors import UsageError


def test_without_the_library_the_error_says_how_to_install_it(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "av", None)
    with pytest.raises(ImportError, match=r"a video needs PyAV: pip install av \(in a clone"):
        check_video(tmp_path / "a.mp4")


@pytest.mark.extras
@pytest.mark.parametrize(("height", "width"), [(48, 64), (49, 65)])
def test_what_is_written_is_what_a_player_shows(height, width, tmp_path):
    import av

    pictures = np.zeros((6, height, width, 3), np.uint8)
    for i, picture in enumerate(pictures):  # a white bar that moves to the right
        picture[:, 8 * i : 8 * i + 8] = 255
    path = tmp_path / "a.mp4"
    with VideoFile(path) as video:
        for picture in pictures:
            video.add(picture, 12.5)
        assert not path.exists()
    assert video.n_pictures == 6
    with av.open(str(path)) as container:
        assert float(container.streams.video[0].average_rate) == 12.5
        shown = [frame.to_ndarray(format="rgb24") for frame in container.decode(video=0)]
    assert len(shown) == 6
    for there, picture in zip(shown, pictures, strict=True):
        assert np.abs(there[:height, :width].astype(int) - picture).mean() < 8
    assert [file.name for file in tmp_path.iterdir()] == ["a.mp4"]


@pytest.mark.extras
def test_nothing_is_left_after_an_exception(tmp_path):
    (tmp_path / "a.mp4").write_bytes(b"before")

    def write(*heights):
        with VideoFile(tmp_path / "a.mp4") as video:
            for height in heights:
                video.add(np.zeros((height, 64, 3), np.uint8), 30)

    with pytest.raises(UsageError, match="one size"):
        write(48, 10)
    assert [file.read_bytes() for file in tmp_path.iterdir()] == [b"before"]


@pytest.mark.extras
def test_names_that_cannot_be_written(tmp_path):
    (tmp_path / "dir.mp4").mkdir()
    for name, words in (("a.avi", "name it a.mp4"), ("no/a.mp4", "no directory"), ("dir.mp4", "is a directory")):
        with pytest.raises(UsageError, match=words):
            check_video(tmp_path / name)
