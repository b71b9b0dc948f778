"""An agent in the sampler's process, and environments whose processes die or hang: several times, at any time."""

import contextlib
import os
import random
import select
import signal
import subprocess
import sys
import threading

import numpy as np
import pytest

from streamsampler import LocalSampler, MultiprocessingSampler, VecWorker
from streamsampler.errors import WorkerDiedError
from tests.scripted.agents import always_zero
from tests.stepping.environments import Strolling

N_ENVS = 4


class Exact(Strolling.Agent):
    """Acts by numbers that the rows of shared memory hold."""

    def get_actions(self, observations):
        return np.tanh(observations + 0.1).astype(np.float32), {}


class Enduring(Strolling):
    """Takes 30 timesteps; kills its process, or hangs, before some of them, once in each trajectory."""

    def __init__(self, folder="", at=(), how="kill", pause=0.0):
        self.folder, self.at, self.how, self.pause = folder, at, how, pause

    def reset(self, *, seed=None, options=None):
        result = super().reset(seed=seed)
        self.seed, self.left = seed, 30
        return result

    def step(self, action):
        timestep = 30 - self.left
        if timestep in self.at and self.is_first(timestep):
            if self.how == "hang":
                threading.Event().wait()
            os.kill(os.getpid(), signal.SIGKILL)
        if self.pause:
            threading.Event().wait(self.pause)
        return super().step(action)

    def is_first(self, timestep):
        try:
            os.close(os.open(os.path.join(self.folder, f"{self.seed}-{timestep}"), os.O_CREAT | os.O_EXCL))
        except FileExistsError:
            return False
        return True


def in_parent(agent, env, n_workers=2, **options):
    options = {"seed": 5, "check": None, "worker_args": {"n_envs": N_ENVS}, "max_restarts": None, **options}
    options["max_lifetime_restarts"] = None
    return MultiprocessingSampler(agent, env, n_workers=n_workers, inference="parent", **options)


def reference(agent, env, **options):
    options = {"seed": 5, "check": None, "worker_args": {"n_envs": N_ENVS}, "worker_class": VecWorker, **options}
    return LocalSampler(agent, env, **options)


@pytest.mark.parametrize(
    ("agent", "how", "at"),
    [
        (Exact, "kill", (5, 12)),
        *(
            pytest.param(agent, how, (5, 12, 13, 25), marks=pytest.mark.slow)
            for agent, how in [(Exact, "hang"), (Strolling.Agent, "kill"), (Strolling.Agent, "hang")]
        ),
    ],
)
@pytest.mark.slow
def test_a_trajectory_that_is_lost_several_times_is_the_same(agent, how, at, tmp_path):
    n = len(at)
    with reference(agent(), Enduring) as sampler:
        expected = sampler.obtain_trajectories(n)
    limits = {"step_timeout": 2.0} if how == "hang" else {}
    with in_parent(agent(), Enduring, env_kwargs={"folder": tmp_path, "at": at, "how": how}, **limits) as sampler:
        assert sampler.obtain_trajectories(n) == expected
        assert sampler.stats.restarts >= n * n


class Stillborn(Strolling):
    """Kills its process, or hangs, while it is made: so many times in all."""

    def __init__(self, folder, times=1, how="kill"):
        for time in range(times):
            try:
                os.close(os.open(os.path.join(folder, str(time)), os.O_CREAT | os.O_EXCL))
            except FileExistsError:
                continue
            if how == "hang":
                threading.Event().wait()
            os.kill(os.getpid(), signal.SIGKILL)


@pytest.mark.parametrize("how", ["kill", pytest.param("hang", marks=pytest.mark.slow)])
@pytest.mark.slow
def test_a_loss_while_environments_are_made_ends_no_call(how, tmp_path):
    limits = {"construction_timeout": 3.0} if how == "hang" else {}
    with in_parent(Exact(), Stillborn, env_kwargs={"folder": tmp_path, "how": how}, **limits) as sampler:
        assert len(sampler.obtain_trajectories(5)) == 5
        assert sampler.stats.restarts >= 1  # on a busy machine the next ones may take too long as well
        assert (sampler.stats.hangs > 0) == (how == "hang")


@pytest.mark.slow
def test_losses_while_environments_are_made_count_together(tmp_path):
    with in_parent(Exact(), Stillborn, env_kwargs={"folder": tmp_path, "times": 99}, max_restarts=3) as sampler:
        with pytest.raises(WorkerDiedError, match="max_restarts is 3") as caught:
            sampler.obtain_trajectories(5)
        assert len(caught.value.incidents) == 4
        assert sampler.worker_pids() == []
        assert len(sampler.obtain_trajectories(5, env_update=Strolling)) == 5


@pytest.mark.parametrize("update", [None, "same spaces", pytest.param("other spaces", marks=pytest.mark.slow)])
def test_processes_may_die_between_calls(update):
    env_update = {None: None, "same spaces": Strolling, "other spaces": "CartPole-v1"}[update]
    agent_update = always_zero if update == "other spaces" else None
    with reference(Exact(), Strolling) as sampler:
        expected = [sampler.obtain_trajectories(5) for _ in range(2)]
    with in_parent(Exact(), Strolling) as sampler:
        assert sampler.obtain_trajectories(5) == expected[0]
        for pid in sampler.worker_pids():
            os.kill(pid, signal.SIGKILL)
        batch = sampler.obtain_trajectories(5, agent_update=agent_update, env_update=env_update)
        assert update == "other spaces" or batch == expected[1]
        assert sampler.stats.restarts > 0


@pytest.mark.slow
@pytest.mark.parametrize("agent", [Exact, Strolling.Agent])
def test_kills_at_any_time_change_nothing(agent):
    """A process is killed every now and then, whatever it does; 20 times, as restarts take time on a busy machine."""
    draw, over = random.Random(4), threading.Event()
    with reference(agent(), Enduring) as sampler:
        expected = [sampler.obtain_trajectories(12) for _ in range(4)]
    with in_parent(agent(), Enduring, 3, env_kwargs={"pause": 0.002}) as sampler:
        sampler_pids = sampler.worker_pids

        def kill_some():
            for _ in range(20):
                if over.wait(draw.uniform(0.05, 0.3)):
                    break
                with contextlib.suppress(ProcessLookupError, IndexError):
                    os.kill(draw.choice(sampler_pids()), signal.SIGKILL)

        batches = []
        killing = threading.Thread(target=kill_some)
        batches.append(sampler.obtain_trajectories(12))
        os.kill(sampler_pids()[0], signal.SIGKILL)  # the next call needs it, whatever becomes of others
        killing.start()
        try:
            batches += [sampler.obtain_trajectories(12) for _ in range(3)]
        finally:
            over.set()
            killing.join()
        assert batches == expected
        assert sampler.stats.restarts > 0


CALLER = """
import os, signal
from streamsampler import MultiprocessingSampler
from tests.stepping.environments import Strolling
from tests.stepping.test_inference_losses import Exact

sampler = MultiprocessingSampler(Exact(), Strolling, n_workers=2, inference="parent", check=None)
sampler.obtain_trajectories(3)
print(*sampler.worker_pids(), flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.slow
def test_a_caller_that_is_killed_leaves_no_process():
    with subprocess.Popen([sys.executable, "-c", CALLER], stdout=subprocess.PIPE, text=True) as caller:
        assert caller.stdout is not None
        pids = [int(pid) for pid in caller.stdout.readline().split()]
        descriptors = []
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):  # it ended just now
                descriptors.append(os.pidfd_open(pid))
        assert caller.wait() == -signal.SIGKILL
    assert len(pids) == 2
    for descriptor in descriptors:
        assert select.select([descriptor], [], [], 20.0)[0], "it is left"
        os.close(descriptor)
