"""Several agents in many environments at once: what `DefaultWorker` gives, bit for bit, and how policies are asked."""

from __future__ import annotations

import re
from collections import Counter
from typing import Any, ClassVar

import numpy as np
import pytest
from gymnasium import spaces
from hypothesis import example, given
from hypothesis import strategies as st

import streamsampler
from streamsampler import NotReproducibleError, RolloutError, VecWorker
from streamsampler.environments.per_env import PerEnv
from streamsampler.filters import RunningNorm
from streamsampler.workers.vec.several_agents import MultiAgentRows
from tests.scripted.games import DEFAULT, IDS, Chooser, Comings, Stay, Turns
from tests.several.comparing import ALL_LOOPS, LocalSampler, sampled
from tests.several.test_equal_to_plain_loops import STAYS
from tests.several.test_errors import is_odd
from tests.several.test_lives import Unannounced, crowd
from tests.tiers import costly, mostly_slow

MultiprocessingSampler: Any = streamsampler.MultiprocessingSampler


class Rowwise:
    """Does with each row what does not depend on the batch's shape; says by its infos what it is told of the row."""

    row_independent = True
    shapes: ClassVar[Counter[int]] = Counter()

    def __init__(self, shift: int = 0) -> None:
        self.shift = shift

    def set_param_values(self, values: tuple[int]) -> None:
        (self.shift,) = values

    def get_actions(self, observations: Any, *, draws: Any, seeds: Any) -> Any:
        self.shapes[len(observations)] += 1
        drawn = draws.random()
        observations += 100  # the batch is its own
        actions = ((observations.sum(1) * 7).astype(int) + (drawn * 4).astype(int) + self.shift) % 4
        value = observations[:, 1].astype(float)
        return actions, {"drawn": drawn, "seed": seeds, "value": value, "nested": {"twice": 2 * observations}}

    def get_value(self, observation: Any) -> float:
        return float(observation[1])


class Remembering:
    """Remembers by rows: the sum of what a row saw since it began."""

    def __init__(self, independent: bool = True) -> None:
        self.row_independent = independent
        self.sums = np.zeros(0)

    def get_actions(self, observations: Any, *, slots: Any, starts: Any) -> Any:
        self.sums = np.pad(self.sums, (0, max(0, 1 + slots.max() - len(self.sums))))
        self.sums[slots] = np.where(starts, 0, self.sums[slots]) + observations[:, 1]
        return self.sums[slots].astype(int) % 4, {"sum": self.sums[slots]}

    def get_action(self, observation: Any) -> Any:  # where agents act in turn
        return int(observation[1]) % 4, {}

    def get_value(self, observation: Any, *, slot: int = 0) -> float:
        return float(self.sums[slot] + observation[1])


class Neighbourly:
    """Is asked for one environment at a time: an action depends on how many act."""

    row_independent = False

    def reset(self, seed: int) -> None:
        self.rng = np.random.default_rng(seed)

    def get_actions(self, observations: Any, *, draws: Any) -> Any:
        n = len(observations)
        drawn = self.rng.integers(4)  # of one trajectory, whatever is run meanwhile
        return [(n + int(each * 4) + drawn) % 4 for each in draws.random()], {"n": np.full(n, n)}

    def get_action(self, observation: Any) -> Any:
        return int(self.rng.integers(4)), {}


AGENTS: dict[str, Any] = {
    "one by one": Chooser(),
    "across": Rowwise(),
    "both": {"red": Chooser(1), "blue": Rowwise(2)},
    "random": "random",
    "remembers": Remembering(),
    "remembers apart": Remembering(independent=False),
    "apart": {"red": Neighbourly(), "blue": Neighbourly()},
}


def rows(n_envs: int) -> dict[str, Any]:
    return {"worker_class": VecWorker, "worker_args": {"n_envs": n_envs}}


@pytest.mark.parametrize("which", mostly_slow(AGENTS))
@given(
    st.sampled_from([Comings, Turns]), STAYS, st.sampled_from([None, 1, 4]), st.integers(1, 9), st.integers(1, 5)
)  # fmt: skip
@example(Comings, {}, None, 7, 3)
@example(Turns, {}, 4, 7, 3)
@costly(2)
def test_batches_are_those_of_one_environment(
    which: str, game: Any, stays: dict[str, Stay], limit: Any, n: int, n_envs: int
) -> None:
    stays = {**stays, "red_0": Stay(0, 11)} if stays else DEFAULT
    how = {"agents": AGENTS[which], "env": lambda: game(stays), "n": n, "max_episode_length": limit, "check": None}
    assert sampled(**how, **rows(n_envs)) == sampled(**how)


@pytest.mark.parametrize("which", mostly_slow(["both", "one by one", "across", "apart"]))
def test_who_comes_unannounced_plays_the_same(which: str) -> None:
    def game() -> Any:
        return Unannounced(Comings())

    assert sampled(AGENTS[which], game, n=7, **rows(3)) == sampled(AGENTS[which], game, n=7)
    assert crowd(**rows(3)) == crowd()


class Watching:
    """Counts what it sees; the trajectories of whoever saw an odd thing first are left out."""

    aggregation = {"seen": "sum"}  # noqa: RUF012

    def on_trajectory_start(self, context: Any) -> None:
        context.memory["infos"] = []

    def on_timestep(self, context: Any) -> None:
        context.memory["infos"] += [sorted(context.agent_info), sorted(context.action), context.reward]
        context.action.clear()

    def on_trajectory_end(self, context: Any) -> None:
        context.metrics["seen"] = len(context.memory["infos"])
        context.metrics["shown"] = repr(context.memory["infos"])
        context.metrics["values"] = sum(info.get("value", 0.0) for info in context.agent_info.values())
        context.metrics["sum"] = context.rewards.sum()


class Odd(Comings):
    def step(self, actions: Any) -> Any:
        *parts, infos = super().step(actions)
        odd = {"red_1": {"odd": True}} if self.t == 4 and self.total % 4 == 1 else {}
        return *parts, {**infos, **odd}


@pytest.mark.parametrize("which", mostly_slow(["both", "one by one", "across", "apart"]))
def test_hooks_see_the_same_and_leave_out_the_same(which: str) -> None:
    how = {"seed": 2, "hooks": Watching(), "drop_if": is_odd, "check": None}
    with LocalSampler(AGENTS[which], Odd, **how) as one, LocalSampler(AGENTS[which], Odd, **how, **rows(3)) as many:
        for n in (5, 8):
            expected, found = one.obtain_trajectories(n), many.obtain_trajectories(n)
            assert found == expected
            assert many.stats.metrics == one.stats.metrics
            assert [each.index for each in many.stats.dropped] == [each.index for each in one.stats.dropped]
        assert one.stats.dropped


class Halves(Comings):
    """Half of the trajectories are odd, from a step on after which some agents have ended."""

    def begin(self, seed: Any) -> None:
        super().begin(seed)
        self.odd = seed % 2 == 1

    def step(self, actions: Any) -> Any:
        *parts, infos = super().step(actions)
        return *parts, {**infos, "red_1": {"odd": True}} if self.odd and self.t == 5 else infos


class Tasked(Odd):
    task = 0

    def set_task(self, task: int) -> None:
        self.task = task

    def info(self, agent: str) -> Any:
        return {**super().info(agent), "task": self.task}


def test_trajectories_of_tasks_that_take_the_places_of_others_lie_with_their_task() -> None:
    def drop_if(infos: Any) -> bool:
        return any("odd" in info for info in infos.values() if isinstance(info, dict))

    with LocalSampler(Chooser(), Tasked, seed=2, drop_if=drop_if, check=None) as sampler:
        batch = sampler.obtain_trajectories(3, tasks=[4, 5])
        assert sampler.stats.dropped
        assert batch.stats.dropped == sampler.stats.dropped
    assert batch.episode_infos["task_index"].tolist() == [0, 0, 0, 1, 1, 1]
    for one, task in zip(batch, [4, 4, 4, 5, 5, 5], strict=True):
        assert set(one["shared"].env_infos["task"].tolist()) == {task}


@pytest.mark.parametrize("n_envs", mostly_slow([2, 1, 3]))
def test_what_is_left_out_last_in_a_row_leaves_nothing(n_envs: int) -> None:
    agent, how = AGENTS["both"], {"seed": 2, "drop_if": is_odd, "check": None}
    blocks: Any = {"worker_class": VecWorker, "worker_args": {"n_envs": n_envs, "block_size": 6}}  # one in each ticket
    with LocalSampler(agent, Halves, **how) as one, LocalSampler(agent, Halves, **how, **blocks) as many:
        for n in range(1, 9):
            assert many.obtain_trajectories(n) == one.obtain_trajectories(n)


@pytest.mark.parametrize("game", [Comings, Turns])
def test_filters_updates_and_masks_by_policy(game: Any) -> None:
    agents = {"red": Rowwise(), "blue": Chooser()}
    how = {"seed": 1, "observation_filter": {"red": RunningNorm(), "blue": RunningNorm()}}
    with LocalSampler(agents, game, **how) as one, LocalSampler(agents, game, **how, **rows(4)) as many:
        for update in (None, {"red": (3,)}, {"blue": (2,)}, {"red": Rowwise(1), "blue": Rowwise(1)}, None):
            expected = one.obtain_trajectories(6, agent_update=update)
            assert many.obtain_trajectories(6, agent_update=update) == expected


@pytest.mark.parametrize("game", mostly_slow([Comings, Turns]))
@pytest.mark.parametrize(("n_workers", "n_envs"), mostly_slow([(2, 3), (1, 2), (3, 4)]))
def test_batches_do_not_depend_on_the_number_of_workers(game: Any, n_workers: int, n_envs: int) -> None:
    expected = sampled(AGENTS["both"], game, n=23, check=None)
    how = {"seed": 1, "check": None, **rows(n_envs)}
    with MultiprocessingSampler(AGENTS["both"], game, n_workers=n_workers, **how) as sampler:
        assert sampler.obtain_trajectories(23) == expected


@pytest.mark.parametrize(("game", "n_rows"), [(Comings, 32), (Turns, 32)])
def test_a_policy_has_one_number_of_rows(game: Any, n_rows: int) -> None:
    """Five environments, and four agents in each, rounded up."""
    Rowwise.shapes.clear()
    for n in (1, 12):
        sampled(Rowwise(), game, n=n, check=None, **rows(5))
    assert set(Rowwise.shapes) == {n_rows}
    Rowwise.shapes.clear()
    names = {"red": Rowwise(), "blue": Chooser()}
    sampled(names, game, n=12, check=None, **rows(5))
    assert set(Rowwise.shapes) == {16}
    Rowwise.shapes.clear()
    by = dict(zip(IDS, ["red", "blue", "blue", "blue"], strict=True))
    sampled(names, game, n=12, check=None, policy_of=by, **rows(18))
    assert set(Rowwise.shapes) == {32}


class Summing(Rowwise):
    def get_actions(self, observations: Any, *, draws: Any, seeds: Any) -> Any:
        actions, infos = super().get_actions(observations, draws=draws, seeds=seeds)
        return (actions + int(observations.sum() * 9)) % 4, infos


def test_a_policy_whose_rows_are_not_independent_is_refused_if_it_says_they_are() -> None:
    with pytest.raises(RolloutError, match=r"\(Summing\) has row_independent = True, but row"):
        sampled({"red": Rowwise(), "blue": Summing()}, Comings, n=4, **rows(3))


def test_global_generators_need_a_block_size() -> None:
    class Alone:
        def get_action(self, observation: Any) -> Any:
            return int(np.random.randint(4)), {}

    with pytest.raises(RolloutError, match="drew from a global generator"):
        sampled(Alone(), Comings, n=6, check=None, **rows(3))
    how = {"worker_class": VecWorker, "worker_args": {"n_envs": 3, "block_size": 6}}
    assert sampled(Alone(), Comings, n=12, **how) == sampled(Alone(), Comings, n=12, **how)


class Tired(Rowwise):
    def get_actions(self, observations: Any, *, draws: Any, seeds: Any) -> Any:
        if (observations[:, 1] == 5).any():
            raise ValueError("tired")
        return super().get_actions(observations, draws=draws, seeds=seeds)


def test_an_error_names_the_trajectory() -> None:
    class Breaking(Comings):
        def step(self, actions: Any) -> Any:
            if self.t == 4 and self.seed % 3 == 0:
                raise ValueError("broken")
            return super().step(actions)

        def begin(self, seed: Any) -> None:
            self.seed = seed
            super().begin(seed)

    with LocalSampler(Chooser(), Comings, seed=1) as sampler:
        seeds = sampler.obtain_trajectories(12).seeds
    first = next(index for index, seed in enumerate(seeds) if seed % 3 == 0)
    for options in ({}, rows(5)):
        with pytest.raises(RolloutError, match="broken") as error:
            sampled(Rowwise() if options else Chooser(), Breaking, n=12, check=None, **options)
        assert error.value.trajectory == first
    with pytest.raises(RolloutError, match="tired") as error:
        sampled(Tired(), Comings, n=12, check=None, **rows(5))
    assert error.value.trajectory == 0
    assert re.search("get_actions had the observations of trajectories 0, 1, 2", str(error.value))


def test_environments_of_one_worker_have_the_same_agents() -> None:
    class Reversed(Comings):
        possible_agents = IDS[::-1]

    for other, words in ((Reversed, "the same agents"), (Turns, "act at once.*act in turn")):
        with pytest.raises(RolloutError, match=words):
            sampled(Chooser(), PerEnv([Comings, other]), **rows(2))


class Worn(Comings):
    """Remembers how many trajectories it has begun."""

    n_begun = 0

    def begin(self, seed: Any) -> None:
        super().begin(seed)
        self.n_begun += 1

    def seen(self, agent: str) -> Any:
        return np.minimum(super().seen(agent) + self.n_begun, 99)


def test_what_an_environment_remembers_is_found() -> None:
    with pytest.raises(NotReproducibleError, match=r"was run twice from the same seed.*its first observation"):
        sampled(Rowwise(), Worn, check="error", **rows(3))


class Sparing:
    """Returns the same array, and the same info, each time."""

    def __init__(self) -> None:
        self.action, self.info = np.zeros(2), {"seen": np.zeros(3)}

    def get_action(self, observation: Any) -> Any:
        self.action[:] = observation[1:] / 3
        self.info["seen"][:] = observation
        return self.action, self.info


class SparingRows:
    """The same for all agents of an environment."""

    row_independent = False

    def __init__(self) -> None:
        self.actions, self.seen = np.zeros((4, 2)), np.zeros((4, 3))

    def get_actions(self, observations: Any) -> Any:
        n = len(observations)
        self.actions[:n], self.seen[:n] = observations[:, 1:] / 3, observations
        return self.actions[:n], {"seen": self.seen[:n]}


class Pushed(Comings):
    def action_space(self, agent: str) -> Any:
        return spaces.Box(-9.0, 99.0, (2,), np.float32)

    def step(self, actions: Any) -> Any:
        return super().step({agent: round(float(action.sum())) for agent, action in actions.items()})


@pytest.mark.parametrize("agent", [Sparing(), SparingRows()])
def test_agents_may_use_their_arrays_again(agent: Any) -> None:
    with LocalSampler(agent, Pushed, seed=1, check=None) as sampler:
        expected = sampler.obtain_trajectories(5)
    assert len(np.unique(expected["shared"].actions, axis=0)) > 5
    for options in (*ALL_LOOPS[1:], rows(1)):
        assert sampled(agent, Pushed, n=5, check=None, **options) == expected


class Words(Comings):
    """Shows each agent a text, too."""

    def observation_space(self, agent: str) -> Any:
        return spaces.Dict({"text": spaces.Text(5), "box": self.spaces[agent]})

    def seen(self, agent: str) -> Any:
        seen = super().seen(agent)
        return {"text": "abcde"[: int(seen[1]) % 5], "box": seen}


class Reader(Rowwise):
    """Says how long the texts are."""

    def get_actions(self, observations: Any, *, draws: Any, seeds: Any) -> Any:
        actions, infos = super().get_actions(observations["box"], draws=draws, seeds=seeds)
        return actions, {**infos, "n": np.array([len(text) for text in observations["text"]])}

    def get_value(self, observation: Any) -> float:
        return float(observation["box"][1])


def test_spaces_of_any_kind() -> None:
    assert sampled(Reader(), Words, n=7, **rows(3)) == sampled(Reader(), Words, n=7)


def test_records_of_later_tickets_are_kept_and_recorders_used_again() -> None:
    """Tickets held ahead, in many calls: what a recorder had is gone, and nothing else is."""
    made: list[Any] = []
    begin = MultiAgentRows.begin

    def counted(self: Any, ticket: Any, position: int, index: int, row: int) -> Any:
        trajectory = begin(self, ticket, position, index, row)
        made.append(id(self.rows[row]))
        return trajectory

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(MultiAgentRows, "begin", counted)
        with LocalSampler(AGENTS["both"], Comings, seed=1, check=None, **rows(3)) as sampler:
            found = [sampler.obtain_trajectories(11) for _ in range(5)]
    assert len(set(made)) <= 3 * 4
    with LocalSampler(AGENTS["both"], Comings, seed=1) as sampler:
        assert found == [sampler.obtain_trajectories(11) for _ in range(5)]
