"""An environment that calls `sys.exit` ends neither its worker nor the program: what it said is in an error."""

import numpy as np
import pytest

from streamsampler.errors import RolloutError
from tests.stepping.environments import Counting


class Licensed(Counting):
    """Exits at some place, in its first environment."""

    def __init__(self, place, number=0):
        super().__init__(20)
        self.place, self.number = place, number
        self.exit_at("make")

    def exit_at(self, place):
        if self.place == place and self.number == 0:
            raise SystemExit("licence expired")

    def reset(self, *, seed=None, options=None):
        if options:
            self.exit_at("reset")
        return super().reset(seed=seed)

    def step(self, action):
        if action == 8:
            self.exit_at("step")
        return super().step(action)

    def render(self):
        self.exit_at("call")
        return super().render()

    def close(self):
        self.exit_at("close")


@pytest.mark.parametrize("on_failure", ["restore", "raise"])
@pytest.mark.parametrize("place", ["step", "reset", "call"])
def test_what_it_said_is_in_the_error(new_manager, place, on_failure):
    envs = [lambda: Licensed(place), lambda: Licensed(place, 1)]
    manager = new_manager(envs, n_envs=2, seed=0, on_failure=on_failure)
    manager.reset()
    calls = {
        "step": lambda: manager.step(np.array([8, 8])),
        "reset": lambda: manager.reset(options={"a": 1}),
        "call": manager.render,
    }
    with pytest.raises(RolloutError, match=r"environment 0 raised .*SystemExit: licence expired"):
        calls[place]()
    assert manager.reset(options={}).timesteps.tolist() == [0, 0]
    assert manager.step(np.array([1, 1])).timesteps.tolist() == [1, 1]


def test_where_it_is_made(new_manager):
    with pytest.raises((RolloutError, SystemExit), match="licence expired"):
        new_manager([lambda: Licensed("make"), lambda: Licensed("", 1)], n_envs=2, seed=0).reset()


def test_where_it_is_closed(new_manager, caplog):
    manager = new_manager([lambda: Licensed("close"), lambda: Licensed("close", 1)], n_envs=2, seed=0)
    manager.reset()
    manager.close()
    assert [record.getMessage() for record in caplog.records] == [
        "environment 0 raised while it was closed: SystemExit: licence expired"
    ]
