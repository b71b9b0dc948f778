"""Fragments with the agent in the sampler's process: those of `VecWorker`, whatever is lost."""

from __future__ import annotations

import contextlib
import functools
import os
import select
import signal
from typing import Any

import numpy as np
import pytest

from streamsampler import LocalSampler, MultiprocessingSampler, RandomAgent, VecWorker
from streamsampler.errors import RolloutError, UsageError, WorkerDiedError
from streamsampler.filters import RunningNorm
from streamsampler.samplers.call import Call
from streamsampler.testing import Fault, Faults
from tests.faults.test_interrupts import raise_once
from tests.fragments.agents import (
    Alone,
    CountsRows,
    Drawn,
    Fleeting,
    Following,
    Forgetful,
    Mixing,
    Noisy,
    Restorable,
    Sticky,
    Wandering,
)
from tests.fragments.test_actions import Doubles, Exact
from tests.scripted.agents import Independent, Sampling, always_zero
from tests.scripted.envs import Nested, Rough

SEED = 99
N_ENVS = 3
AGENTS: list[Any] = [Fleeting, Alone, Drawn, Mixing, Restorable, RandomAgent, CountsRows]
APART = [Fleeting, Alone]  # those that may be asked for any rows that are ready


def slow_but(kept: list[Any], given: list[Any] = AGENTS) -> list[Any]:
    """Mark what is given as slow, but for what is kept."""
    return [each if each in kept else pytest.param(each, marks=pytest.mark.slow) for each in given]


def in_parent(agent: Any, env: Any, n_workers: int = 2, **options: Any) -> MultiprocessingSampler[Any, Any]:
    options = {"seed": SEED, "worker_args": {"n_envs": N_ENVS}, **options}
    return MultiprocessingSampler(agent, env, n_workers=n_workers, inference="parent", **options)


def reference(agent: Any, env: Any, **options: Any) -> LocalSampler[Any, Any]:
    options = {"seed": SEED, "worker_args": {"n_envs": N_ENVS}, **options}
    return LocalSampler(agent, env, worker_class=VecWorker, **options)


def one_call(sampler: Any, agent: Any, call: int, n_envs: int = N_ENVS) -> Any:
    update: Any = None
    if agent in (Restorable, Alone):
        update = np.array([0.0, 0.0, 0.3, 0.1 * call])
    elif agent in (Drawn, Mixing, Fleeting):
        update = (call,)
    return sampler.obtain_fragments(12 if call != 3 else 25, n_envs, agent_update=update)


@functools.cache
def undisturbed(agent: Any, n_envs: int = N_ENVS) -> list[Any]:
    with reference(agent(), Sticky) as sampler:
        return [one_call(sampler, agent, call, n_envs) for call in range(10)]


def kill(pids: list[int]) -> None:
    """Kill processes, and wait for their ends; one that was lost before, and is not needed any more, is gone."""
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            ended = os.pidfd_open(pid)
            os.kill(pid, signal.SIGKILL)
            select.select([ended], [], [])
            os.close(ended)


@pytest.mark.parametrize("agent", slow_but([Fleeting, Drawn]))
@pytest.mark.parametrize("n_workers", [3, *(pytest.param(n, marks=pytest.mark.slow) for n in (1, 2))])
def test_fragments_are_those_of_vec_worker(agent, n_workers):
    with in_parent(agent(), Sticky, n_workers) as sampler:
        for call, expected in enumerate(undisturbed(agent)):
            assert one_call(sampler, agent, call) == expected


@pytest.mark.parametrize("n_workers", [7, pytest.param(2, marks=pytest.mark.slow)])
def test_there_may_be_fewer_environments_than_rows(n_workers):
    args = {"worker_args": {"n_envs": 7}}
    agent = RandomAgent()
    with reference(agent, Sticky, **args) as one, in_parent(agent, Sticky, n_workers, **args) as sampler:
        assert sampler.obtain_fragments(5).fragments["env_numbers"].max() == 6
        one.obtain_fragments(5, 7)
        for n_envs in (2, 7, 1):
            for _ in range(2):
                assert sampler.obtain_fragments(5, n_envs) == one.obtain_fragments(5, n_envs)
        with pytest.raises(UsageError, match=r'of 8 environments: with inference="parent" there are 7; pass.*: 8}'):
            sampler.obtain_fragments(5, 8)


@pytest.mark.parametrize(
    ("agent", "env", "options"),
    [
        pytest.param(RandomAgent, Sticky, {"max_episode_length": 7}, marks=pytest.mark.slow),
        (Fleeting, Sticky, {"max_episode_length": 7}),
        pytest.param(RandomAgent, Sticky, {"observation_filter": RunningNorm(clip=10.0)}, marks=pytest.mark.slow),
        (Fleeting, Sticky, {"observation_filter": RunningNorm(clip=10.0)}),
        pytest.param(RandomAgent, Nested, {}, marks=pytest.mark.slow),
        pytest.param(Sampling, "CartPole-v1", {}, marks=pytest.mark.slow),
        (Following, "Pendulum-v1", {"max_episode_length": 20}),
    ],
)
@pytest.mark.slow
def test_limits_filters_and_spaces(agent, env, options):
    with (
        reference(agent(), env, check=None, **options) as one,
        in_parent(agent(), env, check=None, **options) as sampler,
    ):
        for call in range(5):
            assert sampler.obtain_fragments(13, N_ENVS) == one.obtain_fragments(13, N_ENVS)
            kill(sampler.worker_pids()[call % 2 :])


class ApartDoubles(Doubles):
    row_independent = True


@pytest.mark.parametrize("agent", slow_but([ApartDoubles], [Doubles, ApartDoubles]))
@pytest.mark.parametrize(
    "name", ["box", "dict", *(pytest.param(n, marks=pytest.mark.slow) for n in ("number", "tuple"))]
)
@pytest.mark.slow
def test_actions_of_other_floats_lead_where_they_led(agent, name):
    env = functools.partial(Exact, name)
    with reference(agent(), env, check=None) as one, in_parent(agent(), env, check=None) as sampler:
        for call in range(3):
            assert sampler.obtain_fragments(7, N_ENVS) == one.obtain_fragments(7, N_ENVS)
            kill(sampler.worker_pids()[call % 2 :])


@pytest.mark.parametrize("n_groups", slow_but([2], [1, 2]))
@pytest.mark.slow
def test_agents_replace_one_another_whether_they_remember_something_or_not(n_groups):
    order: list[Any] = [Fleeting, Drawn, Alone, Fleeting, Restorable, Mixing, Fleeting]
    args = {"n_envs": N_ENVS, "groups": n_groups}
    with reference(Drawn(), Sticky) as one, in_parent(Drawn(), Sticky, worker_args=args) as sampler:
        for call, agent in enumerate(order):
            for update in (agent(), None):
                expected = one.obtain_fragments(9, N_ENVS, agent_update=update)
                assert sampler.obtain_fragments(9, agent_update=update) == expected, call
            kill(sampler.worker_pids()[call % 2 :])
        assert expected.continued.any()


class Gated(Sticky):
    """Environment 0 ends its first step when environment 1 has taken five."""

    def __init__(self, folder: Any, worker_number: int = 0) -> None:
        self.pipe, self.worker_number = folder / "pipe", worker_number

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.length = 1000
        return self.observe(), {}

    def step(self, action: int) -> Any:
        if self.t == 0 and self.worker_number == 0:
            self.pipe.read_text()
        if self.t == 4 and self.worker_number == 1:
            self.pipe.write_text("!")
        return super().step(action)


@pytest.mark.parametrize("agent", slow_but([Fleeting], APART))
@pytest.mark.parametrize("n_groups", [1, 2])
@pytest.mark.slow
def test_environments_go_on_without_slow_ones(agent, n_groups, tmp_path):
    os.mkfifo(tmp_path / "pipe")
    args = {"n_envs": 2, "groups": n_groups}
    with in_parent(agent(), functools.partial(Gated, tmp_path), 2, worker_args=args, check=None) as sampler:
        assert sampler.obtain_fragments(10).n_timesteps == 20


def test_episodes_end_with_other_calls():
    def calls(sampler: Any) -> list[Any]:
        return [
            sampler.obtain_fragments(9, N_ENVS),
            sampler.obtain_fragments(9, N_ENVS, agent_update=Drawn(), reset_options={"level": 3}),
            sampler.obtain_trajectories(5),
            sampler.obtain_fragments(9, N_ENVS),
            sampler.obtain_fragments(9, N_ENVS, env_update=functools.partial(Sticky)),
            sampler.obtain_samples(20),
            sampler.obtain_fragments(4, 2),
        ]

    with reference(Drawn(), Sticky) as one, in_parent(Drawn(), Sticky) as sampler:
        expected, batches = calls(one), calls(sampler)
    assert batches == expected
    assert batches[1].continued.any()
    assert not any(batches[call].continued.any() for call in (3, 4, 6))


# ---------------------------------------------------------------------- losses


@pytest.mark.parametrize("agent", slow_but([Fleeting, Mixing]))
@pytest.mark.parametrize("how", ["kill", pytest.param("hang", marks=pytest.mark.slow)])
@pytest.mark.slow
def test_lost_processes_change_nothing(agent, how, tmp_path):
    """Not even where the agent cannot say what it remembers: it is not lost."""
    faults = Faults(tmp_path, Fault(how, "step", step=20), Fault(how, "step", step=1), Fault(how, "reset"))
    limit = 2.0 if how == "hang" else None
    with in_parent(agent(), faults.env(Sticky), check=None, step_timeout=limit, max_restarts=None) as sampler:
        for call, expected in enumerate(undisturbed(agent)):
            assert one_call(sampler, agent, call) == expected
        assert faults.fired() == 3
        if how == "hang":  # to lose others as well, which were slow, changes nothing
            assert sampler.stats.hangs >= 3
        else:
            assert 1 <= sampler.stats.restarts <= 3
            assert sampler.stats.hangs == 0
        assert sampler.stats.failed_trajectories == 0
        assert sampler.stats.lost_timesteps > 0


@pytest.mark.slow
@pytest.mark.parametrize("agent", [Restorable, Fleeting])
def test_two_hundred_kills_over_fifty_calls(agent):
    kills = 0
    with (
        reference(agent(), Sticky) as one,
        in_parent(agent(), Sticky, 3, max_restarts=None, max_lifetime_restarts=None) as sampler,
    ):
        for call in range(67):
            assert one_call(sampler, agent, call) == one_call(one, agent, call)
            kill(pids := sampler.worker_pids())
            kills += len(pids)
        assert kills > 200
        assert sampler.stats.restarts == kills - len(pids)


@pytest.mark.slow
@pytest.mark.parametrize("agent", [RandomAgent, Fleeting])
@pytest.mark.parametrize("env", [Forgetful, Wandering])
def test_hidden_randomness_ends_the_episodes(agent, env, caplog):
    with in_parent(agent(), env, 3, check=None) as sampler:
        assert sampler.obtain_fragments(5).cut.all()
        kill(sampler.worker_pids()[1:2])
        second, failed = sampler.obtain_fragments(5), sampler.stats.failed_trajectories
        third = sampler.obtain_fragments(5)
    # The others are taken back to where the fragment began, and do something else as well.
    assert second.indices.tolist() == [N_ENVS, 1 + N_ENVS, 2 + N_ENVS]
    assert failed == caplog.text.count("cannot be restored: the same actions did not lead to the same") == N_ENVS
    assert third.continued.all()


class Changing(Sticky):
    """Has long episodes; does something else in the last timestep before a loss, once there is a file for its seed."""

    def __init__(self, folder: Any) -> None:
        self.folder = folder

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.length, self.file = 1000, self.folder / str(seed)
        return self.observe(), {}

    def step(self, action: int) -> Any:
        observation, *rest = super().step(action)
        return (observation + 1 if self.t == 20 and self.file.exists() else observation), *rest


@pytest.mark.slow
@pytest.mark.parametrize("agent", [Fleeting, Alone, Drawn, Mixing, Restorable, CountsRows])
def test_of_several_the_one_that_does_something_else_is_found_out(agent, tmp_path, caplog):
    with in_parent(agent(), functools.partial(Changing, tmp_path), 2, check=None) as sampler:
        first, second = sampler.obtain_fragments(10), sampler.obtain_fragments(10)
        assert second.continued.all()
        (tmp_path / str(first.seeds[1])).touch()  # environment 1 is another one from now on
        kill(sampler.worker_pids())
        third = sampler.obtain_fragments(10)
        failed = sampler.stats.failed_trajectories
    known = agent not in (CountsRows, Alone)  # their memory was that of the fragment that is run again
    assert third.continued.tolist() == ([True, False, True] if known else [False] * 3)
    assert failed == (1 if known else 3)
    assert caplog.text.count("cannot be restored") == failed
    if agent in (Drawn, Fleeting):
        with reference(agent(), functools.partial(Changing, tmp_path / "none")) as one:
            expected = [one.obtain_fragments(10, N_ENVS) for _ in range(3)][2]
        assert [third[row] == expected[row] for row in range(3)] == [True, False, True]


@pytest.mark.slow
@pytest.mark.parametrize("agent", [Drawn, Fleeting])
@pytest.mark.parametrize(("limit", "lost"), [(8, 3), (9, 0)])
def test_longer_episodes_are_not_restored(agent, limit, lost, tmp_path, caplog):
    """Nor can others be taken back that are as long."""
    with in_parent(agent(), functools.partial(Changing, tmp_path), 3) as sampler:
        for _ in range(3):
            sampler.obtain_fragments(3, restore_limit=limit)
        kill(sampler.worker_pids()[:1])
        batch = sampler.obtain_fragments(3, restore_limit=limit)
        assert sampler.stats.failed_trajectories == caplog.text.count("longer than can be restored") == lost
    assert batch.continued.tolist() == [not lost] * 3


def test_losses_beyond_the_quota_are_an_error(tmp_path):
    faults = Faults(tmp_path, Fault("kill", "step", step=2, times=2))
    with in_parent(Drawn(), faults.env(Sticky), max_restarts=1, check=None) as sampler:
        with pytest.raises(WorkerDiedError, match="max_restarts is 1"):
            one_call(sampler, Drawn, 0)
        assert not sampler.obtain_fragments(5).continued.any()


# ---------------------------------------------------------------------- errors


class Rash(Drawn):
    """Raises where it has seen too much."""

    def get_actions(self, observations: Any, *, starts: Any, draws: Any) -> Any:
        if (np.where(starts, 0.0, self.seen) > 7).any():
            raise OverflowError("too much")
        return super().get_actions(observations, starts=starts, draws=draws)


class Hasty(Fleeting):
    """Raises where it sees too much."""

    def get_actions(self, observations: Any, *, draws: Any) -> Any:
        if (observations.sum(axis=1) > 3.5).any():
            raise OverflowError("too much")
        return super().get_actions(observations, draws=draws)


@pytest.mark.parametrize(
    ("agent", "env"), [(Rash, Sticky), (lambda: always_zero, Rough), (lambda: Independent(always_zero), Rough)]
)
@pytest.mark.slow
def test_what_raises_is_the_error_of_vec_worker_and_ends_the_episodes(agent, env):
    errors = []
    for make in (reference, in_parent):
        with make(agent(), env, check=None) as sampler:
            with pytest.raises(RolloutError) as caught:
                [sampler.obtain_fragments(11, N_ENVS) for _ in range(200)]
            errors.append(caught.value)
            assert not sampler.obtain_fragments(1, N_ENVS).continued.any()
    one, other = errors
    assert str(one).splitlines()[0] == str(other).splitlines()[0]
    assert (one.phase, one.trajectory) == (other.phase, other.trajectory)


def test_what_an_agent_raises_for_some_rows_names_one_of_them():
    with in_parent(Hasty(), Sticky, check=None) as sampler:
        with pytest.raises(RolloutError, match=r"choosing an action in trajectory .*OverflowError: too much") as caught:
            [sampler.obtain_fragments(11) for _ in range(200)]
        assert caught.value.trajectory is not None
        (seed,) = sampler.seeds(1, [caught.value.trajectory])
        assert not sampler.obtain_fragments(1).continued.any()
    env = Sticky()
    seen = [env.reset(seed=seed)[0], *(env.step(0)[0] for _ in range(env.length - 1))]
    assert any(observation.sum() > 3.5 for observation in seen), "not in this one"


class Careless(Fleeting):
    def get_actions(self, observations: Any, *, draws: Any) -> Any:
        np.random.random()
        return super().get_actions(observations, draws=draws)


def test_global_draws_of_an_agent_that_is_asked_for_what_is_ready_are_an_error():
    with in_parent(Careless(), Sticky) as sampler, pytest.raises(RolloutError, match="drew from a global generator"):
        sampler.obtain_fragments(5)
    with in_parent(Careless(), Sticky, worker_args={"n_envs": 3, "block_size": 3}) as sampler:
        assert sampler.obtain_fragments(5).n_timesteps == 15


@pytest.mark.parametrize("agent", slow_but([Fleeting], [Drawn, Fleeting]))
def test_an_interrupted_call(agent, monkeypatch):
    batches = []
    for make in (reference, in_parent):
        with make(agent(), Sticky) as sampler:
            first = sampler.obtain_fragments(9, N_ENVS)
            with monkeypatch.context() as patch:
                raise_once(patch, Call, "pump", KeyboardInterrupt)
                with pytest.raises(KeyboardInterrupt):
                    sampler.obtain_fragments(9, N_ENVS)
            batches.append([first, *(sampler.obtain_fragments(9, N_ENVS) for _ in range(2))])
    assert batches[0] == batches[1]
    assert not batches[0][1].continued.any()


def test_global_draws_of_environments_are_an_error():
    with in_parent(Drawn(), Noisy, check=None) as sampler, pytest.raises(RolloutError, match="global generator"):
        sampler.obtain_fragments(200)
