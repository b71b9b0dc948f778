"""Write pictures as a video file, as they come; needs PyAV: `pip install av`."""

from __future__ import annotations

import contextlib
from fractions import Fraction
from pathlib import Path
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from streamsampler.core.atomic import sync_directory, temporary_beside
from streamsampler.core.errors import UsageError
from streamsampler.core.extras import needed

_SUFFIX = ".mp4"


def _library() -> Any:
    return needed("av", "a video", "video")


def check_video(path: Path) -> Path:
    """Check that a video can be written to a file, and return the file's name.

    Raises:
        UsageError: It cannot; or the file is to have another format.
        ImportError: The library is missing; says how to install it.
    """
    _library()
    if path.suffix.lower() != _SUFFIX:
        raise UsageError(f"{str(path)!r}: videos are {_SUFFIX} files; name it {path.stem or 'out'}{_SUFFIX}")
    if path.is_dir():
        raise UsageError(f"{str(path)!r} is a directory: name a file in it")
    if not path.parent.is_dir():
        raise UsageError(f"there is no directory {str(path.parent)!r}")
    trial = temporary_beside(path)
    try:
        trial.open("xb").close()
        trial.unlink()
    except OSError as error:
        raise UsageError(f"{str(path)!r} cannot be written: {error.strerror or error}") from None
    return path


class VideoFile:
    """A video that is written picture by picture: H.264 in MP4, which every browser plays.

    A context manager. The file appears under its name when it is complete, and not at all after an exception.

    Args:
        path: The file; one that is there is replaced.

    Attributes:
        n_pictures: How many pictures there are.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._temporary = temporary_beside(path)
        self._container: Any = None
        self._stream: Any = None
        self._shape: tuple[int, ...] = ()
        self.n_pictures = 0

    def add(self, picture: NDArray[np.uint8], pictures_per_second: float) -> None:
        """Add a picture.

        Args:
            picture: (height, width, 3) uint8, of the size of the first one.
            pictures_per_second: How many are shown a second; that of the first one counts.

        Raises:
            UsageError: It has another size.
            OSError: The file cannot be written.
        """
        if self._container is None:
            self._begin(picture.shape, pictures_per_second)
        if picture.shape != self._shape:
            raise UsageError(f"a video's pictures have one size: one has {self._shape}, another has {picture.shape}")
        # Colours are stored for squares of four points: sides are even.
        height, width = picture.shape[:2]
        even = np.pad(picture, ((0, height % 2), (0, width % 2), (0, 0)), mode="edge")
        frame = _library().VideoFrame.from_ndarray(np.ascontiguousarray(even), format="rgb24")
        self._container.mux(self._stream.encode(frame))
        self.n_pictures += 1

    def _begin(self, shape: tuple[int, ...], pictures_per_second: float) -> None:
        self._shape = shape
        self._container = _library().open(str(self._temporary), "w", format="mp4")
        rate = Fraction(pictures_per_second).limit_denominator(1_000)
        self._stream = self._container.add_stream("libx264", rate=max(rate, Fraction(1, 10)))
        self._stream.height, self._stream.width = (side + side % 2 for side in shape[:2])
        self._stream.pix_fmt = "yuv420p"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        container, self._container = self._container, None
        try:
            if container is None:
                return
            try:
                if kind is None:
                    container.mux(self._stream.encode(None))
            finally:
                container.close()
            if kind is None:
                self._temporary.replace(self._path)
                sync_directory(self._path.parent)
        finally:
            with contextlib.suppress(OSError):
                self._temporary.unlink()
