"""A user's own `FilteredAgent` in a sampler that has a filter, too."""

from __future__ import annotations

from typing import Any

import numpy as np

from streamsampler import LocalSampler
from streamsampler.filters import FilteredAgent, RunningNorm
from tests.agents.test_filter_shapes import Three, learnt


class Looking:
    """Records what it sees."""

    def get_action(self, observation: Any) -> tuple[int, dict[str, Any]]:
        return 0, {"seen": observation.copy()}


def test_a_users_own_filtered_agent_keeps_its_filter() -> None:
    own = RunningNorm(clip=0.1).with_moments(learnt(3).moments)
    filtered = FilteredAgent(Looking(), own)
    for agent, update in ((filtered, None), (Looking(), filtered)):
        with LocalSampler(agent, Three, seed=1, observation_filter=learnt(3)) as sampler:
            batches = [sampler.obtain_samples(20, agent_update=update), sampler.obtain_fragments(10, 2)]
        for batch in batches:
            assert np.array_equal(batch.agent_infos["seen"], own.apply(batch.observations))


def test_a_warm_up_is_in_the_number_of_timesteps() -> None:
    with LocalSampler(Looking(), Three, seed=1, observation_filter=RunningNorm()) as sampler:
        sampler.warm_up(20)
        assert sampler.total_env_steps == sampler.stats.kept_timesteps == 20
        assert sampler.obtain_samples(10).n_timesteps == 10
        assert sampler.total_env_steps == 30
