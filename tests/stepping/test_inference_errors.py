"""An agent in the sampler's process: what goes wrong is the error that `VecWorker` raises."""

import os
import re
import signal
import threading
import time

import numpy as np
import pytest

from streamsampler import LocalSampler, MultiprocessingSampler, VecWorker
from streamsampler.errors import RolloutError, WorkerDiedError
from streamsampler.stepping.inference.stepper import EnvironmentRaisedError
from tests.stepping.environments import Strolling

N_ENVS = 4


def in_parent(agent, env, n_workers=2, **options):
    options = {"seed": 5, "check": None, "worker_args": {"n_envs": N_ENVS}, **options}
    return MultiprocessingSampler(agent, env, n_workers=n_workers, inference="parent", **options)


def reference(agent, env, **options):
    options = {"seed": 5, "check": None, "worker_args": {"n_envs": N_ENVS}, "worker_class": VecWorker, **options}
    return LocalSampler(agent, env, **options)


class Exact(Strolling.Agent):
    def get_actions(self, observations):
        return np.tanh(observations + 0.1).astype(np.float32), {}


class InBlocks(Exact):
    row_independent = False


class Endless(Strolling):
    """Ends never by itself."""

    def reset(self, *, seed=None, options=None):
        result = super().reset(seed=seed)
        self.left = 1 << 30
        return result


class Swayed(Endless):
    """Draws from a global generator in its steps."""

    def step(self, action):
        return super().step(action + np.random.normal(size=2).astype(np.float32))


@pytest.mark.parametrize("agent", [Strolling.Agent, InBlocks])
@pytest.mark.slow
def test_global_draws_are_found_in_trajectories_that_the_sampler_truncates(agent):
    with (
        in_parent(agent(), Swayed, max_episode_length=3) as sampler,
        pytest.raises(RolloutError, match="drew from a global generator"),
    ):
        sampler.obtain_trajectories(N_ENVS)


# ---------------------------------------------------------------------- what raises


class Failing(Strolling):
    """Fails in one way in trajectories of some seeds."""

    def __init__(self, how):
        self.how = how

    def reset(self, *, seed=None, options=None):
        observation, info = super().reset(seed=seed)
        self.fails = seed % 5 == 0
        if self.fails:
            match self.how:
                case "reset raises":
                    raise KeyError("boom")
                case "reset returns no tuple":
                    return observation
                case "reset returns another shape":
                    return observation[:1], info
                case "reset returns a list of infos":
                    return observation, [1]
        return observation, info

    def step(self, action):
        observation, reward, terminated, truncated, info = super().step(action)
        if self.fails and self.left < 5:
            match self.how:
                case "step returns no tuple":
                    return None
                case "step returns another shape":
                    return observation[:1], reward, terminated, truncated, info
                case "step returns a list of infos":
                    return observation, reward, terminated, truncated, [1]
                case "step raises":
                    raise KeyError("boom")
        return observation, reward, terminated, truncated, info


WAYS = ["raises", "returns no tuple", "returns another shape", "returns a list of infos"]
ALL_WAYS = [f"{what} {way}" for what in ("reset", "step") for way in WAYS]
QUICK = {"reset raises", "reset returns a list of infos"}


def error_of(sampler, n=20, **updates):
    with sampler, pytest.raises(RolloutError) as caught:
        sampler.obtain_trajectories(n, **updates)
    return caught.value


def assert_alike(error, expected):
    assert str(error).splitlines()[0] == str(expected).splitlines()[0]
    assert (error.phase, error.trajectory) == (expected.phase, expected.trajectory)
    assert type(error.original) is type(expected.original)
    assert error.original.args == expected.original.args


@pytest.mark.parametrize(
    ("how", "agent"),
    [
        *(
            pytest.param(how, agent, marks=() if how in QUICK and agent is Exact else pytest.mark.slow)
            for how in ALL_WAYS
            for agent in (Exact, InBlocks)
        ),
    ],
)
@pytest.mark.slow
def test_what_an_environment_does_wrong_is_the_error_of_vec_worker(how, agent):
    makers = (reference, in_parent)
    expected, error = (error_of(make(agent(), Failing, env_kwargs={"how": how})) for make in makers)
    assert_alike(error, expected)


class Interrupting(Strolling):
    """Sends Ctrl-C to a process in the first reset or step, and then hangs."""

    def __init__(self, pid, where):
        self.pid, self.where = pid, where

    def reset(self, *, seed=None, options=None):
        self.interrupt("reset")
        return super().reset(seed=seed)

    def step(self, action):
        self.interrupt("step")
        return super().step(action)

    def interrupt(self, where):
        if where == self.where:
            os.kill(self.pid, signal.SIGINT)
            threading.Event().wait()


@pytest.mark.slow  # where it interrupts the call depends on timing
@pytest.mark.parametrize("agent", [Exact, InBlocks])
@pytest.mark.parametrize("where", ["reset", "step"])
def test_ctrl_c_ends_a_call_whose_environments_hang(agent, where):
    kwargs = {"pid": os.getpid(), "where": where}
    worker_args = {"n_envs": 1}  # one Ctrl-C
    with in_parent(
        agent(), Interrupting, 1, env_kwargs=kwargs, worker_args=worker_args, close_timeout=0.5, max_episode_length=5
    ) as sampler:
        with pytest.raises(KeyboardInterrupt):
            sampler.obtain_trajectories(2)
        assert len(sampler.obtain_trajectories(2, env_update=Endless)) == 2


# ---------------------------------------------------------------------- what agents do wrong


class Mistaken(Strolling.Agent):
    """Returns something wrong, far out or everywhere."""

    def __init__(self, how, everywhere=False):
        self.how, self.everywhere = how, everywhere

    def get_actions(self, observations):
        actions = np.tanh(observations + 0.1).astype(np.float32)
        if not self.everywhere and not (observations > 1.5).any():
            return actions, {}
        n = len(actions)
        return {
            "too many infos": (actions, {"x": np.zeros(n + 5)}),
            "too few infos": (actions, {"x": {"y": [1] * (n - 1)}}),
            "infos of one number": (actions, {"x": 3.0}),
            "actions of another shape": (actions[:, :1], {}),
            "too few actions": (actions[1:], {}),
            "actions that are no numbers": (actions * np.nan, {}),
            "actions outside": (actions * 9, {}),
            "infos that are no dict": (actions, [1]),
        }[self.how]


MISTAKES = ["too many infos", "too few infos", "infos of one number", "actions of another shape", "too few actions"]
MISTAKES += ["actions that are no numbers", "actions outside", "infos that are no dict"]


@pytest.mark.parametrize(
    ("how", "everywhere"),
    [
        pytest.param(how, everywhere, marks=() if how == "too many infos" and everywhere else pytest.mark.slow)
        for how in MISTAKES
        for everywhere in (True, False)
    ],
)
def test_what_an_agent_does_wrong_is_the_error_of_vec_worker(how, everywhere):
    options = {"max_episode_length": 9}
    makers = (reference, in_parent)
    expected, error = (error_of(make(Mistaken(how, everywhere), Endless, **options)) for make in makers)
    if everywhere:
        assert_alike(error, expected)
    else:  # when a row is asked for together with the one that is far out, and what it saw, depends on timing
        assert type(error.original) is type(expected.original)
        wrong, as_expected = (re.sub(r"\[[-\d., ]+\]", "[…]", str(each.original)) for each in (error, expected))
        assert wrong.partition(", at timestep")[0] == as_expected.partition(", at timestep")[0]
        if how == "actions outside":  # the numbers are those of an action that is
            numbers = re.search(r"array\(\[([^]]+)\]", str(error.original))
            assert numbers is not None
            assert max(map(abs, map(float, numbers[1].split(",")))) > 1
        assert "timestep -" not in str(error)


# ---------------------------------------------------------------------- what would end a process, or cannot travel


class Unruly(Strolling):
    """Raises, in its third timestep, what an environment should not; where it is made, too, if it says so."""

    def __init__(self, how, where="step"):
        self.how, self.where = how, where
        self.misbehave("construction")

    def reset(self, *, seed=None, options=None):
        self.misbehave("reset")
        return super().reset(seed=seed)

    def step(self, action):
        self.misbehave("step")
        return super().step(action)

    def misbehave(self, where):
        class LocalError(Exception):
            pass

        if where == self.where:
            match self.how:
                case "exit":
                    raise SystemExit(3)
                case "interrupt":
                    raise KeyboardInterrupt
                case "local class":
                    raise LocalError("local")
                case "lock":
                    raise LocalError(threading.Lock())
                case "end":
                    os._exit(3)


@pytest.mark.parametrize(
    ("how", "where"),
    [
        ("exit", "step"),
        *(
            pytest.param(how, where, marks=pytest.mark.slow)
            for how, where in [
                ("exit", "reset"),
                ("exit", "construction"),
                ("local class", "step"),
                ("local class", "construction"),
            ]
        ),
    ],
)
def test_what_would_end_a_process_or_cannot_be_pickled_is_the_error_of_vec_worker(how, where):
    kwargs = {"how": how, "where": where}
    expected, error = (error_of(make(Exact(), Unruly, env_kwargs=kwargs)) for make in (reference, in_parent))
    # A class that was pickled by value has lost the place where it was defined.
    assert str(error).splitlines()[0] == str(expected).splitlines()[0].replace("Unruly.misbehave.<locals>.", "")
    assert (error.phase, error.trajectory) == (expected.phase, expected.trajectory)
    assert type(error.original).__name__ == type(expected.original).__name__
    assert error.original.args == expected.original.args


@pytest.mark.slow
@pytest.mark.parametrize("how", ["interrupt", "lock"])
def test_what_cannot_come_from_another_process_is_named(how):
    error = error_of(in_parent(Exact(), Unruly, env_kwargs={"how": how}))
    assert isinstance(error.original, EnvironmentRaisedError)
    assert {"interrupt": "KeyboardInterrupt", "lock": "LocalError"}[how] in str(error)
    assert "in trajectory 0 of agent version 1" in str(error)


@pytest.mark.slow
def test_the_error_of_a_process_that_died_names_the_trajectory():
    with (
        in_parent(Exact(), Unruly, env_kwargs={"how": "end"}, max_restarts=0) as sampler,
        pytest.raises(WorkerDiedError, match=r"environment \d ran trajectory \d; that is 1 loss") as caught,
    ):
        sampler.obtain_trajectories(N_ENVS)
    assert caught.value.trajectory in range(N_ENVS)


@pytest.mark.slow
def test_an_environment_that_hangs_does_not_hold_up_the_end(monkeypatch):
    for module in ("environments", "env_processes"):  # the package's own limit, which this is about
        monkeypatch.setattr(f"streamsampler.stepping.inference.{module}.STUCK_SECONDS", 1.0)
    kwargs = {"pid": os.getpid(), "where": "step"}
    worker_args = {"n_envs": 1}
    sampler = in_parent(Exact(), Interrupting, 1, env_kwargs=kwargs, worker_args=worker_args, close_timeout=60.0)
    with pytest.raises(KeyboardInterrupt):
        sampler.obtain_trajectories(2)
    began = time.perf_counter()
    sampler.close()
    assert time.perf_counter() - began < 30.0


class Stuck(Strolling):
    """In process 1 never ends a step, before an agent has raised; in process 0 begins its first one then."""

    def __init__(self, folder, worker_number=0):
        self.folder, self.worker_number = folder, worker_number

    def reset(self, *, seed=None, options=None):
        result = super().reset(seed=seed)
        self.left = 30
        return result

    def step(self, action):
        is_first = not (self.folder / "raised").exists()
        if is_first and self.worker_number == 0 and not (self.folder / "stepped").exists():
            (self.folder / "pipe").read_text()
            (self.folder / "stepped").touch()
        elif is_first and self.worker_number == 1:
            (self.folder / "pipe").write_text("!")
            threading.Event().wait()
        return super().step(action)


class Once(Strolling.Agent):
    """Raises once, when an environment of process 0 has taken a step."""

    def __init__(self, folder):
        self.folder = folder

    def get_actions(self, observations):
        if (self.folder / "stepped").exists() and not (self.folder / "raised").exists():
            (self.folder / "raised").touch()
            raise OverflowError("once is enough")
        return super().get_actions(observations)


@pytest.mark.parametrize(
    "call",
    [
        pytest.param(lambda sampler: sampler.obtain_trajectories(4), marks=pytest.mark.slow),
        lambda sampler: sampler.obtain_fragments(5),
    ],
    ids=["trajectories", "fragments"],
)
@pytest.mark.slow
def test_an_environment_that_hangs_holds_up_no_error_of_the_agent_and_no_later_call(call, tmp_path, monkeypatch):
    for module in ("environments", "env_processes"):  # it is never done, however long it is waited for
        monkeypatch.setattr(f"streamsampler.stepping.inference.{module}.STUCK_SECONDS", 1.0)
    os.mkfifo(tmp_path / "pipe")
    args = {"n_envs": 2}
    with in_parent(Once(tmp_path), Stuck, 2, env_kwargs={"folder": tmp_path}, worker_args=args) as sampler:
        with pytest.raises(RolloutError, match="once is enough"):
            call(sampler)
        assert call(sampler).n_timesteps > 0
