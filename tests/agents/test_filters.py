"""RunningNorm and RunningReturnNorm: numbers against NumPy's, their shapes, and agents that see what they return."""

from __future__ import annotations

import pickle
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.spaces import Box

from streamsampler import LocalSampler, VecWorker
from streamsampler.agents.moments import Moments
from streamsampler.errors import RolloutError, SamplerError, UsageError
from streamsampler.filters import FilteredAgent, Filters, RunningNorm, RunningReturnNorm
from tests.scripted.envs import Counting


def trajectories(dtype=np.float64, shape=(3,)):
    generator = np.random.default_rng(0)
    lengths = generator.integers(1, 50, 40)
    scale = np.arange(1, 1 + shape[-1]) if shape else 1
    return [(generator.normal(5.0, 2.0, (n, *shape)) * scale).astype(dtype) for n in lengths]


def folded(given, parts):
    return given.merge([given.summarise(part) for part in parts])


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("shape", [(3,), (), (2, 5)])
def test_statistics_are_those_of_numpy_and_rows_together_are_rows_alone(dtype, shape):
    parts = trajectories(dtype, shape)
    found, rows = folded(RunningNorm(clip=1.0), parts), np.concatenate(parts)
    mean, variance = rows.mean(0, np.float64), rows.var(0, np.float64)
    assert found.count == len(rows)
    np.testing.assert_allclose(found.mean, mean, rtol=1e-13)
    np.testing.assert_allclose(found.variance, variance, rtol=1e-13)
    before = pickle.dumps(found), rows.copy()
    together = found.apply(rows)
    found.merge([found.summarise(rows)])
    assert pickle.dumps(found) == before[0], "neither applying nor merging changes it"
    assert np.array_equal(rows, before[1])
    alone = np.array([found.apply(np.asarray(row)) for row in rows])
    assert together.dtype == alone.dtype == dtype
    assert together.tobytes() == alone.tobytes()
    assert together.max() == 1.0
    expected = np.clip((rows - mean) / np.sqrt(variance + 1e-8), -1.0, 1.0)
    np.testing.assert_allclose(together, expected, atol=1e-5 if dtype == np.float32 else 1e-12)


def test_merging_in_several_calls_comes_to_the_same_bits_and_pickles():
    parts = trajectories()
    at_once, one_by_one = folded(RunningNorm(), parts), RunningNorm()
    for part in parts:
        one_by_one = folded(one_by_one, [part])
    again = pickle.loads(pickle.dumps(at_once))
    assert at_once == one_by_one == again
    assert repr(again) == repr(at_once) != repr(folded(RunningNorm(), parts[1:]))
    assert at_once != folded(RunningNorm(), parts[::-1])  # what == would miss if it rounded


def test_data_stay_as_they_are_before_there_are_statistics():
    rows = np.arange(6.0).reshape(2, 3)
    assert RunningNorm().apply(rows) is rows
    assert RunningReturnNorm().apply(rows[0]).tolist() == rows[0].tolist()
    assert repr(RunningNorm()) == "RunningNorm(clip=10.0, epsilon=1e-08; no statistics)"
    assert repr(RunningReturnNorm(0.5)) == "RunningReturnNorm(0.5, clip=10.0, epsilon=1e-08; no statistics)"


def test_nested_observations_have_statistics_of_their_own_and_integers_stay():
    parts = [{"a": part, "b": (part[:, 0] * 2, np.arange(len(part)))} for part in trajectories()]
    found = folded(RunningNorm(clip=None), parts)
    np.testing.assert_allclose(found.mean["a"], np.concatenate([part["a"] for part in parts]).mean(axis=0), rtol=1e-12)
    result = found.apply(parts[0])
    assert result["b"][1] is parts[0]["b"][1]
    np.testing.assert_allclose(result["b"][0], result["a"][:, 0], rtol=1e-6)
    assert found.mean["b"][1] is None


def test_the_variance_is_that_of_discounted_returns():
    parts = [part[:, 0] for part in trajectories()]
    found = folded(RunningReturnNorm(0.9, clip=None), parts)
    returns = []
    for part in parts:
        total = 0.0
        for reward in part:
            total = 0.9 * total + reward
            returns.append(total)
    np.testing.assert_allclose(found.variance, np.var(returns), rtol=1e-12)
    np.testing.assert_allclose(found.apply(parts[0]), parts[0] / np.sqrt(np.var(returns) + 1e-8), rtol=1e-12)


WORD: Any = "a"


@pytest.mark.parametrize(
    ("make", "what"),
    [
        (lambda: RunningNorm(clip=0.0), "clip must be above 0"),
        (lambda: RunningNorm(epsilon=0.0), "epsilon must be above 0"),
        (lambda: RunningReturnNorm(1.5), "gamma must be between 0 and 1"),
        (lambda: RunningNorm(clip=WORD), "clip must be a number, got 'a'"),
        (lambda: RunningNorm(epsilon=WORD), "epsilon must be a number, got 'a'"),
        (lambda: RunningReturnNorm(gamma=WORD), "gamma must be a number, got 'a'"),
        (lambda: RunningNorm().summarise(np.zeros((3, 2), np.uint8)), "none to normalise"),
    ],
)
def test_bad_arguments(make, what):
    with pytest.raises(UsageError, match=what):
        make()


def bits_of(each):
    return [(one.n, one.mean.shape, one.mean.tobytes(), one.squares.tobytes()) for one in each]


class Clipped(RunningNorm):
    """Has a summary of its own."""

    def summarise(self, data):
        return super().summarise(np.clip(data, -1, 1))


class OfHalves(RunningReturnNorm):
    """Has a summary of its own."""

    def summarise(self, data):
        return super().summarise(data / 2)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("shape", [(), (1,), (4,), (3, 5), (19,)])
def test_moments_of_several_trajectories_are_those_of_each_alone_to_the_last_bit(shape, dtype):
    rng = np.random.default_rng(8)
    lengths = rng.integers(1, 90, 40)
    rows = (100 * rng.normal(size=(lengths.sum(), *shape))).astype(dtype)
    together: Any = Moments.of_each(rows, lengths)
    assert bits_of(together) == bits_of(map(Moments.of, np.split(rows, np.cumsum(lengths)[:-1])))
    assert bits_of(pickle.loads(pickle.dumps(together))) == bits_of(together)


def test_summaries_together_are_those_that_summarise_returns():
    rng, lengths = np.random.default_rng(9), np.array([3, 1, 20])
    for filters in (Filters(RunningNorm(), RunningReturnNorm(0.9)), Filters(Clipped(), OfHalves())):
        rows, rewards = rng.normal(size=(24, 4)), rng.normal(size=24)
        observed, rewarded = filters._summaries(lengths, rows, rewards)
        assert bits_of(observed) == bits_of(map(filters.observation.summarise, np.split(rows, [3, 4])))
        assert bits_of(rewarded) == bits_of(map(filters.reward.summarise, np.split(rewards, [3, 4])))


class Looking:
    """Shows what it sees."""

    def get_action(self, observation):
        return 0, {"seen": observation if isinstance(observation, np.number | float) else observation.copy()}


class Halved(RunningNorm):
    """Applies something else."""

    def apply(self, data):
        return super().apply(data) * np.float32(0.5)  # NumPy 1 divides a scalar in float64


class Strange(np.ndarray):
    pass


@pytest.mark.parametrize("kind", [RunningNorm, Halved])
@pytest.mark.parametrize(
    ("shape", "dtype", "clip"),
    [((3,), np.float32, 1.0), ((2, 3), np.float64, None), ((3,), np.int64, 1.0), ((), np.float32, None)],
)
def test_agents_see_what_apply_gives_to_the_last_bit(kind, clip, shape, dtype):
    rows = (np.random.default_rng(3).normal(size=(50, *shape)) * 9).astype(dtype)
    given = kind(clip=clip)
    if rows.dtype.kind == "f":
        given = folded(given, [rows])
    agent = FilteredAgent(Looking(), given, Box(-100, 100, shape, dtype))
    expected = given.apply(rows)
    for row, wanted in zip(rows, expected, strict=True):
        others = (row.astype(np.float64), row.tolist(), np.asfortranarray(row), np.array(row).view(Strange))
        for observation in (row, *others):
            seen = np.asarray(agent.get_action(observation)[1]["seen"])
            assert (seen.dtype, seen.tobytes()) == (expected.dtype, wanted.tobytes())


def one() -> Counting:
    return Counting(5, 1)


def three() -> Counting:
    return Counting(5, 3)


def learnt(*shape: int) -> Any:
    return RunningNorm().with_moments(Moments(9.0, np.zeros(shape), np.ones(shape)))


WRONG = r"the observation filter RunningNorm has statistics of the shape \({},\), but the environment .* \({},\)"


@pytest.mark.parametrize("options", [{}, {"worker_class": VecWorker, "worker_args": {"n_envs": 2}}])
def test_a_filter_and_an_environment_of_other_shapes_are_refused(options):
    with LocalSampler("random", one, seed=1, observation_filter=learnt(3), **options) as sampler:
        for obtain in (lambda: sampler.obtain_samples(20), lambda: sampler.obtain_fragments(5, 2)):
            with pytest.raises(RolloutError, match=WRONG.format(3, 1)):
                obtain()
        assert len(sampler.obtain_trajectories(2, env_update=three)) == 2
        with pytest.raises(RolloutError, match=WRONG.format(3, 1)):
            sampler.obtain_samples(20, env_update=one)
        assert sampler.obtain_samples(20).observations.shape[1:] == (3,)


BOX = Box(-1, 1, (2,), np.float32)


@pytest.mark.parametrize(
    ("moments", "space", "wrong"),
    [
        ({"a": learnt(2).moments}, BOX, r"statistics of the keys a, but the environment has observations Box"),
        ({"a": learnt(2).moments}, spaces.Dict({"b": BOX}), "statistics of the keys a, but"),
        ({"a": learnt(3).moments}, spaces.Dict({"a": BOX}), r"RunningNorm\['a'\] has statistics of the shape \(3,\)"),
        ((learnt(2).moments,), spaces.Tuple((BOX, BOX)), "statistics of a tuple of 1"),
        ((None, learnt(1).moments), spaces.Tuple((BOX, BOX)), r"RunningNorm\[1\] has statistics of the shape \(1,\)"),
        (learnt(2).moments, spaces.Dict({"a": BOX}), r"statistics of the shape \(2,\), but .* observations Dict"),
    ],
)
def test_nested_statistics_of_another_form_are_refused(moments, space, wrong):
    with pytest.raises(UsageError, match=wrong):
        FilteredAgent(lambda observation: 0, RunningNorm().with_moments(moments), space)


def test_what_does_not_know_the_space_looks_at_the_data():
    with pytest.raises(UsageError, match=r"of the shape \(3,\), but the data has the shape \(7, 1\)"):
        learnt(3).apply(np.zeros((7, 1)))
    assert learnt(3).apply(np.zeros((7, 3))).shape == (7, 3)
    assert learnt().apply(np.zeros(7)).shape == (7,)


def test_a_users_own_filtered_agent_keeps_its_filter():
    own = RunningNorm(clip=0.1).with_moments(learnt(3).moments)
    filtered = FilteredAgent(Looking(), own)
    for agent, update in ((filtered, None), (Looking(), filtered)):
        with LocalSampler(agent, three, seed=1, observation_filter=learnt(3)) as sampler:
            batches = [sampler.obtain_samples(20, agent_update=update), sampler.obtain_fragments(10, 2)]
        for batch in batches:
            assert np.array_equal(batch.agent_infos["seen"], own.apply(batch.observations))


def test_a_warm_up_is_in_the_number_of_timesteps():
    with LocalSampler(Looking(), three, seed=1, observation_filter=RunningNorm()) as sampler:
        sampler.warm_up(20)
        before = sampler.total_env_steps
        assert before == sampler.stats.kept_timesteps >= 20
        n_timesteps = sampler.obtain_samples(10).n_timesteps
        assert sampler.total_env_steps == before + n_timesteps


class Merging:
    def apply(self, data):
        return data

    def summarise(self, data):
        return 0

    def merge(self, summaries):
        raise KeyError("lost")


def test_an_exception_of_merge_names_the_filter():
    with LocalSampler("random", "CartPole-v1", seed=1, observation_filter=Merging()) as sampler:
        sampler.obtain_samples(5)
        with pytest.raises(SamplerError, match="merge of observation_filter, a Merging, raised KeyError: 'lost'"):
            sampler.obtain_samples(5)
