"""Several environments per worker, as samplers show them: the same trajectories, memories, updates, and errors."""

import logging
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, SyncVectorEnv

from streamsampler import (
    ExistingEnvUpdate,
    LocalSampler,
    SetTaskUpdate,
    TrajectoryBatch,
    VecWorker,
    WorkerFactory,
)
from streamsampler.errors import RolloutError, UsageError
from streamsampler.protocol.plans import Layout
from tests.scripted.agents import Attentive, Balancing, Linear, NestedBatches, Sampling, always_zero
from tests.scripted.agents import Remembering as BySlot
from tests.scripted.agents import RememberingAlone as Alone
from tests.scripted.envs import Drawn, Echo, Nested, Steps, TwoOrFifty

SEED = 7


def vec(agent, env, *, n_workers=1, n_envs=3, block_size=6, **options):
    args = {"n_envs": n_envs, "block_size": block_size}
    return LocalSampler(agent, env, seed=SEED, n_workers=n_workers, worker_class=VecWorker, worker_args=args, **options)


class Pixels(gymnasium.Env):
    """Shows the same large array in all environments."""

    observation_space = spaces.Box(0, 255, (3, 50, 50), np.uint8)
    action_space = spaces.Box(-1, 1, (2,), np.float32)
    screen = np.zeros((3, 50, 50), np.uint8)

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


CASES: dict[str, Any] = {
    "flat": (Balancing(), "CartPole-v1", {}),
    "nested": (NestedBatches(), Nested, {}),
    "no get_actions, with a generator": (Attentive(), Nested, {}),
    "infos, and a limit": (always_zero, Drawn, {"max_episode_length": 4}),
    "large rows": (Dimming(), Pixels, {}),
}


@pytest.mark.parametrize("name", CASES)
def test_the_same_trajectories_as_one_at_a_time(name):
    agent, env, options = CASES[name]
    with (
        LocalSampler(agent, env, seed=SEED, **options) as one,
        vec(agent, env, n_envs=4, block_size=13, **options) as many,
    ):
        assert many.obtain_samples(100) == one.obtain_samples(100)
        assert many.obtain_trajectories(17) == one.obtain_trajectories(17)
        assert many.obtain_exact_trajectories(5) == one.obtain_exact_trajectories(5)


class Drawing:
    """Draws for a whole batch from one generator, and tells how many rows it had: whatever else ran, it shows."""

    def reset(self, seed=None):
        self.rng = np.random.default_rng(seed)

    def get_action(self, observation):
        raise AssertionError("it has get_actions")

    def get_actions(self, observations):
        n = len(observations)
        return self.rng.integers(0, 2, n), {"drawn": self.rng.random(n), "rows": np.full(n, n)}


def vector_env() -> SyncVectorEnv:
    return SyncVectorEnv([TwoOrFifty] * 3, autoreset_mode=AutoresetMode.NEXT_STEP)


@pytest.mark.parametrize(("agent", "env"), [(Drawing, TwoOrFifty), (BySlot, TwoOrFifty), (Drawing, vector_env)])
def test_any_request_gives_the_prefix_of_blocks_that_were_run_whole(agent, env):
    with vec(agent(), env, n_workers=2, block_size=4) as sampler, vec(agent(), env, block_size=4) as whole:
        for n in (40, 300, 1):
            taken = []
            for trajectory in whole.stream():
                taken.append(trajectory)
                if sum(each.n_timesteps for each in taken) >= n:
                    break
            assert sampler.obtain_samples(n) == TrajectoryBatch.concatenate(taken)


def test_a_block_is_what_counts():
    """Other blocks, other draws; and the first trajectories of a longer call are those of a shorter one."""
    with vec(Sampling(), "CartPole-v1") as one, vec(Sampling(), "CartPole-v1", block_size=7) as other:
        batch = one.obtain_trajectories(20)
        assert batch != other.obtain_trajectories(20)
        with pytest.raises(UsageError, match="first_trajectory must be a multiple of 6"):
            one.stream(first_trajectory=1)
    with vec(Sampling(), "CartPole-v1") as one:
        assert one.obtain_trajectories(12) == batch[:12]


# ---------------------------------------------------------------------- agents with a memory


class Strict(Steps):
    """Takes integers as its space draws them: Gymnasium checks those faster than integers of Python."""

    def step(self, action):
        assert type(action) is np.int64
        return super().step(int(action))


def test_slots_and_starts_are_for_agents_with_a_memory():
    with vec(BySlot(), Strict) as many, LocalSampler(Alone(), Steps, seed=SEED) as one:
        batch, expected = many.obtain_trajectories(8), one.obtain_trajectories(8)
    assert batch.agent_infos["memory"].tolist() == expected.agent_infos["memory"].tolist()
    # A block of six: two rounds in three rows; a block of two, beside which a row is silent.
    assert [sorted(set(t.agent_infos["slot"].tolist())) for t in batch] == [[0], [1], [2], [0], [1], [2], [0], [1]]
    assert [set(t.agent_infos["rows"].tolist()) for t in batch] == [{3}] * 8


class Lengths(gymnasium.Env):
    """Trajectories of 1 to 6 timesteps; observations count on from a number that is the trajectory's own."""

    observation_space = spaces.Box(0, 1e6, (1,), np.float64)
    action_space = spaces.Box(-np.inf, np.inf, (), np.float64)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.left, self.value = self.np_random.integers(1, 7), float(self.np_random.integers(1, 1000))
        return np.array([self.value]), {}

    def step(self, action):
        self.left -= 1
        self.value += 1.0
        return np.array([self.value]), 0.0, bool(self.left == 0), False, {}


class Summing:
    """Acts with the sum of what it has seen of a trajectory: a memory by rows, which `reset(do_resets)` clears.

    Rows that are not told to be reset keep their memory; the number of rows is that of the first mask, as in garage.
    """

    memory: Any = None
    refuses = False

    def reset(self, do_resets=None):
        do_resets = np.array([True]) if do_resets is None else do_resets
        if self.memory is None or len(self.memory) != len(do_resets):
            assert do_resets.all(), "there is nothing to keep"
            self.memory = np.zeros(len(do_resets))
        if self.refuses and not do_resets.all():
            raise ValueError("not this slot")
        self.memory[do_resets] = 0.0

    def get_action(self, observation):
        self.memory[0] += observation[0]
        return self.memory[0], {}

    def get_actions(self, observations):
        assert len(observations) == len(self.memory), "always all rows"
        self.memory += observations[:, 0]
        return self.memory.copy(), {"sum": self.memory.copy(), "twice": list(2 * self.memory)}


class Rllab(Summing):
    def reset(self, dones=None):
        super().reset(dones)


class Seeded(Summing):
    """Is told a seed besides, and demands the mask; its rows are independent."""

    row_independent = True

    def reset(self, do_resets, seed):  # type: ignore[override]
        super().reset(do_resets)
        assert seed is not None


class WithSlots(Summing):
    """Wants the slots besides."""

    def get_actions(self, observations, slots):  # type: ignore[override]
        assert slots.tolist() == list(range(len(self.memory)))
        return super().get_actions(observations)


class ResetWithoutAnything(Summing):
    def reset(self):  # type: ignore[override]
        super().reset()

    def get_actions(self, observations):
        return observations[:, 0].copy(), {}


@pytest.mark.parametrize(
    ("agent", "env", "block_size"),
    [
        *((agent, Lengths, 8) for agent in (Summing, Rllab, Seeded, WithSlots)),
        *((Summing, lambda mode=mode: SyncVectorEnv([Lengths] * 3, autoreset_mode=mode), 8) for mode in AutoresetMode),
        (Seeded, Lengths, None),
    ],
)
def test_a_memory_is_cleared_for_the_slots_that_begin(agent, env, block_size):
    with vec(agent(), env, block_size=block_size) as sampler, LocalSampler(agent(), Lengths, seed=SEED) as one:
        batches = [sampler.obtain_trajectories(n) for n in (16, 2, 11)]
        assert all(infos.keys() == {"sum", "twice"} for infos in (batch.agent_infos for batch in batches))
        for trajectory in (*batches[0], *batches[1], *batches[2], *one.obtain_trajectories(8)):
            np.testing.assert_array_equal(trajectory.actions, np.cumsum(trajectory.observations[:, 0]))
        np.testing.assert_array_equal(batches[0].agent_infos["twice"], 2 * batches[0].actions)


def test_what_a_reset_raises_names_its_trajectory():
    agent = Summing()
    agent.refuses = True
    with vec(agent, Lengths) as sampler, pytest.raises(Exception, match=r"resetting the agent.*not this slot"):
        sampler.obtain_trajectories(16)


@pytest.mark.parametrize(
    ("agent", "env", "words"),
    [
        (Linear(), "CartPole-v1", ["the agent (Linear) has no get_actions(observations)", "asked once for all"]),
        (ResetWithoutAnything(), Lengths, ["ResetWithoutAnything", "reset()", "slots", "starts", "do_resets"]),
    ],
)
def test_an_agent_gets_a_hint_once(agent, env, words, caplog):
    with caplog.at_level(logging.WARNING, "streamsampler"), vec(agent, env, n_workers=2, check=None) as sampler:
        for update in (None, None, agent):
            sampler.obtain_trajectories(8, agent_update=update)
    (record,) = [record for record in caplog.records if words[0] in record.getMessage()]
    assert all(word in record.getMessage() for word in words)


# ---------------------------------------------------------------------- environments


class Task(Steps):
    def set_task(self, task):
        self.length = task


def test_every_kind_of_update_reaches_every_slot():
    env = Steps(2)
    updates: list[Any] = [
        (None, 2), (SetTaskUpdate(Task, 4), 4), (SetTaskUpdate(Task, 5), 5), (SetTaskUpdate(Task(1), 3), 3),
        (SetTaskUpdate(Task(1), 6), 6), (lambda: env, 2),
    ]  # fmt: skip
    with vec(always_zero, ExistingEnvUpdate(env)) as sampler:
        for update, length in updates:
            assert sampler.obtain_trajectories(7, env_update=update).lengths.tolist() == [length] * 7
        assert sampler.obtain_trajectories(7, env_update="CartPole-v1").lengths.min() > 5
    assert not hasattr(env, "t"), "the user's own was never run"


# ---------------------------------------------------------------------- errors


class Breaking(Drawn):
    """Does something wrong in the trajectory of one seed."""

    def __init__(self, bad_seed, where):
        super().__init__()
        self.bad_seed, self.where = bad_seed, where

    def reset(self, *, seed=None, options=None):
        self.bad = seed == self.bad_seed
        if self.bad and self.where == "reset":
            raise OSError("broken")
        result = super().reset(seed=seed)
        self.length = 5
        return result

    def step(self, action):
        observation, reward, *rest = super().step(action)
        if self.bad and self.t == 2:
            match self.where:
                case "step":
                    raise OSError("broken")
                case "observation":
                    observation = np.zeros((2, 3), np.float32)
                case "reward":
                    reward = "much"  # type: ignore[assignment]
                case "four values":
                    return observation, reward, False, False
        return observation, reward, *rest


@pytest.mark.parametrize(
    ("where", "phase", "message"),
    [
        ("reset", "resetting the environment", "OSError: broken"),
        ("step", "stepping the environment", "OSError: broken"),
        ("observation", "recording the trajectory", r"Breaking: .*\(2, 3\).*\(1,\), at timestep 2 of its"),
        ("reward", "recording the trajectory", "Breaking: the reward .* 'much', at timestep 1 of its trajectory"),
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


CHOOSING, RECORDING = "choosing an action", "recording the trajectory"


@pytest.mark.parametrize(
    ("answer", "phase", "message"),
    [
        (lambda n: 1 / 0, CHOOSING, "ZeroDivisionError"),
        (lambda n: np.zeros(n, np.int64), CHOOSING, r"must return a tuple \(actions, agent_infos\)"),
        (lambda n: (np.zeros((n, 1), np.int64), {}), CHOOSING, r"\(3, 1\), and should have \(3,\)"),
        (lambda n: (np.zeros(n - 1, np.int64), {}), CHOOSING, r"\(2,\), and should have \(3,\)"),
        (lambda n: (np.full(n, 0.5), {}), CHOOSING, "float64"),
        (lambda n: (np.full(n, 7), {}), CHOOSING, "7"),
        (lambda n: (np.zeros(n, np.int64), {"x": np.zeros(n + 1)}), RECORDING, r"\(4,\).*3 environments"),
    ],
)
def test_errors_of_batched_agents(answer, phase, message):
    with vec(Wrong(answer), "CartPole-v1") as sampler, pytest.raises(RolloutError, match=message) as caught:
        sampler.obtain_trajectories(3)
    assert (caught.value.phase, caught.value.trajectory) == (phase, 0)
    if "ZeroDivision" in message:
        notes = ["get_actions had the observations of trajectories 0, 1, 2"]
        assert caught.value.__cause__.__notes__ == notes  # type: ignore[union-attr]


class Growing:
    """Leaves the action space in its last row, at timestep 2."""

    steps = 0

    def get_action(self, observation):
        raise AssertionError

    def get_actions(self, observations, starts):
        self.steps = 0 if starts.all() else self.steps + 1
        actions = np.zeros((len(observations), 2))
        actions[-1] = self.steps
        return actions, {}


def test_an_action_outside_its_space_is_found_in_its_trajectory():
    env = Echo(spaces.Box(-1, 1, (2,), np.float32), 3)
    with vec(Growing(), env) as sampler, pytest.raises(RolloutError, match="outside its space") as caught:
        sampler.obtain_trajectories(3)
    assert "at timestep 2 of its trajectory; clip it" in str(caught.value)
    assert caught.value.trajectory == 2


def test_environments_of_one_worker_have_the_same_spaces():
    made: list[Any] = []

    def make():
        made.append(Echo(spaces.Discrete(2 + len(made) % 3)))
        return made[-1]

    with vec(always_zero, make) as sampler, pytest.raises(RolloutError, match="must have the same spaces: one has D"):
        sampler.obtain_trajectories(3)


def test_arguments_and_the_block_that_follows_from_them():
    wrong: list[dict[str, Any]] = [
        {"n_envs": 0}, {"n_envs": 2.5}, {"block_size": -1}, {"n_envs": 8, "block_size": 4},
    ]  # fmt: skip
    for args in wrong:
        with pytest.raises(UsageError):
            WorkerFactory(worker_class=VecWorker, worker_args=args)
    layouts = [
        WorkerFactory(worker_class=VecWorker, worker_args=args).layout
        for args in ({}, {"n_envs": 32}, {"block_size": 5}, {"n_envs": 2, "block_size": 3})
    ]
    assert layouts == [Layout(8, 8), Layout(32, 32), Layout(8, 5), Layout(2, 3)]
    assert WorkerFactory().layout == Layout()
