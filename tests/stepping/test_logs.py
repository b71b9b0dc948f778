"""Log records of environments reach the loggers of the manager's process, as those of samplers do."""

import logging

import numpy as np

from tests.stepping.environments import Counting

_LOG = logging.getLogger("somebody.simulator")


class Logging(Counting):
    def step(self, action):
        _LOG.info("timestep %d", self._t + 1)
        return super().step(action)

    def reset(self, *, seed=None, options=None):
        _LOG.warning("reset with %d", seed)
        return super().reset(seed=seed)

    def close(self):
        _LOG.error("closed")


def messages(caplog):
    found = sorted(record.getMessage() for record in caplog.records if record.name == "somebody.simulator")
    caplog.clear()
    return found


def test_records_arrive_with_the_results(new_manager, caplog):
    manager = new_manager(Logging, n_envs=2, seed=0)
    with caplog.at_level(logging.INFO, "somebody.simulator"):
        manager.reset(seed=[4, 5])
        assert messages(caplog) == ["reset with 4", "reset with 5"]
        manager.step(np.array([1, 1]))
        assert messages(caplog) == ["timestep 1", "timestep 1"]
    with caplog.at_level(logging.ERROR, "somebody.simulator"):
        manager.reset()
        manager.step(np.array([1, 1]))
        assert messages(caplog) == []
        manager.close()
        assert messages(caplog) == ["closed", "closed"]
