"""C1 and C5: whether a call fails, and with which trajectory, depends on the seed alone; not on timing, not on workers."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

from streamsampler import LocalSampler, MultiprocessingSampler
from streamsampler.errors import RolloutError, WorkerError

SEED = 11


class Brittle(gymnasium.Env[Any, Any]):
    """Lasts 1 to 12 steps; raises in some of its trajectories, is of no use afterwards, and cannot even be closed.

    Args:
        share: One trajectory in so many raises.
    """

    observation_space = spaces.Box(0, 1, (2,), np.float32)
    action_space = spaces.Discrete(2)

    def __init__(self, share: int = 30) -> None:
        self.share = share
        self.broken = False

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        assert not self.broken, "used after it raised"
        self.left = int(self.np_random.integers(1, 13))
        self.fails_at = int(self.np_random.integers(self.left)) if self.np_random.integers(self.share) == 0 else None
        return self.np_random.random(2, np.float32), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.left -= 1
        if self.left == self.fails_at:
            self.broken = True
            raise OSError("the arm is stuck")
        return self.np_random.random(2, np.float32), 1.0, self.left == 0, False, {}

    def close(self) -> None:
        if self.broken:
            raise OSError("the arm cannot be parked")


def act(observation: Any) -> int:
    return int(observation[0] > 0.5)


def tried(call: Any, *arguments: Any) -> Any:
    """A batch, or what is said of the trajectory that ended the call."""
    try:
        return call(*arguments)
    except WorkerError as error:
        return type(error), error.trajectory, error.phase, type(getattr(error, "original", None))


def streamed(sampler: Any, number: int) -> list[Any]:
    """What a stream hands out before it has handed out so many, or raises."""
    found: list[Any] = []
    stream = sampler.stream()
    while len(found) < number:
        found.append(tried(next, stream))
        if isinstance(found[-1], tuple):
            break
    stream.close()
    return found


def outcomes(sampler: Any, n_rounds: int) -> list[Any]:
    found: list[Any] = []
    with sampler:
        for _ in range(n_rounds):
            found.append(tried(sampler.obtain_samples, 100))
            found.append(tried(sampler.obtain_trajectories, 20))
            found.append(tried(sampler.obtain_exact_trajectories, 1))
            found.append(streamed(sampler, 40))
    return found


def compare(make: Any, n_rounds: int, **options: Any) -> list[Any]:
    expected = outcomes(LocalSampler(act, Brittle, seed=SEED, **options), n_rounds)
    assert outcomes(LocalSampler(act, Brittle, seed=SEED, **options), n_rounds) == expected
    found = outcomes(make(act, Brittle, seed=SEED, **options), n_rounds)
    # Of exactly so many for each worker there are more with more workers.
    assert [one for position, one in enumerate(found) if position % 4 != 2] == [
        one for position, one in enumerate(expected) if position % 4 != 2
    ]
    return expected


@pytest.mark.parametrize("n_workers", [1, 2, 3])
def test_a_call_fails_for_the_first_trajectory_that_it_needs_and_for_no_other(n_workers: int) -> None:
    expected = compare(lambda *given, **options: MultiprocessingSampler(*given, n_workers=n_workers, **options), 15)
    failed = [one for one in expected if isinstance(one, tuple)]
    assert 5 < len(failed) < 35
    assert {one[0] for one in failed} == {RolloutError}
    streams = [one for one in expected if isinstance(one, list)]
    assert any(len(one) > 1 and isinstance(one[-1], tuple) and one[-1][1] == len(one) - 1 for one in streams)
