"""One item for each worker: said explicitly, so that a list of parameters is never dealt out."""

import pickle
import re
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
        return 0, {}

    def step(self, action):
        self.t += 1
        return 0, 0.0, self.t == self.length, False, {}


def three():
    return Two(3)


@pytest.fixture(scope="module", params=[LocalSampler, MultiprocessingSampler], ids=["local", "processes"])
def sampler(request):
    with request.param(Linear(1.0), Two, n_workers=2, seed=0) as sampler:
        yield sampler


def actions_by_worker(batch):
    return [sorted(set(trajectory.actions.tolist())) for trajectory in batch]


W, B = np.full(2, 2.0), np.full(1, 3.0)
LISTS: dict[str, Any] = {
    "arrays": [W, B],
    "tuples": [(W, B), (W, B)],
    "dicts": [{"w": W}, {"w": B}],
    "numbers": [1.0, 2.0],
    "lists": [[W], [B]],
    "agents and parameters": [Linear(1.0), (W, B)],
    "agents and None": [Linear(1.0), None],
    "nothing": [],
    "one array": [W],
    "classes": [Linear, Linear],
    "PerWorkers": [PerWorker([W]), PerWorker([B])],
}


@pytest.mark.parametrize("update", LISTS.values(), ids=LISTS)
def test_a_list_that_may_be_one_set_of_parameters_is_refused(sampler, update):
    sampler.obtain_trajectories(2, agent_update=(5.0,))
    version = sampler.agent_version
    for obtain in (
        lambda: sampler.obtain_trajectories(2, agent_update=update),
        lambda: sampler.obtain_samples(2, agent_update=update),
        lambda: sampler.obtain_exact_trajectories(2, agent_update=update),
        lambda: sampler.stream(agent_update=update),
    ):
        with pytest.raises(UsageError, match=r"agent_update is a list .*tuple\(.*\).*PerWorker\(\["):
            obtain()
    assert sampler.agent_version == version
    assert actions_by_worker(sampler.obtain_trajectories(2)) == [[5.0], [5.0]]


def test_the_ways_out_do_what_the_error_says(sampler):
    assert actions_by_worker(sampler.obtain_trajectories(4, agent_update=tuple(LISTS["arrays"]))) == 4 * [[7.0]]
    assert actions_by_worker(sampler.obtain_trajectories(4, agent_update=PerWorker([(W,), (B,)]))) == 2 * [[4.0], [3.0]]


def test_what_is_given_for_each_worker(sampler):
    batch = sampler.obtain_trajectories(4, agent_update=PerWorker([Linear(8.0), (9.0,)]))
    assert actions_by_worker(batch) == 2 * [[8.0], [9.0]]
    batch = sampler.obtain_trajectories(4, agent_update=PerWorker([None, (10.0,)]), env_update=PerWorker([None, three]))
    assert actions_by_worker(batch) == 2 * [[8.0], [10.0]]
    assert batch.lengths.tolist() == [2, 3, 2, 3]
    batch = sampler.obtain_trajectories(2, agent_update=[Linear(1.0), Linear(2.0)])
    assert actions_by_worker(batch) == [[1.0], [2.0]]
    batch = sampler.obtain_trajectories(
        2, agent_update=PerWorker([{"a": W}, Linear(B)]), env_update=[SetTaskUpdate(Two, 4), SetTaskUpdate(Two, 5)]
    )
    assert actions_by_worker(batch) == [[4.0], [3.0]]
    assert batch.lengths.tolist() == [4, 5]
    batch = sampler.obtain_trajectories(2, agent_update=(1.0,), env_update=Two)
    assert actions_by_worker(batch) == [[1.0], [1.0]]


def test_plain_functions_in_a_list_are_agents(sampler):
    batch = sampler.obtain_trajectories(2, agent_update=[lambda observation: 11.0, lambda observation: 12.0])
    assert actions_by_worker(batch) == [[11.0], [12.0]]
    sampler.obtain_trajectories(2, agent_update=Linear(1.0))


@pytest.mark.parametrize("each", [list, PerWorker], ids=["list", "PerWorker"])
def test_agents_and_environments_take_either(each):
    agents, envs = each([Linear(1.0), Linear(2.0)]), each([Two, three])
    with LocalSampler(agents, envs, seed=1) as sampler:
        assert sampler.n_workers == 2
        batch = sampler.obtain_trajectories(2)
        assert actions_by_worker(batch) == [[1.0], [2.0]]
        assert batch.lengths.tolist() == [2, 3]
        sampler.obtain_trajectories(2, agent_update=PerWorker([(5.0,), None]))
        with pickle.loads(pickle.dumps(sampler)) as copy:
            assert copy.policy_names == ()
            assert actions_by_worker(copy.obtain_trajectories(2)) == [[5.0], [2.0]]


def test_the_wrong_number_of_items_shows_both(sampler):
    for update in (PerWorker([(1.0,)]), [Linear(1.0)] * 3):
        with pytest.raises(ValueError, match=rf"agent_update has {len(update)} items?, but there are 2 workers"):
            sampler.obtain_samples(1, agent_update=update)
    with pytest.raises(ValueError, match="env_update has 3 items, but there are 2 workers"):
        sampler.obtain_samples(1, env_update=PerWorker([Two] * 3))
    with pytest.raises(ValueError, match="envs has 3 items, but there are 2 workers"):
        LocalSampler(Linear(), PerWorker([Two] * 3), n_workers=2)
    with pytest.raises(ValueError, match="agents has 1 item, but there are 2 workers"):
        LocalSampler([Linear()], Two, n_workers=2)


def test_an_item_that_is_nothing_of_the_kind_is_refused():
    with pytest.raises(UsageError, match="this NoneType is neither"):
        LocalSampler(PerWorker([Linear(1.0), None]), Two)
    with pytest.raises(TypeError, match="this is a int"):
        LocalSampler(Linear(1.0), PerWorker([Two, 3]))


def test_items_in_no_order_are_refused():
    for items in ({"a": 1}, {1, 2}, "ab", b"ab", 3, None, PerWorker([1])):
        with pytest.raises(UsageError, match=f"PerWorker takes a list .*, not a {type(items).__qualname__}"):
            PerWorker(items)  # type: ignore[arg-type]


def test_is_a_sequence_of_its_items():
    each = PerWorker(iter([1, 2, 3]))
    assert (len(each), list(each), each[1], repr(each)) == (3, [1, 2, 3], 2, "PerWorker([1, 2, 3])")
    assert pickle.loads(pickle.dumps(each)).items == each.items
    rows = PerWorker(np.eye(2))
    assert [row.tolist() for row in rows] == [[1.0, 0.0], [0.0, 1.0]]
    assert items_by_worker(each) == [1, 2, 3]
    assert items_by_worker((1, 2)) is None


def test_the_error_names_the_item_that_is_no_agent():
    with LocalSampler(Linear(1.0), Two, n_workers=2) as sampler:
        with pytest.raises(UsageError, match=re.escape("its item 1, a dict, is no agent")):
            sampler.obtain_samples(1, agent_update=[Linear(1.0), {}])
        with pytest.raises(UsageError, match="it is empty"):
            sampler.obtain_samples(1, agent_update=[])


class Three(Two):
    observation_space = spaces.Discrete(4)


@pytest.mark.parametrize("kind", [LocalSampler, pytest.param(MultiprocessingSampler, marks=pytest.mark.slow)])
def test_environments_of_different_spaces_make_no_batch(kind):
    with kind(Linear(1.0), [Two, Three], n_workers=2, seed=0) as sampler:
        words = r"must have the same spaces: worker 0 has Discrete\(3\) .*, worker 1 has Discrete\(4\)"
        for call in (sampler.obtain_trajectories, sampler.obtain_samples):
            with pytest.raises(DataError, match=words):
                call(4)
        assert sampler.obtain_trajectories(4, env_update=Two).observation_space == Two.observation_space


def test_the_first_batch_of_other_spaces_is_refused_although_the_rows_go_together():
    """Large rows are copied before the batch is complete."""

    class Wide(Two):
        observation_space = spaces.Box(0, 1, (2000,), np.float32)

        def reset(self, *, seed=None, options=None):
            super().reset(seed=seed)
            return np.zeros(self.observation_space.shape, np.float32), {}

        def step(self, action):
            return np.zeros(self.observation_space.shape, np.float32), *super().step(action)[1:]

    class Wider(Wide):
        observation_space = spaces.Box(0, 1, (3000,), np.float32)

    with LocalSampler(Linear(1.0), [Wide, Wider, Wide], n_workers=3, seed=0) as sampler:
        with pytest.raises(DataError, match="must have the same spaces"):
            sampler.obtain_trajectories(9)
        assert sampler.obtain_trajectories(9, env_update=Wider).observations.shape == (18, 3000)
