"""Which policy plays whom, how it is asked, and how it is updated."""

from __future__ import annotations

import re
from collections import Counter
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces

import streamsampler
import streamsampler.workers.several
from streamsampler import MultiAgentBatch, RandomAgent
from streamsampler.agents.draws import Draws
from streamsampler.errors import RolloutError, UsageError
from streamsampler.filters import RunningNorm, RunningReturnNorm
from tests.scripted.games import IDS, Chooser, Comings, Stay, Turns
from tests.several.comparing import policies_of

# Calls return a `MultiAgentBatch`, which type checkers cannot know.
LocalSampler: Any = streamsampler.LocalSampler
MultiprocessingSampler: Any = streamsampler.MultiprocessingSampler

ALL = {agent: Stay(0, 6) for agent in IDS}


def everybody() -> Comings:
    return Comings(ALL)


def sampled(agents: Any, env: Any = everybody, n: int = 3, **options: Any) -> MultiAgentBatch:
    with LocalSampler(agents, env, seed=1, **options) as sampler:
        batch = sampler.obtain_trajectories(n)
    assert isinstance(batch, MultiAgentBatch)
    return batch


# --- Who plays whom


@pytest.mark.parametrize(
    ("names", "policy_of", "expected"),
    [
        (["red", "blue"], None, {"red": ["red_0", "red_1"], "blue": ["blue_0", "blue_1"]}),
        (["red_0", "red", "blue"], None, {"red_0": ["red_0"], "red": ["red_1"], "blue": ["blue_0", "blue_1"]}),
        (["one"], None, {"one": sorted(IDS)}),
        (["x", "y"], dict(zip(IDS, "xyyx", strict=True)), {"x": ["blue_1", "red_0"], "y": ["blue_0", "red_1"]}),
        (["x", "y"], lambda agent, index: "xy"[agent[-1] == "0"], {"x": ["blue_1", "red_1"], "y": ["blue_0", "red_0"]}),
    ],
)  # fmt: skip
def test_who_plays_whom(names: list[str], policy_of: Any, expected: Any) -> None:
    assert policies_of(sampled({name: Chooser() for name in names}, policy_of=policy_of)) == expected


def test_an_agent_that_is_no_dict_is_shared_by_all() -> None:
    for batch in (sampled(Chooser()), sampled("random"), sampled(Chooser(), policy_of=lambda agent, index: "shared")):
        assert policies_of(batch) == {"shared": sorted(IDS)}


ASKED: Counter[Any] = Counter()


def noted_policy_of(agent: str, index: int) -> str:
    """Pickled by its name, so that it notes in this process what it is asked in the worker."""
    ASKED[agent, index] += 1
    return "xy"[index % 2]


@pytest.mark.parametrize("game", [Comings, Turns])
def test_it_is_asked_once_for_each_agent_and_trajectory(game: Any) -> None:
    ASKED.clear()
    with LocalSampler(
        {"x": Chooser(), "y": Chooser(1)}, game, seed=1, check=None, policy_of=noted_policy_of
    ) as sampler:
        batch = sampler.obtain_trajectories(4)
    assert set(batch["x"].episode_numbers.tolist()) == {0, 2}
    assert set(batch["y"].episode_numbers.tolist()) == {1, 3}
    assert {ASKED[agent, index] for agent in batch.episodes.agent_ids for index in range(4)} == {1}


@pytest.mark.parametrize(
    ("agents", "policy_of", "words"),
    [
        ({"x": Chooser(), "y": Chooser()}, None, "no policy plays agent 'red_0'.*'x', 'y'.*policy_of="),
        ({"x": Chooser()}, {"red_0": "x"}, "policy_of names no policy for agent 'red_1', but for 'red_0'"),
        ({"x": Chooser()}, lambda agent, index: "z", r"policy_of\('red_0', 0\) names the policy 'z'.*there are 'x'"),
        ({"x": Chooser()}, lambda agent, index: None, "names the policy None"),
    ],
)
def test_an_agent_that_nobody_plays(agents: Any, policy_of: Any, words: str) -> None:
    with pytest.raises(RolloutError, match=words):
        sampled(agents, policy_of=policy_of)


@pytest.mark.parametrize(
    ("agents", "options", "words"),
    [
        ({}, {}, "at least one agent"),
        ({1: Chooser()}, {}, "names that are strings"),
        ({"x": 3}, {}, "an agent is"),
        ({"x": Chooser()}, {"policy_of": {"red_0": "y"}}, "names the policy 'y' for agent 'red_0', and there are 'x'"),
        ({"x": Chooser()}, {"policy_of": 3}, "policy_of is a function"),
        ({"x": Chooser()}, {"observation_filter": RunningNorm()}, "observation_filter is a dict by policy name"),
        ({"x": Chooser()}, {"reward_filter": {"y": RunningReturnNorm()}}, "reward_filter names the policies 'y'"),
        (Chooser(), {"observation_filter": {"y": RunningNorm()}}, "names the policies 'y', and agents has none"),
        ({"x": Chooser()}, {"observation_filter": {"x": 3}}, r"observation_filter\['x'\], a int, has no apply"),
        ({"x": Chooser()}, {"staleness": 1}, "staleness=1"),
    ],
)
def test_what_cannot_be_is_refused_at_once(agents: Any, options: Any, words: str) -> None:
    with pytest.raises(UsageError, match=words):
        LocalSampler(agents, Comings, **options)


# --- How it is asked


class Together:
    """Is asked for all at once, and notes for how many, and for whom."""

    def get_action(self, observation: Any) -> Any:
        raise AssertionError("it has get_actions")

    def get_actions(self, observations: Any) -> Any:
        n = len(observations)
        return observations[:, 0].astype(np.int64), {"n": np.full(n, n), "whose": observations[:, 0]}


@pytest.mark.parametrize("game", [Comings, Turns])
def test_all_that_one_policy_acts_on_comes_in_one_call_in_the_order_of_agents(game: Any) -> None:
    batch = sampled({"x": Together()}, env=game)
    x = batch["x"]
    numbers = [IDS.index(agent) for agent in x.agent_ids]
    assert x.actions.tolist() == x.agent_infos["whose"].tolist() == np.repeat(numbers, x.lengths).tolist()
    for episode in range(3):
        rows = np.repeat(x.episode_numbers == episode, x.lengths)
        acting = Counter(x.env_timesteps[rows].tolist())
        assert x.agent_infos["n"][rows].tolist() == [acting[step] for step in x.env_timesteps[rows].tolist()]


class Rows:
    """Draws for each row, from its own stream; notes what it is told of rows."""

    def get_action(self, observation: Any) -> Any:
        raise AssertionError("it has get_actions")

    def get_actions(self, observations: Any, *, draws: Draws, seeds: Any) -> Any:
        numbers = draws.random()
        return (numbers * 4).astype(np.int64), {"drawn": numbers, "seed": seeds}


def test_each_agent_has_a_row_of_draws_of_its_own() -> None:
    """Whoever else is there: the same numbers, as many as it acts."""
    alone = sampled({"x": Rows()}, env=lambda: Comings({"red_1": Stay(0, 6), "red_0": Stay(0, 1)}))["x"]
    among = sampled({"x": Rows()})["x"]
    of_red_1 = [[each for each in batch if each.agent_ids[0] == "red_1"] for batch in (alone, among)]
    for one, other in zip(*of_red_1, strict=True):
        assert one.agent_infos["drawn"].tolist() == other.agent_infos["drawn"].tolist()
        assert set(one.agent_infos["seed"].tolist()) == set(other.agent_infos["seed"].tolist())
    drawn = np.concatenate([each.agent_infos["drawn"] for each in among])
    assert len(set(drawn.tolist())) == len(drawn)


def test_draws_do_not_depend_on_who_acts_when() -> None:
    for game in (Comings, Turns):
        full = {agent: Stay(0, 40) for agent in IDS}
        batch = sampled({"x": Rows()}, env=lambda game=game, full=full: game(full), n=2)["x"]
        for each in batch:
            reference = Draws.of([int(each.agent_infos["seed"][0])])
            assert each.agent_infos["drawn"].tolist() == [float(reference.random()[0]) for _ in range(each.n_timesteps)]


class Starting:
    """Remembers by rows, and is told which begin."""

    def __init__(self) -> None:
        self.counts = np.zeros(0, dtype=np.int64)

    def get_action(self, observation: Any) -> Any:
        self.counts = np.ones(1, dtype=np.int64) + (self.counts if len(self.counts) else 0)
        return 0, {"n": int(self.counts[0]), "together": False}

    def reset(self, seed: int) -> None:
        self.counts = np.zeros(0, dtype=np.int64)

    def get_actions(self, observations: Any, *, starts: Any) -> Any:
        if len(self.counts) != len(observations):
            self.counts = np.zeros(len(observations), dtype=np.int64)
        self.counts = np.where(starts, 0, self.counts) + 1
        n = len(observations)
        return np.zeros(n, dtype=np.int64), {"n": self.counts.copy(), "together": np.ones(n, dtype=np.bool_)}


@pytest.mark.parametrize(("game", "together"), [(Comings, True), (Turns, False)])
def test_a_policy_with_a_memory_by_rows_remembers_each_agent_by_itself(game: Any, together: bool) -> None:
    for each in sampled({"x": Starting()}, env=game)["x"]:
        assert each.agent_infos["n"].tolist() == list(range(1, each.n_timesteps + 1))
        assert set(each.agent_infos["together"].tolist()) == {together}


def test_a_policy_with_a_memory_is_copied_for_each_agent_that_it_plays() -> None:
    for each in sampled({"x": Chooser()})["x"]:
        assert each.agent_infos["n"].tolist() == list(range(1, each.n_timesteps + 1))


def test_random_agents_play_the_same_alone_and_together() -> None:
    class OneByOne(RandomAgent):
        get_actions = None  # type: ignore[assignment]

    for game in (Comings, Turns):
        assert sampled(RandomAgent(), env=game) == sampled(OneByOne(), env=game)


def test_a_policy_gets_the_spaces_of_those_that_it_plays() -> None:
    class Spaced(Chooser):
        def set_spaces(self, observation_space: Any, action_space: Any) -> None:
            self.spaces = observation_space.shape, int(action_space.n)

        def get_action(self, observation: Any) -> Any:
            return 0, {"spaces": np.array([*self.spaces[0], self.spaces[1]])}

    batch = sampled({"red": Spaced(), "blue": Spaced()})
    for each in batch.policies.values():
        assert set(map(tuple, each.agent_infos["spaces"].tolist())) == {(3, 4)}


def test_spaces_that_differ_among_the_agents_of_one_policy() -> None:
    from gymnasium import spaces

    class Uneven(Comings):
        def action_space(self, agent: str) -> Any:
            return spaces.Discrete(4 if agent != "blue_1" else 5)

    with pytest.raises(
        RolloutError, match=r"policy 'shared' plays 'red_0' and 'blue_1', whose spaces differ.*policy_of="
    ):
        sampled(Chooser(), env=Uneven)
    batch = sampled(
        {"x": Chooser(), "y": Chooser()}, env=Uneven, policy_of=lambda agent, index: "xy"[agent == "blue_1"]
    )
    assert (batch["x"].action_space.n, batch["y"].action_space.n) == (4, 5)

    def by_index(agent: str, index: int) -> str:
        return "y" if (agent == "blue_1") == (index % 2 == 0) and agent in ("red_0", "blue_1") else f"other_{agent}"

    others = {f"other_{agent}": Chooser() for agent in IDS}
    with pytest.raises(RolloutError, match="policy 'y' plays 'blue_1' and 'red_0', whose spaces differ"):
        sampled({"y": Chooser(), **others}, env=Uneven, policy_of=by_index)


def test_the_last_value_of_an_agent_that_does_not_terminate() -> None:
    class Valued(Chooser):
        def get_action(self, observation: Any) -> Any:
            action, info = super().get_action(observation)
            return action, {**info, "value": float(observation[1])}

        def get_value(self, observation: Any) -> float:
            return 100.0 + float(observation[1])

    each: list[dict[str, Any]] = [{}, {"hooks": Silent()}]
    for options in each:
        batch = sampled({"x": Valued()}, env=Comings, max_episode_length=6, **options)["x"]
        expected = np.where(batch.terminated, 0.0, 100.0 + batch.last_observations[:, 1])
        assert batch.last_values.tolist() == expected.tolist()
        assert (~batch.terminated).any()
        assert batch.terminated.any()
        assert batch.advantages().shape == (batch.n_timesteps,)


class Silent:
    """Hooks that do nothing."""

    def on_trajectory_end(self, context: Any) -> None:
        return


# --- Updates


def shifts(batch: MultiAgentBatch) -> dict[str, set[int]]:
    return {name: set(each.agent_infos["shift"].tolist()) for name, each in batch.policies.items()}


@pytest.mark.parametrize("make", [LocalSampler, MultiprocessingSampler])
def test_policies_are_updated_by_name_and_the_others_keep_what_they_have(make: Any) -> None:
    with make({"red": Chooser(), "blue": Chooser(1)}, everybody, seed=1, n_workers=2) as sampler:
        found = [
            shifts(sampler.obtain_trajectories(3, agent_update))
            for agent_update in (None, {"red": (2,)}, {"blue": (3,)}, {}, {"red": None}, {"red": (0,), "blue": (0,)})
        ]
    expected = [(0, 1), (2, 1), (2, 3), (2, 3), (2, 3), (0, 0)]
    assert found == [{"red": {red}, "blue": {blue}} for red, blue in expected]


def test_a_policy_may_be_replaced_by_name() -> None:
    class Constant:
        def get_action(self, observation: Any) -> Any:
            return 3, {"shift": 9}

    with LocalSampler({"red": Chooser(), "blue": Chooser(1)}, everybody, seed=1) as sampler:
        sampler.obtain_trajectories(1, {"red": (2,)})
        replaced = sampler.obtain_trajectories(2, {"red": Constant()})
        assert shifts(replaced) == {"red": {9}, "blue": {1}}
        with pytest.raises(UsageError, match=r"Constant\) has none.*agent_update\['red'\]"):
            sampler.obtain_trajectories(1, {"red": (1,)})
        assert shifts(sampler.obtain_trajectories(2, {"blue": (2,)})) == {"red": {9}, "blue": {2}}
        assert shifts(sampler.obtain_trajectories(2, {"red": Chooser(3)})) == {"red": {3}, "blue": {2}}
        assert shifts(sampler.obtain_trajectories(2, {"red": (1,)})) == {"red": {1}, "blue": {2}}


@pytest.mark.parametrize(
    ("update", "words"),
    [
        ({"green": (1,)}, "names the policies 'green', and there are 'red', 'blue'"),
        ((1,), "agent_update is a dict by policy name"),
        ({"red": object()}, r"agent_update\['red'\]"),
    ],
)
def test_updates_that_no_policy_takes(update: Any, words: str) -> None:
    with LocalSampler({"red": Chooser(), "blue": Chooser(1)}, everybody, seed=1) as sampler:
        with pytest.raises(UsageError, match=words):
            sampler.obtain_trajectories(1, update)
        assert shifts(sampler.obtain_trajectories(1)) == {"red": {0}, "blue": {1}}


def test_one_agent_for_all_takes_updates_as_ever() -> None:
    with LocalSampler(Chooser(), everybody, seed=1) as sampler:
        assert shifts(sampler.obtain_trajectories(1, (3,))) == {"shared": {3}}
        assert shifts(sampler.obtain_trajectories(1, Chooser(2))) == {"shared": {2}}


def test_an_update_that_fails_is_taken_back() -> None:
    class Picky(Chooser):
        def set_param_values(self, values: Any) -> None:
            if values == (9,):
                raise ValueError("not this")
            super().set_param_values(values)

    with LocalSampler({"red": Picky(), "blue": Chooser(1)}, everybody, seed=1) as sampler:
        sampler.obtain_trajectories(1, {"blue": (2,)})
        with pytest.raises(RolloutError, match="not this"):
            sampler.obtain_trajectories(1, {"red": (9,), "blue": (3,)})
        assert shifts(sampler.obtain_trajectories(1)) == {"red": {0}, "blue": {2}}


# --- Filters


@pytest.mark.parametrize("make", [LocalSampler, MultiprocessingSampler])
def test_each_policy_has_a_filter_of_its_own(make: Any) -> None:
    filters = {"observation_filter": {"red": RunningNorm()}, "reward_filter": {"blue": RunningReturnNorm()}}
    with make({"red": Chooser(), "blue": Chooser(1)}, Comings, seed=1, n_workers=2, **filters) as sampler:
        first, second = sampler.obtain_trajectories(4), sampler.obtain_trajectories(4)
        third = sampler.obtain_trajectories(4, {"red": (1,)}, Comings)
    statistics = RunningNorm().merge([RunningNorm().summarise(each.raw_observations) for each in first["red"]])
    assert second["red"].observations.tolist() == statistics.apply(second["red"].raw_observations).tolist()
    assert second["blue"].observations.tolist() == second["blue"].raw_observations.tolist()
    assert second["red"].rewards.tolist() == second["red"].raw_rewards.tolist()
    assert second["blue"].rewards.tolist() != second["blue"].raw_rewards.tolist()
    assert shifts(third) == {"red": {1}, "blue": {1}}
    with LocalSampler(Chooser(), Comings, seed=1, observation_filter=RunningNorm()) as sampler:
        batches = [sampler.obtain_trajectories(3) for _ in range(2)]
    statistics = RunningNorm().merge([RunningNorm().summarise(each.raw_observations) for each in batches[0]["shared"]])
    assert (
        batches[1]["shared"].observations.tolist() == statistics.apply(batches[1]["shared"].raw_observations).tolist()
    )


def test_the_agent_sees_what_its_filter_makes_of_observations() -> None:
    class Seeing:
        def get_action(self, observation: Any) -> Any:
            return 0, {"seen": np.array(observation)}

    with LocalSampler(
        {"red": Seeing(), "blue": Seeing()}, Comings, seed=1, observation_filter={"red": RunningNorm()}
    ) as sampler:
        sampler.obtain_trajectories(3)
        batch = sampler.obtain_trajectories(3)
    for each in batch.policies.values():
        assert each.agent_infos["seen"].tolist() == each.observations.tolist()
    assert batch["red"].observations.tolist() != batch["red"].raw_observations.tolist()


@pytest.mark.parametrize(
    "space",
    [
        spaces.Graph(spaces.Box(0, 1, (2,)), None),
        spaces.Sequence(spaces.Discrete(3)),
        spaces.OneOf([spaces.Discrete(3), spaces.Box(0, 1, (2,))]),
        spaces.Dict({"words": spaces.Text(5), "parts": spaces.Sequence(spaces.Box(0, 1, (2,)))}),
        spaces.Tuple([spaces.Discrete(3), spaces.Box(0, 1, (2,))]),
    ],
    ids=["graph", "sequence", "one of", "dict", "tuple"],
)
def test_observations_of_all_kinds_come_together(space: Any) -> None:
    class Other(Comings):
        def observation_space(self, agent: str) -> Any:
            return space

        def seen(self, agent: str) -> Any:
            space.seed(self.t)
            return space.sample()

    batch = sampled("random", lambda: Other(ALL))
    assert batch["shared"].n_timesteps == 3 * len(IDS) * 6


@pytest.mark.extras
@pytest.mark.core
@pytest.mark.parametrize("game", [Comings, Turns])
def test_modules_of_pytorch_draw_for_those_that_act(game: Any) -> None:
    """Where only some of the agents act together: others play, died, or come later."""
    torch = pytest.importorskip("torch")
    from streamsampler import evaluate
    from streamsampler.adapters.torch import TorchAgent

    torch.manual_seed(1)
    module = torch.nn.Linear(3, 4)
    agents = {"red": TorchAgent(module, spaces.Discrete(4)), "blue": "random"}
    batches = []
    for n_workers in (1, 2, 3):
        with MultiprocessingSampler(agents, game, seed=1, n_workers=n_workers) as sampler:
            batches.append(sampler.obtain_trajectories(12))
    assert batches[0] == batches[1] == batches[2]
    actions = batches[0]["red"].actions
    assert len(set(actions.tolist())) == 4
    values = evaluate({"red": module, "blue": module}, game, num_trajectories=10, seed=1, return_of="red").returns
    assert len(values) == 10


# --- One agent for all


def test_the_joint_view_of_the_guide_is_an_environment_of_one_agent():
    names: dict[str, Any] = {}
    for snippet in re.findall(r"```python\n(.*?)```", streamsampler.workers.several.__doc__ or "", re.DOTALL):
        exec(snippet.partition("\nwith ")[0], names)
    with LocalSampler("random", lambda: names["Joint"](names["Tag"]()), seed=1, max_episode_length=50) as sampler:
        batch = sampler.obtain_trajectories(3)
    assert list(batch.observations) == list(batch.actions) == ["it_0", "runner_0", "runner_1"]
    assert batch.lengths.tolist() == [50, 50, 50] or batch.terminated.any()
    assert set(batch.rewards.tolist()) == {0.0}  # who is caught loses what who catches wins
