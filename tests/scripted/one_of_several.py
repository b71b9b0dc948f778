"""Environments of one agent as environments of several, of which one takes part: the same trajectories are to come."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from streamsampler import EnvUpdate, PerWorker
from streamsampler.data.agent_rows import OF_AGENTS
from streamsampler.data.batch import TrajectoryBatch
from streamsampler.data.multi_agent import MultiAgentBatch
from streamsampler.environments.updates import as_env_update

AGENT = "only_0"


class OneOfSeveral:
    """A `ParallelEnv` with the methods of PettingZoo's, around an environment of Gymnasium."""

    possible_agents = (AGENT,)

    def __init__(self, env: Any) -> None:
        self.env = env
        self.agents: list[str] = []
        self.metadata = {"name": str(getattr(env.unwrapped.spec, "id", type(env.unwrapped).__qualname__))}

    def __getattr__(self, name: str) -> Any:
        if name == "env":
            raise AttributeError(name)
        return getattr(self.env, name)

    def observation_space(self, agent: str) -> Any:
        return self.env.observation_space

    def action_space(self, agent: str) -> Any:
        return self.env.action_space

    @property
    def unwrapped(self) -> Any:
        return self.env.unwrapped

    def reset(self, **arguments: Any) -> Any:
        result = self.env.reset(**arguments)
        self.agents = [AGENT]
        return tuple({AGENT: part} for part in result) if isinstance(result, tuple) else result

    def step(self, actions: Any) -> Any:
        result = self.env.step(actions[AGENT])
        if isinstance(result, tuple) and len(result) == 5 and (result[2] or result[3]):
            self.agents = []
        return tuple({AGENT: part} for part in result) if isinstance(result, tuple) else result

    def close(self) -> None:
        self.env.close()


class OneOfSeveralUpdate(EnvUpdate):
    """Does what another update does, within `OneOfSeveral`."""

    def __init__(self, update: EnvUpdate) -> None:
        self.update = update
        self.environment_name = "one of several"

    def __call__(self, old_env: Any) -> Any:
        inner = old_env.env if isinstance(old_env, OneOfSeveral) else old_env
        return OneOfSeveral(self.update(inner))


def as_one_of_several(envs: Any, env_kwargs: Any = None) -> Any:
    if envs is None:
        return None
    if isinstance(envs, list | PerWorker):
        return PerWorker([as_one_of_several(env, env_kwargs) for env in envs])
    return OneOfSeveralUpdate(as_env_update(envs, env_kwargs=env_kwargs))


def alone(batch: TrajectoryBatch[Any, Any]) -> TrajectoryBatch[Any, Any]:
    """Return what the only agent did, as if it had been alone in an environment of its own."""
    if not isinstance(batch, MultiAgentBatch):
        return batch
    one = batch["shared"]
    joint = {key: value for key, value in batch.episode_infos.items() if key != OF_AGENTS}
    return replace(one, agents=None, stats=batch.stats, seed=batch.seed, episode_infos={**one.episode_infos, **joint})
