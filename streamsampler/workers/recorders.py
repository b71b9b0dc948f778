"""Make recorders of trajectories, for a single agent or for several."""

from __future__ import annotations

from typing import Any, cast

import numpy as np

from streamsampler.data.copying import Allocate
from streamsampler.data.recorder import RolloutRecorder
from streamsampler.environments.multi_agent import agents_of
from streamsampler.workers.several.policy_set import EnvAgents
from streamsampler.workers.several.recorder import JointRecorder


def recorder_for(env: Any, table: EnvAgents | None, allocate: Allocate = np.empty) -> RolloutRecorder:
    """Return a recorder for an environment's trajectories."""
    if (several := agents_of(env)) is None:
        return RolloutRecorder(env.observation_space, env.action_space, allocate)
    return JointRecorder(several, cast("EnvAgents", table), allocate)
