"""An engine that another thread has killed."""

import os
import signal

import pytest

from streamsampler import MultiprocessingSampler
from streamsampler.engines.base import Died
from streamsampler.testing import ScriptedAgent, ScriptedEnv
from tests.patience import PATIENCE


@pytest.mark.usefixtures("patient")
def test_who_is_started_after_the_end_of_all_ends_too():
    """Another thread may be about to replace a dead worker. It would wait for the new one, whatever that one does."""
    with MultiprocessingSampler(ScriptedAgent(), ScriptedEnv, n_workers=1) as sampler:
        engine = sampler._session.engine
        os.kill(sampler.worker_pids()[0], signal.SIGKILL)
        assert engine.wait(PATIENCE) == [Died(0, -signal.SIGKILL)]
        engine.kill()
        engine.restart(0)
        assert engine.wait(PATIENCE) == [Died(0, -signal.SIGKILL)]
