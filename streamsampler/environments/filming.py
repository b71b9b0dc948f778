"""Film an environment: make it such that it renders pictures, and take one at each reset and each timestep."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import gymnasium
import numpy as np
from gymnasium.error import DependencyNotInstalled
from gymnasium.vector import VectorEnv
from numpy.typing import NDArray

from streamsampler.core.errors import UsageError
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
    """Says which trajectory is filmed, and takes its pictures.

    Args:
        number: How many resets there are before that of the trajectory.
        take: Takes a picture, (height, width, 3), and how many a second the environment has.

    Attributes:
        number: The same; it may be set until then.
    """

    def __init__(self, number: int, take: Callable[[Picture, float], None]) -> None:
        self.number = number
        self._n_resets = 0
        self._take = take

    def count_reset(self) -> bool:
        """Count a reset, and return whether it is that of the trajectory."""
        self._n_resets += 1
        return self._n_resets - 1 == self.number

    def take(self, env: AnyEnv) -> None:
        """Take a picture of an environment.

        Raises:
            UsageError: What it renders is no picture.
        """
        picture: Any = env.render()
        if not (isinstance(picture, np.ndarray) and picture.dtype == np.uint8 and picture.shape[2:] == (3,)):
            shown = f"{picture.dtype} of {picture.shape}" if isinstance(picture, np.ndarray) else repr(picture)[:60]
            raise UsageError(
                f"{_name(env)} cannot be filmed: render() should return a picture, uint8 of (height, width, 3), and "
                f"returned {shown}"
            )
        self._take(picture, float(env.metadata.get("render_fps") or _FRAMES_PER_SECOND))


class _FilmedEnv(gymnasium.Wrapper[Any, Any, Any, Any]):
    """Takes pictures of an environment while the trajectory runs that is filmed."""

    def __init__(self, env: AnyEnv, film: Film) -> None:
        super().__init__(env)
        self._film = film
        self._runs = False

    def reset(self, **arguments: Any) -> tuple[Any, dict[str, Any]]:
        """Reset the environment."""
        result = self.env.reset(**arguments)
        self._runs = self._film.count_reset()
        if self._runs:
            self._film.take(self.env)
        return result

    def step(self, action: Any) -> Any:
        """Step the environment."""
        result = self.env.step(action)
        if self._runs:
            self._film.take(self.env)
        return result


class FilmedEnvUpdate(EnvUpdate):
    """Makes an environment that is filmed.

    Args:
        source: Returns an update that makes the environment, a new one each time.
        film: What is filmed.
    """

    def __init__(self, source: Callable[[], EnvUpdate], film: Film) -> None:
        self._source = source
        self._film = film

    def __call__(self, old_env: AnyEnv | None) -> AnyEnv:
        """Close the old environment, then make the new one."""
        if old_env is not None:
            old_env.close()
        return _FilmedEnv(_rendering(self._source()), self._film)


def check_renders(update: EnvUpdate) -> None:
    """Check that an environment can be filmed: make it, reset it, take a picture, and close it.

    Args:
        update: Makes the environment.

    Raises:
        UsageError: It cannot be filmed; says why, and what to do.
    """
    name = describe(update)
    taken: list[Picture] = []
    env = _FilmedEnv(_rendering(update), Film(0, lambda picture, _: taken.append(picture)))
    try:
        env.reset(seed=0)
    except UsageError:
        raise
    except DependencyNotInstalled as error:  # it says what to install
        raise UsageError(f"{name} cannot be filmed: {error}") from None
    except Exception as error:
        raise UsageError(f"{name} cannot be filmed: {type(error).__name__}: {error}") from error
    finally:
        with contextlib.suppress(Exception):
            env.close()


def _rendering(update: EnvUpdate) -> AnyEnv:
    """Make an environment that renders pictures.

    Raises:
        UsageError: It cannot be made so.
    """
    name = describe(update)
    try:
        env = apply_any_env_update(_with_mode(update), None)
    except UsageError:
        raise
    except Exception as error:
        raise UsageError(
            f'{name} cannot be filmed: making it with render_mode="{_MODE}" raised {type(error).__name__}: {error}'
        ) from error
    if isinstance(env, VectorEnv):
        env.close()
        raise UsageError(
            f"{name} cannot be filmed: it is a vector environment, whose pictures cannot be told apart. Pass an "
            "environment that is not vectorised; VecWorker makes several of it"
        )
    mode = env.render_mode
    if mode == _MODE:
        return env
    env.close()
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
    """Return an update that makes the environment with the right `render_mode`, where it can be told to."""
    match update:
        case SpecEnvUpdate(spec=spec):
            return SpecEnvUpdate(spec, {"render_mode": _MODE})
        case NewEnvUpdate(factory=factory, env_kwargs=kwargs):
            if "render_mode" in kwargs or lacks(factory, kwargs, "render_mode"):
                return NewEnvUpdate(factory, {**kwargs, "render_mode": _MODE})
        case SetTaskUpdate():
            return SetTaskUpdate(_with_mode(update.source), update.task)
        case SetParameters():
            return SetParameters(update.parameters, _with_mode(update.source), info_key=update.info_key)
    return update


def _name(env: AnyEnv) -> str:
    return str(env.spec.id) if env.spec is not None else type(env.unwrapped).__qualname__
