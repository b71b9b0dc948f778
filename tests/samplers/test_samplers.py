"""What the samplers make of their arguments, and the ways in which a user may call them."""

import dataclasses
import functools
import gc
import math
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
    TrajectoryBatch,
    VecWorker,
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
VEC: dict[str, Any] = {"worker_class": VecWorker, "worker_args": {"n_envs": 3, "block_size": 6}}


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


USAGE: list[tuple[dict[str, Any], type[Exception], str]] = [
    *(({"n_workers": wrong}, UsageError, "n_workers") for wrong in (0, -1, 1.5, "2", True)),
    ({"envs": "CartPol-v1"}, UnknownEnvironmentError, "CartPole-v1"),
    ({"agents": 3}, UsageError, "agent"),
    ({"agents": [Agent(), None]}, UsageError, "agent"),
    ({"envs": 3}, TypeError, "environment"),
    ({"order": "random"}, UsageError, "order"),
    *(({"max_episode_length": wrong}, UsageError, "max_episode_length") for wrong in (-math.inf, math.nan, 2.5, 0)),
    ({"seed": -1}, UsageError, "seed"),
    *(({"check": wrong}, UsageError, 'check must be "warn", "error" or None') for wrong in ("Warn", True, 1, "none")),
    ({"fingerprint": True}, UsageError, 'fingerprint must be "warn", "error" or None, got True'),
    ({"worker_class": dict}, UsageError, "worker_class"),
    *(({"worker_args": wrong}, UsageError, "worker_args must be a dict") for wrong in ([4], {1: 2}, 3)),
    *(({"env_kwargs": wrong}, UsageError, "env_kwargs must be a dict") for wrong in (["size"], {1: 2}, "size")),
    ({"envs": Env(), "env_kwargs": {"length": 2}}, UsageError, "for making an environment, but a Env exists already"),
    ({"step_timeuot": 3}, TypeError, r"Sampler.*'step_timeuot'"),
]


@pytest.mark.parametrize(("options", "error", "words"), USAGE)
def test_wrong_arguments_are_refused(options, error, words):
    with pytest.raises(error, match=words):
        LocalSampler(**{"agents": Agent(), "envs": Env, **options})


def test_wrong_arguments_of_samplers_with_processes_are_refused():
    make: Any = MultiprocessingSampler
    with pytest.raises(UsageError, match="start_method must be one of fork, spawn, forkserver"):
        make(Agent(), Env, start_method="thread")
    with pytest.raises(UsageError, match="worker_args must be a dict"):
        make(Agent(), Env, worker_args=[4], inference="parent")
    for call in (make, make.from_worker_factory):
        with pytest.raises(TypeError, match=r"Sampler.*'step_timeuot'"):
            call(WorkerFactory(), Agent(), Env, step_timeuot=3)


@pytest.mark.parametrize("amount", [0, -3, 1.5, None, True])
def test_bad_amounts_name_the_argument(amount):
    with LocalSampler(Agent(), Env) as made:
        sampler: Any = made
        with pytest.raises(ValueError, match=r"num_samples must be .*" + str(amount)):
            sampler.obtain_samples(amount)
        with pytest.raises(ValueError, match="n_trajectories must be"):
            sampler.obtain_trajectories(amount)
        with pytest.raises(ValueError, match="n_traj_per_worker must be"):
            sampler.obtain_exact_trajectories(amount)
        with pytest.raises(TypeError, match="environment"):
            sampler.obtain_samples(1, env_update=3)
        assert sampler.agent_version == 0, "no version is used up"
        assert sampler.obtain_samples(np.int64(3)).n_timesteps == 5


def test_what_follows_from_arguments():
    assert LocalSampler([Agent()] * 3, Env).n_workers == 3
    assert LocalSampler(Agent(), [Env] * 2).n_workers == 2
    with LocalSampler(Agent(), Env, max_episode_length=math.inf) as sampler:
        assert sampler.obtain_trajectories(1).n_timesteps == 5, "no limit may be written as infinity"
    with LocalSampler(Agent(), "FrozenLake-v1", env_kwargs={"map_name": "8x8"}) as sampler:
        assert sampler.obtain_trajectories(1).observation_space.n == 64  # type: ignore[attr-defined]
    for envs in (Env, [Env, Env]):
        with LocalSampler(Agent(), envs, env_kwargs={"length": 7}, n_workers=2) as sampler:
            assert set(sampler.obtain_trajectories(4).lengths) == {7}
            assert set(sampler.obtain_trajectories(4, env_update=Env).lengths) == {5}, "not to an update"


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
    with open(fifo, "w"), pytest.raises(ConcurrentCallError, match="another call on this sampler"):
        sampler.obtain_trajectories(1)
    thread.join()
    assert batches[0].n_trajectories == 1


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


@pytest.mark.parametrize("options", [{}, {"check": "error"}, {"check": None}])
def test_workers_know_what_the_sampler_is_to_check(options):
    sampler = LocalSampler(Agent(), Env, worker_class=ShowsCheck, **options)
    for each in (sampler, pickle.loads(pickle.dumps(sampler))):
        with each, pytest.raises(RolloutError, match=re.escape(f"check is {options.get('check', 'warn')!r}")):
            each.obtain_samples(1)


def test_progress_reaches_the_target_and_its_exceptions_end_the_call(make):
    def complain(_):
        raise RuntimeError("no more")

    seen = []
    sampler = make(Agent(), Env)
    sampler.obtain_samples(50, progress=seen.append)
    assert seen[-1].n_timesteps >= 50
    assert [snapshot.n_timesteps for snapshot in seen] == sorted(snapshot.n_timesteps for snapshot in seen)
    with pytest.raises(RuntimeError, match="no more"):
        sampler.obtain_samples(50, progress=complain)
    assert sampler.obtain_trajectories(2).n_trajectories == 2
    with pytest.raises(ClosedError):
        sampler.obtain_samples(100_000, progress=lambda _: sampler.close())


class Varying(Env):
    """Its infos hold arrays of varying length, which no single array can hold."""

    def step(self, action):
        *rest, _ = super().step(action)
        return *rest, {"seen": np.full(self.t * 500, self.np_random.normal())}


@pytest.mark.slow
def test_memory_of_a_batch_is_its_own():
    """Later calls use the shared memory again; what was returned does not change, nor do objects in it."""
    sampler: Any = MultiprocessingSampler(Agent(), Varying, n_workers=2, seed=0)
    with sampler, LocalSampler(Agent(), Varying, seed=0) as local:
        first, expected = sampler.obtain_trajectories(200), local.obtain_trajectories(200)
        for _ in range(3):
            sampler.obtain_trajectories(200)
        assert first.env_infos["seen"].dtype == object
        assert first == expected
        for each, batch in ((sampler, first), (local, expected)):
            batch.observation_space.low[...] = -7
            assert (each.obtain_trajectories(1).observation_space.low != -7).all()


class Lists(gymnasium.Env[Any, Any]):
    """Shows lists, of a space that has no arrays."""

    class AnyList(gymnasium.spaces.Space[Any]):
        def contains(self, x):
            return isinstance(x, list)

        def __eq__(self, other):
            return type(self) is type(other)

    observation_space, action_space = gymnasium.spaces.Dict(list=AnyList()), gymnasium.spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        self.t = 0
        return {"list": [0]}, {}

    def step(self, action):
        self.t += 1
        return {"list": [self.t]}, 0.0, self.t == 3, False, {}


class Spoils:
    def get_action(self, observation):
        observation["list"].append(99)
        return 0, {}


class SpoilsBatches(Spoils):
    def get_actions(self, observations):
        for value in observations["list"]:
            value.append(99)
        return np.zeros(len(observations["list"]), np.int64), {}


@pytest.mark.parametrize("options", [{}, VEC], ids=["default", "vec"])
@pytest.mark.parametrize("agent", [Spoils(), SpoilsBatches()], ids=["one by one", "batched"])
def test_objects_without_arrays_that_an_agent_changes_in_place_are_its_own(agent, options):
    with LocalSampler(agent, Lists, seed=3, **options) as sampler:
        batch = sampler.obtain_trajectories(12)
    assert batch.observations["list"].tolist() == [[0], [1], [2]] * 12
    assert batch.last_observations["list"].tolist() == [[3]] * 12


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


@pytest.mark.parametrize("sampler_class", [LocalSampler, MultiprocessingSampler])
def test_spaces_of_a_batch_are_its_own(sampler_class):
    with sampler_class(ScriptedAgent(), ScriptedEnv, n_workers=1, seed=1) as sampler:
        for _ in range(4):
            space = sampler.obtain_trajectories(2).observation_space
            assert space == ScriptedEnv().observation_space
            space.high[...] = -5
        space = sampler.obtain_trajectories(2, env_update=functools.partial(ScriptedEnv, shape=(7,))).observation_space
        assert space.shape == (7,)


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


@pytest.mark.parametrize(
    "method", ["forkserver", *(pytest.param(it, marks=pytest.mark.slow) for it in ("fork", "spawn"))]
)
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


CELL = textwrap.indent(SCRIPT, "    ")
AS_A_CELL = f'code = """\n{CELL}\n"""\nimport textwrap\nexec(textwrap.dedent(code))'


@pytest.mark.parametrize("how", ["file", *(pytest.param(how, marks=pytest.mark.slow) for how in ("stdin", "cell"))])
@pytest.mark.slow
def test_programs_without_a_main_guard(tmp_path, how):
    """Scripts, interactive sessions, and code that is executed like the cell of a notebook."""
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    arguments = {"file": [script], "stdin": ["-"], "cell": ["-c", AS_A_CELL]}[how]
    result = subprocess.run(
        [sys.executable, *arguments], input=SCRIPT, capture_output=True, text=True, check=False, timeout=120
    )
    assert (result.returncode, result.stderr, result.stdout) == (0, "", OUTPUT)
