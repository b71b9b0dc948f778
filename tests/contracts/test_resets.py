"""Given seeds and reset options: each trajectory gets its own."""

import pickle
import threading
from functools import partial

import numpy as np
import pytest
from gymnasium.vector import AutoresetMode, SyncVectorEnv

from streamsampler import LocalSampler, MultiprocessingSampler, VecWorker
from streamsampler.errors import RolloutError, SerializationError, UsageError
from streamsampler.testing import Fault, Faults
from streamsampler.workers.base import Worker
from tests.contracts.conftest import on, slow
from tests.contracts.told import Told, told
from tests.scripted.agents import Drawing, always_zero

SEEDS = [7, 7, 2**31 + 5, 0, *range(100, 130), 7]
LEVELS = [{"level": level % 5} for level in range(len(SEEDS))]


@on("local", "processes", *slow("vec"))
def test_seeds_and_options(make_sampler):
    batches = []
    for seed, order in ((1, "index"), (2, "arrival")):
        # Another seed, another history, another order: the same trajectories.
        sampler = make_sampler(Drawing(), Told, n_workers=2, seed=seed, order=order, check=None)
        if seed == 2:
            sampler.obtain_trajectories(3)
        batches.append(sampler.obtain_trajectories(seeds=SEEDS, reset_options=LEVELS))
        assert batches[-1].seeds == tuple(SEEDS) == tuple(told(batches[-1], "seed"))
        assert batches[-1].indices.tolist() == list(range(len(SEEDS)))
        assert told(batches[-1], "level") == [options["level"] for options in LEVELS]
    first, second = batches
    for name in ("observations", "rewards", "actions", "lengths"):
        # Everything that is random in a trajectory follows from its seed: environment, agent and global generators.
        assert make_sampler.side_by_side or np.array_equal(getattr(first, name), getattr(second, name))
    own = sampler.obtain_trajectories(3, reset_options=[{"level": 4}, None, {"level": 2}])
    assert own.seeds == tuple(sampler.seeds(own.agent_version, own.indices))
    assert told(own, "level") == [4, 0, 2]
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
    [(True, False), *(pytest.param(*case, marks=pytest.mark.slow) for case in ((True, True), (False, False)))],
)
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
        assert sampler.stats.restarts == 3
        # What calls were given is freed: the arena of updates does not grow.
        assert sampler._life.session.store._published.keys() <= sampler._life.session.store.latest.payloads().keys() | {
            id(sampler._life.session._resets_handle)
        }


class Raises(Told):
    def step(self, action):
        if self.level == 3:
            raise ValueError("no")
        return super().step(action)


@on("local", "waiting", *slow("processes"))
@pytest.mark.parametrize("order", ["index", "arrival"])
def test_what_raises_is_left_out_and_none_takes_its_place(make_sampler, order):
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


@on("local", "waiting", *slow("processes"))
def test_the_sampler_tells_its_seeds_and_refuses_what_cannot_be(make_sampler):
    sampler = make_sampler([always_zero] * 2, Told, n_workers=2, seed=1)
    for version in (1, 2):
        assert sampler.obtain_trajectories(5).seeds == tuple(sampler.seeds(version, range(5)))
    assert sampler.seeds(2, [4, np.int64(0)]) == [sampler.seeds(2, range(5))[4], sampler.seeds(2, range(5))[0]]
    for version, indices in ((0, [0]), (1, [-1]), (1, [2**31]), (1.5, [0]), (1, ["0"])):  # type: ignore[assignment]
        with pytest.raises(UsageError):
            sampler.seeds(version, indices)
    for error, words, arguments in (
        (SerializationError, r"reset_options .* cannot be pickled", {"reset_options": {"level": threading.Lock()}}),
        (UsageError, "n_trajectories is 3, but seeds has 2 items", {"n_trajectories": 3, "seeds": [1, 2]}),
    ):
        with pytest.raises(error, match=words):
            sampler.obtain_trajectories(**{"n_trajectories": 2, **arguments})
    with pytest.raises(UsageError, match="reset_options must be a dict for all"):
        sampler.obtain_samples(3, reset_options=[{}])
    assert sampler.agent_version == 2
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
            with pytest.raises(UsageError, match="Mine does not support reset_options"):
                call(1, reset_options={"level": 1})


@pytest.mark.parametrize("mode", list(AutoresetMode))
@pytest.mark.parametrize(("n_workers", "block_size"), [(1, 3), (2, 6)])
def test_native_vector_environments_begin_each_trajectory_from_its_seed_and_options(mode, n_workers, block_size):
    args = {"n_envs": 3, "block_size": block_size}

    def native():
        return SyncVectorEnv([Told] * 3, autoreset_mode=mode)

    with LocalSampler(
        always_zero, native, n_workers=n_workers, seed=1, worker_class=VecWorker, worker_args=args
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
            with pytest.raises(RolloutError, match="OneSeed takes one seed for all"):
                sampler.obtain_trajectories(seeds=SEEDS)
            assert len(sampler.obtain_trajectories(5)) == 5
