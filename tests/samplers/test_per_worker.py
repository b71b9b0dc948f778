"""One item for each worker: said explicitly, so that a list of parameters is never dealt out."""

import pickle
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

from streamsampler import LocalSampler, MultiprocessingSampler, PerWorker, SetTaskUpdate
from streamsampler.errors import DataError, UsageError
from streamsampler.samplers.per_worker import items_by_worker


class Linear:
    """Shows its parameters: acts with their sum."""

    def __init__(self, *parameters):
        self.parameters = parameters

    def get_action(self, observation):
        return float(sum(np.sum(part) for part in self.parameters)), {}

    def set_param_values(self, parameters):
        self.parameters = tuple(parameters.values()) if isinstance(parameters, dict) else parameters


class Two(gymnasium.Env):
    observation_space: Any = spaces.Discrete(3)
    action_space = spaces.Box(-1000, 1000, (), dtype=np.float64)

    def __init__(self, length=2):
        self.length = length

    def set_task(self, length):
        self.length = length

    def reset(self, *, seed=None, options=None):
        self.t = 0
        return self.observation_space.sample(), {}

    def step(self, action):
        self.t += 1
        return self.observation_space.sample(), 0.0, self.t == self.length, False, {}


def three():
    return Two(3)


def wide(n):
    """Make an environment with rows so large that they are copied before the batch is complete."""
    env = Two()
    env.observation_space = spaces.Box(0, 1, (n,), np.float32)
    return env


def make(kind=LocalSampler, agents=None, envs=Two, n_workers=2):
    return kind(agents or Linear(1.0), envs, n_workers=n_workers, seed=0, check=None)


def actions_by_worker(batch):
    return [sorted(set(trajectory.actions.tolist())) for trajectory in batch]


W, B = np.full(2, 2.0), np.full(1, 3.0)
LISTS: list[Any] = [
    *([W, B], [(W, B), (W, B)], [{"w": W}, {"w": B}], [1.0, 2.0], [[W], [B]], [Linear(1.0), (W, B)]),
    *([Linear(1.0), None], [], [W], [Linear, Linear], [PerWorker([W]), PerWorker([B])]),
]


def test_a_list_that_may_be_one_set_of_parameters_is_refused():
    with make() as sampler:
        sampler.obtain_trajectories(2, agent_update=(5.0,))
        for update in LISTS:
            with pytest.raises(UsageError, match=r"agent_update is an ambiguous list .*tuple.*PerWorker\(\["):
                sampler.obtain_trajectories(2, agent_update=update)
        for obtain in (sampler.obtain_samples, sampler.obtain_exact_trajectories):
            with pytest.raises(UsageError, match="agent_update is an ambiguous list"):
                obtain(2, agent_update=LISTS[0])
        with pytest.raises(UsageError, match="agent_update is an ambiguous list"):
            sampler.stream(agent_update=LISTS[0])
        for update, words in [([Linear(1.0), {}], "its item 1, a dict, is not an agent"), ([], "it is empty")]:
            with pytest.raises(UsageError, match=words):
                sampler.obtain_samples(1, agent_update=update)
        assert sampler.agent_version == 1
        assert actions_by_worker(sampler.obtain_trajectories(2)) == [[5.0], [5.0]]


@pytest.mark.parametrize("kind", [LocalSampler, MultiprocessingSampler])
def test_what_is_given_for_each_worker(kind):
    steps: list[tuple[dict[str, Any], list[float], list[int]]] = [
        ({"agent_update": (W, B)}, [7.0, 7.0], [2, 2]),
        ({"agent_update": PerWorker([(W,), (B,)])}, [4.0, 3.0], [2, 2]),
        ({"agent_update": PerWorker([Linear(8.0), (9.0,)])}, [8.0, 9.0], [2, 2]),
        (
            {"agent_update": PerWorker([None, (10.0,)]), "env_update": PerWorker([None, three])},
            [8.0, 10.0],
            [2, 3],
        ),
        ({"agent_update": [Linear(1.0), Linear(2.0)]}, [1.0, 2.0], [2, 3]),
        (
            {
                "agent_update": PerWorker([{"a": W}, Linear(B)]),
                "env_update": [SetTaskUpdate(Two, 4), SetTaskUpdate(Two, 5)],
            },
            [4.0, 3.0],
            [4, 5],
        ),
        ({"agent_update": (1.0,), "env_update": Two}, [1.0, 1.0], [2, 2]),
        ({"agent_update": [lambda observation: 11.0, lambda observation: 12.0]}, [11.0, 12.0], [2, 2]),
    ]
    with make(kind) as sampler:
        for updates, actions, lengths in steps:
            batch = sampler.obtain_trajectories(4, **updates)
            assert actions_by_worker(batch) == [[action] for action in actions * 2]
            assert batch.lengths.tolist() == lengths * 2


@pytest.mark.parametrize("each", [list, PerWorker], ids=["list", "PerWorker"])
def test_agents_and_environments_take_either(each):
    with LocalSampler(each([Linear(1.0), Linear(2.0)]), each([Two, three]), seed=1) as sampler:
        assert sampler.n_workers == 2
        batch = sampler.obtain_trajectories(2)
        assert (actions_by_worker(batch), batch.lengths.tolist()) == ([[1.0], [2.0]], [2, 3])
        sampler.obtain_trajectories(2, agent_update=PerWorker([(5.0,), None]))
        with pickle.loads(pickle.dumps(sampler)) as copy:
            assert copy.policy_names == ()
            assert actions_by_worker(copy.obtain_trajectories(2)) == [[5.0], [2.0]]


def test_wrong_items_are_refused():
    with make() as sampler:
        for update in (PerWorker([(1.0,)]), [Linear(1.0)] * 3):
            with pytest.raises(ValueError, match=rf"agent_update has {len(update)} items?, but there are 2 workers"):
                sampler.obtain_samples(1, agent_update=update)
        with pytest.raises(ValueError, match="env_update has 3 items, but there are 2 workers"):
            sampler.obtain_samples(1, env_update=PerWorker([Two] * 3))
    wrong: list[tuple[Any, type[Exception], str]] = [
        ((Linear(), PerWorker([Two] * 3)), ValueError, "envs has 3 items, but there are 2 workers"),
        (([Linear()], Two), ValueError, "agents has 1 item, but there are 2 workers"),
        ((PerWorker([Linear(1.0), None]), Two), UsageError, "this NoneType is neither"),
        ((Linear(1.0), PerWorker([Two, 3])), TypeError, "this is a int"),
    ]
    for (agents, envs), error, words in wrong:
        with pytest.raises(error, match=words):
            make(agents=agents, envs=envs)
    for items in ({"a": 1}, {1, 2}, "ab", b"ab", 3, None, PerWorker([1])):
        with pytest.raises(UsageError, match=f"PerWorker takes a list .*, not a {type(items).__qualname__}"):
            PerWorker(items)  # type: ignore[arg-type]


def test_is_a_sequence_of_its_items():
    each = PerWorker(iter([1, 2, 3]))
    assert (len(each), list(each), each[1], repr(each)) == (3, [1, 2, 3], 2, "PerWorker([1, 2, 3])")
    assert pickle.loads(pickle.dumps(each)).items == each.items
    assert [row.tolist() for row in PerWorker(np.eye(2))] == [[1.0, 0.0], [0.0, 1.0]]
    assert (items_by_worker(each), items_by_worker((1, 2))) == ([1, 2, 3], None)


class Three(Two):
    observation_space = spaces.Discrete(4)


@pytest.mark.parametrize("kind", [LocalSampler, pytest.param(MultiprocessingSampler, marks=pytest.mark.slow)])
def test_environments_of_different_spaces_make_no_batch(kind):
    words = r"must have the same spaces, but worker 0 has Discrete\(3\) .*, worker 1 has Discrete\(4\)"
    with make(kind, envs=[Two, Three]) as sampler:
        for call in (sampler.obtain_trajectories, sampler.obtain_samples):
            with pytest.raises(DataError, match=words):
                call(4)
        assert sampler.obtain_trajectories(4, env_update=Two).observation_space == Two.observation_space
    with make(kind, envs=[lambda: wide(2000), lambda: wide(3000), lambda: wide(2000)], n_workers=3) as sampler:
        with pytest.raises(DataError, match="must have the same spaces"):
            sampler.obtain_trajectories(9)
        assert sampler.obtain_trajectories(9, env_update=lambda: wide(3000)).observations.shape == (18, 3000)
