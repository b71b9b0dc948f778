"""Sample several agents in one environment: PettingZoo's environments, of both kinds.

```sh
pip install 'pettingzoo[butterfly]'
streamsampler sample pettingzoo.butterfly.knights_archers_zombies_v11 --num-trajectories 10 --agent archer=random \
    --agent knight=random --max-episode-length 200
```

(`pip install pettingzoo` is enough where the environment needs nothing else, or where it is your own.)

Everything is as with one agent: seeds, engines, supervision, streams, folders, hooks, filters. New are who plays whom,
and the batch. A trajectory of all agents together is an *episode*; a *policy* is an agent that plays some of them, by
name; an *agent id* is the environment's name for one.

```python
from typing import Any

import numpy as np
from gymnasium.spaces import Box, Discrete

from streamsampler import MultiAgentBatch, MultiprocessingSampler


class Tag:
    '''A ParallelEnv, as PettingZoo describes them: it needs no base class.'''

    possible_agents = ["it_0", "runner_0", "runner_1"]

    def __init__(self) -> None:
        self.agents: list[str] = []

    def observation_space(self, agent: str) -> Box:
        return Box(-20.0, 20.0, (3,))

    def action_space(self, agent: str) -> Discrete:
        return Discrete(3)

    def reset(self, seed: int | None = None, options: Any = None) -> tuple[dict[str, Any], dict[str, Any]]:
        self.agents = list(self.possible_agents)
        self.places = np.random.default_rng(seed).integers(-5, 6, 3).astype(np.float32)
        return dict.fromkeys(self.agents, self.places), {agent: {} for agent in self.agents}

    def step(self, actions: dict[str, int]) -> tuple[dict[str, Any], ...]:
        acted = self.agents
        for agent in acted:
            number = self.possible_agents.index(agent)
            self.places[number] = np.clip(self.places[number] + actions[agent] - 1, -20, 20)
        caught = {agent: self.places[0] == self.places[self.possible_agents.index(agent)] for agent in acted[1:]}
        ends = {**caught, "it_0": all(caught.values())}
        self.agents = [agent for agent in acted if not ends[agent]]
        rewards = {agent: -float(ends[agent]) for agent in acted[1:]} | {"it_0": float(sum(caught.values()))}
        infos: dict[str, Any] = {agent: {} for agent in acted}
        return dict.fromkeys(acted, self.places.copy()), rewards, ends, dict.fromkeys(acted, False), infos

    def close(self) -> None:
        pass


with MultiprocessingSampler({"it": "random", "runner": "random"}, Tag, seed=1, max_episode_length=100) as sampler:
    batch = sampler.obtain_samples(1_000, count="agent_steps")
    assert isinstance(batch, MultiAgentBatch)  # for type checkers
    runner = batch["runner"]  # a TrajectoryBatch, with one trajectory for each runner and episode
    print(runner.agent_ids, runner.episode_numbers, runner.returns, runner.env_timesteps)
    print(batch.n_env_steps, batch.n_agent_steps, batch.episodes.returns["it_0"], batch.episodes.lengths)
```

Environments
------------

`envs` is a `ParallelEnv`, an `AECEnv`, something that makes one, or the name of a module: `pettingzoo.sisl.pursuit_v5`
stands for its `parallel_env`, or its `env` where it has no other; `module:env` for the `AECEnv` that it has, too. They
are recognised by their methods. `env.reset(seed=batch.episodes.seeds[i])` starts episode i. A timestep of an episode,
such as `max_episode_length` counts, is one call of the environment's `step`, in an `AECEnv` a turn.

- An agent may join later, and leave earlier. It starts with its first observation, and is heard no more when it was
  terminated or truncated. An episode ends when no agent is left. One that ends before it ever acts is left out.
- An agent id has one life in an episode. One that ended and is listed again is a `DataError`: give each new life an id
  of its own, as in "knight_0", "knight_1", or a new episode. One that simply stays listed is asked no more, with a
  warning.
- `possible_agents` may be missing, as PettingZoo allows: then any agents may appear, in any number, and agent number k
  is the k-th that the episode lists. A batch's agents are those that took part.
- Infos under `"__common__"` are about all agents or none: `batch.episodes.env_infos["__common__"]` has them by timestep
  of the environment, `batch.episodes.infos` those of resets. So it is with other names that are no agents', and one
  warning says so.
- In an `AECEnv`, an agent's reward is the sum since its last action, its next observation the one before its next
  action. After its end an agent has one more turn, in which None is sent: a step in which no agent acts.
- Rewards before an agent's first action are in `episodes.returns`, and in no trajectory.

Policies
--------

`agents={"archer": agent, "knight": agent}` has the policies, and `policy_of=` says who plays whom: a dict by agent id,
or a function `(agent_id, trajectory_index) -> name`, asked once for each agent and trajectory. Without it, an agent is
played by the policy whose name is its id, or its id up to the last `_`, or by the only one. An agent that is no dict is
the policy "shared", plays all, and takes updates as one agent does. The choice is made in
`streamsampler.agents.policies`.

- All observations that one policy acts on in a step come to its `get_actions` in one call, in the order of
  `possible_agents`; without that method, or where there can be but one agent, one by one. What remembers (it has a
  `reset`, and its `get_actions` takes no `starts`, `seeds` or `draws`) has a copy for each agent that it plays.
- Agent number k of `possible_agents` has draws and a seed of its own. They depend on the trajectory's seed and k alone.
  Without `possible_agents`, what takes `starts` or `slots` is asked one by one: how many rows there are is not known.
- `agent_update={"archer": parameters}` updates the policies that it names; the others keep what they have. A policy
  that is never named is frozen. An agent in the place of parameters replaces that policy.
- All agents that one policy plays have the same spaces.
- A policy that takes masks of actions gets each agent's, of its observation or its info (see `streamsampler.agents`).

Batches
-------

`batch["archer"]` has `agent_ids` (N,), `episode_numbers` (N,) and `env_timesteps` (T,) besides all that a
`TrajectoryBatch` has: estimates, minibatches, padded views, export. `batch.episodes` has the lengths in steps of the
environment, the `returns` of each agent, who `took_part`, and the `reset_infos` and `last_infos` of each agent. The
batch itself is one of episodes: `len(batch)`, `batch[i]`, `concatenate`, `save`, folders and `load` are about these.
Other formats are for what one policy did: `export(batch, …, policy="archer")`. `streamsampler.replay` compares what
each agent saw, did and gained; `streamsampler.check` runs PettingZoo's own tests of an environment, too.

Amounts are of steps of the environment, or with `count="agent_steps"` of those of all agents together.

`evaluate(policies, env, n_trajectories=100, return_of="archer_0")` evaluates an agent; a policy's name stands for all
that it plays, a list for a team, "all" for all agents. `compare` takes several dicts of policies, such as the same two
with their places swapped, and runs them on the same seeds.

`observation_filter={"archer": RunningNorm()}` has a filter for each policy that it names. Hooks see what the
environment returns: their context's `observation`, `action` and `info` are dicts by agent id, its `reward` is the sum.

One agent for all
-----------------

Fragments, `staleness=1`, `VecWorker`, `inference="parent"` and `EnvManager` are for environments of one agent. The
joint view is one: a single agent sees all, and acts for all. Its reward is the sum; those that have ended are not
asked.

```python
from typing import Any

import gymnasium


class Joint(gymnasium.Env[Any, Any]):
    def __init__(self, env: Any) -> None:
        self.env, ids = env, env.possible_agents
        self.observation_space = gymnasium.spaces.Dict({agent: env.observation_space(agent) for agent in ids})
        self.action_space = gymnasium.spaces.Dict({agent: env.action_space(agent) for agent in ids})

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.seen, infos = self.env.reset(seed=seed, options=options)
        return dict(self.seen), infos

    def step(self, action: dict[str, Any]) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        seen, rewards, *_, infos = self.env.step({agent: action[agent] for agent in self.env.agents})
        self.seen |= seen  # of those that have ended, what they saw last
        return dict(self.seen), sum(rewards.values()), not self.env.agents, False, infos
```

`LocalSampler("random", lambda: Joint(Tag()), seed=1, max_episode_length=50)` samples it like any other environment.

Inside, trajectories of several agents are run by the loops for one agent, whose agent and recorder are replaced.
`Players` stand where the agent stands: their `get_action` takes a dict of observations and returns a dict of actions.
`JointRecorder` stands where the recorder stands, and sorts what it is given into one trajectory for each agent, by
policy. So hooks, drops, timers, abandoning and checks are those of one agent.
"""
