"""Vector environments: their streams cut into whole trajectories, in all autoreset modes."""

import gc
import itertools
from functools import partial
from typing import Any, ClassVar

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, SyncVectorEnv

from streamsampler import EnvUpdate, LocalSampler, VecWorker
from streamsampler.errors import RolloutError, UsageError
from tests.scripted.agents import Balancing, NestedBatches, Remembering, always_zero
from tests.scripted.envs import Drawn, Nested, Steps
from tests.scripted.vectors import Deaf, OneSeed, Vector
from tests.tiers import mostly_slow

SEED = 11
MODES = ["NEXT_STEP", "SAME_STEP", "DISABLED"]


def native(agent, env, *, n_workers=1, n_envs=3, block_size=6, **options):
    args = {"n_envs": n_envs, "block_size": block_size}
    return LocalSampler(agent, env, seed=SEED, n_workers=n_workers, worker_class=VecWorker, worker_args=args, **options)


def retold(seed, n):
    """What an environment tells of n trajectories in a row, seeded once: by hand."""
    env, told = Drawn(), []
    for number in range(n):
        observation, info = env.reset(seed=seed if number == 0 else None)
        steps: list[Any] = []
        while not steps or not (steps[-1][2] or steps[-1][3]):
            before = observation
            observation, *rest = env.step(0)
            steps.append((before, *rest))
        told.append((steps, observation, info))
    return told


def assert_told(trajectory, told):
    steps, last, reset_info = told
    assert trajectory.observations.tolist() == [step[0].tolist() for step in steps]
    assert trajectory.rewards.tolist() == [step[1] for step in steps]
    assert [trajectory.terminated[0], trajectory.truncated[0]] == [steps[-1][2], steps[-1][3]]
    assert trajectory.last_observations[0].tolist() == last.tolist()
    assert trajectory.episode_infos["mark"].tolist() == [reset_info["mark"]]
    infos = trajectory.env_infos
    keys = {key for step in steps for key in step[4]}
    assert infos.keys() == keys | ({"_last"} if len(steps) > 1 else set())
    assert infos["t"].tolist() == [step[4]["t"] for step in steps]
    if "third" in keys:
        rows = infos["third"]["of"][infos["third"].get("_of", ...)]
        assert rows.tolist() == [step[4]["third"]["of"].tolist() for step in steps if "third" in step[4]]


@pytest.mark.parametrize("mode", MODES)
def test_the_stream_is_cut_into_what_each_slot_tells(mode):
    """Each slot's trajectories are those of one environment that is seeded once a block, or once a trajectory."""
    with native(always_zero, Vector(mode, Drawn)) as sampler:
        batch = sampler.obtain_trajectories(14)
    trajectories = list(batch)
    for first in range(0, 14, 6):
        block, seeds = trajectories[first : first + 6], batch.seeds[first : first + 6]
        slots = [iter(retold(seed, 6)) for seed in seeds[:3]]
        # Which slot ends when tells who runs what: replayed with lengths alone.
        free = [(0, slot) for slot in range(min(3, len(block)))]
        for trajectory, seed in zip(block, seeds, strict=True):
            step, slot = min(free)
            free.remove((step, slot))
            told = retold(seed, 1)[0] if mode == "DISABLED" else next(slots[slot])
            assert_told(trajectory, told)
            free.append((step + len(told[0]) + (mode == "NEXT_STEP"), slot))


def cart_poles():
    kwargs = {"autoreset_mode": AutoresetMode.DISABLED}
    return gymnasium.make_vec("CartPole-v1", num_envs=3, vectorization_mode="sync", vector_kwargs=kwargs)


def test_disabled_autoreset_gives_the_trajectories_of_the_default_worker():
    cases: list[Any] = [
        (NestedBatches(), Vector("DISABLED", Nested), Nested, {}),
        (Balancing(), cart_poles, "CartPole-v1", {"max_episode_length": 30}),
    ]
    for agent, env, single, options in cases:
        with native(agent, env, **options) as many, LocalSampler(agent, single, seed=SEED, **options) as one:
            batch = many.obtain_trajectories(13)
            assert batch == one.obtain_trajectories(13)
    assert (batch.lengths == 30).any()
    for mode in ("NEXT_STEP", "SAME_STEP"):  # the first of each slot: others go on with the slot's generator
        with (
            native(NestedBatches(), Vector(mode, Nested)) as many,
            LocalSampler(NestedBatches(), Nested, seed=SEED) as one,
        ):
            assert many.obtain_trajectories(6)[:3] == one.obtain_trajectories(3)


def test_a_native_environment_of_gymnasium_itself():
    make = partial(gymnasium.make_vec, "CartPole-v1", num_envs=3)
    assert not isinstance(make().unwrapped, SyncVectorEnv)
    with native(Balancing(), make) as sampler:
        batch = sampler.obtain_trajectories(13)
    assert batch.terminated.any()
    # Physics tells whether the pieces belong together: positions move by velocities.
    following = batch.next_observations
    moved = batch.observations[:, 0] + 0.02 * batch.observations[:, 1]
    np.testing.assert_allclose(following[:, 0], moved, atol=1e-5)


class Told(OneSeed):
    seeds: ClassVar = []

    def __init__(self, seed=0):
        super().__init__()
        self.seeds.append(seed)


def test_one_seed_for_all_slots():
    with native(Remembering(), Told) as sampler:
        batch = sampler.obtain_trajectories(20)
    assert Told.seeds == [0], "it heeds its seeds"
    for trajectory in batch:
        n = trajectory.n_timesteps
        assert trajectory.observations[:, 0].tolist() == list(range(n))
        assert trajectory.rewards.tolist() == list(range(1, n + 1))
        assert trajectory.last_observations.tolist() == [[n]]
        assert set(trajectory.env_infos["length"].tolist()) == {n}
        assert trajectory.agent_infos["memory"].tolist() == np.cumsum(np.arange(1, n + 1)).tolist()


@pytest.mark.parametrize("space", [spaces.Box(-1, 1, (2,)), spaces.MultiDiscrete([3, 4]), spaces.Discrete(4, start=2)])
def test_all_slots_get_valid_actions(space):
    """Silent slots, and those that reset, are stepped along."""

    class Strict(Steps):
        action_space = space

        def step(self, action):
            assert space.contains(np.asarray(action, space.dtype) if space.shape else int(action)), action
            return super().step(0)

    class First:
        def get_action(self, observation):
            raise AssertionError

        def get_actions(self, observations):
            return np.stack([np.asarray(space.sample())] * len(observations)), {}

    for mode in MODES:
        with native(First(), partial(SyncVectorEnv, [Strict] * 3, autoreset_mode=AutoresetMode[mode])) as sampler:
            assert sampler.obtain_trajectories(8).lengths.tolist() == [3] * 8


class Wary:
    """Refuses what silent slots show, and draws for each row from its own stream."""

    def get_action(self, observation):
        raise AssertionError

    def get_actions(self, observations, draws):
        assert not np.isnan(observations).any()
        return np.zeros(len(observations), np.int64), {"drawn": draws.random()}


class Blank(Steps):
    """Shows NaN from the second trajectory on, which it was not to run."""

    def reset(self, *, seed=None, options=None):
        observation, info = super().reset(seed=seed)
        return (observation if seed is not None else observation * np.nan), info


@pytest.mark.parametrize("mode", MODES)
def test_agents_are_not_asked_what_silent_slots_show(mode):
    env = partial(SyncVectorEnv, [partial(Blank, length) for length in (2, 3, 9)], autoreset_mode=AutoresetMode[mode])
    for n in (2, 3):
        with native(Wary(), env, block_size=3) as sampler:
            drawn = sampler.obtain_trajectories(n).agent_infos["drawn"]
        assert len(set(drawn.tolist())) == len(drawn)


@pytest.mark.slow
def test_an_environment_that_ignores_the_seeds_of_resets_is_made_from_one_for_each_block():
    gc.collect()  # others' environments close themselves when they are collected
    batches, before = [], Deaf.living
    for n_workers in (1, 2):
        with native(always_zero, lambda seed=0: Deaf(seed), n_workers=n_workers, check="error") as sampler:
            batches.append(sampler.obtain_trajectories(13))
        assert Deaf.living <= before
    assert batches[0] == batches[1]
    assert len(np.unique(batches[0].observations)) > 13


class Tasks(EnvUpdate):
    def __call__(self, old_env):
        return old_env


def test_a_change_of_what_is_made_again_is_refused():
    with native(always_zero, lambda seed=0: Deaf(seed)) as sampler:
        sampler.obtain_trajectories(6)
        with pytest.raises(RolloutError, match="this update would be lost"):
            sampler.obtain_trajectories(6, env_update=Tasks())


FIRSTS = [0, 3, 6, 9, 12, 15, 18, 24, 30, 36, 48, 60, 72, 96, 120, 144, 192, 240]
"""Where blocks begin that get longer, with three slots; each following one has 48 trajectories."""


@pytest.mark.parametrize("mode", mostly_slow(MODES))
@pytest.mark.usefixtures("few_first_blocks")
def test_blocks_get_longer_and_are_the_same_for_any_number_of_workers(mode):
    def batches(n_workers, **options):
        with native(always_zero, Vector(mode, Drawn), n_workers=n_workers, **options) as sampler:
            return [
                sampler.obtain_trajectories(250),
                sampler.obtain_samples(700),
                sampler.obtain_trajectories(2),
                sampler.obtain_exact_trajectories(42 // n_workers),
                sampler.obtain_trajectories(28, agent_update=lambda _: 0),
                *itertools.islice(sampler.stream(), 31),
            ]

    alone = batches(1, block_size=None)
    for n_workers in (2, 3, 7):
        assert batches(n_workers, block_size=None) == alone
    for first in FIRSTS:
        for seed, trajectory in zip(alone[0].seeds[first : first + 3], alone[0][first : first + 3], strict=True):
            assert_told(trajectory, retold(seed, 1)[0])
    if mode != "DISABLED":
        short = batches(2, block_size=3)
        assert short[0][:18] == alone[0][:18]
        assert [short[0][21:24] == alone[0][21:24], short[2] == alone[2]] == [False, True]


@pytest.mark.parametrize("mode", ["NEXT_STEP", "DISABLED"])
def test_trajectories_of_longer_blocks_are_replayed(mode):
    with native(always_zero, Vector(mode, Drawn), block_size=None) as sampler:
        batch = sampler.obtain_trajectories(53)
        for index in (0, 17, 20, 29, 41, 50, 52):
            assert sampler.replay(1, index, recorded=batch).same
            assert sampler.replay(1, index).trajectory == batch[index]


def test_longer_blocks_with_a_lag():
    """The second batch of a version begins where the first one ends, and so do its blocks."""

    def batches(n_workers):
        env = Vector("NEXT_STEP", Drawn)
        with native(always_zero, env, block_size=None, n_workers=n_workers, staleness=1, check=None) as sampler:
            found = [sampler.obtain_trajectories(n) for n in (70, 70, 41)]
            if n_workers == 1:
                for batch in found:
                    for index in batch.indices[::10].tolist():
                        version = int(batch.agent_versions[0])
                        assert sampler.replay(version, index, recorded=batch, agent=always_zero).same
            return found

    alone = batches(1)
    assert [batches(n_workers) for n_workers in (2, 3)] == [alone, alone]


def test_streams_begin_with_the_first_trajectory_where_blocks_get_longer():
    with native(always_zero, Vector("NEXT_STEP", Drawn), block_size=None) as sampler:
        with pytest.raises(UsageError, match=r'pass worker_args=\{"n_envs": 3, "block_size": 3\}, in every part'):
            next(sampler.stream(first_trajectory=3))
        assert sampler.obtain_trajectories(3).n_trajectories == 3
    with native(always_zero, Vector("NEXT_STEP", Drawn), block_size=3) as sampler:
        whole = list(itertools.islice(sampler.stream(), 9))
        sampler.shutdown_worker()
    with native(always_zero, Vector("NEXT_STEP", Drawn), block_size=3) as sampler:
        assert list(itertools.islice(sampler.stream(first_trajectory=6), 3)) == whole[6:]


@pytest.mark.usefixtures("few_first_blocks")
def test_a_hint_names_a_block_size_where_many_environments_stand_silent(caplog):
    def hints():
        return [record.getMessage() for record in caplog.records if "stand silent" in record.getMessage()]

    with native(always_zero, OneSeed, block_size=12) as sampler:
        for _ in range(20):  # fewer trajectories than a block: no other size would help
            sampler.obtain_trajectories(2)
    assert not hints()
    with native(always_zero, OneSeed, block_size=3, n_workers=2) as sampler:
        sampler.obtain_trajectories(60)
        sampler.obtain_trajectories(60)
    (hint,) = hints()
    assert "at the end of each block of 3 trajectories" in hint
    named = int(hint.partition('"block_size": ')[2].partition("}")[0])
    caplog.clear()
    with native(always_zero, OneSeed, block_size=named) as sampler:
        sampler.obtain_trajectories(10 * named)
    assert not hints()
    with native(always_zero, OneSeed, block_size=None) as sampler:  # they get longer within the call
        for _ in range(3):
            sampler.obtain_trajectories(500)
    assert not hints()
    with native(always_zero, OneSeed, block_size=None) as sampler:
        sampler.obtain_trajectories(18)
        assert not hints(), "more may follow in the same call"
        sampler.obtain_trajectories(18)
    (hint,) = hints()
    assert "at the end of each block, of 3 trajectories on average, they wait for its longest trajectory" in hint
    assert 'request more trajectories in a batch, or pass worker_args={"block_size": ' in hint


class Both(Deaf, gymnasium.Env):  # type: ignore[misc]
    """Is of both kinds, as EnvPool's environments are."""


class Hooks:
    def on_timestep(self, context): ...


@pytest.mark.parametrize("env", [Vector("NEXT_STEP", Drawn)(), Vector("NEXT_STEP", Drawn), Both])
def test_the_default_worker_names_the_one_that_can(env):
    with LocalSampler(always_zero, env) as sampler, pytest.raises(RolloutError, match="worker_class=VecWorker"):
        sampler.obtain_trajectories(1)


@pytest.mark.parametrize(
    ("env", "options", "message"),
    [
        (Vector("NEXT_STEP", n=4), {}, "n_envs is 3, but the vector environment has 4"),
        (Vector("NEXT_STEP", n=4), {"n_envs": None, "block_size": 3}, r'pass worker_args=\{"n_envs": 4\}'),
        (Vector("SAME_STEP", Drawn), {"max_episode_length": 5}, "max_episode_length=5 needs .*DISABLED"),
        (Vector("SAME_STEP", Drawn), {"hooks": Hooks()}, "takes no hooks and no drop_if"),
        (Vector("SAME_STEP", Drawn), {"drop_if": bool}, "takes no hooks and no drop_if"),
        (Deaf, {"env_kwargs": {"seed": 3}}, r"Deaf began differently .* twice with the same seeds.*lambda seed=0: "),
        (lambda: Deaf(3), {}, "lambda seed=0: "),
        (Deaf(3), {}, "lambda seed=0: "),
        (lambda seed=0: Deaf(), {}, "made twice from the same seed"),
    ],
)
def test_what_cannot_work_says_the_way_out(env, options, message):
    with native(always_zero, env, **options) as sampler, pytest.raises(RolloutError, match=message) as caught:
        sampler.obtain_trajectories(6)
    assert isinstance(caught.value.original, UsageError)


class Broken(Drawn):
    def step(self, action):
        if self.t == 1:
            raise OSError("broken")
        self.length = 9
        return super().step(action)


class OddEnd(SyncVectorEnv):
    """Its slot 1 ends with an observation of another shape, and slot 0 falls silent in the same step."""

    def step(self, actions):
        *values, infos = super().step(actions)
        if "final_obs" in infos:
            infos["final_obs"][1] = np.zeros(5, np.float32)
        return *values, infos


class OddBeginning(SyncVectorEnv):
    """Its resets of single slots return observations of another shape."""

    def reset(self, *, seed=None, options=None):
        observations, infos = super().reset(seed=seed, options=options)
        return (observations if options is None else np.zeros((3, 5), np.float32)), infos


@pytest.mark.parametrize(
    ("kind", "mode", "env", "trajectory", "words"),
    [
        (SyncVectorEnv, "SAME_STEP", Broken, 0, "while stepping the environment.*broken"),
        (OddEnd, "SAME_STEP", Steps, 1, "timestep 3 of its trajectory"),
        (OddBeginning, "DISABLED", Steps, 3, r"\(3, 5\)"),
    ],
)
def test_errors_name_what_was_running(kind, mode, env, trajectory, words):
    make = partial(kind, [env] * 3, autoreset_mode=AutoresetMode[mode])
    with native(always_zero, make) as sampler, pytest.raises(RolloutError, match=f"(?s){words}") as caught:
        sampler.obtain_trajectories(6)
    assert caught.value.trajectory == trajectory
    if mode == "SAME_STEP":
        notes = ["the vector environment was running trajectories 0, 1, 2"]
        assert caught.value.__cause__.__notes__ == notes
    else:
        assert "timestep" not in str(caught.value)
