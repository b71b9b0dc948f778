"""Several environments per worker: the same trajectories, whole blocks, and errors that name the one at fault."""

import logging
from typing import Any

import gymnasium
import numpy as np
import pytest

from streamsampler import (
    ExistingEnvUpdate,
    LocalSampler,
    MultiprocessingSampler,
    SetTaskUpdate,
    VecWorker,
    WorkerFactory,
)
from streamsampler.environments.updates import NewEnvUpdate
from streamsampler.errors import RolloutError, UsageError
from streamsampler.protocol.plans import Layout
from tests.scripted.agents import (
    Attentive,
    Balancing,
    Linear,
    NestedBatches,
    Remembering,
    RememberingAlone,
    Sampling,
    always_zero,
)
from tests.scripted.envs import Drawn, Echo, Nested, Steps
from tests.workers.contexts import context_of

SEED = 7


def vec(agent, env, *, n_workers=1, n_envs=3, block_size=6, **options):
    args = {"n_envs": n_envs, "block_size": block_size}
    return LocalSampler(agent, env, seed=SEED, n_workers=n_workers, worker_class=VecWorker, worker_args=args, **options)


CASES: dict[str, Any] = {
    "flat": (Balancing(), "CartPole-v1"),
    "nested": (NestedBatches(), Nested),
    "no get_actions, with a generator": (Attentive(), Nested),
    "infos": (always_zero, Drawn),
}


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize(("n_envs", "block_size"), [pytest.param(1, 1, marks=pytest.mark.slow), (3, 6), (4, 13)])
def test_the_same_trajectories_as_one_at_a_time(name, n_envs, block_size):
    agent, env = CASES[name]
    with LocalSampler(agent, env, seed=SEED) as one, vec(agent, env, n_envs=n_envs, block_size=block_size) as many:
        assert many.obtain_samples(200) == one.obtain_samples(200)
        assert many.obtain_trajectories(17) == one.obtain_trajectories(17)
        assert many.obtain_exact_trajectories(5) == one.obtain_exact_trajectories(5)


@pytest.mark.parametrize("dtype", [np.uint8, np.float64])
def test_large_rows_are_copied(dtype):
    class Pixels(gymnasium.Env):
        observation_space = gymnasium.spaces.Box(0, 255, (3, 50, 50), dtype)
        action_space = gymnasium.spaces.Box(-1, 1, (2,), np.float32)
        screen = np.zeros((3, 50, 50), dtype)  # one for all of them

        def reset(self, *, seed=None, options=None):
            super().reset(seed=seed)
            self.t, self.length = 0, int(self.np_random.integers(1, 6))
            self.screen[:] = seed % 200
            return self.screen, {}

        def step(self, action):
            self.t += 1
            self.screen[:] = self.t + int(10 * action[0])
            return self.screen, np.float64(action.sum()), False, self.t == self.length, {}

    class Dimming:
        def get_action(self, observation):
            return np.full(2, observation[0, 0, 0] / 255), {}

        def get_actions(self, observations):
            means = observations[:, 0, 0, :1].repeat(2, axis=1) / 255
            observations[:] = 0
            return means, {}

    with LocalSampler(Dimming(), Pixels, seed=SEED) as one, vec(Dimming(), Pixels) as many:
        assert many.obtain_trajectories(20) == one.obtain_trajectories(20)


@pytest.mark.parametrize("limit", [1, 4])
def test_max_episode_length_truncates(limit):
    with (
        LocalSampler(always_zero, Drawn, seed=SEED, max_episode_length=limit) as one,
        vec(always_zero, Drawn, max_episode_length=limit) as many,
    ):
        batch = many.obtain_trajectories(20)
        assert batch == one.obtain_trajectories(20)
        assert batch.lengths.max() == limit


@pytest.mark.parametrize("call", ["samples", "trajectories", "exact", "stream"])
def test_the_same_batches_for_any_number_of_workers(call):
    """The agent draws for a whole batch: only what shares a block can be the same."""

    def obtain(sampler):
        match call:
            case "samples":
                return [sampler.obtain_samples(n) for n in (40, 400)]
            case "trajectories":
                return [sampler.obtain_trajectories(n) for n in (1, 6, 22)]
            case "exact":
                return [sampler.obtain_exact_trajectories(12 // sampler.n_workers)]
        return [trajectory for trajectory, _ in zip(sampler.stream(), range(15), strict=False)]

    batches = []
    for n_workers in (1, 2, 3):
        with vec(Sampling(), "CartPole-v1", n_workers=n_workers) as sampler:
            batches.append(obtain(sampler))
    assert batches[0] == batches[1] == batches[2]


def test_a_stream_does_not_begin_within_a_block():
    with (
        vec(Sampling(), "CartPole-v1") as sampler,
        pytest.raises(UsageError, match="first_trajectory must be a multiple of 6"),
    ):
        sampler.stream(first_trajectory=1)


def test_the_same_batches_in_processes():
    args = {"n_envs": 3, "block_size": 6}
    with vec(Sampling(), "CartPole-v1") as local:
        expected = local.obtain_samples(500), local.obtain_samples(300, agent_update=np.array([0.0, 1.0, 0.0, 0.0]))
    with MultiprocessingSampler(
        Sampling(), "CartPole-v1", seed=SEED, n_workers=2, worker_class=VecWorker, worker_args=args
    ) as sampler:
        assert sampler.obtain_samples(500) == expected[0]
        assert sampler.obtain_samples(300, agent_update=np.array([0.0, 1.0, 0.0, 0.0])) == expected[1]


def test_a_block_is_what_counts():
    """Other blocks, other draws; and the first trajectories of a longer call are those of a shorter one."""
    with vec(Sampling(), "CartPole-v1", block_size=6) as one, vec(Sampling(), "CartPole-v1", block_size=7) as other:
        batch = one.obtain_trajectories(20)
        assert batch != other.obtain_trajectories(20)
    with vec(Sampling(), "CartPole-v1", block_size=6) as one:
        assert one.obtain_trajectories(12) == batch[:12]


def test_slots_and_starts_are_for_agents_with_a_memory():
    with vec(Remembering(), Steps) as many, LocalSampler(RememberingAlone(), Steps, seed=SEED) as one:
        batch, expected = many.obtain_trajectories(8), one.obtain_trajectories(8)
    assert batch.agent_infos["memory"].tolist() == expected.agent_infos["memory"].tolist()
    # A block of six: two rounds in three rows; a block of two, beside which a row is silent.
    assert [sorted(set(t.agent_infos["slot"].tolist())) for t in batch] == [[0], [1], [2], [0], [1], [2], [0], [1]]
    assert [set(t.agent_infos["rows"].tolist()) for t in batch] == [{3}] * 8


def test_a_row_that_is_free_takes_the_next_trajectory_of_its_block():
    lengths = {0: 2, 1: 5, 2: 3}
    seen = []

    class Counting:
        def get_action(self, observation):
            raise AssertionError

        def get_actions(self, observations):
            return np.zeros(len(observations), np.int64), {"rows": np.full(len(observations), len(observations))}

    class ByNumber(Steps):
        def reset(self, *, seed=None, options=None):
            seen.append(seed)
            self.length = lengths[len(seen) - 1]
            return super().reset(seed=seed)

    factory = WorkerFactory(n_workers=1, seed=SEED, worker_class=VecWorker, worker_args={"n_envs": 2, "block_size": 3})
    from streamsampler.protocol.messages import Ticket

    worker = factory(context_of())
    worker.update_env(NewEnvUpdate(ByNumber))
    worker.update_agent(Counting())
    outcome = worker.rollout(Ticket(1, range(3), block=3), [10, 11, 12])
    assert seen == [10, 11, 12]
    assert outcome.rollouts.lengths.tolist() == [2, 5, 3]
    (rows,) = outcome.rollouts.agent_infos.columns.values()
    # Slot 0 runs the trajectories of 2 and of 3 steps, slot 1 that of 5: they end together.
    assert rows.values.tolist() == [2] * 10
    assert outcome.n_timesteps == 10
    worker.shutdown()


def test_an_agent_without_get_actions_gets_a_hint_once(caplog):
    with caplog.at_level(logging.WARNING, "streamsampler"), vec(Linear(), "CartPole-v1", n_workers=2) as sampler:
        sampler.obtain_trajectories(20)
        sampler.obtain_trajectories(20, agent_update=np.zeros(4))
        sampler.obtain_trajectories(20, agent_update=Linear())
    assert [record.message for record in caplog.records if "get_actions" in record.message] == [
        "VecWorker: the agent (Linear) has no get_actions(observations), so it is asked for one action at a time. "
        "With get_actions it would be asked once for all environments."
    ]


# ---------------------------------------------------------------------- environments


class Task(Steps):
    """As long as its task says; counts in a list how many there are."""

    def set_task(self, task):
        self.length = task


def test_every_kind_of_update_reaches_every_slot():
    env = Steps(2)
    with vec(always_zero, ExistingEnvUpdate(env)) as sampler:
        assert sampler.obtain_trajectories(7).lengths.tolist() == [2] * 7
        for task in (4, 5):
            assert sampler.obtain_trajectories(7, env_update=SetTaskUpdate(Task, task)).lengths.tolist() == [task] * 7
        for task in (3, 6):
            update = SetTaskUpdate(Task(1), task)
            assert sampler.obtain_trajectories(7, env_update=update).lengths.tolist() == [task] * 7
        assert sampler.obtain_trajectories(7, env_update="CartPole-v1").lengths.min() > 5
        assert sampler.obtain_trajectories(7, env_update=lambda: env).lengths.tolist() == [2] * 7
    assert not hasattr(env, "t"), "the user's own was never run"


def test_all_environments_are_closed():
    closed = []

    class Closing(Steps):
        def close(self):
            closed.append(self)

    worker = VecWorker(context_of(), n_envs=4)
    worker.update_env(NewEnvUpdate(Closing))
    worker.update_env(NewEnvUpdate(Closing))
    assert len(set(closed)) == 4
    with pytest.raises(ZeroDivisionError):
        worker.update_env(NewEnvUpdate(lambda: 1 / 0))  # type: ignore[arg-type, return-value]
    assert len(set(closed)) == 8
    worker.update_env(NewEnvUpdate(Closing))
    worker.shutdown()
    assert len(set(closed)) == 12


# ---------------------------------------------------------------------- errors


class Breaking(Drawn):
    """Raises in the trajectory of one seed."""

    def __init__(self, bad_seed, where):
        super().__init__()
        self.bad_seed, self.where = bad_seed, where

    def reset(self, *, seed=None, options=None):
        self.bad = seed == self.bad_seed
        if self.bad and self.where == "resetting the environment":
            raise OSError("broken")
        result = super().reset(seed=seed)
        self.length = 5
        return result

    def step(self, action):
        observation, reward, *rest = super().step(action)
        if self.bad and self.t == 2:
            match self.where:
                case "stepping the environment":
                    raise OSError("broken")
                case "recording the trajectory":
                    observation = np.zeros((2, 3), np.float32)
                case "a reward":
                    reward = "much"  # type: ignore[assignment]
                case "four values":
                    return observation, reward, False, False
        return observation, reward, *rest


@pytest.mark.parametrize(
    ("where", "phase", "message"),
    [
        ("resetting the environment", "resetting the environment", "OSError: broken"),
        ("stepping the environment", "stepping the environment", "OSError: broken"),
        ("recording the trajectory", "recording the trajectory", r"Breaking: .*\(2, 3\).*\(1,\), at timestep 2 of its"),
        ("a reward", "recording the trajectory", "Breaking: the reward .* 'much', at timestep 1 of its trajectory"),
        ("four values", "stepping the environment", "step must return"),
    ],
)
def test_errors_of_environments_name_the_trajectory(where, phase, message):
    with vec(always_zero, Drawn) as sampler:
        bad = sampler.obtain_trajectories(8).seeds[4]
    with vec(always_zero, lambda: Breaking(bad, where)) as sampler:
        with pytest.raises(RolloutError, match=message) as caught:
            sampler.obtain_trajectories(8)
        assert (caught.value.worker_number, caught.value.phase, caught.value.trajectory) == (0, phase, 4)
        assert len(sampler.obtain_trajectories(8, env_update=Drawn)) == 8


class Wrong(Balancing):
    def __init__(self, answer):
        self.answer = answer

    def get_actions(self, observations):
        return self.answer(len(observations))


@pytest.mark.parametrize(
    ("answer", "phase", "message"),
    [
        (lambda n: 1 / 0, "choosing an action", "ZeroDivisionError"),
        (lambda n: np.zeros(n, np.int64), "choosing an action", r"must return a tuple \(actions, agent_infos\)"),
        (lambda n: (np.zeros((n, 1), np.int64), {}), "choosing an action", r"\(3, 1\), and should have \(3,\)"),
        (lambda n: (np.zeros(n - 1, np.int64), {}), "choosing an action", r"\(2,\), and should have \(3,\)"),
        (lambda n: (np.full(n, 0.5), {}), "choosing an action", "float64"),
        (lambda n: (np.full(n, 7), {}), "choosing an action", "7"),
        (
            lambda n: (np.zeros(n, np.int64), {"x": np.zeros(n + 1)}),
            "recording the trajectory",
            r"\(4,\).*3 environments",
        ),
    ],
)
def test_errors_of_batched_agents(answer, phase, message):
    with vec(Wrong(answer), "CartPole-v1") as sampler:
        with pytest.raises(RolloutError, match=message) as caught:
            sampler.obtain_trajectories(3)
        assert (caught.value.phase, caught.value.trajectory) == (phase, 0)


def test_a_failing_get_actions_tells_all_trajectories():
    with vec(Wrong(lambda n: 1 / 0), "CartPole-v1") as sampler, pytest.raises(RolloutError) as caught:
        sampler.obtain_trajectories(3)
    assert caught.value.__cause__.__notes__ == ["get_actions had the observations of trajectories 0, 1, 2"]


def test_an_action_outside_its_space_is_found_in_its_trajectory():
    box = gymnasium.spaces.Box(-1, 1, (2,), np.float32)

    class Growing:
        steps = 0

        def get_action(self, observation):
            raise AssertionError

        def get_actions(self, observations, starts):
            self.steps = 0 if starts.all() else self.steps + 1
            actions = np.zeros((len(observations), 2))
            actions[-1] = self.steps
            return actions, {}

    with vec(Growing(), lambda: Echo(box, 3)) as sampler, pytest.raises(RolloutError) as caught:
        sampler.obtain_trajectories(3)
    assert "outside its space" in str(caught.value)
    assert "at timestep 2 of its trajectory; clip it" in str(caught.value)
    assert caught.value.trajectory == 2


@pytest.mark.parametrize(
    "args", [{"n_envs": 0}, {"n_envs": 2.5}, {"block_size": -1}, {"n_envs": 8, "block_size": 4}], ids=str
)
def test_arguments_that_cannot_work(args):
    with pytest.raises(UsageError):
        WorkerFactory(worker_class=VecWorker, worker_args=args)


def test_the_block_follows_the_environments():
    layouts = [
        WorkerFactory(worker_class=VecWorker, worker_args=args).layout
        for args in ({}, {"n_envs": 32}, {"block_size": 5}, {"n_envs": 2, "block_size": 3})
    ]
    assert layouts == [Layout(8, 8), Layout(32, 32), Layout(8, 5), Layout(2, 3)]
    assert WorkerFactory().layout == Layout()


def test_environments_get_integers_as_their_space_draws_them():
    """Gymnasium checks those faster than integers of Python."""

    class Strict(Steps):
        def step(self, action: Any):
            assert type(action) is np.int64
            return super().step(int(action))

    with vec(Remembering(), Strict) as sampler:
        assert len(sampler.obtain_trajectories(3)) == 3


def test_environments_of_one_worker_have_the_same_spaces():
    made: list[Any] = []

    def make():
        made.append(Echo(gymnasium.spaces.Discrete(2 + len(made) % 3)))
        return made[-1]

    with vec(always_zero, make) as sampler, pytest.raises(RolloutError, match="must have the same spaces: one has D"):
        sampler.obtain_trajectories(3)
