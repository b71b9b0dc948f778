"""Masks of actions of several agents: in their observations or in their infos, however policies are asked."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np
import pytest
from gymnasium import spaces

from streamsampler import LocalSampler, MultiprocessingSampler
from tests.scripted.masks import Overwriting
from tests.several.test_parent import parent, reference
from tests.tiers import mostly_slow

ACTIONS = 5


def allowed(agent: str, t: int) -> Any:
    return (np.arange(ACTIONS) + t + ord(agent[0])) % 3 == 0


class _Game:
    """Refuses what is not allowed. `ape` ends first; `cat` comes late."""

    metadata: ClassVar = {"name": "masked_v0"}
    possible_agents = ("ape", "bee", "cat")

    def __init__(self, place: str = "info") -> None:
        self.place, self.agents, self.t = place, list[str](), 0

    def observation_space(self, agent: str) -> Any:
        numbers = spaces.Box(0, 99, (2,), np.float32)
        if self.place == "info":
            return numbers
        return spaces.Dict({"numbers": numbers, "action_mask": spaces.Box(0, 1, (ACTIONS,), np.int8)})

    def action_space(self, agent: str) -> Any:
        return spaces.Discrete(ACTIONS)

    def seen(self, agent: str) -> Any:
        numbers = np.array([self.possible_agents.index(agent), self.t], np.float32)
        if self.place == "info":
            return numbers
        return {"numbers": numbers, "action_mask": allowed(agent, self.t).astype(np.int8)}

    def info(self, agent: str) -> dict[str, Any]:
        return {"action_mask": allowed(agent, self.t).astype(np.int8)} if self.place == "info" else {}

    def check(self, agent: str, action: Any) -> None:
        if not allowed(agent, self.t)[action]:
            raise ValueError(f"{agent} may not do {action} at {self.t}")

    def close(self) -> None:
        self.agents = []


class Parallel(_Game):
    def reset(self, seed: Any = None, options: Any = None) -> Any:
        self.t, self.length, self.agents = 0, 5 + seed % 5, ["ape", "bee"]
        return self.said()

    def said(self) -> Any:
        return {it: self.seen(it) for it in self.agents}, {it: self.info(it) for it in self.agents}

    def step(self, actions: Any) -> Any:
        for agent, action in actions.items():
            self.check(agent, action)
        acted, self.t = list(self.agents), self.t + 1
        ends = {it: self.t == self.length or (it == "ape" and self.t == 3) for it in acted}
        if self.t == 2:
            self.agents.append("cat")
        observations, infos = self.said()
        self.agents = [it for it in self.agents if not ends.get(it)]
        no = dict.fromkeys(observations, False)
        return observations, dict.fromkeys(observations, 1.0), no | ends, no, infos


class InTurn(_Game):
    def reset(self, seed: Any = None, options: Any = None) -> None:
        self.t, self.length, self.agents = 0, 5 + seed % 5, list(self.possible_agents)
        self._cumulative_rewards = dict.fromkeys(self.agents, 0.0)
        self.terminations = dict.fromkeys(self.agents, False)
        self.truncations = dict.fromkeys(self.agents, False)
        self.agent_selection = "ape"

    @property
    def infos(self) -> dict[str, Any]:
        return {it: self.info(it) for it in self.agents}

    def observe(self, agent: str) -> Any:
        return self.seen(agent)

    def last(self) -> Any:
        it = self.agent_selection
        return self.seen(it), 0.0, self.terminations[it], False, self.info(it)

    def step(self, action: Any) -> None:
        it = self.agent_selection
        if self.terminations[it]:
            self.agents.remove(it)
        else:
            self.check(it, action)
            self.t += 1
            if self.t >= self.length:
                self.terminations = dict.fromkeys(self.terminations, True)
        if self.agents:
            after = [each for each in self.agents if each > it]
            self.agent_selection = (after or self.agents)[0]


class Alone:
    def reset(self, seed: int) -> None:
        self.rng = np.random.default_rng(seed)

    def get_action(self, observation: Any, *, action_mask: Any) -> Any:
        return int(self.rng.choice(np.flatnonzero(action_mask))), {"mask": action_mask}


class Together:
    def get_actions(self, observations: Any, *, action_masks: Any, draws: Any) -> Any:
        drawn = [np.flatnonzero(it)[int(u * it.sum())] for it, u in zip(action_masks, draws.random(), strict=True)]
        return np.array(drawn), {"mask": action_masks}

    def get_action(self, observation: Any) -> Any:
        raise NotImplementedError


class AtPlaces(Together):
    """Is asked for all agents in each step, those that are not there included."""

    def get_actions(self, observations: Any, *, action_masks: Any, draws: Any, starts: Any = None) -> Any:
        assert len(starts) == len(action_masks) == 3
        return super().get_actions(observations, action_masks=action_masks, draws=draws)


AGENTS: dict[str, Any] = {
    "random": "random",
    "alone": Alone(),
    "together": Together(),
    "at places": AtPlaces(),
    "by policy": {"ape": Alone(), "bee": "random", "cat": Together()},
}


def assert_masks(batch: Any) -> None:
    for policy in batch.policies.values():
        numbers = policy.observations["numbers"] if isinstance(policy.observations, dict) else policy.observations
        masks = [allowed(_Game.possible_agents[int(agent)], int(t)) for agent, t in numbers]
        if "mask" in policy.agent_infos:
            assert np.array_equal(policy.agent_infos["mask"], masks)
        assert all(mask[action] for mask, action in zip(masks, policy.actions, strict=True))


@pytest.mark.parametrize("hooks", mostly_slow([None, Overwriting()]), ids=["", "hooks"])
@pytest.mark.parametrize("agent", mostly_slow(reversed(AGENTS), 2))
@pytest.mark.parametrize(
    ("place", "game"),
    mostly_slow([("observation", Parallel), ("info", InTurn), ("info", Parallel), ("observation", InTurn)], 2),
)
def test_each_agent_acts_with_its_own_mask(game, place, agent, hooks):
    if game is InTurn and agent == "at places":
        agent = "alone"  # where agents act in turn, none is asked for those that do not
    if hooks is not None:
        hooks = _OfAgents()
    with LocalSampler(AGENTS[agent], game, env_kwargs={"place": place}, seed=3, hooks=hooks) as sampler:
        batch = sampler.obtain_trajectories(9)
    assert_masks(batch)
    if hooks is None:
        with MultiprocessingSampler(AGENTS[agent], game, env_kwargs={"place": place}, seed=3, n_workers=2) as sampler:
            assert sampler.obtain_trajectories(9) == batch


@pytest.mark.slow
@pytest.mark.parametrize("agent", AGENTS)
@pytest.mark.parametrize(("place", "game"), [("observation", Parallel), ("info", Parallel), ("info", InTurn)])
def test_each_agent_acts_with_its_own_mask_in_rows(game, place, agent):
    if game is InTurn and agent == "at places":
        agent = "alone"
    found = []
    for make in (reference, parent):
        with make(AGENTS[agent], game, env_kwargs={"place": place}) as sampler:
            found.append([sampler.obtain_trajectories(9), sampler.obtain_fragments(4, 3)])
    assert found[0] == found[1]
    for batch in found[0]:
        assert_masks(batch)


class _OfAgents(Overwriting):
    def on_timestep(self, context: Any) -> None:
        for info in context.info.values():
            if "action_mask" in info:
                info["action_mask"][:] = 0
