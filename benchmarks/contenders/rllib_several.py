"""RLlib's env runners for several agents, without a learner, that share one policy; see `rllib`.

Timesteps are those of all agents together.

Settings:
    n_envs: Environments in each process, with batched actions (default 1).
    fragment: Steps of the environments in a request (default 200, which take it half a second and more).
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from ray.rllib.algorithms.ppo import PPOConfig
from ray.rllib.core.rl_module.multi_rl_module import MultiRLModuleSpec
from ray.rllib.core.rl_module.rl_module import RLModuleSpec
from ray.rllib.env.multi_agent_env import MultiAgentEnv

from benchmarks.contenders.rllib import Driver, driving
from benchmarks.harness.contender import Measure, Unsupported, serve
from benchmarks.problems.workloads import Workload

_POLICY = "shared"


class Game(MultiAgentEnv):
    """An environment with PettingZoo's methods as RLlib's, as its own wrapper for PettingZoo does it.

    Args:
        env: The environment.
    """

    def __init__(self, env: Any) -> None:
        super().__init__()
        self._env = env
        self.possible_agents = self.agents = list(env.possible_agents)
        self.observation_spaces = {agent: env.observation_space(agent) for agent in self.agents}
        self.action_spaces = {agent: env.action_space(agent) for agent in self.agents}

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        """Begin."""
        return self._env.reset(seed=seed, options=options)

    def step(self, action_dict: dict[str, Any]) -> Any:
        """Step the environment; two of RLlib's values say whether the episode is over."""
        observations, rewards, terminated, truncated, infos = self._env.step(action_dict)
        over = not self._env.agents
        ends = {**terminated, "__all__": over}, {**truncated, "__all__": over and any(truncated.values())}
        return observations, rewards, *ends, infos

    def close(self) -> None:
        """Close the environment."""
        self._env.close()


class DriverOfSeveral(Driver):
    """Asks the env runners for samples of several agents."""

    def make_env(self) -> Game:
        """Make an environment, in an env runner."""
        return Game(self.workload.make_env())

    def with_module(self, config: PPOConfig, spec: RLModuleSpec) -> PPOConfig:
        """Let the module choose the actions of all agents."""
        return config.multi_agent(policies={_POLICY}, policy_mapping_fn=lambda *_, **__: _POLICY).rl_module(
            rl_module_spec=MultiRLModuleSpec(rl_module_specs={_POLICY: spec})
        )

    def timesteps_of(self, episode: Any) -> int:
        """Return the timesteps of all agents of a fragment."""
        return int(episode.agent_steps())


@contextmanager
def contender(workload: Workload, n_processes: int, settings: dict[str, Any]) -> Iterator[Measure]:
    """Start Ray and the env runners.

    Raises:
        Unsupported: There is one agent, or memory is short.
    """
    if not workload.several:
        raise Unsupported("its environment is of one agent: `rllib`")
    n_envs, fragment = settings.get("n_envs", 1), settings.get("fragment", 200)
    with driving(DriverOfSeveral, workload, n_processes, n_envs, fragment) as measure:
        yield measure


if __name__ == "__main__":
    serve(contender, packages=["ray", "gymnasium", "numpy", "torch"])
