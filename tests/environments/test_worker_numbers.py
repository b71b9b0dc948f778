"""Telling functions that make environments which worker they work for."""

import functools

import gymnasium
import pytest

from streamsampler import LocalSampler, MultiprocessingSampler, NewEnvUpdate, SetTaskUpdate, VecWorker
from streamsampler.environments.updates import SpecEnvUpdate, as_env_update, for_worker, with_worker_number
from streamsampler.testing import Fault, Faults


class Numbered(gymnasium.Env):
    """Tells its number in its observations."""

    observation_space = gymnasium.spaces.Discrete(100)
    action_space = gymnasium.spaces.Discrete(2)

    def __init__(self, worker_number=77, task=0):
        self.number, self.task = worker_number, task

    def set_task(self, task):
        self.task = task

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return self.number, {}

    def step(self, action):
        return self.number, 0.0, True, False, {}


def positional(worker_number, /):
    return worker_number


class Called:
    def __call__(self, *, worker_number):
        return worker_number


@pytest.mark.parametrize(
    ("factory", "arguments", "given"),
    [
        (lambda: 0, {}, {}),
        (lambda worker_number: 0, {}, {"worker_number": 3}),
        (lambda *, size, worker_number=5: 0, {"size": 2}, {"size": 2, "worker_number": 3}),
        (lambda worker_number: 0, {"worker_number": 9}, {"worker_number": 9}),
        (lambda **more: 0, {}, {}),
        (lambda number: 0, {"number": 1}, {"number": 1}),
        (positional, {}, {}),
        (Called(), {}, {"worker_number": 3}),
        (Numbered, {"task": 1}, {"task": 1, "worker_number": 3}),
        (functools.partial(Numbered, task=1), {}, {"worker_number": 3}),
        (functools.partial(Numbered, worker_number=8), {}, {}),
        (functools.partial(Numbered, 8), {}, {}),
        (dict, {}, {}),
    ],
)
def test_who_has_a_parameter_for_it_is_given_the_number(factory, arguments, given):
    with for_worker(3):
        assert with_worker_number(factory, arguments) == given


def test_outside_workers_the_number_is_0():
    with for_worker(3):
        pass
    assert NewEnvUpdate(Numbered)(None).number == 0  # type: ignore[attr-defined]


def test_an_ids_entry_point_is_given_it():
    gymnasium.register("Numbered-v3", entry_point=Numbered, kwargs={"task": 4})  # type: ignore[arg-type]
    try:
        update = as_env_update("Numbered-v3")
        assert isinstance(update, SpecEnvUpdate)
        with for_worker(3):
            env = update(None)
        assert (env.unwrapped.number, env.unwrapped.task) == (3, 4)  # type: ignore[attr-defined]
        with for_worker(3):
            assert as_env_update("Numbered-v3", env_kwargs={"worker_number": 6})(None).unwrapped.number == 6  # type: ignore[attr-defined]
    finally:
        del gymnasium.registry["Numbered-v3"]


def numbers(sampler, **update):
    """The workers' numbers, as the environments of each worker tell them."""
    return sampler.obtain_exact_trajectories(2, **update).observations.tolist()


@pytest.mark.parametrize("make", [LocalSampler, MultiprocessingSampler])
@pytest.mark.parametrize(
    "vec",
    [
        pytest.param({}, id=""),
        pytest.param({"worker_class": VecWorker, "worker_args": {"n_envs": 2}}, marks=pytest.mark.slow, id="vec"),
    ],
)
def test_each_worker_has_its_number(make, vec, tmp_path):
    agents = [lambda _: 0] * 3  # one for each worker: then each has trajectories that no other one runs
    with make(agents, Numbered, n_workers=3, check=None, **vec) as sampler:
        assert numbers(sampler) == [0, 0, 1, 1, 2, 2]
        assert numbers(sampler, env_update=NewEnvUpdate(Numbered, {"worker_number": 9})) == [9] * 6
        assert numbers(sampler, env_update=SetTaskUpdate(Numbered, 1)) == [0, 0, 1, 1, 2, 2]
        assert numbers(sampler, env_update=SetTaskUpdate(Numbered, 2)) == [0, 0, 1, 1, 2, 2]


@pytest.mark.slow
def test_a_worker_in_the_place_of_a_lost_one_has_its_number(tmp_path):
    faults = Faults(tmp_path, Fault("kill", "reset"))
    with MultiprocessingSampler([lambda _: 0] * 2, faults.env(Numbered), check=None) as sampler:
        assert numbers(sampler) == [0, 0, 1, 1]
        assert sampler.stats.restarts == 1
