"""A manager whose processes are those of `multiprocessing` returns what it returns with the engine `processes`."""

from typing import Any

import gymnasium
import numpy as np
import pytest

from streamsampler import EnvManager
from streamsampler.errors import UsageError
from tests.stepping.conftest import kill
from tests.tiers import mostly_slow


def seen_of(on_failure: str, autoreset: str, **how: Any) -> Any:
    """Return what a manager returns whose workers are killed before some steps."""
    options: dict[str, Any] = {"n_envs": 3, "n_workers": 2, "seed": 5, "on_failure": on_failure, "autoreset": autoreset}
    with EnvManager(lambda: gymnasium.make("CartPole-v1", max_episode_steps=6), **options, **how) as manager:
        seen = [manager.reset()]
        for t in range(20):
            if t in (3, 4, 9):
                kill(manager, t % 2)
            seen.append(manager.step(np.array([t % 2, 1, 0])))
        assert manager.failures >= 3
    return [
        (*map(np.ndarray.tolist, (it.observations, it.previous_observations, it.last_observations, it.rewards)),
         it.terminated.tolist(), it.truncated.tolist(), it.failed.tolist(), it.seeds.tolist(), it.actions.tolist())
        for it in seen
    ]  # fmt: skip


@pytest.mark.parametrize("method", mostly_slow(["fork", "forkserver", "spawn"]))
@pytest.mark.parametrize("autoreset", mostly_slow(["next_step", "same_step"]))
@pytest.mark.parametrize("on_failure", mostly_slow(["restore", "reset"]))
def test_what_is_returned_is_the_same_whoever_is_killed(on_failure, autoreset, method):
    of_queues = seen_of(on_failure, autoreset, engine="queues", start_method=method)
    assert of_queues == seen_of(on_failure, autoreset)


def test_engines_that_do_not_go_with_a_start_method_are_errors():
    with pytest.raises(UsageError, match=r'does not support start_method=.fork.: .*engine="queues"'):
        EnvManager("CartPole-v1", n_envs=1, engine="processes", start_method="fork")
