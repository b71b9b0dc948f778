"""Several environments per worker, as samplers show them: the same trajectories, memories, updates, and errors."""

import logging
from itertools import islice
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.vector import AutoresetMode

from streamsampler import (
    ExistingEnvUpdate,
    LocalSampler,
    SetTaskUpdate,
    VecWorker,
    WorkerFactory,
)
from streamsampler.errors import RolloutError, UsageError
from streamsampler.protocol.plans import Layout
from tests.scripted.agents import Attentive, Balancing, Linear, NestedBatches, Sampling, always_zero
from tests.scripted.agents import Remembering as BySlot
from tests.scripted.agents import RememberingAlone as Alone
from tests.scripted.envs import Drawn, Echo, Nested, Steps
from tests.scripted.vectors import Vector

SEED = 7


def vec(agent, env, *, n_workers=1, n_envs=3, block_size=6, **options):
    args = {"n_envs": n_envs, "block_size": block_size}
    return LocalSampler(agent, env, seed=SEED, n_workers=n_workers, worker_class=VecWorker, worker_args=args, **options)


class Shared(Drawn):
    """Shows the same array in all environments."""

    shown = np.zeros(1, np.float32)

    def reset(self, **options):
        self.shown[:], info = super().reset(**options)
        return self.shown, info

    def step(self, action):
        self.shown[:], *rest = super().step(action)
        return self.shown, *rest


CASES: dict[str, Any] = {
    "flat": (Balancing(), "CartPole-v1", {}),
    "nested": (NestedBatches(), Nested, {}),
    "no get_actions, with a generator": (Attentive(), Nested, {}),
    "infos, one array, and a limit": (always_zero, Shared, {"max_episode_length": 4}),
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


def test_a_block_is_what_counts():
    """Other blocks, other draws; and the first trajectories of a longer call are those of a shorter one."""
    with vec(Sampling(), "CartPole-v1") as one, vec(Sampling(), "CartPole-v1", block_size=7) as other:
        batch = one.obtain_trajectories(20)
        assert batch != other.obtain_trajectories(20)
        with pytest.raises(UsageError, match="first_trajectory must be a multiple of 6"):
            one.stream(first_trajectory=1)
    with vec(Sampling(), "CartPole-v1") as one:
        assert one.obtain_trajectories(12) == batch[:12]
    with vec(Sampling(), "CartPole-v1") as one:  # a stream runs all blocks whole
        assert list(islice(one.stream(), 20)) == list(batch)


class Strict(Steps):
    """Takes integers as its space draws them: Gymnasium checks those faster than integers of Python."""

    def step(self, action):
        assert type(action) is np.int64
        return super().step(int(action))


class Both(BySlot):
    """Is told of slots and starts, and so of no mask."""

    def reset(self, do_resets=None):
        assert do_resets is None
        super().reset()


def test_slots_and_starts_are_for_agents_with_a_memory():
    with vec(Both(), Strict) as many, LocalSampler(Alone(), Steps, seed=SEED) as one:
        batch, expected = many.obtain_trajectories(8), one.obtain_trajectories(8)
    assert batch.agent_infos["memory"].tolist() == expected.agent_infos["memory"].tolist()
    # A block of six: two rounds in three rows; a block of two, beside which a row is silent.
    assert [sorted(set(t.agent_infos["slot"].tolist())) for t in batch] == [[0], [1], [2], [0], [1], [2], [0], [1]]
    assert [set(t.agent_infos["rows"].tolist()) for t in batch] == [{3}] * 8


class Summing:
    """Tells the sum of what it has seen of a trajectory: a memory by rows, which `reset(do_resets)` clears.

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
        return 0, {"sum": self.memory[0], "twice": 2 * self.memory[0]}

    def get_actions(self, observations):
        self.memory = self.memory + observations[:, 0]  # always all rows
        return [0] * len(observations), {"sum": self.memory, "twice": list(2 * self.memory)}


class Rllab(Summing):
    def reset(self, dones=None):
        super().reset(dones)


class Seeded(Summing):
    """Is told a seed besides, and demands the mask; its rows are independent."""

    row_independent = True

    def reset(self, do_resets, seed):  # type: ignore[override]
        super().reset(do_resets)
        assert seed is not None


class ResetWithoutAnything(Summing):
    def reset(self):  # type: ignore[override]
        self.memory = 0.0


@pytest.mark.parametrize(
    ("agent", "env", "block_size"),
    [
        *((agent, Drawn, 8) for agent in (Summing, Rllab, Seeded)),
        *((Summing, Vector(mode.name, Drawn), 8) for mode in AutoresetMode),
        (Seeded, Drawn, None),
    ],
)
def test_a_memory_is_cleared_for_the_slots_that_begin(agent, env, block_size):
    with vec(agent(), env, block_size=block_size) as sampler, LocalSampler(agent(), Drawn, seed=SEED) as one:
        batches = [*(sampler.obtain_trajectories(n) for n in (16, 2, 11)), one.obtain_trajectories(8)]
    for trajectory in (trajectory for batch in batches for trajectory in batch):
        expected = np.cumsum(trajectory.observations[:, 0], dtype=np.float64)
        np.testing.assert_array_equal(trajectory.agent_infos["sum"], expected)
        np.testing.assert_array_equal(trajectory.agent_infos["twice"], 2 * expected)


def test_what_a_reset_raises_names_its_trajectory():
    agent = Summing()
    agent.refuses = True
    with vec(agent, Drawn) as sampler, pytest.raises(Exception, match=r"resetting the agent.*not this slot"):
        sampler.obtain_trajectories(16)


@pytest.mark.parametrize(
    ("agent", "env", "words"),
    [
        (
            Linear(),
            "CartPole-v1",
            ["the agent (Linear) has no get_actions(observations)", "a single call would serve all"],
        ),
        (ResetWithoutAnything(), Drawn, ["ResetWithoutAnything", "reset()", "slots", "starts", "do_resets"]),
    ],
)
def test_an_agent_gets_a_hint_once(agent, env, words, caplog):
    with caplog.at_level(logging.WARNING, "streamsampler"), vec(agent, env, n_workers=2, check=None) as sampler:
        for update in (None, None, agent):
            sampler.obtain_trajectories(8, agent_update=update)
    (record,) = [record for record in caplog.records if words[0] in record.getMessage()]
    assert all(word in record.getMessage() for word in words)


class Task(Steps):
    def set_task(self, task):
        self.length = task


def test_every_kind_of_update_reaches_every_slot():
    env = Steps(2)
    updates: list[Any] = [
        (None, 2), (SetTaskUpdate(Task, 4), 4), (SetTaskUpdate(Task, 5), 5), (SetTaskUpdate(Task(1), 3), 3),
        (SetTaskUpdate(Task(1), 6), 6), (Vector("DISABLED", Steps)(), 3), (lambda: env, 2),
    ]  # fmt: skip
    with vec(always_zero, ExistingEnvUpdate(env)) as sampler:
        for update, length in updates:
            assert sampler.obtain_trajectories(7, env_update=update).lengths.tolist() == [length] * 7
        assert sampler.obtain_trajectories(7, env_update="CartPole-v1").lengths.min() > 5
    assert not hasattr(env, "t"), "the user's own was never run"


class Breaking(Drawn):
    """Does something wrong at timestep 2 of some trajectories, or in their resets."""

    def __init__(self, where):
        super().__init__()
        self.where = where

    def reset(self, *, seed=None, options=None):
        result = super().reset(seed=seed)
        self.bad, self.length = self.mark % 5 == 0, 4
        if self.bad and self.where == "reset":
            raise OSError("broken")
        return result

    def step(self, action):
        observation, reward, *rest = super().step(action)
        if not self.bad or self.t != 2:
            return observation, reward, *rest
        if self.where == "step":
            raise OSError("broken")
        if self.where == "four values":
            return observation, reward, False, False
        return (np.zeros((2, 3)), reward, *rest) if self.where == "shape" else (observation, "much", *rest)


@pytest.mark.parametrize(
    ("where", "phase", "message"),
    [
        ("reset", "resetting the environment", "OSError: broken"),
        ("step", "stepping the environment", "OSError: broken"),
        ("shape", "recording the trajectory", r"Breaking: .*\(2, 3\).*\(1,\), at timestep 2 of its"),
        ("reward", "recording the trajectory", "Breaking: the reward .* 'much', at timestep 1 of its trajectory"),
        ("four values", "stepping the environment", "step must return"),
    ],
)
def test_errors_of_environments_name_the_trajectory_as_with_the_default_worker(where, phase, message):
    found = []
    for sampler in (vec(always_zero, Breaking(where)), LocalSampler(always_zero, Breaking(where), seed=SEED)):
        with sampler:
            with pytest.raises(RolloutError, match=message) as caught:
                sampler.obtain_trajectories(20)
            found.append((caught.value.worker_number, caught.value.phase, caught.value.trajectory))
            assert len(sampler.obtain_trajectories(8, env_update=Drawn)) == 8
    assert found[0] == found[1] == (0, phase, found[1][2])


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
        (lambda n: (["left"] * n, {}), CHOOSING, "ActionError"),
        (lambda n: (np.zeros(n, np.int64), {"x": np.zeros(n + 1)}), RECORDING, r"\(4,\).*3 environments"),
    ],
)
def test_errors_of_batched_agents(answer, phase, message):
    with vec(Wrong(answer), "CartPole-v1") as sampler, pytest.raises(RolloutError, match=message) as caught:
        sampler.obtain_trajectories(3)
    assert (caught.value.phase, caught.value.trajectory) == (phase, 0)
    if "ZeroDivision" in message:
        notes = ["get_actions had the observations of trajectories 0, 1, 2"]
        assert caught.value.__cause__.__notes__ == notes


BOX = spaces.Box(-1e9, 1e9, (2,), np.float32)


@pytest.mark.parametrize(
    ("space", "actions", "words"),
    [
        (BOX, np.array([[0, 0], [0, 123456789.0], [0, 0]]), "holds 123456789.0 as float64"),
        (spaces.Dict(a=BOX), {"b": np.zeros((3, 2))}, r"has the keys \['b'\]"),
        (spaces.Dict(a=BOX), [{"a": [0, 0]}, {"a": [0]}, {"a": [0, 0]}], r"\['a'\] has the shape \(1,\)"),
        (spaces.Tuple((BOX,)), (np.zeros((3, 2)), np.zeros((3, 2))), "has 2 parts"),
    ],
)
def test_batched_actions_that_their_space_cannot_hold_are_refused(space, actions, words):
    with vec(Wrong(lambda n: (actions, {})), Echo(space)) as sampler, pytest.raises(RolloutError, match=words):
        sampler.obtain_trajectories(3)


def test_environments_of_one_worker_have_the_same_spaces():
    made: list[Any] = []

    def make():
        made.append(Echo(spaces.Discrete(2 + len(made) % 3)))
        return made[-1]

    with (
        vec(always_zero, make) as sampler,
        pytest.raises(RolloutError, match="must have the same spaces: the first has D"),
    ):
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
        for args in ({}, {"n_envs": 32}, {"block_size": 5}, {"n_envs": 2, "block_size": 3}, {"n_envs": 1})
    ]
    longer = {"lengthens": True}  # if it is a vector environment
    assert layouts == [Layout(16, 16, **longer), Layout(32, 32, **longer), Layout(16, 5), Layout(2, 3), Layout()]
    assert WorkerFactory().layout == Layout()
