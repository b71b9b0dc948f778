"""What the samplers make of their arguments, and the ways in which a user may call them."""

import dataclasses
import functools
import gc
import os
import pickle
import random
import re
import subprocess
import sys
import textwrap
import threading
import types
from typing import Any

import gymnasium
import numpy as np
import pytest
import setproctitle

from streamsampler import (
    DefaultWorker,
    LocalSampler,
    MultiprocessingSampler,
    RandomAgent,
    TrajectoryBatch,
    WorkerFactory,
)
from streamsampler.engines import linked
from streamsampler.errors import (
    ClosedError,
    ConcurrentCallError,
    RolloutError,
    UnknownEnvironmentError,
    UsageError,
)
from streamsampler.samplers.batches import BatchMaker
from streamsampler.samplers.call import Call
from streamsampler.testing import ScriptedAgent, ScriptedEnv
from tests.scripted.failing import Agent, Env

SAMPLERS: list[Any] = [LocalSampler, MultiprocessingSampler]


@pytest.fixture(params=SAMPLERS, ids=["local", "processes"])
def make(request):
    made = []

    def make(*args, **options):
        made.append(request.param(*args, **options))
        return made[-1]

    yield make
    for sampler in made:
        sampler.close()


@pytest.mark.slow
def test_the_memory_of_a_batch_is_free_with_its_last_array_and_waits_for_no_garbage_collector(make):
    def objects():
        # By their types: isinstance asks objects for __class__, and some of other libraries warn then.
        return [item for item in gc.get_objects() if issubclass(type(item), (Call, BatchMaker, TrajectoryBatch))]

    sampler = make(Agent(), Env)
    sampler.obtain_trajectories(3)
    gc.collect()
    gc.disable()
    try:
        before = objects()
        batch = sampler.obtain_trajectories(3)
        assert [item for item in objects() if not any(item is other for other in before)] == [batch]
    finally:
        gc.enable()


@pytest.mark.parametrize("n_workers", [0, -1, 1.5, "2", True])
def test_bad_numbers_of_workers(make, n_workers):
    with pytest.raises(UsageError, match="n_workers"):
        make(Agent(), Env, n_workers=n_workers)


@pytest.mark.parametrize("amount", [0, -3, 1.5, None, True])
def test_bad_amounts_name_the_argument(make, amount):
    sampler = make(Agent(), Env, n_workers=1)
    with pytest.raises(ValueError, match=r"num_samples must be .*" + str(amount)):
        sampler.obtain_samples(amount)
    with pytest.raises(ValueError, match="n_trajectories must be"):
        sampler.obtain_trajectories(amount)
    with pytest.raises(ValueError, match="n_traj_per_worker must be"):
        sampler.obtain_exact_trajectories(amount)
    assert sampler.agent_version == 0, "no version is used up"
    assert sampler.obtain_samples(np.int64(3)).n_timesteps == 5


def test_the_number_of_workers_follows_from_lists(make):
    assert make([Agent()] * 3, Env).n_workers == 3
    assert make(Agent(), [Env] * 2).n_workers == 2


def test_unknown_environment_suggests_near_names(make):
    with pytest.raises(UnknownEnvironmentError, match="CartPole-v1"):
        make(Agent(), "CartPol-v1")


def test_what_is_no_agent_or_environment(make):
    with pytest.raises(UsageError, match="agent"):
        make(3, Env)
    with pytest.raises(UsageError, match="agent"):
        make([Agent(), None], Env)
    with pytest.raises(TypeError, match="environment"):
        make(Agent(), 3)
    sampler = make(Agent(), Env)
    with pytest.raises(TypeError, match="environment"):
        sampler.obtain_samples(1, env_update=3)


def test_other_bad_arguments(make):
    with pytest.raises(UsageError, match="order"):
        make(Agent(), Env, order="random")
    with pytest.raises(UsageError, match="max_episode_length"):
        make(Agent(), Env, max_episode_length=0)
    with pytest.raises(UsageError, match="seed"):
        make(Agent(), Env, seed=-1)
    for check in ("Warn", True, 1, "none"):
        with pytest.raises(UsageError, match='check must be "warn", "error" or None'):
            make(Agent(), Env, check=check)
    with pytest.raises(UsageError, match="worker_class"):
        make(Agent(), Env, worker_class=dict)
    with pytest.raises(UsageError, match="start_method must be one of fork, spawn, forkserver"):
        MultiprocessingSampler(Agent(), Env, start_method="thread")  # type: ignore[arg-type]


def test_calls_after_close(make):
    sampler = make(Agent(), Env)
    sampler.close()
    for call in (sampler.obtain_samples, sampler.obtain_trajectories, sampler.obtain_exact_trajectories):
        with pytest.raises(ClosedError, match="closed"):
            call(1)
    with pytest.raises(ClosedError):
        next(sampler.stream())
    sampler.shutdown_worker()
    assert "closed" in repr(sampler)


class Waiting(Env):
    """Its first step waits until the test has opened and closed a pipe."""

    def __init__(self, fifo):
        super().__init__()
        self.fifo = fifo

    def step(self, action):
        if self.fifo is not None:
            with open(self.fifo) as pipe:
                pipe.read()
            self.fifo = None
        return super().step(action)


def test_calls_from_two_threads_at_once(make, tmp_path):
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    sampler = make(Agent(), functools.partial(Waiting, str(fifo)), n_workers=1)
    batches = []
    thread = threading.Thread(target=lambda: batches.append(sampler.obtain_trajectories(1)))
    thread.start()
    # A writer can open it only once the environment is in its first step: the call is under way.
    with open(fifo, "w"), pytest.raises(ConcurrentCallError, match="one call at a time"):
        sampler.obtain_trajectories(1)
    thread.join()
    assert batches[0].n_trajectories == 1


@pytest.mark.parametrize("first", [-1, 1.5, None, True])
def test_a_stream_begins_with_an_index(make, first):
    with pytest.raises(ValueError, match=f"first_trajectory must be .*{first}"):
        make(Agent(), Env).stream(first_trajectory=first)


@pytest.mark.parametrize("lists", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_a_stream_goes_on_where_another_one_ended(make, lists):
    agent = RandomAgent(gymnasium.spaces.Discrete(2))
    agents = [agent, agent] if lists else agent
    with make(agents, "CartPole-v1", n_workers=2, seed=3) as whole:
        expected = whole.obtain_trajectories(30)
    for first in (0, 1, 17):
        sampler = make(agents, "CartPole-v1", n_workers=2, seed=3)
        rest = [batch for _, batch in zip(range(first, 30), sampler.stream(first_trajectory=first), strict=False)]
        assert type(expected).concatenate(rest) == expected[first:]
        assert sampler.stats.kept_trajectories == 30 - first


class Shortening(WorkerFactory):
    """Gives its workers another limit than it was given itself."""

    def __init__(self, limit, **arguments):
        super().__init__(**arguments)
        self.limit = limit

    def __call__(self, context):
        assert type(super().__call__(context)) is self.worker_class
        return self.worker_class(dataclasses.replace(context, max_episode_length=self.limit), **self.worker_args)


@pytest.mark.parametrize("cls", [LocalSampler, pytest.param(MultiprocessingSampler, marks=pytest.mark.slow)])
def test_a_subclass_of_worker_factory_is_used_as_it_is(cls):
    factory = Shortening(2, n_workers=2, seed=11)
    with cls.from_worker_factory(factory, Agent(), Env, check="error") as sampler:
        assert (sampler.n_workers, sampler.seed) == (2, 11)
        assert sampler.obtain_trajectories(2).lengths.tolist() == [2, 2]
        with pickle.loads(pickle.dumps(sampler)) as again:
            assert again.obtain_trajectories(2).lengths.tolist() == [2, 2]


class ShowsCheck(DefaultWorker):
    def rollout(self, ticket, seeds):
        raise ValueError(f"check is {self.context.check!r}")


@pytest.mark.parametrize(
    "options",
    [
        pytest.param({}, marks=pytest.mark.slow, id="default"),
        pytest.param({"check": "error"}, id="error"),
        pytest.param({"check": None}, marks=pytest.mark.slow, id="none"),
    ],
)
def test_workers_know_what_the_sampler_is_to_check(make, options):
    sampler = make(Agent(), Env, worker_class=ShowsCheck, **options)
    for each in (sampler, pickle.loads(pickle.dumps(sampler))):
        with each, pytest.raises(RolloutError, match=re.escape(f"check is {options.get('check', 'warn')!r}")):
            each.obtain_samples(1)


def test_progress_reaches_the_target(make):
    seen = []
    make(Agent(), Env).obtain_samples(50, progress=seen.append)
    assert seen[-1].timesteps >= 50
    assert [snapshot.timesteps for snapshot in seen] == sorted(snapshot.timesteps for snapshot in seen)


def test_an_exception_in_a_progress_callback_ends_the_call(make):
    def complain(_):
        raise RuntimeError("no more")

    sampler = make(Agent(), Env)
    with pytest.raises(RuntimeError, match="no more"):
        sampler.obtain_samples(50, progress=complain)
    assert sampler.obtain_trajectories(2).n_trajectories == 2


def test_memory_of_a_batch_is_its_own():
    """Later calls use the shared memory again; what was returned does not change."""
    env = gymnasium.make("CartPole-v1")
    with MultiprocessingSampler(RandomAgent(env.action_space), "CartPole-v1", n_workers=2, seed=0) as sampler:
        first = sampler.obtain_samples(5_000)
        copies = [first.observations.copy(), first.rewards.copy(), first.last_observations.copy()]
        for _ in range(3):
            sampler.obtain_samples(5_000)
        assert np.array_equal(first.observations, copies[0])
        assert np.array_equal(first.rewards, copies[1])
        assert np.array_equal(first.last_observations, copies[2])


class Varying(Env):
    """Its infos hold arrays of varying length, which no single array can hold."""

    def step(self, action):
        *rest, _ = super().step(action)
        return *rest, {"seen": np.full(self.t * 500, self.np_random.normal())}


def test_spaces_are_unpickled_where_they_are_new(monkeypatch):
    """Not with every version: it takes Gymnasium longer than all else in a report."""
    unpickled = []

    def loads(data):
        unpickled.append(data)
        return pickle.loads(data)

    monkeypatch.setattr(linked, "pickle", types.SimpleNamespace(loads=loads))
    envs = [functools.partial(ScriptedEnv, shape=(n,)) for n in (2, 3)]
    with MultiprocessingSampler(ScriptedAgent(), envs[0], n_workers=2, seed=1) as sampler:
        for env in (envs[0], envs[0], envs[1], envs[1], envs[0]):
            batch = sampler.obtain_exact_trajectories(2, env_update=env)
            assert batch.observation_space.shape == batch.observations.shape[1:] == env.keywords["shape"]
    assert len(unpickled) == 3


def test_spaces_of_a_batch_are_its_own(make):
    sampler = make(Agent(), Env, seed=1)
    first = sampler.obtain_trajectories(1)
    first.observation_space.low[...] = -7
    assert (sampler.obtain_trajectories(1).observation_space.low != -7).all()


def test_objects_in_infos_do_not_lie_in_reused_memory():
    with (
        MultiprocessingSampler(Agent(), Varying, n_workers=2, seed=0) as sampler,
        LocalSampler(Agent(), Varying, seed=0) as local,
    ):
        first, expected = sampler.obtain_trajectories(6), local.obtain_trajectories(6)
        for _ in range(3):
            sampler.obtain_trajectories(20)
        assert first.env_infos["seen"].dtype == object
        assert first == expected


class Drawn(Env):
    """Draws from the global generators when it is made."""

    def __init__(self):
        super().__init__()
        self.offset = np.random.random() + random.random()

    def step(self, action):
        observation, _, *rest = super().step(action)
        return observation, self.offset, *rest


def test_what_constructors_draw_depends_on_the_seed_alone():
    with LocalSampler(Agent(), Drawn, seed=0) as local:
        expected = local.obtain_trajectories(4)
    for method in ("forkserver", "fork"):
        with MultiprocessingSampler(Agent(), Drawn, n_workers=2, seed=0, start_method=method) as sampler:
            assert sampler.obtain_trajectories(4) == expected
            batch = sampler.obtain_trajectories(4, env_update=Drawn)
            assert batch.rewards[0] == expected.rewards[0], "also when it is made again"


def test_close_from_a_progress_callback(make):
    sampler = make(Agent(), Env)
    with pytest.raises(ClosedError):
        sampler.obtain_samples(100_000, progress=lambda _: sampler.close())


@pytest.mark.parametrize("method", ["forkserver", "fork", "spawn"])
def test_workers_are_called_after_their_samplers_process(method):
    with MultiprocessingSampler(Agent(), Env, n_workers=1, start_method=method) as sampler:
        sampler.obtain_trajectories(1)
        with open(f"/proc/{sampler.worker_pids()[0]}/cmdline") as file:
            assert file.read().rstrip("\0") == "worker:" + setproctitle.getproctitle()


# Everything is defined in the script itself: an agent, an environment, a registration. There is no main guard.
SCRIPT = """
import gymnasium, numpy as np
from streamsampler import MultiprocessingSampler

print("started")

class Counting(gymnasium.Env):
    observation_space = gymnasium.spaces.Discrete(100)
    action_space = gymnasium.spaces.Discrete(2)
    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.t = 0
        return 0, {}
    def step(self, action):
        self.t += 1
        return self.t, float(action), self.t == 9, False, {}

gymnasium.register("Counting-v7", entry_point=Counting)

class MyAgent:
    def get_action(self, observation):
        return observation % 2, {}

for envs in ("Counting-v7", Counting, Counting()):
    sampler = MultiprocessingSampler(MyAgent(), envs, n_workers=2)
    batch = sampler.obtain_trajectories(4)
    print(batch.lengths.tolist(), batch.returns.tolist())
"""
OUTPUT = "started\n" + 3 * "[9, 9, 9, 9] [4.0, 4.0, 4.0, 4.0]\n"


def python(*arguments, **options):
    result = subprocess.run(
        [sys.executable, *arguments], capture_output=True, text=True, check=False, timeout=120, **options
    )
    assert result.stderr == ""
    assert result.returncode == 0
    return result.stdout


def test_a_script_without_a_main_guard(tmp_path):
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    assert python(script) == OUTPUT


@pytest.mark.slow
def test_an_interactive_session_on_standard_input():
    assert python("-", input=SCRIPT) == OUTPUT


@pytest.mark.slow
def test_code_that_is_executed_like_a_notebook_cell():
    cell = textwrap.indent(SCRIPT, "    ")
    assert python("-c", f'code = """\n{cell}\n"""\nimport textwrap\nexec(textwrap.dedent(code))') == OUTPUT
