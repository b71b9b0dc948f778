"""Given seeds and reset options: each trajectory gets its own, on whatever worker, also after losses."""

import pickle
import threading
from functools import partial

import gymnasium
import numpy as np
import pytest
from gymnasium.vector import AutoresetMode, SyncVectorEnv

from streamsampler import LocalSampler, MultiprocessingSampler, VecWorker
from streamsampler.errors import RolloutError, SerializationError, UsageError
from streamsampler.testing import Fault, Faults
from streamsampler.workers.base import Worker
from tests.contracts.conftest import slow_on
from tests.scripted.agents import Drawing, always_zero
from tests.scripted.envs import AnyLength


class Told(AnyLength):
    """Tells in its infos what its resets were called with, and shows the option `level` in its observations."""

    def reset(self, *, seed=None, options=None):
        observation, info = super().reset(seed=seed)
        self.level = 0 if options is None else options.get("level", 0)
        return observation + np.float32(self.level), info | {"seed": seed, "level": self.level}

    def step(self, action):
        observation, *rest = super().step(action)
        return observation + np.float32(self.level), *rest


SEEDS = [7, 7, 2**31 + 5, 0, *range(100, 130), 7]
LEVELS = [{"level": level % 5} for level in range(len(SEEDS))]


def told(batch, name):
    return batch.episode_infos[name].tolist()


def test_each_seed_is_used_once_and_in_order(make_sampler):
    batches = []
    for seed, order in ((1, "index"), (2, "arrival")):
        # Another seed, another history, another order: the same trajectories.
        sampler = make_sampler(always_zero, Told, n_workers=2, seed=seed, order=order, check=None)
        if seed == 2:
            sampler.obtain_trajectories(3)
        batches.append(sampler.obtain_trajectories(seeds=SEEDS))
        assert batches[-1].seeds == tuple(SEEDS) == tuple(told(batches[-1], "seed"))
        assert batches[-1].indices.tolist() == list(range(len(SEEDS)))
        own = sampler.obtain_trajectories(2)
        assert own.seeds == tuple(sampler.seeds(own.agent_version, own.indices))
    first, second = batches
    assert np.array_equal(first.observations, second.observations)
    assert np.array_equal(first.lengths, second.lengths)


@pytest.mark.parametrize("engine", slow_on("forkserver"), indirect=True)
def test_seeds_of_another_call_give_the_same_trajectories(make_sampler):
    """Everything that is random in a trajectory follows from its seed: environment, agent and global generators."""
    sampler = make_sampler(Drawing(), Told, n_workers=2, seed=1)
    first = sampler.obtain_trajectories(12)
    again = sampler.obtain_trajectories(12, seeds=first.seeds)
    for name in ("observations", "rewards", "actions", "lengths"):
        assert np.array_equal(getattr(first, name), getattr(again, name))


@pytest.mark.parametrize("engine", slow_on("forkserver"), indirect=True)
def test_options_for_all_and_for_each(make_sampler):
    sampler = make_sampler(always_zero, Told, n_workers=2, seed=1)
    each = sampler.obtain_trajectories(seeds=SEEDS, reset_options=LEVELS)
    assert told(each, "level") == [options["level"] for options in LEVELS]
    assert told(each, "seed") == SEEDS
    assert told(sampler.obtain_trajectories(3, reset_options=[{"level": 4}, None, {"level": 2}]), "level") == [4, 0, 2]
    for batch in (
        sampler.obtain_trajectories(4, reset_options={"level": 3}),
        sampler.obtain_samples(50, reset_options={"level": 3}),
        sampler.obtain_exact_trajectories(2, reset_options={"level": 3}),
        next(sampler.stream(reset_options={"level": 3})),
    ):
        assert set(told(batch, "level")) == {3}
    assert set(told(sampler.obtain_samples(50), "level")) == {0}


@pytest.mark.parametrize(
    ("large", "own"),
    [
        (True, True),
        *(pytest.param(*case, marks=pytest.mark.slow) for case in ((True, False), (False, True), (False, False))),
    ],
)
@pytest.mark.slow
def test_seeds_and_options_reach_workers_in_the_place_of_lost_ones(make_local, tmp_path, large, own):
    options = [level | {"map": np.full(3000 * large, index)} for index, level in enumerate(LEVELS)]
    expected = make_local(always_zero, Told, seed=1).obtain_trajectories(seeds=SEEDS, reset_options=options)
    last = Fault("kill" if large else "hang", "step", step=3)
    faults = Faults(tmp_path, Fault("kill", "reset"), Fault("kill", "step", step=2), last)
    envs = [faults.env(Told)] * 3 if own else faults.env(Told)
    # Where nothing hangs there is no limit: a healthy worker may stand still for longer, on a busy machine.
    limit = None if large else 1.0
    with MultiprocessingSampler(
        always_zero, envs, n_workers=3, seed=2, step_timeout=limit, max_restarts=None
    ) as sampler:
        for _ in range(3):
            batch = sampler.obtain_trajectories(seeds=SEEDS, reset_options=options)
            assert np.array_equal(batch.observations, expected.observations)
            assert (told(batch, "seed"), told(batch, "level")) == (told(expected, "seed"), told(expected, "level"))
        assert faults.fired() == 3
        if not own:
            return  # copies in other workers may end each call before the lost worker is replaced
        # Where there is a limit, healthy workers of a busy machine may count as hung, too.
        assert sampler.stats.restarts == 3 if large else sampler.stats.restarts >= 3
        # What calls were given is freed: the arena of updates does not grow.
        assert sampler._session._published.keys() <= sampler._session.updates.payloads().keys() | {
            id(sampler._session._resets_handle)
        }


@pytest.mark.parametrize("engine", slow_on("forkserver"), indirect=True)
def test_what_raises_is_left_out_and_none_takes_its_place(make_sampler):
    if make_sampler.side_by_side:
        return  # such workers leave out nothing

    class Raises(Told):
        def step(self, action):
            if self.level == 3:
                raise ValueError("no")
            return super().step(action)

    for order in ("index", "arrival"):
        sampler = make_sampler(always_zero, Raises, n_workers=2, seed=1, on_failure="drop", order=order)
        batch = sampler.obtain_trajectories(seeds=SEEDS, reset_options=LEVELS)
        kept = [index for index, options in enumerate(LEVELS) if options["level"] != 3]
        assert batch.indices.tolist() == kept
        assert batch.seeds == tuple(SEEDS[index] for index in kept)
        assert sampler.stats.dropped_trajectories == len(SEEDS) - len(kept)
        with pytest.raises(RolloutError, match="2 trajectories failed and 0 did not"):
            sampler.obtain_trajectories(2, reset_options=[{"level": 3}] * 2)
        # Where all have the same options others can make up for it.
        assert len(sampler.obtain_trajectories(2, reset_options={"level": 1})) == 2


def test_one_for_each_worker(make_sampler):
    sampler = make_sampler([always_zero] * 2, Told, n_workers=2, seed=1)
    batch = sampler.obtain_trajectories(seeds=SEEDS, reset_options=LEVELS)
    assert told(batch, "seed") == SEEDS
    assert told(batch, "level") == [options["level"] for options in LEVELS]


@pytest.mark.parametrize("engine", slow_on("forkserver"), indirect=True)
def test_the_sampler_tells_its_seeds(make_sampler):
    sampler = make_sampler(always_zero, Told, n_workers=2, seed=1)
    for version in (1, 2):
        assert sampler.obtain_trajectories(5).seeds == tuple(sampler.seeds(version, range(5)))
    assert sampler.seeds(2, [4, np.int64(0)]) == [sampler.seeds(2, range(5))[4], sampler.seeds(2, range(5))[0]]
    for version, indices in ((0, [0]), (1, [-1]), (1, [2**31]), (1.5, [0]), (1, ["0"])):  # type: ignore[assignment]
        with pytest.raises(UsageError):
            sampler.seeds(version, indices)


def test_what_cannot_be_pickled_or_used_changes_nothing(make_sampler):
    sampler = make_sampler(always_zero, Told, n_workers=2, seed=1)
    with pytest.raises(SerializationError, match=r"reset_options .* cannot be pickled"):
        sampler.obtain_trajectories(2, reset_options={"level": threading.Lock()})
    with pytest.raises(UsageError, match="n_trajectories is 3, but there are 2 seeds"):
        sampler.obtain_trajectories(3, seeds=[1, 2])
    with pytest.raises(UsageError, match="reset_options must be a dict for all"):
        sampler.obtain_samples(3, reset_options=[{}])
    assert sampler.agent_version == 0
    assert sampler.obtain_trajectories(2).agent_version == 1
    again = make_sampler.adopt(pickle.loads(pickle.dumps(sampler)))
    assert again.obtain_trajectories(seeds=[5]).seeds == (5,)


def test_a_worker_that_knows_no_options_is_not_given_any():
    class Mine(Worker):
        def update_agent(self, agent_update): ...
        def update_env(self, env_update): ...
        def rollout(self, ticket, seeds): ...
        def shutdown(self): ...

    with LocalSampler(always_zero, Told, worker_class=Mine, check=None) as sampler:  # type: ignore[type-abstract]
        for call in (sampler.obtain_trajectories, sampler.obtain_samples, lambda n, **o: sampler.stream(**o)):
            with pytest.raises(UsageError, match="Mine takes no reset_options"):
                call(1, reset_options={"level": 1})


def native(mode):
    return lambda: SyncVectorEnv([Told] * 3, autoreset_mode=mode)


@pytest.mark.parametrize("mode", list(AutoresetMode))
@pytest.mark.parametrize(("n_workers", "block_size"), [(1, 3), (2, 6)])
def test_native_vector_environments_begin_each_trajectory_from_its_seed_and_options(mode, n_workers, block_size):
    args = {"n_envs": 3, "block_size": block_size}
    with LocalSampler(
        always_zero, native(mode), n_workers=n_workers, seed=1, worker_class=VecWorker, worker_args=args
    ) as sampler:
        batch = sampler.obtain_trajectories(seeds=SEEDS, reset_options={"level": 4})
        assert batch.seeds == tuple(SEEDS) == tuple(told(batch, "seed"))
        assert set(told(batch, "level")) == {4}
        assert set(told(sampler.obtain_samples(60, reset_options={"level": 2}), "level")) == {2}
        for options, message in (
            ([{"level": 1}] * 2, "takes one dict of reset options for all its environments"),
            ({"reset_mask": 1}, 'takes no "reset_mask" in reset_options'),
        ):
            with pytest.raises(RolloutError, match=message):
                sampler.obtain_trajectories(2, reset_options=options)
        assert len(sampler.obtain_trajectories(2)) == 2


class OneSeed(SyncVectorEnv):
    """Takes one seed for all its environments."""

    def reset(self, *, seed=None, options=None):
        if not isinstance(seed, int | None):
            raise TypeError("one seed, please")
        return super().reset(seed=seed, options=options)


def test_a_vector_environment_that_takes_one_seed_cannot_be_given_some():
    with LocalSampler(
        always_zero, partial(OneSeed, [Told] * 3), seed=1, worker_class=VecWorker, worker_args={"n_envs": 3}
    ) as sampler:
        for _ in range(2):
            with pytest.raises(RolloutError, match="OneSeed takes one for all"):
                sampler.obtain_trajectories(seeds=SEEDS)
            assert len(sampler.obtain_trajectories(5)) == 5


def test_gymnasiums_own_environments_take_options(make_sampler):
    batch = make_sampler(always_zero, "CartPole-v1", n_workers=2, seed=1).obtain_trajectories(
        seeds=[3, 4, 5], reset_options=[{"low": 0.01 * k, "high": 0.01 * (k + 1)} for k in range(3)]
    )
    env = gymnasium.make("CartPole-v1")
    for k, seed in enumerate((3, 4, 5)):
        expected = env.reset(seed=seed, options={"low": 0.01 * k, "high": 0.01 * (k + 1)})[0]
        assert np.array_equal(batch[k].observations[0], expected)
