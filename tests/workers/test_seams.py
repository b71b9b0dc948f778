"""Seams: the loop that calls them gives what the fast loop gives, and a subclass changes what it overrides."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamsampler import DefaultWorker, LocalSampler, MultiprocessingSampler, VecWorker, Worker
from streamsampler.agents.base import as_agent
from streamsampler.core.seeding import Stream, derived_seed
from streamsampler.environments.updates import as_env_update
from streamsampler.errors import UsageError
from streamsampler.protocol.messages import Phase, Ticket
from streamsampler.testing.scripted import ScriptedAgent, ScriptedEnv
from streamsampler.workers.seams import refuse_ignored_seams
from tests.workers.contexts import context_of, new_board


class Seamed(DefaultWorker):
    """Overrides a method with itself."""

    def end_trajectory(self, context: Any) -> None:
        super().end_trajectory(context)


class Chatty(ScriptedEnv):
    """Rewards, flags and infos of all kinds, drawn from its generator; raises at one timestep over all."""

    fails_at = -1
    total = 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        observation, _ = super().reset(seed=seed)
        return observation, {"first": float(observation[0])} if observation[0] > 0.5 else {}

    def step(self, action: Any) -> Any:
        observation, reward, terminated, truncated, _ = super().step(action)
        self.total += 1
        if self.total == self.fails_at:
            raise OSError("the arm is stuck")
        draw = self.np_random.random()
        odd: Any = [reward, int(10 * draw), np.float32(draw), True][int(4 * draw)]
        ended: Any = [terminated, np.bool_(terminated), int(terminated)][int(3 * draw)]
        truncated = draw < 0.05
        infos: Any = [{}, {"draw": draw}, {"draw": draw, "word": "x"}, {"at": np.array([draw, 1])}][
            int(4 * self.np_random.random())
        ]
        if draw < 0.3:
            observation = observation.astype(np.float64)
        return observation, odd, ended, truncated, infos


def worker_of(worker_class: type[DefaultWorker], env: Any, **fields: Any) -> Any:
    board = new_board()
    worker = worker_class(context_of(board, **fields))
    worker.update_env(as_env_update(env))
    worker.update_agent(as_agent(ScriptedAgent()))
    board.abandon_older(1)
    board.lower_flag(0)
    return worker, board


def outcome_of(worker_class: type[DefaultWorker], seeds: list[int], fails_at: int, **fields: Any) -> Any:
    """Everything that a ticket gives: numbers, rollouts, or the error with its place."""
    env = Chatty((1, 30))
    env.fails_at = fails_at
    worker, _ = worker_of(worker_class, env, **fields)
    try:
        outcome = worker.rollout(Ticket(1, range(3, 3 + len(seeds))), seeds)
    except OSError as error:
        return str(error), worker.phase, worker.trajectory, worker.ran_timesteps
    rollouts = outcome.rollouts
    numbers = outcome.n_trajectories, outcome.n_timesteps, outcome.n_abandoned, outcome.dropped, worker.ran_timesteps
    if rollouts is None:
        return numbers
    columns = [
        (rollouts.__getattribute__(name).length, repr(rollouts.__getattribute__(name).columns))
        for name in ("env_infos", "agent_infos", "episode_infos")
    ]
    arrays = [
        (array.dtype, array.shape, array.tobytes())
        for name in ("observations", "last_observations", "actions", "rewards", "terminated", "truncated", "lengths")
        for array in [getattr(rollouts, name)]
    ]
    return arrays, columns, numbers


@given(
    st.lists(st.integers(0, 2**31 - 1), min_size=1, max_size=6),
    st.one_of(st.none(), st.integers(1, 35)),
    st.one_of(st.just(-1), st.integers(1, 60)),
    st.booleans(),
)
def test_seams_give_the_same_to_the_last_bit(seeds, limit, fails_at, drops):
    fields = {"max_episode_length": limit, "drop_unless": (lambda _names: False) if drops else None}
    fast, slow = (outcome_of(kind, seeds, fails_at, **fields) for kind in (DefaultWorker, Seamed))
    assert fast == slow


def test_the_property_is_about_a_loop_with_and_without_seams(monkeypatch):
    has_seams = []
    monkeypatch.setattr(
        DefaultWorker, "_run", lambda *_, seams: has_seams.append(seams is not None) or (-1, (0.0, 0.0, 0.0))
    )
    for kind in (DefaultWorker, Seamed):
        worker, _ = worker_of(kind, ScriptedEnv())
        worker.rollout(Ticket(1, range(1)), [5])
    assert has_seams == [False, True]


def test_a_newer_version_ends_a_trajectory_within_one_step():
    class Renewing(ScriptedEnv):
        def step(self, action: Any) -> Any:
            if self._left == 93:
                board.abandon_older(2)
            return super().step(action)

    worker, board = worker_of(Seamed, ScriptedEnv(100))
    worker._env = Renewing(100)  # past the copy that an update makes
    outcome = worker.rollout(Ticket(1, range(3)), [1, 2, 3])
    assert outcome.rollouts is None
    assert (outcome.n_trajectories, outcome.n_abandoned, outcome.abandoned_timesteps) == (0, 1, 8)
    assert worker.ran_timesteps == 8
    outcome = worker.rollout(Ticket(2, range(1)), [1])
    assert (outcome.n_trajectories, outcome.n_timesteps) == (1, 100)


def test_times_are_measured_and_shown_on_the_board():
    worker, board = worker_of(Seamed, ScriptedEnv(50))
    outcome = worker.rollout(Ticket(1, range(7, 9)), [1, 2])
    assert all(seconds > 0 for seconds in outcome.seconds[:3])
    assert (board.progress(0).trajectory, board.progress(0).timesteps) == (8, 99)
    worker._agent.get_action = lambda _observation: 3
    with pytest.raises(UsageError, match=r"get_action must return \(action, agent_info\)"):
        worker.rollout(Ticket(1, range(1)), [1])
    assert (worker.phase, board.progress(0).phase) == (Phase.ACTION, Phase.ACTION)


def test_each_seam_changes_what_it_says():
    calls: list[Any] = []

    class Mine(DefaultWorker):
        def begin_trajectory(self, context):
            observation, info = super().begin_trajectory(context)
            calls.append(("begin", context.index, context.seed, context.agent_version))
            return 1 - observation, {**info, "greeting": context.index}

        def before_step(self, context):
            action, info = super().before_step(context)
            return 3 - action, {**info, "own": action}

        def after_step(self, context, result):
            observation, _reward, terminated, truncated, info = result
            context.memory["seen"] = context.memory.get("seen", 0) + context.action
            return observation, context.timestep, terminated, truncated, {**info, "seen": context.memory["seen"]}

        def end_trajectory(self, context):
            calls.append(("end", context.index, context.timestep, context.terminated, context.truncated))
            np.testing.assert_array_equal(context.rewards, np.arange(context.timestep))
            assert len(context.actions) == len(context.observations) == context.timestep

    plain, mine = (worker_of(kind, ScriptedEnv(4), max_episode_length=3)[0] for kind in (DefaultWorker, Mine))
    ticket, seeds = Ticket(1, range(2, 4)), [11, 12]
    expected, found = (worker.rollout(ticket, seeds).rollouts for worker in (plain, mine))
    np.testing.assert_array_equal(found.observations[0], 1 - expected.observations[0])
    np.testing.assert_array_equal(found.observations[1], expected.observations[1])
    np.testing.assert_array_equal(found.actions, 3 - expected.actions)
    assert found.rewards.tolist() == [0, 1, 2, 0, 1, 2]
    assert calls == [
        ("begin", 2, 11, 1), ("end", 2, 3, False, True), ("begin", 3, 12, 1), ("end", 3, 3, False, True),
    ]  # fmt: skip


# ---------------------------------------------------------------------- trials, as RL² has them


class TrialWorker(DefaultWorker):
    """Runs a trial of several episodes as one trajectory: the agent is reset at its start only, and remembers.

    The first observation of the next episode follows the last action of the one before; the true final observation and
    the end of an episode are in the infos.

    Args:
        context: What the worker is made with.
        n_episodes: How many episodes make a trial.
    """

    def __init__(self, context: Any, *, n_episodes: int) -> None:
        super().__init__(context)
        self.n_episodes = n_episodes

    def after_step(self, context: Any, result: Any) -> Any:
        observation, reward, terminated, truncated, info = result
        if not (terminated or truncated):
            return result
        ended = context.memory["ended"] = context.memory.get("ended", 0) + 1
        if ended == self.n_episodes:
            return result
        first, _ = context.reset(seed=derived_seed(context.seed, Stream.AGENT) + ended)
        return first, reward, False, False, {**info, "episode_end": True, "final_observation": observation}

    def end_trajectory(self, context: Any) -> None:
        context.metrics["episodes"] = context.memory["ended"]


class Counting:
    """Counts its actions since its reset: what it remembers shows in its infos."""

    def reset(self, seed: int) -> None:
        self.n = 0

    def get_action(self, _observation: Any) -> Any:
        self.n += 1
        return self.n % 4, {"n": self.n}


def trials(n_workers: int, make: Any, **options: Any) -> Any:
    kind = {"worker_class": TrialWorker, "worker_args": {"n_episodes": 3}}
    with make(
        Counting(), ScriptedEnv((2, 9)), n_workers=n_workers, seed=5, check="error", **kind, **options
    ) as sampler:
        return sampler.obtain_trajectories(12)


MORE = [pytest.param(MultiprocessingSampler, n, marks=pytest.mark.slow) for n in (1, 2, 7)]


@pytest.mark.parametrize(("make", "n_workers"), [(LocalSampler, 3), (MultiprocessingSampler, 3), *MORE])
@pytest.mark.slow
def test_trials_are_the_same_for_any_number_of_workers(make, n_workers):
    batch = trials(n_workers, make)
    assert batch == trials(1, LocalSampler)
    assert batch.env_infos["episode_end"].sum() == 2 * 12
    for start, length in zip(batch.starts, batch.lengths, strict=True):
        assert batch.agent_infos["n"][start : start + length].tolist() == list(range(1, length + 1))
    assert batch.terminated.all()
    assert batch.episode_infos["episodes"].tolist() == [3] * 12


class SideBySide(VecWorker):
    def before_step(self, context: Any) -> Any:
        return context.agent.get_action(context.observation)


class OfItsOwn(Worker):
    """Calls its method itself."""

    def before_step(self, context: Any) -> Any:
        return context


def test_a_seam_that_nothing_would_call_is_refused() -> None:
    with pytest.raises(UsageError, match="SideBySide has before_step, which VecWorker does not call: only DefaultWork"):
        LocalSampler("random", "CartPole-v1", worker_class=SideBySide)
    refuse_ignored_seams(OfItsOwn)  # type: ignore[type-abstract]
