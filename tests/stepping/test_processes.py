"""What only worker processes do: die, hang, are forked from, and end."""

import functools
import signal
import subprocess
import sys
import threading
import time
from typing import Any

import numpy as np
import pytest

from streamsampler import Limits
from streamsampler.engines.processes import stacks
from streamsampler.errors import RolloutError, WorkerDiedError, WorkerHungError
from streamsampler.stepping.env_states import EnvState
from streamsampler.stepping.frames import IDS
from streamsampler.stepping.managers import EnvManager
from streamsampler.testing import Fault, Faults
from tests.patience import PATIENCE
from tests.stepping.conftest import MODES, await_end, kill
from tests.stepping.environments import Counting

ONES = np.array([1, 1])
LONG = functools.partial(Counting, 100)
LIMIT = 3.0
"""Seconds: long enough that no worker that runs is taken for one that hangs."""


def two(envs=LONG, n_workers=2, **options):
    return EnvManager(envs, n_envs=2, n_workers=n_workers, seed=0, **options)


def test_a_worker_that_dies_is_an_error_that_names_its_environments():
    with EnvManager(LONG, n_envs=4, n_workers=2, seed=0, on_failure="raise") as manager:
        manager.reset()
        with pytest.raises(WorkerDiedError, match=r"worker 0 was killed by SIGKILL.*it ran environments 0, 1"):
            manager.step(np.array([7, 1, 1, 1]))
        assert [state is EnvState.FAILED for state in manager.states] == [True, True, False, False]
        assert manager.recv(min_envs=2).rewards.tolist() == [1, 1]
        manager.reset([0, 1])
        assert manager.step(np.ones(4, np.int64)).rewards.tolist() == [1] * 4


@pytest.mark.parametrize("autoreset", ["next_step", *(pytest.param(it, marks=pytest.mark.slow) for it in MODES[1:])])
def test_after_a_death_episodes_end_and_others_begin(autoreset):
    """The first environment's result lies in its row when the second one kills their worker: it is not handed out."""
    with EnvManager(LONG, n_envs=4, n_workers=2, seed=0, on_failure="reset", autoreset=autoreset) as manager:
        manager.reset(options={"kept": 1})
        steps = manager.step(np.array([1, 7, 1, 1]))
        assert steps.failed.tolist() == [steps.failed[0], True, False, False] == steps.truncated.tolist()
        assert steps.last_observations[0, 1] == (0 if steps.failed[0] else 1)
        if not steps.failed[0]:  # it has lost its episode with its next action
            assert manager.step(np.array([1]), [0]).failed.tolist() == [True]
        if autoreset == "disabled":
            manager.reset([0, 1])
        elif autoreset == "next_step":
            assert manager.step(ONES, [0, 1]).timesteps.tolist() == [0, 0]
        steps = manager.step(np.ones(4, np.int64))
        assert (steps.timesteps.tolist(), steps.episodes.tolist()) == ([1, 1, 2, 2], [1, 1, 0, 0])
        assert manager.stats.restored == 0
        assert manager.get_attr("options") == [{"kept": 1}] * 4


def test_losses_are_counted():
    with EnvManager(LONG, n_envs=4, n_workers=2, seed=0) as manager:
        manager.reset()
        for _ in range(3):
            manager.step(np.ones(4, np.int64))
        kill(manager, 1)
        manager.step(np.ones(4, np.int64))
        stats = manager.stats
        assert (stats.failures, stats.restarts, stats.hangs, stats.not_restored) == (1, 1, 0, 0)
        assert (stats.restored, stats.lost_timesteps) == (2, 6)
        assert (stats.failed_trajectories, stats.kept_timesteps) == (0, 16)


def test_an_idle_worker_that_was_killed_and_the_quota():
    with two(on_failure="reset", max_restarts=1) as manager:
        manager.reset()
        kill(manager, 0)
        assert manager.step(ONES).failed.tolist() == [True, False]
        assert manager.step(ONES).timesteps.tolist() == [0, 2]
        stats = manager.stats
        assert (stats.failures, stats.restarts, stats.restored) == (1, 1, 0)
        assert (stats.failed_trajectories, stats.kept_timesteps) == (1, 2)
        kill(manager, 0)
        with pytest.raises(WorkerDiedError, match="that is 2 losses within 60 s, and max_restarts is 1"):
            manager.step(ONES)
        manager.reset()
        assert manager.step(ONES).rewards.tolist() == [1, 1]


@pytest.mark.slow
def test_losses_longer_ago_than_restart_window_are_forgiven():
    with two(max_restarts=1, limits=Limits(restart_window=4)) as manager:
        manager.reset()
        for _ in range(3):
            kill(manager, 0)
            assert not manager.step(ONES).failed.any()
            threading.Event().wait(4.5)
            manager.reset()
        kill(manager)
        with pytest.raises(WorkerDiedError, match=r"2 losses within 4 s, and max_restarts is 1"):
            manager.step(ONES)


class Hanging(Counting):
    """Hangs in a reset of the seed 13, or in a method; its steps take their time if it is told to."""

    seconds = 0.0

    def reset(self, *, seed=None, options=None):
        if seed == 13:
            threading.Event().wait()
        observation, _ = super().reset(seed=seed, options=options)
        return observation, {"size": len((options or {}).get("text", ""))}

    def step(self, action):
        threading.Event().wait(self.seconds)
        observation, *rest, _ = super().step(action)
        return observation, *rest, {"large": np.zeros(300_000, np.uint8)}  # more than what a pipe holds

    def hang(self):
        threading.Event().wait()

    def timestep(self):
        return self._t


HANGS: dict[str, tuple[Any, str]] = {
    "step": (lambda manager: manager.step(np.array([1, 8])), "worker 1 made no progress"),
    "reset": (lambda manager: manager.reset(seed={1: 13}), "resetting the environment 1; it ran environments 1"),
    "call": (lambda manager: manager.call("hang", env_ids=[1]), "worker 1 made no progress"),
}


@pytest.mark.parametrize(
    ("where", "on_failure"), [("step", "restore"), ("step", "raise"), ("reset", "raise"), ("call", "raise")]
)
@pytest.mark.slow
def test_a_worker_that_hangs_is_killed_and_shows_its_stack(where, on_failure, monkeypatch):
    monkeypatch.setattr(stacks, "_FIRST_SECONDS", PATIENCE)
    call, match = HANGS[where]
    limit = {"reset_timeout" if where == "reset" else "step_timeout": LIMIT}
    with two(lambda: Hanging(9), on_failure=on_failure, **limit) as manager:
        manager.reset()
        with pytest.raises(WorkerHungError, match=match) as caught:
            call(manager)
        assert {"step": "environments.py", "reset": "in reset", "call": "in hang"}[where] in caught.value.stack
        assert manager.states[0] is not EnvState.FAILED
        manager.reset(seed={1: 14})
        assert manager.step(ONES).timesteps.tolist() == [1, 1]
        assert manager.stats.hangs == manager.failures == (2 if on_failure == "restore" else 1)


def test_making_environments_has_a_time_limit(tmp_path):
    faults = Faults(tmp_path, Fault("hang", "construct"))
    manager = two(faults.env(LONG), limits=Limits(construction_timeout=0.3))
    with pytest.raises(WorkerHungError, match="while making the environment"):
        manager.launch()
    manager.close()


@pytest.mark.slow
def test_making_environments_again_has_a_time_limit_and_keeps_nobody_waiting(tmp_path):
    faults = Faults(tmp_path, Fault("hang", "construct", times=None))
    mark = tmp_path / "mark"

    def make():
        if mark.exists():
            faults.maybe("construct")
        return LONG()

    options: dict[str, Any] = {"on_failure": "reset", "max_restarts": 1}
    with two(make, limits=Limits(construction_timeout=8, close_timeout=0.1), **options) as manager:
        manager.reset()
        mark.touch()
        kill(manager, 0)
        assert manager.step(ONES).failed.tolist() == [True, False]
        manager.send(ONES)  # the first is made again for it, and that hangs
        assert manager.recv(min_envs=1).env_ids.tolist() == [1]
        with pytest.raises(WorkerHungError, match="while making the environment; it ran environments 0"):
            manager.recv()


@pytest.mark.slow
def test_a_worker_that_makes_progress_does_not_hang():
    """Whatever kept its parent from seeing it: the parent was away, or the worker is restored meanwhile."""
    away = threading.Event()
    with EnvManager(lambda: Hanging(100), n_envs=1, n_workers=1, seed=0, step_timeout=LIMIT) as manager:
        manager.reset()
        manager.send(np.array([1]))
        away.wait(1.5 * LIMIT)
        assert manager.recv().timesteps.tolist() == [1]
        manager.async_reset(options={"text": "y" * 1_000_000})
        away.wait(1.5 * LIMIT)
        assert manager.recv().info_by_row == {0: {"size": 1_000_000}}
        manager.set_attr("seconds", 0.15)  # thirty of them take longer than the limit
        for _ in range(30):
            manager.step(np.array([1]))
        kill(manager)
        assert manager.call("timestep") == [30]
        assert manager.step(np.array([1])).timesteps.tolist() == [31]
        assert (manager.stats.hangs, manager.stats.restored) == (0, 1)


@pytest.mark.slow
@pytest.mark.parametrize(
    "limits", [{}, {"step_timeout": 30, "reset_timeout": 20, "limits": Limits(construction_timeout=60)}]
)
def test_waiting_takes_less_than_2_percent_of_a_core(limits):
    with EnvManager(Hanging, n_envs=6, n_workers=3, seed=0, **limits) as manager:
        manager.reset()
        manager.set_attr("seconds", 0.7)
        began, used, received = time.perf_counter(), time.process_time(), 0
        manager.step(np.ones(6, np.int64))
        manager.send(np.ones(6, np.int64))
        while received < 6:
            assert manager.wait()
            received += len(manager.recv(min_envs=1))
        used, waited = time.process_time() - used, time.perf_counter() - began
        assert waited > 2.8
        assert used < 0.02 * waited


def run_script(script, *arguments):
    return subprocess.run(
        [sys.executable, "-", *arguments], input=script, capture_output=True, text=True, timeout=PATIENCE
    )


OWN_CLASSES = """
import numpy as np, gymnasium
from streamsampler import Limits, EnvManager

class Mine:
    def __init__(self, number):
        self.number = number

class MyBox(gymnasium.spaces.Box):
    pass

class Env(gymnasium.Env):
    observation_space = MyBox(-9, 9, (1,))
    action_space = gymnasium.spaces.Discrete(2)
    mine = None

    def reset(self, *, seed=None, options=None):
        return np.zeros(1, np.float32), {"mine": options["mine"]}

    def step(self, action):
        return np.zeros(1, np.float32), 0.0, False, False, {"mine": self.mine}

    def take(self, mine):
        self.mine = mine
        return mine

manager = EnvManager(Env, n_envs=2, n_workers=2, seed=0)
assert isinstance(manager.observation_space, MyBox)
infos = [manager.reset(options={"mine": Mine(1)}).infos]
found = manager.call("take", Mine(2)) + manager.get_attr("mine")
infos.append(manager.step([0, 0]).infos)
found += [mine for info in infos for mine in info["mine"]]
assert {type(mine) for mine in found} == {Mine}
assert [mine.number for mine in found] == [2, 2, 2, 2, 1, 1, 2, 2]
print(*manager.worker_pids(), flush=True)
"""

ENDS = {
    "without a word": "",  # and without a main guard
    "collected": """
import gc, select
ended = [os.pidfd_open(pid) for pid in manager.worker_pids()]
del manager
gc.collect()
for fd in ended:
    assert select.select([fd], [], [], 100)[0]
""",
    "killed": "os.kill(os.getpid(), 9)",
}


@pytest.mark.parametrize("how", ["without a word", *(pytest.param(it, marks=pytest.mark.slow) for it in [*ENDS][1:])])
@pytest.mark.slow
def test_classes_of_a_script_travel_both_ways_and_nothing_is_left_of_it(how):
    run = run_script("import os\n" + OWN_CLASSES + ENDS[how])
    assert (run.stderr, run.returncode) == ("", -signal.SIGKILL if how == "killed" else 0)
    assert len(run.stdout.split()) == 2
    for pid in map(int, run.stdout.split()):
        try:
            await_end(pid)
        except ProcessLookupError:
            continue


FORKING = """
import gc, os, sys
from streamsampler import EnvManager
from tests.stepping.environments import Counting

manager = EnvManager(Counting, n_envs=2, n_workers=2, seed=0)
manager.reset()
pids = manager.worker_pids()

def refused(call):
    try:
        call()
    except Exception as error:
        assert "forked" in str(error), error
    else:
        os._exit(4)

def child(what):
    pid = os.fork()
    if pid == 0:
        files = [os.memfd_create(f"file {number}") for number in range(40)]
        exec(what, globals())
        # What it did with the manager must go to no file of its own, either.
        os._exit(0 if {os.fstat(fd).st_size for fd in files} == {0} else 3)
    return os.waitpid(pid, 0)[1]

CHILDREN = [
    "manager.close()",
    "manager.close(); manager.launch(); assert len(manager.reset()) == 2; manager.close()",
    "del manager; gc.collect()",
    "manager.__exit__()",
    "refused(lambda: manager.step([1, 1])); refused(lambda: manager.stats)",
]
print([child(what) for what in CHILDREN])
pid = os.fork()
if pid == 0:
    sys.exit(0)
print(os.waitpid(pid, 0)[1], manager.step([1, 1]).timesteps.tolist(), manager.failures, manager.worker_pids() == pids)
manager.close()
"""


@pytest.mark.slow
def test_a_forked_child_leaves_the_environments_alone():
    run = run_script(FORKING)
    assert (run.stdout, run.stderr) == ("[0, 0, 0, 0, 0]\n0 [1, 1] 0 True\n", "")


def test_environments_that_cannot_be_made():
    def make():
        raise OSError("no display")

    with pytest.raises(RolloutError, match=r"raised in its construction.*no display"):
        two(make, n_workers=1).launch()


def test_a_sampler_beside_a_manager():
    """Each kind of worker has a fork server of its own."""
    from streamsampler import LocalSampler, MultiprocessingSampler

    with (
        EnvManager("CartPole-v1", n_envs=1, n_workers=1) as manager,
        MultiprocessingSampler("random", "CartPole-v1", n_workers=1, seed=1) as sampler,
        LocalSampler("random", "CartPole-v1", seed=1) as local,
    ):
        manager.reset()
        assert sampler.obtain_trajectories(1).returns == local.obtain_trajectories(1).returns


def test_a_message_may_be_larger_than_a_pipe():
    with two() as manager:
        for size in (300_000, 500_000):
            assert manager.reset(options={"text": "y" * size}).timesteps.tolist() == [0, 0]
            assert [len(options["text"]) for options in manager.get_attr("options")] == [size, size]


class Working(Counting):
    """Takes longer for a step than results wait for others that are not wanted together."""

    def step(self, action):
        end = time.perf_counter() + 1e-3
        while time.perf_counter() < end:
            pass
        return super().step(action)


@pytest.mark.parametrize("way", ["step", "vector_env"])
def test_a_worker_gives_all_results_of_a_step_of_all_together(way, monkeypatch):
    """Each message more would wake this process while the others work, and take a core from them."""
    heard = []
    with EnvManager(functools.partial(Working, 50), n_envs=4, n_workers=1, seed=0) as manager:
        step = manager.step if way == "step" else manager.vector_env().step
        manager.reset()
        event_of = manager._transport._event
        monkeypatch.setattr(manager._transport, "_event", lambda *said: heard.append(said[1]) or event_of(*said))
        for _ in range(3):
            step(np.ones(4, np.int64))
    assert heard.count(IDS) == 3  # others tell where the time goes


@pytest.mark.parametrize("seconds", [1e7, 1e12])
def test_a_timeout_may_be_longer_than_the_system_can_sleep(seconds):
    with two() as manager:
        manager.reset()
        manager.send(ONES)
        assert manager.recv_from(timeout=seconds).timesteps.tolist() == [1, 1]
        manager.send(ONES)
        assert manager.recv(min_envs=2, timeout=seconds).timesteps.tolist() == [2, 2]
