"""An agent in the sampler's process, and environments in processes of `multiprocessing`: batches, losses and ends."""

import contextlib
import functools
import multiprocessing
import os
import pickle
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

from streamsampler import Limits, LocalSampler, MultiprocessingSampler, NewEnvUpdate, VecWorker
from streamsampler.errors import WorkerHungError
from streamsampler.stepping.carried_values import packed_result, put_actions, step_frame, unpacked_result
from streamsampler.stepping.frames import split
from streamsampler.stepping.rows import EnvSpaces, Rows
from streamsampler.testing import Fault, Faults, ScriptedEnv
from tests.contracts.conftest import NOTHING, Traces
from tests.patience import PATIENCE
from tests.scripted.agents import Rowwise
from tests.stepping.conftest import kill
from tests.tiers import mostly_slow

METHODS = mostly_slow(["fork", "forkserver", "spawn"])
SEED = 71
SHORT = {"id": "CartPole-v1", "max_episode_steps": 5}


def in_parent(env: Any, start_method: str, **options: Any) -> Any:
    how = {"inference": "parent", "engine": "queues", "start_method": start_method}
    options = {"seed": SEED, "check": None, "worker_args": {"n_envs": 3}, "n_workers": 2, **how, **options}
    return MultiprocessingSampler(Rowwise(), env, **options)


def calls(sampler: Any) -> Any:
    yield sampler.obtain_trajectories(7)
    yield sampler.obtain_fragments(5, 3)
    yield sampler.obtain_samples(60, agent_update=np.array([0.1, 0.5, 3.0, 2.0]))
    yield sampler.obtain_trajectories(3, env_update=NewEnvUpdate(gymnasium.make, SHORT))
    yield sampler.obtain_trajectories(7)


def expected(env: Any, these: Any = calls) -> list[Any]:
    with LocalSampler(
        Rowwise(), env, worker_class=VecWorker, worker_args={"n_envs": 3}, seed=SEED, check=None
    ) as sampler:
        return [*these(sampler)]


@pytest.fixture
def nothing_left(request: pytest.FixtureRequest) -> Any:
    """A resource tracker, a fork server and memory for shared arrays belong to this process: they are there before."""
    method = request.node.callspec.params["method"]
    multiprocessing.RawArray("c", 1)
    if method != "fork":
        with in_parent("CartPole-v1", method, n_workers=1) as sampler:
            sampler.obtain_trajectories(1)
    before = Traces()
    yield
    assert Traces().since(before) == NOTHING


class Forking(gymnasium.Wrapper):
    """Lets a copy of its process come back into the worker's own code, once; never of the process of the tests."""

    def __init__(self, file: Path, tests: int) -> None:
        super().__init__(gymnasium.make("CartPole-v1"))
        self.file, self.tests = file, tests

    def step(self, action: Any) -> Any:
        assert os.getpid() != self.tests
        with contextlib.suppress(FileExistsError):
            os.close(os.open(self.file, os.O_CREAT | os.O_EXCL))
            os.fork()
        return super().step(action)


@pytest.mark.slow
@pytest.mark.usefixtures("nothing_left")
@pytest.mark.parametrize("method", METHODS)
def test_batches_are_those_of_vec_worker_whoever_dies_or_hangs(method, tmp_path):
    faults = Faults(
        tmp_path,
        Fault("kill", trajectory=2, step=4),
        Fault("hang", trajectory=4, step=2),
        Fault("exit", trajectory=6),
        seed=SEED,
    )
    env = faults.env(lambda: gymnasium.make("CartPole-v1"))
    with in_parent(env, method, max_restarts=None, step_timeout=1.0) as sampler:
        for seen, wanted in zip(calls(sampler), expected("CartPole-v1"), strict=True):
            assert seen == wanted
            if seen.lengths.max() <= SHORT["max_episode_steps"]:
                kill(sampler)  # what is started in their place has the environments of the last update
        assert faults.fired() == 3
        assert sampler.stats.restarts >= 3
        assert sampler.stats.hangs >= 1


@pytest.mark.slow
@pytest.mark.parametrize("method", METHODS)
def test_the_error_of_one_that_hangs_has_its_stack(method, tmp_path):
    faults = Faults(tmp_path, Fault("hang", step=3))
    env = faults.env(lambda: gymnasium.make("CartPole-v1"))
    with (
        in_parent(
            env, method, max_restarts=0, step_timeout=1.0, limits=Limits(construction_timeout=PATIENCE)
        ) as sampler,
        pytest.raises(WorkerHungError) as caught,
    ):
        sampler.obtain_trajectories(7)
    assert "streamsampler/testing/faults.py" in caught.value.stack


@pytest.mark.slow
@pytest.mark.parametrize("method", METHODS)
@pytest.mark.usefixtures("nothing_left")
def test_a_copy_that_an_environment_makes_of_its_worker_ends(method, tmp_path):
    with in_parent(functools.partial(Forking, tmp_path / "forked", os.getpid()), method) as sampler:
        seen = [*calls(sampler)]
    assert (tmp_path / "forked").exists()
    assert seen == expected("CartPole-v1")


SPACES = [
    spaces.Discrete(5),
    spaces.Box(-9, 9, (2, 3), np.float32),
    spaces.Dict({"a": spaces.Box(-1, 1, (), np.float64), "b": spaces.Tuple([spaces.MultiBinary(4), spaces.Text(5)])}),
]


@pytest.mark.parametrize("differ", [False, True], ids=["of one layout", "of different layouts"])
@pytest.mark.parametrize("space", SPACES, ids=["number", "array", "nested"])
def test_messages_bring_all_that_lies_in_rows(space, differ):
    pairs = EnvSpaces([(space, space), (spaces.Box(0, 1, (7,)), spaces.Discrete(2)) if differ else (space, space)])
    parent, worker = (Rows(pairs, np.zeros, is_shared=False) for _ in range(2))
    space.seed(3)
    first, last, action = (space.sample() for _ in range(3))

    def equal(one: Any, other: Any) -> bool:
        return repr(one) == repr(other)

    assert parent.action_values.put_exactly(0, 0, action)
    parent.seeds[0] = 2**40
    what, env_ids, carried, _ = pickle.loads(split(step_frame(parent, [0], together=True))[1])
    put_actions(worker, env_ids, carried)
    assert (what, env_ids, worker.seeds[0]) == ("step", [0], 2**40)
    assert equal(worker.action(0), parent.action(0))

    worker.put_last_observation(0, last)
    worker.put_observation(1, 0, first)
    worker.slots[0], worker.rewards[0], worker.truncated[0], worker.parameters[0] = 1, 0.1, True, 4
    assert unpacked_result(parent, 0, packed_result(worker, 0, {"lap": 3})) == {"lap": 3}
    assert equal(parent.observation(0), worker.observation(0))
    assert equal(parent.last_values.taken(0, [0]), worker.last_values.taken(0, [0]))
    numbers = parent.slots[0], parent.rewards[0], parent.terminated[0], parent.truncated[0], parent.parameters[0]
    assert numbers == (1, 0.1, False, True, 4)


@pytest.mark.slow
@pytest.mark.parametrize("method", METHODS)
def test_large_observations_and_infos(method):
    """They are larger than what a pipe holds."""

    def env() -> Any:
        return ScriptedEnv(length=(2, 9), shape=(60_000,))

    def some(sampler: Any) -> Any:
        yield sampler.obtain_trajectories(9)

    class Constant:
        row_independent = True

        def get_actions(self, observations: Any) -> Any:
            return np.zeros(len(observations), np.int64), {}

    options: dict[str, Any] = {"seed": SEED, "check": None, "worker_args": {"n_envs": 3}}
    how: dict[str, Any] = {"inference": "parent", "engine": "queues", "start_method": method}
    with (
        LocalSampler(Constant(), env, worker_class=VecWorker, **options) as one,
        MultiprocessingSampler(Constant(), env, n_workers=2, **options, **how) as other,
    ):
        assert [*some(other)] == [*some(one)]
