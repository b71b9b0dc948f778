"""Statistics are of one shape: they are never made to fit another one."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

from streamsampler import LocalSampler, MultiprocessingSampler, VecWorker
from streamsampler.agents.running_norms import Moments
from streamsampler.errors import RolloutError, UsageError
from streamsampler.filters import FilteredAgent, RunningNorm


class Wide(gymnasium.Env[Any, Any]):
    """Observations of `n` numbers."""

    action_space = spaces.Discrete(2)

    def __init__(self, n: int) -> None:
        self.n = n
        self.observation_space = spaces.Box(-np.inf, np.inf, (n,), np.float32)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.left = 5
        return self.np_random.normal(size=self.n).astype(np.float32), {}

    def step(self, action: Any) -> tuple[Any, ...]:
        self.left -= 1
        return self.np_random.normal(size=self.n).astype(np.float32), 1.0, self.left == 0, False, {}


class One(Wide):
    def __init__(self) -> None:
        super().__init__(1)


class Three(Wide):
    def __init__(self) -> None:
        super().__init__(3)


def learnt(*shape: int) -> RunningNorm:
    found: RunningNorm = RunningNorm().with_moments(Moments(9.0, np.zeros(shape), np.ones(shape)))
    return found


WORKERS: list[tuple[Any, dict[str, Any]]] = [
    (LocalSampler, {}),
    (LocalSampler, {"worker_class": VecWorker, "worker_args": {"n_envs": 2}}),
    (MultiprocessingSampler, {"n_workers": 2}),
]
WRONG = r"the observation filter RunningNorm has statistics of the shape \({},\), and the environment .* \({},\)"


@pytest.mark.parametrize(("kind", "options"), WORKERS, ids=["alone", "side by side", "processes"])
def test_a_filter_of_another_environment_is_refused(kind: Any, options: Any) -> None:
    with kind("random", One, seed=1, observation_filter=learnt(3), **options) as sampler:
        for obtain in (lambda: sampler.obtain_samples(20), lambda: sampler.obtain_fragments(5, 2)):
            with pytest.raises(RolloutError, match=WRONG.format(3, 1)):
                obtain()
        assert len(sampler.obtain_trajectories(2, env_update=Three)) == 2


@pytest.mark.parametrize(("kind", "options"), WORKERS, ids=["alone", "side by side", "processes"])
def test_so_is_an_environment_of_another_shape(kind: Any, options: Any) -> None:
    with kind("random", One, seed=1, observation_filter=RunningNorm(), **options) as sampler:
        sampler.obtain_samples(20)
        with pytest.raises(RolloutError, match=WRONG.format(1, 3)):
            sampler.obtain_samples(20, env_update=Three)
        assert sampler.obtain_samples(20).observations.shape[1:] == (1,)


BOX = spaces.Box(-1, 1, (2,), np.float32)


@pytest.mark.parametrize(
    ("moments", "space", "wrong"),
    [
        ({"a": learnt(2).moments}, BOX, r"statistics of the keys a, and the environment has observations Box"),
        ({"a": learnt(2).moments}, spaces.Dict({"b": BOX}), "statistics of the keys a, and"),
        ({"a": learnt(3).moments}, spaces.Dict({"a": BOX}), r"RunningNorm\['a'\] has statistics of the shape \(3,\)"),
        ((learnt(2).moments,), spaces.Tuple((BOX, BOX)), "statistics of a tuple of 1"),
        ((None, learnt(1).moments), spaces.Tuple((BOX, BOX)), r"RunningNorm\[1\] has statistics of the shape \(1,\)"),
        (learnt(2).moments, spaces.Dict({"a": BOX}), r"statistics of the shape \(2,\), and .* observations Dict"),
    ],
)
def test_nested_ones(moments: Any, space: Any, wrong: str) -> None:
    with pytest.raises(UsageError, match=wrong):
        FilteredAgent(lambda observation: 0, RunningNorm().with_moments(moments), space)


def test_what_does_not_know_the_space_looks_at_the_data() -> None:
    with pytest.raises(UsageError, match=r"of the shape \(3,\), and this has the shape \(7, 1\)"):
        learnt(3).apply(np.zeros((7, 1)))
    assert learnt(3).apply(np.zeros((7, 3))).shape == (7, 3)
    assert learnt().apply(np.zeros(7)).shape == (7,)
