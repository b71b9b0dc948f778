"""Fragments with the agent here that are run again: what goes wrong meanwhile is told, and harms no other episode."""

from __future__ import annotations

import functools
import os
import signal
from typing import Any

import numpy as np
import pytest

from streamsampler.errors import WorkerDiedError
from streamsampler.stepping.inference.environments import Environments
from streamsampler.stepping.processes import ProcessTransport
from tests.fragments.agents import Alone, Drawn, Fleeting, Sticky
from tests.stepping.test_inference_fragments import N_ENVS, in_parent, kill, reference

pytestmark = pytest.mark.slow  # what is lost when depends on what has arrived by then
AGENTS = [Fleeting, Drawn]


class Long(Sticky):
    """Has long episodes. Where there is a file with its seed's name, each process has another one, or it raises once.

    Args:
        folder: Where files are.
    """

    def __init__(self, folder: Any) -> None:
        self.folder = folder

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.length, self.offset, self.raises = 1000, 0.0, False
        if (file := self.folder / str(seed)).exists():
            self.raises = file.read_text() == "raises"
            self.offset = 0.0 if self.raises else float(os.getpid())
        return self.observe() + np.float32(self.offset), {}

    def step(self, action: int) -> Any:
        if self.raises and self.t == 5:
            raise OSError("no licence is left")
        observation, *rest = super().step(action)
        return observation + np.float32(self.offset), *rest


def two_calls(sampler: Any, folder: Any, changed: int = 2, how: str = "changes") -> Any:
    """Return the second of two batches, after which an environment is another one."""
    sampler.obtain_fragments(10, N_ENVS)
    batch = sampler.obtain_fragments(10, N_ENVS)
    (folder / str(batch.seeds[changed])).write_text(how)
    return batch


def killing_while(env_id: int, then: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Lose a process once, when an environment that is being taken back is asked for its third step.

    What was lost is restored before that step's result is waited for.
    """
    n_steps, original = [0], Environments.step

    def step(self: Environments, env_ids: Any, actions: Any) -> None:
        original(self, env_ids, actions)
        if list(env_ids) == [env_id] and not self.restoring:
            n_steps[0] += 1
            if n_steps[0] == 3:
                n_losses = len(self.losses)
                then()
                while len(self.losses) == n_losses:
                    self.take_in(None)
                while self.restoring:
                    self.take_in(None)

    monkeypatch.setattr(Environments, "step", step)


@pytest.mark.parametrize("agent", AGENTS)
@pytest.mark.slow
def test_fewer_environments_and_a_loss(agent):
    """Those that are no rows any more are not wanted back."""
    with reference(agent(), Sticky) as one, in_parent(agent(), Sticky) as sampler:
        for n_envs in (3, 1, 1, 2):
            assert sampler.obtain_fragments(5, n_envs) == one.obtain_fragments(5, n_envs)
            kill(sampler.worker_pids())


@pytest.mark.slow
def test_a_loss_beyond_the_quota_while_a_fragment_is_taken_back(tmp_path, monkeypatch):
    with in_parent(Fleeting(), functools.partial(Long, tmp_path), 3, max_restarts=1, check=None) as sampler:
        two_calls(sampler, tmp_path)
        killing_while(1, lambda: kill(sampler.worker_pids()[1:2]), monkeypatch)
        kill(sampler.worker_pids()[2:])
        with pytest.raises(WorkerDiedError, match="max_restarts is 1"):
            sampler.obtain_fragments(10)
        assert not sampler.obtain_fragments(3).continued.any()


@pytest.mark.parametrize("agent", AGENTS)
@pytest.mark.slow
def test_one_that_was_taken_back_and_is_another_one_after_a_second_loss(agent, tmp_path, monkeypatch):
    """Another one is being taken back when that is found out: which is not to blame."""
    with in_parent(agent(), functools.partial(Long, tmp_path), 3, max_restarts=None, check=None) as sampler:
        second = two_calls(sampler, tmp_path)

        def lose() -> None:
            (tmp_path / str(second.seeds[0])).write_text("changes")
            kill(sampler.worker_pids()[:1])

        killing_while(1, lose, monkeypatch)
        kill(sampler.worker_pids()[2:])
        third = sampler.obtain_fragments(10)
        assert third.continued.tolist() == [False, True, False]
        assert sampler.stats.failed_trajectories == 2
        assert sampler.stats.restarts == 2


@pytest.mark.slow
def test_one_that_was_given_up_is_not_wanted_back_after_another_loss(tmp_path, monkeypatch):
    with in_parent(Fleeting(), functools.partial(Long, tmp_path), 3, max_restarts=None, check=None) as sampler:
        two_calls(sampler, tmp_path, changed=0)
        killing_while(1, lambda: kill(sampler.worker_pids()[:1]), monkeypatch)
        kill(sampler.worker_pids()[:1])
        assert sampler.obtain_fragments(10).continued.tolist() == [False, True, True]
        assert sampler.stats.failed_trajectories == 1


@pytest.mark.parametrize("agent", AGENTS)
@pytest.mark.slow
def test_one_that_raises_while_its_actions_are_applied_again_is_given_up(agent, tmp_path, caplog):
    with in_parent(agent(), functools.partial(Long, tmp_path), 3, check=None) as sampler:
        second = two_calls(sampler, tmp_path, changed=1, how="raises")
        kill(sampler.worker_pids()[1:2])
        assert sampler.obtain_fragments(10).continued.tolist() == [True, False, True]
        assert sampler.stats.failed_trajectories == 1
        assert sampler.obtain_fragments(10).continued.all()
    assert second.cut.all()
    assert caplog.text.count("cannot be restored: its environment raised OSError: no licence is left") == 1


class Refusing(Sticky):
    """Has long episodes, and raises in the twelfth step of one of them, once."""

    def __init__(self, folder: Any) -> None:
        self.file = folder / "raised"

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        result = super().reset(seed=seed)
        self.length = 1000
        return result

    def step(self, action: int) -> Any:
        if self.t == 12 and not self.file.exists():
            self.file.touch()
            raise ConnectionError("not there yet")
        return super().step(action)


@pytest.mark.parametrize("agent", [Fleeting, Drawn, Alone])
def test_exceptions_that_count_as_losses(agent, tmp_path):
    batches = []
    for make in (reference, in_parent):
        (folder := tmp_path / make.__name__).mkdir()
        with make(agent(), functools.partial(Refusing, folder), restart_on=ConnectionError, check=None) as sampler:
            batches.append([sampler.obtain_fragments(10, N_ENVS) for _ in range(2)])
            if make is in_parent:
                kill(sampler.worker_pids())
            batches[-1].append(sampler.obtain_fragments(10, N_ENVS))
    assert batches[0][2].continued.all()
    if agent is not Alone:  # which cannot say where its generators stand
        assert batches[0] == batches[1]


class Slow(Sticky):
    """Interrupts the process of the agent, once, in the middle of a step, which it does not end before."""

    def __init__(self, pid: int, folder: Any) -> None:
        self.pid, self.folder = pid, folder

    def step(self, action: int) -> Any:
        if not (file := self.folder / "interrupted").exists():
            file.touch()
            os.kill(self.pid, signal.SIGINT)
            with (self.folder / "pipe").open("rb", buffering=0) as pipe:
                pipe.read(1)
        return super().step(action)


@pytest.mark.parametrize("agent", AGENTS)
def test_ctrl_c_while_environments_step(agent, tmp_path):
    os.mkfifo(tmp_path / "pipe")
    pipe = os.open(tmp_path / "pipe", os.O_RDWR)  # so that it can be written to also where that process is ended
    env = functools.partial(Slow, os.getpid(), tmp_path)
    with in_parent(agent(), env, 1, worker_args={"n_envs": 1}, check=None) as sampler:
        with pytest.raises(KeyboardInterrupt):
            sampler.obtain_fragments(5)
        os.write(pipe, b"!")
        assert sampler.obtain_fragments(5).n_timesteps == 5
    os.close(pipe)


def test_ctrl_c_while_processes_are_ended(monkeypatch):
    """As a second one, where the call after the first begins with other processes."""
    with in_parent(Fleeting(), Sticky) as sampler:
        sampler.obtain_fragments(2)
        close, engine = ProcessTransport.close, sampler._session.engine

        def interrupted(self: ProcessTransport) -> None:
            monkeypatch.setattr(ProcessTransport, "close", close)
            close(self)
            raise KeyboardInterrupt

        monkeypatch.setattr(ProcessTransport, "close", interrupted)
        with pytest.raises(KeyboardInterrupt):
            engine.close()
        engine.close()


class Numbered(Sticky):
    """Shows in its observations which process it is in, if it is in the first one."""

    def __init__(self, worker_number: int = 0) -> None:
        self.shown = os.getpid() % 1000 if worker_number == 0 else 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        observation, info = super().reset(seed=seed)
        self.length = 40
        return observation + np.float32(self.shown), info

    def step(self, action: int) -> Any:
        observation, *rest, _ = super().step(action)
        return observation + np.float32(self.shown), *rest, {"bad": self.shown > 0 and self.t == 3, "t": self.t}


class Killing(Drawn):
    """Rows depend on each other, it says; kills a process when all have been asked for ten times."""

    row_independent = False

    def __init__(self) -> None:
        super().__init__()
        self.kill: Any = None
        self.n_asked = 0

    def get_actions(self, observations: Any, *, starts: Any, draws: Any) -> Any:
        self.n_asked += 1
        if self.n_asked == 10 and self.kill is not None:
            self.kill()
        return super().get_actions(observations, starts=starts, draws=draws)


def test_a_trajectory_that_was_left_out_is_not_wanted_back():
    agent = Killing()
    with in_parent(
        agent, Numbered, worker_args={"n_envs": 2}, drop_if=lambda info: info.get("bad"), check=None, max_restarts=None
    ) as sampler:
        agent.kill = lambda: kill(sampler.worker_pids()[:1])
        batch = sampler.obtain_trajectories(1)
        assert batch.indices.tolist() == [1]
        assert agent.n_asked >= 40


class Licensed(Sticky):
    """Raises once in its third timestep where it was made anew."""

    def __init__(self, file: Any = None) -> None:
        self.raises = file is not None and file.exists()

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        result = super().reset(seed=seed)
        self.length = 40
        return result

    def step(self, action: int) -> Any:
        if self.raises and self.t == 2:
            self.raises = False
            raise OSError("no licence is left")
        return super().step(action)


@pytest.mark.slow
def test_whole_trajectories_are_run_again_where_an_environment_raises_when_it_is_restored(tmp_path, caplog):
    options: dict[str, Any] = {"worker_args": {"n_envs": 2}, "check": None}
    agent, file = Killing(), tmp_path / "made"
    with in_parent(agent, Licensed, env_kwargs={"file": file}, **options) as sampler:
        agent.kill = lambda: (file.touch(), kill(sampler.worker_pids()[:1]))
        found = sampler.obtain_trajectories(2)
        assert sampler.stats.lost_timesteps >= 20
    with reference(Killing(), Licensed, **options) as sampler:
        assert found == sampler.obtain_trajectories(2)
    assert "raised when its actions were applied again. Trajectories under way are run again" in caplog.text
