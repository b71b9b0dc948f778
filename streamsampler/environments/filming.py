"""Film a trajectory: render the environment, collect a picture per reset and timestep, and write an MP4 file."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path
from types import CoroutineType
from typing import Any, Self

import gymnasium
import numpy as np
from gymnasium.error import DependencyNotInstalled
from gymnasium.vector import VectorEnv
from numpy.typing import NDArray

from streamsampler.core.atomic import sync_directory, temporary_beside
from streamsampler.core.awaiting import is_awaitable, run_alone, then
from streamsampler.core.errors import UsageError
from streamsampler.core.extras import needed
from streamsampler.environments.closing import close_env
from streamsampler.environments.ids import PettingZooFactory
from streamsampler.environments.parameters import SetParameters
from streamsampler.environments.updates import (
    AnyEnv,
    EnvUpdate,
    ExistingEnvUpdate,
    NewEnvUpdate,
    SetTaskUpdate,
    SpecEnvUpdate,
    apply_any_env_update,
    describe,
    lacks,
)

_MODE = "rgb_array"
_FRAMES_PER_SECOND = 30.0

Picture = NDArray[np.uint8]


class Film:
    """Selects the trajectory to film, and passes on its pictures.

    Attributes:
        number: The number of resets before the trajectory's reset; may change until then.
    """

    def __init__(self, number: int, take: Callable[[Picture, float], None]) -> None:
        self.number = number
        self._n_resets = 0
        self._take = take

    def count_reset(self) -> bool:
        """Count a reset, and return whether it starts the filmed trajectory."""
        self._n_resets += 1
        return self._n_resets - 1 == self.number

    def add_picture(self, env: AnyEnv) -> None:
        """Render an environment, and pass on the picture; raise UsageError for anything else."""
        picture: Any = env.render()
        if not (isinstance(picture, np.ndarray) and picture.dtype == np.uint8 and picture.shape[2:] == (3,)):
            shown = f"{picture.dtype} of {picture.shape}" if isinstance(picture, np.ndarray) else repr(picture)[:60]
            if isinstance(picture, CoroutineType):
                picture.close()  # or Python warns of a coroutine that was never awaited
                shown = "a coroutine: let reset and step make the picture, and render, an ordinary method, return it"
            raise UsageError(
                f"{_name(env)} cannot be filmed: render() should return a picture, uint8 of (height, width, 3), but "
                f"returned {shown}"
            )
        self._take(picture, float(env.metadata.get("render_fps") or _FRAMES_PER_SECOND))


class _FilmedEnv(gymnasium.Wrapper[Any, Any, Any, Any]):
    """Adds pictures of an environment during the filmed trajectory."""

    sees_results = True

    def __init__(self, env: AnyEnv, film: Film) -> None:
        super().__init__(env)
        self._film = film
        self._runs = False

    def reset(self, **arguments: Any) -> Any:
        self._runs = self._film.count_reset()
        return then(self.env.reset(**arguments), self._taken)

    def step(self, action: Any) -> Any:
        return then(self.env.step(action), self._taken)

    def _taken(self, result: Any) -> Any:
        if self._runs:
            self._film.add_picture(self.env)
        return result


class FilmedEnvUpdate(EnvUpdate):
    """Makes a filmed environment; `source` returns a new update for it each time."""

    def __init__(self, source: Callable[[], EnvUpdate], film: Film) -> None:
        self._source = source
        self._film = film
        self.n_slots = source().n_slots

    def of_slot(self, slot: int) -> EnvUpdate:
        return FilmedEnvUpdate(lambda: self._source().of_slot(slot), self._film)

    def __call__(self, old_env: AnyEnv | None) -> AnyEnv:
        if old_env is not None:
            close_env(old_env)
        return _FilmedEnv(_rendering(self._source()), self._film)


def check_renders(update: EnvUpdate) -> None:
    """Film an environment for a reset, and close it, to check that it can be filmed.

    Raises:
        UsageError: It cannot; gives the reason and a remedy.
    """
    update = update.of_slot(0)
    name = describe(update)
    taken: list[Picture] = []
    env = _FilmedEnv(_rendering(update), Film(0, lambda picture, _: taken.append(picture)))
    is_awaited = False
    try:
        reset: Any = env.reset(seed=0)
        if is_awaited := is_awaitable(reset):
            run_alone(_awaited_and_closed(reset, env))
    except UsageError:
        raise
    except DependencyNotInstalled as error:  # its message names the package to install
        raise UsageError(f"{name} cannot be filmed: {error}") from None
    except Exception as error:
        raise UsageError(f"{name} cannot be filmed: {type(error).__name__}: {error}") from error
    finally:
        if not is_awaited:
            with contextlib.suppress(Exception):
                close_env(env)


async def _awaited_and_closed(reset: Any, env: Any) -> None:
    """Await a reset, and close the environment on the same event loop, which owns its connections."""
    try:
        await reset
    finally:
        with contextlib.suppress(Exception):
            closing = env.close()
            if is_awaitable(closing):
                await closing


def _rendering(update: EnvUpdate) -> AnyEnv:
    """Make an environment to render pictures; raise UsageError if it cannot."""
    name = describe(update)
    try:
        env = apply_any_env_update(_with_mode(update), None, several=True, waits=True)
    except UsageError:
        raise
    except Exception as error:
        raise UsageError(
            f'{name} cannot be filmed: making it with render_mode="{_MODE}" raised {type(error).__name__}: {error}'
        ) from error
    if isinstance(env, VectorEnv):
        close_env(env)
        raise UsageError(
            f"{name} cannot be filmed: it is a vector environment, whose pictures cannot be told apart. Pass an "
            "environment that is not vectorised; VecWorker makes several of it"
        )
    mode = env.render_mode
    if mode == _MODE:
        return env
    close_env(env)
    raise UsageError(f'{name} cannot be filmed: its render_mode is {mode!r} and not "{_MODE}". {_remedy(update, env)}')


def _remedy(update: EnvUpdate, env: AnyEnv) -> str:
    if isinstance(update, ExistingEnvUpdate):
        return f'Make it with render_mode="{_MODE}", or pass its id'
    if isinstance(update, NewEnvUpdate):
        name = describe(update)
        return f"Let {name} take an argument render_mode, and make the environment with it"
    modes = env.metadata.get("render_modes") or []
    return f"It has the modes {', '.join(map(str, modes))}" if modes else "It has no modes"


def _with_mode(update: EnvUpdate) -> EnvUpdate:
    """Return an update with the `render_mode`, if the source accepts it; otherwise the same update."""
    match update:
        case SpecEnvUpdate(spec=spec):
            return SpecEnvUpdate(spec, {"render_mode": _MODE})
        case NewEnvUpdate(factory=factory, env_kwargs=kwargs):
            takes_all = isinstance(factory, PettingZooFactory)  # PettingZoo's functions have only **kwargs
            if takes_all or "render_mode" in kwargs or lacks(factory, kwargs, "render_mode"):
                return NewEnvUpdate(factory, {**kwargs, "render_mode": _MODE})
        case SetTaskUpdate():
            return SetTaskUpdate(_with_mode(update.source), update.task, update.wrapper_constructor)
        case SetParameters():
            return SetParameters(update.parameters, _with_mode(update.source), info_key=update.info_key)
    return update


def _name(env: AnyEnv) -> str:
    return str(env.spec.id) if env.spec is not None else type(env.unwrapped).__qualname__


# Videos need PyAV: `pip install av`.

_SUFFIX = ".mp4"


def _library() -> Any:
    return needed("av", "a video", "video")


def check_video(path: Path) -> Path:
    """Check for PyAV, the file's suffix and a writable folder, and return the path.

    Raises:
        UsageError: The file cannot be written, or is not an MP4 file.
        ImportError: PyAV is missing; says how to install it.
    """
    _library()
    if path.suffix.lower() != _SUFFIX:
        raise UsageError(f"{str(path)!r}: videos are {_SUFFIX} files; name it {path.stem or 'out'}{_SUFFIX}")
    if path.is_dir():
        raise UsageError(f"{str(path)!r} is a directory: name a file in it")
    if not path.parent.is_dir():
        raise UsageError(f"no such directory: {str(path.parent)!r}")
    trial = temporary_beside(path)
    try:
        trial.open("xb").close()
        trial.unlink()
    except OSError as error:
        raise UsageError(f"{str(path)!r} cannot be written: {error.strerror or error}") from None
    return path


class VideoFile:
    """Writes a video picture by picture: H.264 in MP4, which every browser plays.

    A context manager. The file appears, or replaces another, when it is complete; after an exception it does not
    appear.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._temporary = temporary_beside(path)
        self._container: Any = None
        self._stream: Any = None
        self._shape: tuple[int, ...] = ()
        self.n_pictures = 0

    def add(self, picture: NDArray[np.uint8], pictures_per_second: float) -> None:
        """Add a picture, (height, width, 3) uint8; the first picture sets size and speed.

        Raises:
            UsageError: The size differs.
            OSError: The file cannot be written.
        """
        if self._container is None:
            self._begin(picture.shape, pictures_per_second)
        if picture.shape != self._shape:
            raise UsageError(
                f"a video's pictures must have one size: the first has {self._shape}, another has {picture.shape}"
            )
        # Colours are stored per square of four points, so both sides must be even.
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
