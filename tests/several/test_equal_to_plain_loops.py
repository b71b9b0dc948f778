"""C9 for several agents: each trajectory is what the environment said, step for step, in both forms of environments."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tests.scripted.games import DEFAULT, IDS, Chooser, Comings, Stay, Turns, played_in_parallel, played_in_turns
from tests.several.comparing import ALL_LOOPS, ALL_WAYS, assert_as_played, sampled
from tests.tiers import costly

STAYS = st.dictionaries(
    st.sampled_from(IDS),
    st.builds(
        lambda first, length, terminated: Stay(first, first + length, terminated),
        st.integers(0, 4), st.integers(1, 6), st.booleans(),
    ),
    min_size=1,
)  # fmt: skip


@pytest.mark.parametrize(("game", "loop"), [(Comings, played_in_parallel), (Turns, played_in_turns)])
@given(STAYS, st.sampled_from([None, 1, 2, 6, 9]), st.sampled_from(ALL_LOOPS))
@example({}, None, {})
@example({}, 4, ALL_LOOPS[1])
@costly(12)
def test_each_trajectory_is_what_a_plain_loop_gives(
    game: Any, loop: Any, stays: dict[str, Stay], limit: Any, options: Any
) -> None:
    """Whoever comes and goes. Somebody is there from the start, and no gap is without anybody: that ends them."""
    stays = {**stays, "red_0": Stay(0, 11)} if stays else DEFAULT
    batch = sampled(env=lambda: game(stays), n=2, max_episode_length=limit, **options)
    for episode, seed in enumerate(batch.episodes.seeds):
        played = loop(game(stays), lambda agent: Chooser(agent.startswith("blue")), seed, limit or 10**6)
        assert_as_played(batch, episode, played)


def test_steps_in_which_nobody_acts() -> None:
    """Those that ended have a last turn, in which None is sent: a step of the environment, and of no agent."""
    batch = sampled(env=Turns)
    acted = sum(each.n_timesteps for each in batch.policies.values())
    assert batch.n_agent_steps == acted
    assert batch.n_env_steps == acted + 4 * 3  # a last turn for each agent that took part


class Waiting(Comings):
    """One that joins is among the agents a step before it sees anything; meanwhile nobody else is there."""

    def reset(self, seed: Any = None, options: Any = None) -> Any:
        observations, infos = super().reset(seed)
        return {"red_0": observations["red_0"]}, infos

    def step(self, actions: Any) -> Any:
        self.t += 1
        self.agents = ["blue_0"] if 2 <= self.t < 6 else [] if self.t >= 6 else ["red_0"]
        there = (["red_0"] if self.t <= 2 else []) + (["blue_0"] if self.t >= 4 else [])
        return (
            {agent: self.seen(agent) for agent in there},
            dict.fromkeys(there, 1.0),
            {agent: self.t == (2 if agent == "red_0" else 6) for agent in there},
            dict.fromkeys(there, False),
            {agent: {} for agent in there},
        )


def test_who_is_about_to_join_is_waited_for() -> None:
    batch = sampled(env=lambda: Waiting({"red_0": Stay()}), n=1)
    assert batch.n_env_steps == 6
    assert batch["red"].env_timesteps.tolist() == [0, 1]
    assert batch["blue"].env_timesteps.tolist() == [4, 5]
    assert batch.episodes.returns["blue_0"].tolist() == [3.0]  # one came before its first action
    assert batch["blue"].returns.tolist() == [2.0]


class Early(Turns):
    def step(self, action: Any) -> None:
        super().step(action)
        if self.t == 1 and "blue_1" in self.terminations:
            self.terminations["blue_1"] = True
            self._select()


class AllAtOnce(Turns):
    """Ends for all agents at once, without their last turns."""

    def step(self, action: Any) -> None:
        super().step(action)
        if self.t == 2:
            self.truncations = dict.fromkeys(self.truncations, True)
            self.agents = []


def test_agents_that_end_before_they_act_or_without_a_last_turn() -> None:
    batch = sampled(env=Early, n=2)
    assert "blue_1" not in batch.episodes.agent_ids
    assert "blue_1" not in batch["blue"].agent_ids
    batch = sampled(Chooser(), AllAtOnce, n=2)
    assert batch["shared"].truncated.all()
    assert not batch["shared"].terminated.any()
    assert batch.truncated.all()


def test_what_is_known_of_episodes() -> None:
    batch = sampled(n=4)
    episodes = batch.episodes
    assert episodes.lengths.tolist() == [7] * 4
    assert episodes.agent_ids == IDS
    assert all(took.tolist() == [True] * 4 for took in episodes.took_part.values())
    assert episodes.reset_infos["red_0"]["began"].tolist() == [0] * 4
    assert episodes.last_infos["red_0"]["t"].tolist() == [3] * 4
    assert (episodes.terminated & episodes.truncated).all()  # blue_1 was terminated in the last step, red_1 truncated
    assert batch.returns == pytest.approx(np.nansum(list(episodes.returns.values()), axis=0))
    red = [batch[i]["red"].returns.sum() for i in range(4)]
    assert episodes.return_of(["red_0", "red_1"]) == pytest.approx(red)


@pytest.mark.parametrize("agent", [Chooser(), "random"], ids=["one by one", "together"])
@pytest.mark.parametrize("options", ALL_WAYS)
def test_infos_that_end_are_not_recorded_again(agent: Any, options: Any) -> None:
    class Once(Comings):
        def step(self, actions: Any) -> Any:
            *rest, _ = super().step(actions)
            return *rest, ({agent: {"first": self.t} for agent in actions} if self.t == 1 else {})

    batch = sampled(agent, Once, n=1, **options)
    shared = batch["shared"]
    assert shared.env_infos["first"][shared.env_infos["_first"]].tolist() == [1] * 3
    assert all("first" not in infos for infos in batch.episodes.last_infos.values())


@pytest.mark.parametrize("options", ALL_WAYS)
def test_infos_of_nobody_are_kept_where_there_are_as_many_as_agents(options: Any) -> None:
    class Common(Comings):
        def step(self, actions: Any) -> Any:
            *rest, infos = super().step(actions)
            (gone, *_), t = actions, self.t
            return *rest, {agent: info for agent, info in infos.items() if agent != gone} | {"common": t}

    batch = sampled(Chooser(), Common, n=1, **options)
    assert batch.env_infos["common"].tolist() == list(range(1, batch.n_env_steps + 1))
