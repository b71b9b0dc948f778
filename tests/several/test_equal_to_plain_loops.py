"""C9 for several agents: each trajectory is what the environment said, step for step, in both forms of environments."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import streamsampler
from tests.scripted.games import IDS, Chooser, Comings, Stay, Turns, played_in_parallel, played_in_turns
from tests.several.comparing import assert_as_played, policies_of

# Calls return a `MultiAgentBatch`, which type checkers cannot know.
LocalSampler: Any = streamsampler.LocalSampler
MultiprocessingSampler: Any = streamsampler.MultiprocessingSampler

LOOPS: dict[Any, Any] = {Comings: played_in_parallel, Turns: played_in_turns}


class Hooked:
    """Lets the slower loop run, and changes nothing."""

    def on_timestep(self, context: Any) -> None:
        assert context.timestep > 0


def make_agent(agent: str) -> Chooser:
    return Chooser(agent.startswith("blue"))


def policies() -> dict[str, Any]:
    return {"red": Chooser(0), "blue": Chooser(1)}


@pytest.mark.parametrize("options", [{}, {"hooks": Hooked()}], ids=["fast", "hooks"])
@pytest.mark.parametrize("game", LOOPS)
@pytest.mark.parametrize("limit", [None, 1, 4, 5, 30])
def test_each_trajectory_is_what_a_plain_loop_gives(game: Any, limit: Any, options: Any) -> None:
    with LocalSampler(policies(), game, seed=1, max_episode_length=limit, **options) as sampler:
        batch = sampler.obtain_trajectories(5)
    if game is Comings and limit is None:
        assert policies_of(batch) == {"blue": ["blue_0", "blue_1"], "red": ["red_0", "red_1"]}
    for episode, seed in enumerate(batch.episodes.seeds):
        assert_as_played(batch, episode, LOOPS[game](game(), make_agent, seed, limit or 10**6))


@pytest.mark.parametrize("game", LOOPS)
def test_the_same_in_processes(game: Any) -> None:
    with MultiprocessingSampler(policies(), game, seed=3, n_workers=2) as sampler:
        batch = sampler.obtain_samples(100)
    assert batch.n_env_steps >= 100
    for episode, seed in enumerate(batch.episodes.seeds):
        assert_as_played(batch, episode, LOOPS[game](game(), make_agent, seed))


STAYS = st.dictionaries(
    st.sampled_from(IDS),
    st.builds(
        lambda first, length, terminated: Stay(first, first + length, terminated),
        st.integers(0, 4), st.integers(1, 6), st.booleans(),
    ),
    min_size=1,
)  # fmt: skip


@given(STAYS, st.sampled_from([None, 2, 6]), st.booleans())
def test_whoever_comes_and_goes_in_a_parallel_environment(stays: dict[str, Stay], limit: Any, hooks: bool) -> None:
    # Somebody is there from the start, and no gap is without anybody: that ends a trajectory.
    stays = {**stays, "red_0": Stay(0, 11)}
    options = {"hooks": Hooked()} if hooks else {}
    with LocalSampler(policies(), lambda: Comings(stays), seed=2, max_episode_length=limit, **options) as sampler:
        batch = sampler.obtain_trajectories(2)
    for episode, seed in enumerate(batch.episodes.seeds):
        assert_as_played(batch, episode, played_in_parallel(Comings(stays), make_agent, seed, limit or 10**6))


@given(STAYS, st.sampled_from([None, 2, 6, 9]))
def test_whoever_comes_and_goes_where_agents_take_turns(stays: dict[str, Stay], limit: Any) -> None:
    stays = {**stays, "red_0": Stay(0, 11)}
    with LocalSampler(policies(), lambda: Turns(stays), seed=2, max_episode_length=limit) as sampler:
        batch = sampler.obtain_trajectories(2)
    for episode, seed in enumerate(batch.episodes.seeds):
        assert_as_played(batch, episode, played_in_turns(Turns(stays), make_agent, seed, limit or 10**6))


def test_steps_in_which_nobody_acts() -> None:
    """Those that ended have a last turn, in which None is sent: a step of the environment, and of no agent."""
    with LocalSampler(policies(), Turns, seed=1) as sampler:
        batch = sampler.obtain_trajectories(3)
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
        ended = self.t == 2
        self.agents = ["blue_0"] if 2 <= self.t < 6 else [] if self.t >= 6 else ["red_0"]
        there = ["red_0"] if self.t <= 2 else []
        there += ["blue_0"] if self.t >= 4 else []
        over = self.t == 6
        return (
            {agent: self.seen(agent) for agent in there},
            dict.fromkeys(there, 1.0),
            {agent: (agent == "red_0" and ended) or (agent == "blue_0" and over) for agent in there},
            dict.fromkeys(there, False),
            {agent: {} for agent in there},
        )


def test_who_is_about_to_join_is_waited_for() -> None:
    with LocalSampler(policies(), lambda: Waiting({"red_0": Stay()}), seed=1) as sampler:
        batch = sampler.obtain_trajectories(1)
    assert batch.n_env_steps == 6
    assert batch["red"].env_timesteps.tolist() == [0, 1]
    assert batch["blue"].env_timesteps.tolist() == [4, 5]
    assert batch.episodes.returns["blue_0"].tolist() == [3.0]  # one came before its first action
    assert batch["blue"].returns.tolist() == [2.0]


def test_an_agent_that_ends_before_it_acts_is_left_out() -> None:
    class Early(Turns):
        def step(self, action: Any) -> None:
            super().step(action)
            if self.t == 1 and "blue_1" in self.terminations:
                self.terminations["blue_1"] = True
                self._select()

    with LocalSampler(policies(), Early, seed=1) as sampler:
        batch = sampler.obtain_trajectories(2)
    assert "blue_1" not in batch.episodes.agent_ids
    assert "blue_1" not in batch["blue"].agent_ids


def test_rewards_of_episodes_are_those_of_all_agents() -> None:
    with LocalSampler(policies(), Comings, seed=1) as sampler:
        batch = sampler.obtain_trajectories(4)
    episodes = batch.episodes
    total = np.nansum(list(episodes.returns.values()), axis=0)
    assert batch.returns == pytest.approx(total)
    red = [each.returns.sum() for each in (batch[i]["red"] for i in range(4))]
    assert episodes.return_of(["red_0", "red_1"]) == pytest.approx(red)
    assert episodes.return_of(["blue_0"]) == pytest.approx(episodes.returns["blue_0"])


def test_what_is_known_of_episodes() -> None:
    with LocalSampler(policies(), Comings, seed=1) as sampler:
        episodes = sampler.obtain_trajectories(4).episodes
    assert len(episodes) == 4
    assert episodes.lengths.tolist() == [7] * 4
    assert episodes.agent_ids == IDS
    assert all(took.tolist() == [True] * 4 for took in episodes.took_part.values())
    assert episodes.reset_infos["red_0"]["began"].tolist() == [0] * 4
    assert episodes.last_infos["red_0"]["t"].tolist() == [3] * 4
    assert episodes.last_infos["red_0"]["name"].tolist() == ["red_0"] * 4
    assert (episodes.terminated & episodes.truncated).all()  # blue_1 was terminated in the last step, red_1 truncated
