"""Episodes that go on are restored when their worker is lost, and come out the same; or end, and say why."""

from __future__ import annotations

import logging
import os
import random
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from streamsampler import Limits, LocalSampler, MultiprocessingSampler, RaySampler, VecWorker
from streamsampler.filters import RunningNorm
from streamsampler.testing import Fault, Faults
from tests.fragments.agents import (
    Counter,
    CountsRows,
    Drawn,
    Forgetful,
    HalfState,
    Mixing,
    Noisy,
    Offset,
    Recurrent,
    Restorable,
    Sticky,
    Wandering,
)
from tests.fragments.test_actions import Exact, Rows
from tests.scripted.agents import Linear

SEED = 7
TWO: dict[str, Any] = {"worker_class": VecWorker, "worker_args": {"n_envs": 2}}
THREE: dict[str, Any] = {"worker_class": VecWorker, "worker_args": {"n_envs": 3}}
NORM: dict[str, Any] = {"observation_filter": RunningNorm(clip=5.0)}
SLOW = pytest.mark.slow


def kill(sampler: Any, n: int = 1000) -> None:
    for pid in sampler.worker_pids()[:n]:
        os.kill(pid, signal.SIGKILL)


def plainly(sampler: Any, call: int) -> Any:
    return sampler.obtain_fragments(9, 3)


def with_parameters(sampler: Any, call: int) -> Any:
    return sampler.obtain_fragments(13, 5, agent_update=np.array([0.0, 0.0, 0.3, 0.1 * (call % 7)]))


def with_another_agent(sampler: Any, call: int) -> Any:
    return sampler.obtain_fragments(9, 3, agent_update=Recurrent() if call == 1 else None)


def with_options(sampler: Any, call: int) -> Any:
    options = {"offset": [float(call)]}
    batch = sampler.obtain_fragments(9, 5, reset_options=options)
    options["offset"].append(-100.0)  # which must not be seen when an episode is restored
    return batch


@pytest.mark.parametrize(
    ("agent", "env", "options", "call"),
    [
        pytest.param(Recurrent(), Sticky, {}, with_another_agent, id="an agent that was replaced in between"),
        pytest.param(Restorable(), Offset, {}, with_options, id="options of resets"),
        pytest.param(Restorable(), Noisy, {}, plainly, id="an environment alone draws from a global generator"),
        pytest.param(Counter(), "CartPole-v1", TWO, plainly, id="an agent that is never reset"),
        pytest.param(Counter(), "CartPole-v1", {}, plainly, id="never reset, alone", marks=SLOW),
        pytest.param(Restorable(), Offset, TWO, with_options, id="options, side by side", marks=SLOW),
        pytest.param("random", "Pendulum-v1", {}, plainly, id="the random agent", marks=SLOW),
        pytest.param(Mixing(), Sticky, THREE, plainly, id="rows that depend on one another", marks=SLOW),
        pytest.param(Restorable(), Sticky, TWO | NORM, with_parameters, id="filters, side by side", marks=SLOW),
        pytest.param(Restorable(), Sticky, NORM, with_parameters, id="filters", marks=SLOW),
        pytest.param(Rows(), lambda: Exact("dict"), TWO, plainly, id="actions of other floats", marks=SLOW),
    ],
)  # fmt: skip
def test_episodes_go_on_where_they_were(agent, env, options, call):
    with (
        LocalSampler(agent, env, seed=SEED, check=None, **options) as reference,
        MultiprocessingSampler(agent, env, seed=SEED, n_workers=1, check=None, **options) as sampler,
    ):
        for number in range(3):
            expected = call(reference, number)
            assert call(sampler, number) == expected
            kill(sampler)
        assert expected.continued.any()
        assert sampler.stats.restarts == 2


def test_killed_between_calls_and_within_calls(tmp_path):
    """Of three workers some live on; the fault is due in restorations as well."""
    faults = Faults(tmp_path, Fault("kill", "step", step=20, times=3))
    with (
        LocalSampler(Recurrent(), Sticky, seed=SEED) as reference,
        MultiprocessingSampler(Recurrent(), faults.env(Sticky), seed=SEED, n_workers=3) as sampler,
    ):
        for call in range(6):
            assert with_parameters(sampler, call) == with_parameters(reference, call)
        assert faults.fired() == sampler.stats.restarts == 3
        for call in (6, 7):
            kill(sampler, 2)
            assert with_parameters(sampler, call) == with_parameters(reference, call)
        assert sampler.stats.restarts > 3


@pytest.mark.slow
@pytest.mark.parametrize("replaced", [False, True])
def test_a_group_that_was_complete_when_its_worker_was_lost_goes_on_in_the_next_call(replaced, tmp_path):
    """The worker that replaces the lost one runs only the other group again, and the complete one a call later."""

    def one_call(sampler: Any, call: int) -> Any:
        return sampler.obtain_fragments(9, 6, agent_update=Drawn() if replaced and call == 2 else None)

    seed = 99  # in a call it has an episode in the other group that goes on, and is long enough
    with LocalSampler(Drawn(), Sticky, seed=seed, **THREE) as reference:
        expected = [one_call(reference, call) for call in range(3)]
    (row, *_) = np.flatnonzero(expected[1].continued & (expected[1].env_numbers >= 3)).tolist()
    faults = Faults(tmp_path, Fault("kill", "step", trajectory=int(expected[1].indices[row]), step=10), seed=seed)
    with MultiprocessingSampler(Drawn(), faults.env(Sticky), n_workers=1, seed=seed, **THREE) as sampler:
        assert [one_call(sampler, call) for call in range(3)] == expected
    assert faults.fired() == 1


@pytest.mark.slow
def test_two_hundred_kills_over_fifty_calls():
    draw = random.Random(SEED)
    limits: dict[str, Any] = {"max_restarts": None, "limits": Limits(max_lifetime_restarts=None)}
    with (
        LocalSampler(Recurrent(), Sticky, seed=SEED) as reference,
        MultiprocessingSampler(Recurrent(), Sticky, seed=SEED, n_workers=5, **limits) as sampler,
    ):
        for call in range(50):
            for pid in draw.sample(sampler.worker_pids(), 4):
                os.kill(pid, signal.SIGKILL)
            assert with_parameters(sampler, call) == with_parameters(reference, call)


@pytest.mark.ray
@pytest.mark.extras
def test_actors_that_are_killed(ray_cluster):
    with (
        LocalSampler(Recurrent(), Sticky, seed=SEED) as reference,
        RaySampler(Recurrent(), Sticky, seed=SEED, n_workers=2, worker_resources={"num_cpus": 0}) as sampler,
    ):
        for call in range(4):
            assert with_parameters(sampler, call) == with_parameters(reference, call)
            kill(sampler, 1)


NO_STATE, DIFFERENT = "lacks get_state or set_state", "did not lead to the same observations"


@pytest.mark.parametrize(
    ("agent", "env", "options", "n_timesteps", "why"),
    [
        (Linear(), "CartPole-v1", {}, 5, NO_STATE),
        (Restorable(), Forgetful, {}, 5, DIFFERENT),
        pytest.param(Recurrent(), Noisy, {}, 5, DIFFERENT, id="agent and environment draw from one generator"),
        pytest.param("random", Wandering, {}, 1, DIFFERENT, id="after one timestep"),
        pytest.param("random", Wandering, TWO, 1, DIFFERENT, id="side by side, after one timestep"),
        pytest.param(HalfState(), "CartPole-v1", TWO, 5, NO_STATE, id="copies that take none"),
        pytest.param(CountsRows(), "CartPole-v1", TWO, 5, NO_STATE, id="a memory by rows without reset"),
        pytest.param(Restorable(), Noisy, TWO, 5, DIFFERENT, id="two environments draw from one", marks=SLOW),
        pytest.param(Linear(), "CartPole-v1", TWO, 5, NO_STATE, id="copies for rows", marks=SLOW),
    ],
)
def test_what_cannot_be_restored_begins_again_and_is_not_counted_as_ended(
    agent, env, options, n_timesteps, why, caplog
):
    with (
        caplog.at_level(logging.WARNING, "streamsampler"),
        MultiprocessingSampler(
            agent, env, seed=SEED, n_workers=1, check=None, max_episode_length=7, **options
        ) as sampler,
    ):
        assert sampler.obtain_fragments(n_timesteps, 2).cut.all()
        kill(sampler)
        second, third = (sampler.obtain_fragments(n_timesteps, 2) for _ in range(2))
        assert sampler.stats.failed_trajectories in (2, 3)  # the ticket of the lost worker, too
    assert not second.continued.any()
    assert second.episode_lengths.tolist() == []
    assert third.episode_lengths.tolist() == ([7, 7] if n_timesteps == 5 else []), "of the new episodes"
    assert second.indices.tolist() == [2, 3]
    assert caplog.text.count(why) == 2


@pytest.mark.parametrize("kind", [{}, pytest.param(TWO, marks=pytest.mark.slow)])
def test_longer_episodes_than_the_limit_are_not_restored(kind, caplog):
    with (
        caplog.at_level(logging.WARNING, "streamsampler"),
        MultiprocessingSampler("random", "Pendulum-v1", seed=SEED, n_workers=1, **kind) as sampler,
    ):
        sampler.obtain_fragments(30, 2, restore_limit=30)
        kill(sampler)
        assert sampler.obtain_fragments(30, 2, restore_limit=0).continued.all()
        assert "cannot be restored" not in caplog.text
        sampler.obtain_trajectories(1)
        first = sampler.obtain_fragments(30, 2, restore_limit=29)
        kill(sampler)
        second = sampler.obtain_fragments(30, 2, restore_limit=1000)
        assert not second.continued.any()
        assert second.indices.tolist() == [2, 3]
        assert not set(second.seeds) & set(first.seeds)
        assert caplog.text.count("the episode is longer than can be restored") == 2
        kill(sampler)
        assert sampler.obtain_fragments(30, 2).continued.all(), "the limit is that of the last call"


class OutOfOrder(Sticky):
    """Raises once if a file is there, in its reset or in its third step."""

    def __init__(self, file: Path, *, in_reset: bool) -> None:
        self.file, self.in_reset = file, in_reset

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        result = super().reset(seed=seed)
        self.length = 30
        self.raise_once(self.in_reset)
        return result

    def step(self, action: int) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.raise_once(not self.in_reset and self.t == 2)
        return super().step(action)

    def raise_once(self, here: bool) -> None:
        if here and self.file.exists():
            self.file.unlink()
            raise OSError("out of order")


class Refusing(Restorable):
    """Takes no state."""

    def set_state(self, state: Any) -> None:
        raise KeyError("not this one")


class RefusingRows(Mixing):
    """Takes no state, but forgets its own."""

    def get_actions(self, observations: Any) -> Any:
        actions, _ = super().get_actions(observations)
        return actions, {"seen": self.seen}

    def set_state(self, state: Any) -> None:
        self.seen = np.full(3, np.nan)
        raise KeyError("not this one")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("agent", "options", "in_reset"),
    [
        *((Restorable, {}, True), (Restorable, TWO, False), (Refusing, {}, False), (Refusing, TWO, False)),
        (RefusingRows, THREE, False),
    ],
)
def test_what_raises_in_a_restoration_ends_that_episode_and_not_the_call(agent, options, in_reset, tmp_path, caplog):
    file = tmp_path / "out of order"
    options = {"seed": SEED, "env_kwargs": {"file": file, "in_reset": in_reset}, "check": None, **options}
    with (
        caplog.at_level(logging.WARNING, "streamsampler"),
        LocalSampler(agent(), OutOfOrder, **options) as reference,
        MultiprocessingSampler(agent(), OutOfOrder, n_workers=1, **options) as sampler,
    ):
        assert sampler.obtain_fragments(5, 2) == reference.obtain_fragments(5, 2)
        if agent is Restorable:
            file.touch()
        kill(sampler)
        batch, expected = sampler.obtain_fragments(5, 2), reference.obtain_fragments(5, 2)
        failed = sampler.stats.failed_trajectories - 1  # the lost worker's ticket
        assert agent is not Restorable or sampler.stats.lost_timesteps == (5 if in_reset else 7)
    if agent is Restorable:
        assert (failed, batch.continued.tolist(), batch.indices.tolist()) == (1, [False, True], [2, 1])
        assert batch[1] == expected[1]
        assert caplog.text.count("the open episode in environment 0 cannot be restored") == 1
        assert caplog.text.count("restored: its environment raised OSError: out of order") == 1
    else:
        assert (failed, batch.continued.tolist(), batch.indices.tolist()) == (2, [False, False], [2, 3])
        assert caplog.text.count("restored: its agent raised KeyError: 'not this one'") == 2
        assert np.isfinite(batch.agent_infos.get("seen", 0.0)).all()
