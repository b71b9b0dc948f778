"""Environments that are filmed, and errors for those that cannot be."""

from __future__ import annotations

from typing import Any, ClassVar

import gymnasium
import numpy as np
import pytest

from streamsampler.environments.filming import Film, FilmedEnvUpdate, check_renders
from streamsampler.environments.updates import SetTaskUpdate, as_env_update
from streamsampler.errors import UsageError
from tests.scripted.envs import Steps


class Painted(Steps):
    """Shows the number of the timestep as a grey."""

    metadata: ClassVar = {"render_modes": ["rgb_array"], "render_fps": 7}  # type: ignore[misc]
    size = 2, 4, 3

    def __init__(self, length: int = 3, render_mode: str | None = None) -> None:
        super().__init__(length)
        self.render_mode = render_mode

    def set_task(self, length: int) -> None:
        self.length = length

    def render(self) -> Any:
        return np.full(self.size, self.t, np.uint8)


class Flat(Painted):
    size = 2, 4, 1


gymnasium.register("Painted-v0", lambda **arguments: Painted(**arguments))
gymnasium.register("Unpainted-v0", lambda **arguments: Steps(**arguments))


@pytest.mark.parametrize(
    "env",
    [
        "Painted-v0",
        Painted,
        Painted(render_mode="rgb_array"),
        SetTaskUpdate(Painted, 5),
        SetTaskUpdate("Painted-v0", 5),
    ],
    ids=["id", "class", "environment", "task", "task of an id"],
)
def test_a_trajectory_is_filmed_from_its_reset_to_its_end(env):
    taken: list[int] = []

    def take(picture: Any, rate: float) -> None:
        assert rate == 7
        taken.append(int(picture[0, 0, 0]))

    check_renders(as_env_update(env))
    filmed = FilmedEnvUpdate(lambda: as_env_update(env), Film(1, take))(None)
    for _ in range(3):
        filmed.reset(seed=1)
        filmed.step(0)
        filmed.step(0)
    assert taken == [0, 1, 2]


def no_argument() -> Painted:
    return Painted()


@pytest.mark.parametrize(
    ("env", "message"),
    [
        ("Unpainted-v0", "Unpainted-v0 cannot be filmed: .*render_mode"),
        (Painted(), 'Painted cannot be filmed: its render_mode is None and not "rgb_array". Make it with render_mode='),
        (no_argument, "Let no_argument take an argument render_mode"),
        (Flat, r"Flat cannot be filmed: render\(\) should return a picture, .* but returned uint8 of \(2, 4, 1\)"),
        (lambda: gymnasium.make_vec("CartPole-v1", num_envs=2), "it is a vector environment"),
    ],
    ids=range(5),
)
@pytest.mark.filterwarnings("ignore:.*render mode")
def test_what_cannot_be_filmed_says_why(env, message):
    with pytest.raises(UsageError, match=message):
        check_renders(as_env_update(env))
