"""Agents that come back after their end, that nobody announced, and infos that are about no agent."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces
from hypothesis import given
from hypothesis import strategies as st

from streamsampler import (
    MultiAgentBatch,
    MultiprocessingSampler,
    RolloutError,
    SamplerError,
    UsageError,
    evaluate,
    load,
    replay,
    sample_to_folder,
)
from streamsampler.agents.draws import Draws
from streamsampler.environments.multi_agent import as_multi_agent, is_multi_agent
from tests.scripted.games import IDS, Chooser, Comings, Stay, Turns
from tests.several.comparing import ALL_WAYS, POLICIES, LocalSampler, made, sampled
from tests.tiers import costly, mostly_slow

# --- Agents that come back


class Returning(Comings):
    """`red_1` ends after its third timestep, and is listed again some steps later."""

    steps_later = 2

    def begin(self, seed: Any) -> None:
        super().begin(seed)
        self.stays = {"red_0": Stay(0, 9), "red_1": Stay(0, 3), "blue_1": Stay(0, 9)}

    def step(self, actions: Any) -> Any:
        listed, self.agents = self.agents, [agent for agent in self.agents if agent in actions]
        result = super().step(actions)
        if self.t == 3 + self.steps_later:
            self.agents.append("red_1")
        return self.changed(listed, result)

    def changed(self, listed: Any, result: Any) -> Any:
        return result


class AtOnce(Returning):
    """It is listed again in the step in which it ends, and answered as one that has not ended."""

    steps_later = 0

    def changed(self, listed: Any, result: Any) -> Any:
        observations, rewards, terminated, truncated, infos = result
        self.agents += ["red_1"] * (self.t > 3)
        return observations, rewards, dict.fromkeys(listed, False) | terminated, truncated, infos


class Unanswered(Returning):
    """It is listed again in the step in which it ends, and never answered."""

    steps_later = 0


class WithTheLast(Returning):
    """It is listed again when all others end: the trajectory would end with it."""

    steps_later = 6


class ReturningTurns(Turns):
    """The other form: `red_1` has its last turn, and is among the agents again."""

    def begin(self, seed: Any) -> None:
        super().begin(seed)
        self.stays = {"red_0": Stay(0, 9), "red_1": Stay(0, 3), "blue_1": Stay(0, 9)}

    def step(self, action: Any) -> None:
        super().step(action)
        if self.t == 6 and "red_1" not in self.agents:
            self.agents.append("red_1")
            self.stays["red_1"] = Stay(0, 99)
            self.terminations["red_1"] = self.truncations["red_1"] = False
            self._cumulative_rewards["red_1"], self.infos["red_1"] = 0.0, {}


class DyingAgain(ReturningTurns):
    """It ends again before its turn comes."""

    def step(self, action: Any) -> None:
        super().step(action)
        self.stays["red_1"] = Stay(0, 3)


RETURNING = [
    (Returning, 2, 4),
    (AtOnce, 2, 3),
    (WithTheLast, 2, 8),
    (ReturningTurns, None, None),
    (DyingAgain, None, None),
]


@pytest.mark.parametrize(("game", "ended", "back"), mostly_slow(RETURNING, 2))
@pytest.mark.parametrize("options", mostly_slow([*ALL_WAYS, {"n_workers": 3}, {"on_failure": "drop"}], 2))
def test_an_agent_that_is_listed_again_after_its_end_is_an_error_that_names_it_and_the_timestep(
    game: Any, ended: Any, back: Any, options: Any
) -> None:
    if "on_failure" in options:
        with (
            LocalSampler(Chooser(), game, seed=1, check=None, **options) as sampler,
            pytest.raises(SamplerError, match="agent 'red_1' ended at timestep"),
        ):
            sampler.obtain_trajectories(2)
        return
    with pytest.raises(RolloutError) as error:
        sampled(Chooser(), game, check=None, **options)
    text = str(error.value)
    found = re.search(r"DataError.*agent 'red_1' ended at timestep (\d+).*in env.agents again.*its own id", text)
    assert found, text
    at = re.search(r"at timestep (\d+) of its trajectory", text)
    assert at, text
    if ended is not None:
        assert (int(found[1]), int(at[1])) == (ended, back)
    assert int(at[1]) > int(found[1])
    assert error.value.trajectory == 0


@pytest.mark.slow
@pytest.mark.parametrize("engine", ["processes", "queues"])
@pytest.mark.parametrize("game", [Returning, ReturningTurns])
def test_workers_say_of_agents_that_come_back_what_one_process_says(game: Any, engine: Any) -> None:
    with (
        MultiprocessingSampler(Chooser(), game, seed=1, n_workers=2, check=None, engine=engine) as sampler,
        pytest.raises(RolloutError, match="agent 'red_1' ended at timestep"),
    ):
        sampler.obtain_trajectories(3)


class Lax(Comings):
    """Lists agents also after their end, until the game is over; and answers for them that they have ended."""

    answers = True

    def step(self, actions: Any) -> Any:
        before, self.agents = self.agents, [agent for agent in self.agents if agent in actions]
        observations, rewards, terminated, *rest = super().step(actions)
        dead = [agent for agent in before if agent not in actions]
        self.agents = [*dead, *(a for a in actions if a not in self.agents), *self.agents] if self.agents else []
        return observations, rewards, {**terminated, **dict.fromkeys(dead if self.answers else (), True)}, *rest


@pytest.mark.parametrize("options", ALL_WAYS)
@pytest.mark.parametrize("answers", mostly_slow([False, True]))
def test_an_agent_that_stays_listed_after_its_end_is_asked_no_more_with_one_warning(
    caplog: Any, options: Any, answers: bool
) -> None:
    plain = sampled(Chooser(), Comings, n=5, **options)
    assert not caplog.messages
    with made(Chooser(), type("Game", (Lax,), {"answers": answers}), seed=1, **{"n_workers": 2, **options}) as sampler:
        batch = sampler.obtain_trajectories(5)
    assert [each.returns.tolist() for each in batch] == [each.returns.tolist() for each in plain]
    (text,) = caplog.messages
    assert re.search("agent 'red_0' ended at timestep 2 of a trajectory, and is still among env.agents", text)
    caplog.clear()
    assert sampled(Chooser(), Unanswered, n=5, check=None, **{"n_workers": 2, **options})["shared"].n_trajectories == 15
    assert ["'red_1' ended at timestep 2" in each for each in caplog.messages] == [True]


# --- Agents that nobody announced


class Unannounced:
    """A game without `possible_agents`."""

    def __init__(self, game: Any) -> None:
        self.game = game

    def __getattr__(self, name: str) -> Any:
        if name in ("possible_agents", "game"):
            raise AttributeError(name)
        return getattr(self.game, name)

    def __reduce__(self) -> Any:
        return type(self), (self.game,)


def pair(game: Any, stays: Any, **attributes: Any) -> tuple[Any, Any]:
    """Return makers of a game that announces its agents in the order in which they appear, and of one that does not."""
    order = tuple(sorted(IDS, key=lambda agent: (stays[agent].first if agent in stays else 99, IDS.index(agent))))
    kind = type(game.__name__, (game,), {"possible_agents": order, **attributes})
    return lambda: kind(stays), lambda: Unannounced(kind(stays))


STAYS = st.dictionaries(
    st.sampled_from(IDS),
    st.builds(lambda first, length, ends: Stay(first, first + length, ends), st.integers(0, 4), st.integers(1, 6),
              st.booleans()),
    min_size=1,
)  # fmt: skip
DEFAULT = {"red_0": Stay(0, 3), "red_1": Stay(0, 7, False), "blue_0": Stay(2, 5), "blue_1": Stay(0, 7)}


def assert_same_play(one: Any, other: Any) -> None:
    """Check that two batches are of the same episodes, whatever they know of agents that took no part."""
    assert list(one.policies) == list(other.policies)
    assert one.returns.tolist() == other.returns.tolist()
    for name, mine in one.policies.items():
        its = other[name]
        assert (mine.observation_space, mine.action_space) == (its.observation_space, its.action_space)
        for field in ("observations", "actions", "rewards", "last_observations", "terminated", "truncated", "agent_ids",
                      "episode_numbers", "env_timesteps"):  # fmt: skip
            assert getattr(mine, field).tolist() == getattr(its, field).tolist(), field
        np.testing.assert_equal(mine.env_infos, its.env_infos)
        np.testing.assert_equal(mine.agent_infos, its.agent_infos)
    for agent in one.episodes.agent_ids:
        np.testing.assert_equal(one.episodes.returns[agent], other.episodes.returns[agent])


@pytest.mark.parametrize("game", mostly_slow([Comings, Turns]))
@pytest.mark.parametrize("options", mostly_slow(ALL_WAYS))
@given(stays=STAYS, agents=st.sampled_from([Chooser(), POLICIES, "random"]))
@costly(10)
def test_agents_that_appear_unannounced_play_as_if_they_had_been_announced(
    game: Any, options: Any, stays: Any, agents: Any
) -> None:
    announced, unannounced = pair(game, {**stays, "red_0": Stay(0, 11)})
    assert_same_play(
        sampled(agents, unannounced, n=3, max_episode_length=12, **options),
        sampled(agents, announced, n=3, max_episode_length=12, **options),
    )


class Crowd:
    """A new agent appears in each step, with an id that no other trajectory has; each lives for three steps."""

    def __init__(self) -> None:
        self.agents: list[str] = []

    def observation_space(self, agent: str) -> Any:
        return spaces.Box(-9.0, 99.0, (2,), np.float32)

    def action_space(self, agent: str) -> Any:
        return spaces.Discrete(4)

    def reset(self, seed: Any = None, options: Any = None) -> Any:
        self.rng = np.random.default_rng(seed)
        self.t, self.mark = 0, int(self.rng.integers(1000))
        self.agents = [self.named(0)]
        return self.seen(), {agent: {"mark": self.mark} for agent in self.agents}

    def named(self, t: int) -> str:
        return f"{'ab'[t % 2]}_{self.mark}_{t}"

    def seen(self, *gone: str) -> Any:
        return {agent: np.array([self.t, self.rng.uniform()], np.float32) for agent in (*self.agents, *gone)}

    def step(self, actions: Any) -> Any:
        self.t += 1
        acted = list(self.agents)
        over = self.t == 20
        gone = [agent for agent in acted if over or int(agent.rpartition("_")[2]) + 3 == self.t]
        self.agents = [] if over else [agent for agent in acted if agent not in gone] + [self.named(self.t)]
        ends = {agent: agent in gone for agent in acted}
        infos = {agent: {"t": self.t} for agent in acted}
        return self.seen(*gone), {a: float(actions[a]) for a in acted}, ends, dict.fromkeys(acted, False), infos

    def close(self) -> None:
        pass


def kind_of(agent: str, index: int) -> str:
    return agent[0]


CROWD: dict[str, Any] = {"agents": {"a": "random", "b": Chooser()}, "policy_of": kind_of}


def crowd(n: int = 8, kind: Any = LocalSampler, **options: Any) -> Any:
    with kind(CROWD["agents"], Crowd, seed=3, policy_of=kind_of, check=None, **options) as sampler:
        return sampler.obtain_trajectories(n)


@pytest.mark.slow
def test_a_batch_of_unannounced_agents_does_not_depend_on_workers_and_engines() -> None:
    batch = crowd()
    assert batch["a"].n_trajectories == batch["b"].n_trajectories == 8 * 10
    assert len(set(batch.episodes.agent_ids)) == 8 * 20
    assert batch["a"].agents.known == tuple(sorted(set(batch["a"].agent_ids)))
    assert crowd(n_workers=3) == batch
    for engine in ("processes", "queues"):
        assert crowd(kind=MultiprocessingSampler, n_workers=2, engine=engine) == batch
    with LocalSampler(CROWD["agents"], Crowd, seed=3, policy_of=kind_of) as sampler:
        streamed = [next(sampler.stream()) for _ in range(1)]
        assert streamed == [batch[0]]
        assert sampler.obtain_samples(30, count="agent_steps").n_agent_steps >= 30


@pytest.mark.slow
def test_unannounced_agents_in_slices_files_folders_and_replays(tmp_path: Path) -> None:
    batch = crowd()
    assert batch[2:5]["b"].agents.known == tuple(sorted(set(batch[2:5]["b"].agent_ids)))
    assert MultiAgentBatch.concatenate(batch[:3], batch[3:]) == batch
    assert MultiAgentBatch.concatenate(batch.split()) == batch
    assert batch[:0]["a"].agent_ids.tolist() == [] if "a" in batch[:0].policies else True
    assert load(batch.save(tmp_path / "it.npz")) == batch
    assert load(batch["a"].save(tmp_path / "a.npz")) == batch["a"]
    with LocalSampler(CROWD["agents"], Crowd, seed=3, policy_of=kind_of) as sampler:
        folder = sample_to_folder(sampler, tmp_path / "folder", n_trajectories=8, shard_size=60)
    assert len(folder.shards) > 2
    assert folder.to_batch() == batch
    assert list(folder) == batch.split()
    with LocalSampler(CROWD["agents"], Crowd, seed=3, policy_of=kind_of) as sampler:
        mine = sampler.obtain_trajectories(8)
        assert sampler.replay(1, 5, recorded=mine).same
        assert sampler.replay(1, 5, recorded=mine, actions=True).same
    assert replay(tmp_path / "it.npz", 5, agent=CROWD["agents"], policy_of=kind_of, env=Crowd).same
    assert replay(tmp_path / "it.npz", 5, env=Crowd, actions=True).same
    other = replay(tmp_path / "it.npz", 5, agent={"a": "random", "b": Chooser(1)}, policy_of=kind_of, env=Crowd)
    assert "of agent 'b_" in str(other.difference)


@pytest.mark.slow
def test_unannounced_agents_are_evaluated_by_policy_and_all_together() -> None:
    found = evaluate(CROWD["agents"], Crowd, num_trajectories=5, seed=3, policy_of=kind_of, return_of="a")
    assert len(found.returns) == 5
    whole = evaluate(CROWD["agents"], Crowd, num_trajectories=5, seed=3, policy_of=kind_of, return_of="all")
    assert (found.returns < whole.returns).all()
    with pytest.raises(UsageError, match="whose return counts"):
        evaluate(CROWD["agents"], Crowd, num_trajectories=5, seed=3, policy_of=kind_of)


class Uneven(Crowd):
    """Agents of one policy have other spaces in some trajectories."""

    def observation_space(self, agent: str) -> Any:
        return spaces.Box(-9.0, 99.0, (2 + self.mark % 2,), np.float32)

    def seen(self, *gone: str) -> Any:
        return {agent: np.zeros(2 + self.mark % 2, np.float32) for agent in (*self.agents, *gone)}


@pytest.mark.parametrize("n_workers", [1, 3])
def test_a_policy_whose_unannounced_agents_have_other_spaces_is_an_error(n_workers: int) -> None:
    with (
        LocalSampler(CROWD["agents"], Uneven, seed=3, policy_of=kind_of, n_workers=n_workers, check=None) as sampler,
        pytest.raises(SamplerError, match=r"whose spaces differ(.|\n)*policy_of="),
    ):
        sampler.obtain_trajectories(9)


class Numbered(Crowd):
    def named(self, t: int) -> Any:
        return t if t == 3 else super().named(t)


def test_an_unannounced_agent_whose_id_is_no_string_is_an_error() -> None:
    with pytest.raises(RolloutError, match=r"the ids of agents must be strings, but env\.agents has 3"):
        sampled("random", Numbered, check=None)


class Revived(Crowd):
    def named(self, t: int) -> str:
        return super().named(0 if t == 8 else t)


def test_an_unannounced_agent_that_comes_back_is_an_error() -> None:
    with pytest.raises(RolloutError, match=r"agent 'a_\d+_0' ended at timestep 2, but is in env.agents again"):
        sampled("random", Revived, check=None)


def test_what_is_an_environment_of_several_agents() -> None:
    assert is_multi_agent(Crowd())
    assert as_multi_agent(Crowd()).is_open
    assert not as_multi_agent(Comings()).is_open
    assert not is_multi_agent(Crowd)
    with pytest.raises(RolloutError, match="possible_agents must be different strings"):
        sampled("random", type("Odd", (Comings,), {"possible_agents": []}))


def test_draws_of_more_rows_go_on_in_those_that_are_there() -> None:
    few, many = Draws.of([5, 6]), Draws.of([5, 6, 0, 0])
    assert few.random().tolist() == many.random().tolist()[:2]
    assert few.normal(3).tolist() == many.normal(3).tolist()[:2]
    wider = few.with_rows(4)
    for _ in range(70):
        assert wider.random()[:2].tolist() == many.random()[:2].tolist()
        assert wider.normal(3)[:2].tolist() == many.normal(3)[:2].tolist()


# --- Infos that are about no agent


class Scored(Comings):
    """Says what is about all agents together, and something under a name that is no agent's."""

    odd = "referee"

    def reset(self, seed: Any = None, options: Any = None) -> Any:
        observations, infos = super().reset(seed)
        return observations, {**infos, "__common__": {"level": 3}}

    def step(self, actions: Any) -> Any:
        *rest, infos = super().step(actions)
        said = {"__common__": {"score": self.total, "place": np.array([self.t, 1])}}
        return *rest, {**infos, **said, **({self.odd: {"calls": self.t}} if self.odd and self.t % 2 else {})}


class ScoredTurns(Turns):
    odd = "referee"

    def reset(self, seed: Any = None, options: Any = None) -> None:
        super().reset(seed)
        self.infos["__common__"] = {"level": 3}

    def step(self, action: Any) -> None:
        super().step(action)
        self.infos["__common__"] = {"score": self.total, "place": np.array([self.t, 1])}
        self.infos.pop(self.odd, None)
        if self.odd and self.t % 2:
            self.infos[self.odd] = {"calls": self.t}


def scores_of(game: Any, batch: Any) -> list[int]:
    """Return what the game's total was after each step of the environment, from the actions of agents."""
    scores: list[int] = []
    for one in batch:
        acted = np.zeros(one.n_env_steps, np.int64)
        for each in one.policies.values():
            np.add.at(acted, each.env_timesteps, each.actions)
        scores += np.cumsum(acted).tolist()
    return scores


@pytest.mark.parametrize("game", [Scored, ScoredTurns])
@pytest.mark.parametrize("options", mostly_slow([*ALL_WAYS, {"n_workers": 3}], 2))
def test_infos_of_no_agent_are_those_of_steps_of_the_environment(caplog: Any, game: Any, options: Any) -> None:
    batch = sampled(Chooser(), game, n=6, **options)
    infos = batch.episodes.env_infos
    assert set(infos) == {"__common__", "referee"}
    assert infos["__common__"]["score"].tolist() == scores_of(game, batch)
    assert infos["__common__"]["place"].shape == (batch.n_env_steps, 2)
    calls, there = infos["referee"]["calls"], infos["referee"]["_calls"]
    assert (calls % 2 == there).all()
    assert batch.episodes.infos["__common__"]["level"].tolist() == [3] * 6
    (text,) = caplog.messages
    assert "an info is under 'referee', which is no agent: it is in batch.episodes.env_infos" in text
    assert (
        batch[2].episodes.env_infos["__common__"]["score"]
        == infos["__common__"]["score"][batch.starts[2] :][: batch.lengths[2]]
    ).all()
    plain = sampled(Chooser(), game.__bases__[0], n=6, **options)
    assert plain.returns.tolist() == batch.returns.tolist()


@pytest.mark.parametrize("game", [Scored, ScoredTurns])
def test_common_infos_are_kept_without_a_warning_where_agents_are_unannounced_too(caplog: Any, game: Any) -> None:
    announced, unannounced = pair(game, DEFAULT, odd="")
    batches = [sampled(Chooser(), make, n=4) for make in (announced, unannounced)]
    assert not caplog.messages
    for batch in batches:
        assert batch.episodes.env_infos["__common__"]["score"].tolist() == scores_of(game, batch)
    assert_same_play(*batches)


@pytest.mark.slow
@pytest.mark.parametrize("game", [Scored, ScoredTurns])
def test_infos_of_no_agent_in_files_folders_replays_and_other_engines(tmp_path: Path, game: Any) -> None:
    options: dict[str, Any] = {"seed": 1, "check": None}
    batch = sampled(Chooser(), game, n=9, check=None)
    for engine in ("processes", "queues"):
        with MultiprocessingSampler(Chooser(), game, n_workers=2, engine=engine, **options) as sampler:
            assert sampler.obtain_trajectories(9) == batch
    found: Any = load(batch.save(tmp_path / "it.npz"))
    assert found == batch
    np.testing.assert_equal(found.episodes.env_infos, batch.episodes.env_infos)
    with LocalSampler(Chooser(), game, **options) as sampler:
        folder = sample_to_folder(sampler, tmp_path / "all", n_trajectories=9, shard_size=25)
        one: Any = folder.to_batch()
        few: Any = sample_to_folder(sampler, tmp_path / "few", n_trajectories=9, shard_size=25, infos=["__common__"])
    np.testing.assert_equal(one.episodes.env_infos, batch.episodes.env_infos)
    assert set(few.to_batch().episodes.env_infos) == {"__common__"}
    joined: Any = MultiAgentBatch.concatenate(batch[:4], batch[4:])
    np.testing.assert_equal(joined.episodes.env_infos, batch.episodes.env_infos)
    with LocalSampler(Chooser(), game, **options) as sampler:
        again = sampler.replay(1, 4, recorded=sampler.obtain_trajectories(9)).trajectory
    np.testing.assert_equal(again.episodes.env_infos, batch[4].episodes.env_infos)
