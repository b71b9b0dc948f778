"""What the engine of processes reads, keeps and frees."""

import os
from typing import Any

import numpy as np

from streamsampler import MultiprocessingSampler
from streamsampler.testing import FailPoint, ScriptedAgent, ScriptedEnv
from tests.faults.undisturbed import SEED, calls, undisturbed


def test_the_last_answers_of_a_dead_worker_are_read_also_where_its_death_is_seen_first(tmp_path, monkeypatch):
    with FailPoint("sent", worker=0, occurrence=1, folder=tmp_path).armed():
        sampler = MultiprocessingSampler(ScriptedAgent(), ScriptedEnv, n_workers=1, seed=SEED)
    with sampler:
        engine: Any = sampler._session.engine
        select, workers = engine._selector.select, [engine._links[0].child]

        def deaths_first(timeout):
            while workers:
                assert workers.pop().ended(120)
            return sorted(select(timeout), key=lambda ready: not ready[0].data[1])

        monkeypatch.setattr(engine._selector, "select", deaths_first)
        assert calls(sampler) == undisturbed()
        assert sampler.stats.restarts == 1
        assert sampler.stats.lost_timesteps == 0, "nothing was run a second time"


class LargeAgent(ScriptedAgent):
    """Takes updates of a megabyte."""

    def set_param_values(self, values):
        assert values.nbytes == 1 << 20


def test_the_memory_of_an_old_update_is_used_again():
    with MultiprocessingSampler(LargeAgent(), ScriptedEnv, n_workers=2) as sampler:
        for call in range(12):
            sampler.obtain_trajectories(4, agent_update=np.full(1 << 17, float(call)))
        engine: Any = sampler._session.engine
        assert os.fstat(engine._shared.updates_fd).st_size < 4 << 20, (
            "the one in force, and those that some worker may still read"
        )
