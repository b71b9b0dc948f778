"""Which policy plays whom, how it is asked, and how it is updated."""

from __future__ import annotations

import copy
import pickle
import re
from collections import Counter
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces

import streamsampler
from streamsampler import MultiAgentBatch, RandomAgent, TrajectoryBatch, VecWorker
from streamsampler.agents.draws import Draws
from streamsampler.errors import RolloutError, UsageError
from streamsampler.filters import RunningNorm, RunningReturnNorm
from tests.documentation.blocks import DOCS, blocks
from tests.scripted.games import IDS, Chooser, Comings, Stay, Turns
from tests.several.comparing import ALL_LOOPS, ALL_WAYS, LocalSampler, sampled

MultiprocessingSampler: Any = streamsampler.MultiprocessingSampler


def everybody() -> Comings:
    return Comings({agent: Stay(0, 6) for agent in IDS})


def policies_of(batch: MultiAgentBatch) -> dict[str, list[Any]]:
    """Return which agents each policy played, by name."""
    return {name: sorted(set(each.agent_ids.tolist())) for name, each in batch.policies.items()}


# --- Who plays whom


@pytest.mark.parametrize(
    ("names", "policy_of", "expected"),
    [
        (["red", "blue"], None, {"red": ["red_0", "red_1"], "blue": ["blue_0", "blue_1"]}),
        (["red_0", "red", "blue"], None, {"red_0": ["red_0"], "red": ["red_1"], "blue": ["blue_0", "blue_1"]}),
        (["one"], None, {"one": sorted(IDS)}),
        ([], None, {"shared": sorted(IDS)}),
        ([], lambda agent, index: "shared", {"shared": sorted(IDS)}),
        (["x", "y"], dict(zip(IDS, "xyyx", strict=True)), {"x": ["blue_1", "red_0"], "y": ["blue_0", "red_1"]}),
        (["x", "y"], lambda agent, index: "xy"[agent[-1] == "0"], {"x": ["blue_1", "red_1"], "y": ["blue_0", "red_0"]}),
    ],
)  # fmt: skip
def test_who_plays_whom(names: list[str], policy_of: Any, expected: Any) -> None:
    agents = {name: Chooser() for name in names} or Chooser()
    assert policies_of(sampled(agents, everybody, policy_of=policy_of)) == expected


ASKED: Counter[Any] = Counter()


def noted_policy_of(agent: str, index: int) -> str:
    """Pickled by its name, so that it notes in this process what it is asked in the worker."""
    ASKED[agent, index] += 1
    return "xy"[index % 2]


@pytest.mark.parametrize("game", [Comings, Turns])
def test_it_is_asked_once_for_each_agent_and_trajectory(game: Any) -> None:
    ASKED.clear()
    batch = sampled({"x": Chooser(), "y": Chooser(1)}, game, n=4, check=None, policy_of=noted_policy_of)
    assert set(batch["x"].episode_numbers.tolist()) == {0, 2}
    assert set(batch["y"].episode_numbers.tolist()) == {1, 3}
    assert {ASKED[agent, index] for agent in batch.episodes.agent_ids for index in range(4)} == {1}


def test_spaces_of_agents_and_of_policies() -> None:
    class Spaced(Chooser):
        def set_spaces(self, observation_space: Any, action_space: Any) -> None:
            self.spaces = np.array([*observation_space.shape, action_space.n])

        def get_action(self, observation: Any) -> Any:
            return 0, {"spaces": self.spaces}

    class Uneven(Comings):
        def action_space(self, agent: str) -> Any:
            return spaces.Discrete(4 if agent != "blue_1" else 5)

    def by_index(agent: str, index: int) -> str:
        return "y" if (agent == "blue_1") == (index % 2 == 0) and agent in ("red_0", "blue_1") else f"other_{agent}"

    batch = sampled({"x": Spaced(), "y": Spaced()}, Uneven, policy_of=lambda agent, index: "xy"[agent == "blue_1"])
    for name, n in (("x", 4), ("y", 5)):
        assert batch[name].action_space.n == n
        assert set(map(tuple, batch[name].agent_infos["spaces"].tolist())) == {(3, n)}
    with pytest.raises(
        RolloutError, match=r"policy 'shared' plays 'red_0' and 'blue_1', whose spaces differ.*policy_of="
    ):
        sampled(Chooser(), Uneven)
    others = {"y": Chooser(), **{f"other_{agent}": Chooser() for agent in IDS}}
    with pytest.raises(RolloutError, match="policy 'y' plays 'blue_1' and 'red_0', whose spaces differ"):
        sampled(others, Uneven, policy_of=by_index)


class Kinds(Comings):
    """Has observations of any space, of which one agent has its own, and nested actions."""

    def __init__(self, space: Any) -> None:
        super().__init__({agent: Stay(0, 4 + number) for number, agent in enumerate(IDS)})
        self.actions = spaces.Dict({"x": spaces.Discrete(2), "y": spaces.Box(0, 1, (1,))})
        self.space, self.words = space, spaces.Text(5)

    def observation_space(self, agent: str) -> Any:
        return self.space if agent != "blue_1" else self.words

    def action_space(self, agent: str) -> Any:
        return self.actions

    def seen(self, agent: str) -> Any:
        space = self.observation_space(agent)
        space.seed(int(self.rng.integers(2**31)))
        return space.sample()

    def step(self, actions: Any) -> Any:
        assert all(self.actions.contains(action) for action in actions.values())
        return super().step(dict.fromkeys(actions, 0))


@pytest.mark.parametrize(
    "space",
    [
        spaces.Graph(spaces.Box(0, 1, (2,)), None),
        spaces.Sequence(spaces.Discrete(3)),
        spaces.OneOf([spaces.Discrete(3), spaces.Box(0, 1, (2,))]),
        spaces.Dict({"words": spaces.Text(5), "parts": spaces.Sequence(spaces.Box(0, 1, (2,)))}),
        spaces.Tuple([spaces.Box(0, 255, (40, 40, 3), np.uint8), spaces.MultiBinary(4)]),
    ],
)
@pytest.mark.parametrize("make", [LocalSampler, pytest.param(MultiprocessingSampler, marks=pytest.mark.slow)])
@pytest.mark.slow
def test_spaces_of_all_kinds(space: Any, make: Any) -> None:
    agents = {"x": "random", "blue_1": "random"}
    how: dict[str, Any] = {"seed": 1, "policy_of": dict(zip(IDS, ["x", "x", "x", "blue_1"], strict=True))}
    batch = sampled(agents, lambda: Kinds(space), **how)
    with make(agents, lambda: Kinds(space), n_workers=2, **how, **ALL_LOOPS[1]) as sampler:
        assert sampler.obtain_trajectories(3) == batch
    assert batch["x"].n_timesteps == 3 * (4 + 5 + 6)
    assert batch["blue_1"].observations.shape == (3 * 7,)
    assert batch["blue_1"].observations.dtype == object
    assert streamsampler.TrajectoryBatch.concatenate(batch.split()) == batch


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
    x = sampled({"x": Together()}, game)["x"]
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


class Places(Rows):
    """Is asked for all rows, whoever acts: it remembers by their places."""

    def get_actions(  # type: ignore[override]
        self, observations: Any, *, draws: Draws, seeds: Any, slots: Any
    ) -> Any:
        assert len(slots) == len(seeds) == len(observations) == len(IDS)
        return super().get_actions(observations, draws=draws, seeds=seeds)


@pytest.mark.parametrize(("game", "agent"), [(Comings, Rows()), (Turns, Rows()), (Comings, Places())])
def test_each_agent_has_draws_of_its_own_whoever_else_acts_when(game: Any, agent: Any) -> None:
    stays = {agent: Stay(0, 40) for agent in IDS}
    for batch in (sampled(agent, lambda: game(stays)), sampled(agent, game)):
        seeds = [int(each.agent_infos["seed"][0]) for each in batch["shared"]]
        assert len(set(seeds)) == len(seeds)
        for seed, each in zip(seeds, batch["shared"], strict=True):
            reference = Draws.of([seed])
            assert each.agent_infos["drawn"].tolist() == [float(reference.random()[0]) for _ in range(each.n_timesteps)]


class Starting:
    """Remembers by rows, and is told which begin."""

    def reset(self, seed: int) -> None:
        self.counts = np.zeros(0, dtype=np.int64)

    def get_action(self, observation: Any) -> Any:
        self.counts = np.ones(1, dtype=np.int64) + (self.counts if len(self.counts) else 0)
        return 0, {"n": int(self.counts[0]), "together": False}

    def get_actions(self, observations: Any, *, starts: Any) -> Any:
        if len(self.counts) != len(observations):
            self.counts = np.zeros(len(observations), dtype=np.int64)
        self.counts = np.where(starts, 0, self.counts) + 1
        n = len(observations)
        return np.zeros(n, dtype=np.int64), {"n": self.counts.copy(), "together": np.ones(n, dtype=np.bool_)}


@pytest.mark.parametrize(
    ("agent", "game", "together"),
    [(Starting(), everybody, True), (Starting(), Turns, False), (Chooser(), everybody, None)],
)
def test_a_policy_with_a_memory_remembers_each_agent_by_itself(agent: Any, game: Any, together: Any) -> None:
    for each in sampled({"x": agent}, game)["x"]:
        assert each.agent_infos["n"].tolist() == list(range(1, each.n_timesteps + 1))
        assert together is None or set(each.agent_infos["together"].tolist()) == {together}


class OneByOne(RandomAgent):
    get_actions = None  # type: ignore[assignment]


@pytest.mark.parametrize("game", [Comings, Turns])
def test_random_agents_play_the_same_alone_and_together(game: Any) -> None:
    assert sampled(RandomAgent(), game) == sampled(OneByOne(), game)


class Valued(Chooser):
    def get_action(self, observation: Any) -> Any:
        action, info = super().get_action(observation)
        return action, {**info, "value": float(observation[1])}

    def get_value(self, observation: Any) -> float:
        return 100.0 + float(observation[1])


@pytest.mark.parametrize("options", ALL_WAYS)
def test_the_last_value_of_an_agent_that_does_not_terminate(options: Any) -> None:
    batch = sampled({"x": Valued()}, max_episode_length=6, **options)["x"]
    expected = np.where(batch.terminated, 0.0, 100.0 + batch.last_observations[:, 1])
    assert batch.last_values.tolist() == expected.tolist()
    assert 0 < batch.terminated.sum() < len(batch)
    assert batch.advantages().shape == (batch.n_timesteps,)


# --- Updates


def shifts(batch: MultiAgentBatch) -> dict[str, set[int]]:
    return {name: set(each.agent_infos["shift"].tolist()) for name, each in batch.policies.items()}


class Picky(Chooser):
    def set_param_values(self, values: Any) -> None:
        if values == (9,):
            raise ValueError("not this")
        super().set_param_values(values)


class Constant:
    def get_action(self, observation: Any) -> Any:
        return 3, {"shift": 9}


# Each update in turn, and the shifts of red and blue after it; or the error, after which both stay what they were.
UPDATES: list[tuple[Any, Any]] = [
    (None, (0, 1)),
    ({"red": (2,)}, (2, 1)),
    ({"blue": (3,)}, (2, 3)),
    ({}, (2, 3)),
    ({"red": None}, (2, 3)),
    ({"green": (1,)}, (UsageError, "names the policies 'green', but the policies are 'red', 'blue'")),
    ((1,), (UsageError, "agent_update must be a dict by policy name")),
    ({"red": object()}, (UsageError, r"agent_update\['red'\]")),
    ({"red": (9,), "blue": (1,)}, (RolloutError, "not this")),
    (None, (2, 3)),
    ({"red": (0,), "blue": (0,)}, (0, 0)),
    ({"red": Constant()}, (9, 0)),
    ({"red": (1,)}, (UsageError, r"Constant\) has none.*agent_update\['red'\]")),
    ({"blue": (2,)}, (9, 2)),
    ({"red": Chooser(3)}, (3, 2)),
    ({"red": (1,)}, (1, 2)),
]


@pytest.mark.parametrize("make", [LocalSampler, MultiprocessingSampler])
def test_policies_are_updated_by_name_and_the_others_keep_what_they_have(make: Any) -> None:
    with make({"red": Picky(), "blue": Chooser(1)}, everybody, seed=1, n_workers=1) as sampler:
        for update, (one, other) in UPDATES:
            if isinstance(one, type):
                with pytest.raises(one, match=other):
                    sampler.obtain_trajectories(1, update)
            else:
                assert shifts(sampler.obtain_trajectories(1, update)) == {"red": {one}, "blue": {other}}
        with pickle.loads(pickle.dumps(sampler)) as copy:
            assert copy.obtain_trajectories(2, {"blue": (3,)}) == sampler.obtain_trajectories(2, {"blue": (3,)})
    with LocalSampler(Chooser(), everybody, seed=1) as sampler:  # one agent for all takes updates as ever
        assert shifts(sampler.obtain_trajectories(1, (3,))) == {"shared": {3}}
        assert shifts(sampler.obtain_trajectories(1, Chooser(2))) == {"shared": {2}}


# --- Filters


class Seeing(Chooser):
    def get_action(self, observation: Any) -> Any:
        action, info = super().get_action(observation)
        return action, {**info, "seen": np.array(observation)}


@pytest.mark.parametrize("make", [LocalSampler, MultiprocessingSampler])
def test_each_policy_has_a_filter_of_its_own(make: Any) -> None:
    filters = {"observation_filter": {"red": RunningNorm()}, "reward_filter": {"blue": RunningReturnNorm()}}
    with make({"red": Seeing(), "blue": Seeing()}, Comings, seed=1, n_workers=2, **filters) as sampler:
        first, second = sampler.obtain_trajectories(4), sampler.obtain_trajectories(4)
        assert shifts(sampler.obtain_trajectories(4, {"red": (1,)}, Comings)) == {"red": {1}, "blue": {0}}
    red, blue = second["red"], second["blue"]
    statistics = RunningNorm().merge([RunningNorm().summarise(each.raw_observations) for each in first["red"]])
    assert red.observations.tolist() == statistics.apply(red.raw_observations).tolist() != red.raw_observations.tolist()
    assert blue.observations.tolist() == blue.raw_observations.tolist()
    assert red.rewards.tolist() == red.raw_rewards.tolist()
    assert blue.rewards.tolist() != blue.raw_rewards.tolist()
    for each in (red, blue):
        assert each.agent_infos["seen"].tolist() == each.observations.tolist()


def test_one_filter_for_all_where_one_agent_plays_all() -> None:
    with LocalSampler(Chooser(), Comings, seed=1, observation_filter=RunningNorm()) as sampler:
        first, second = (sampler.obtain_trajectories(3)["shared"] for _ in range(2))
    statistics = RunningNorm().merge([RunningNorm().summarise(each.raw_observations) for each in first])
    assert second.observations.tolist() == statistics.apply(second.raw_observations).tolist()


@pytest.mark.extras
@pytest.mark.core
@pytest.mark.parametrize("game", [Comings, Turns])
def test_modules_of_pytorch_draw_for_those_that_act(game: Any) -> None:
    """Where only some of the agents act together: others play, died, or come later."""
    torch = pytest.importorskip("torch")
    from streamsampler.adapters.torch import TorchAgent

    torch.manual_seed(1)
    module = torch.nn.Linear(3, 4)
    agents = {"red": TorchAgent(module, spaces.Discrete(4)), "blue": "random"}
    with MultiprocessingSampler(agents, game, seed=1, n_workers=2) as sampler:
        batch = sampler.obtain_trajectories(12)
    assert batch == sampled(agents, game, n=12)
    assert len(set(batch["red"].actions.tolist())) == 4
    how: dict[str, Any] = {"num_trajectories": 2, "seed": 1, "n_workers": 0, "return_of": "red"}
    assert len(streamsampler.evaluate({"red": module, "blue": module}, game, **how)) == 2


# --- One agent for all


def test_the_joint_view_of_the_guide_is_an_environment_of_one_agent() -> None:
    names: dict[str, Any] = {}
    for block in blocks((DOCS / "several-agents.md").read_text()):
        exec("\n".join(re.findall(r"^(?:from|import) (?!tag).*", block.code, re.MULTILINE)), names)
        if "class Tag:" in block.code or "class Joint(" in block.code:
            exec(block.code.partition("\nwith ")[0], names)
    joint, tag = names["Joint"], names["Tag"]
    batch = sampled("random", lambda: joint(tag()), max_episode_length=50)
    assert list(batch.observations) == list(batch.actions) == ["it_0", "runner_0", "runner_1"]
    assert batch.lengths.tolist() == [50, 50, 50] or batch.terminated.any()


@pytest.mark.parametrize(
    "name", ["observations", "last_observations", "actions", "raw_observations", "next_observations"]
)
def test_what_only_a_policy_has_is_an_error_that_says_where_it_is(name: str) -> None:
    batch = sampled()
    words = rf"a batch of several agents has no {name}: use batch\['blue'\].{name}, batch\['red'\].{name}"
    with pytest.raises(AttributeError, match=words):
        getattr(batch, name)
    assert not hasattr(batch, name)
    assert len(getattr(batch["red"], name)) > 0
    for copied in (copy.deepcopy(batch), pickle.loads(pickle.dumps(batch)), TrajectoryBatch.concatenate(batch.split())):
        assert copied == batch
        assert not hasattr(copied, name)


@pytest.mark.parametrize("kind", [{}, {"worker_class": VecWorker, "worker_args": {"n_envs": 2}}])
def test_an_agent_that_comes_again_has_its_own_parameters(kind: Any) -> None:
    """Not those that the policy was given in between."""
    with LocalSampler({"x": Chooser()}, Comings, seed=1, **kind) as sampler:
        shifts = [
            set(sampler.obtain_trajectories(2, agent_update=update)["x"].agent_infos["shift"].tolist())
            for update in ({"x": Chooser(1)}, {"x": (3,)}, {"x": Chooser(1)}, None)
        ]
    assert shifts == [{1}, {3}, {1}, {1}]
