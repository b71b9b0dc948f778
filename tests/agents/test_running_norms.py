"""RunningNorm and RunningReturnNorm: numbers against NumPy's, protocol, bad arguments."""

import pickle

import gymnasium
import numpy as np
import pytest
from gymnasium.spaces import Box
from gymnasium.wrappers import ClipAction, RescaleAction, TransformAction

from streamsampler import LocalSampler
from streamsampler.agents.running_norms import Moments
from streamsampler.errors import SamplerError, UsageError
from streamsampler.filters import FilteredAgent, Filters, RunningNorm, RunningReturnNorm


def trajectories(dtype=np.float64, shape=(3,), seed=0):
    generator = np.random.default_rng(seed)
    lengths = generator.integers(1, 50, 40)
    return [(generator.normal(5.0, 2.0, (n, *shape)) * np.arange(1, 1 + max(shape))).astype(dtype) for n in lengths]


def folded(given, parts):
    return given.merge([given.summarise(part) for part in parts])


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_the_statistics_are_those_of_numpy(dtype):
    parts = trajectories(dtype)
    rows = np.concatenate(parts).astype(np.float64)
    found = folded(RunningNorm(), parts)
    assert found.count == len(rows)
    np.testing.assert_allclose(found.mean, rows.mean(axis=0), rtol=1e-13)
    np.testing.assert_allclose(found.variance, rows.var(axis=0), rtol=1e-13)


def test_merging_in_several_calls_comes_to_the_same_bits():
    parts = trajectories()
    at_once = folded(RunningNorm(), parts)
    one_by_one = RunningNorm()
    for part in parts:
        one_by_one = one_by_one.merge([one_by_one.summarise(part)])
    assert at_once == one_by_one
    assert at_once != folded(RunningNorm(), parts[::-1])  # what == would miss if it rounded


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("shape", [(3,), (), (2, 5)])
def test_rows_together_are_rows_alone_bit_for_bit(dtype, shape):
    parts = trajectories(dtype, shape or (1,))
    parts = parts if shape else [part[:, 0] for part in parts]
    found = folded(RunningNorm(clip=1.0), parts)
    rows = np.concatenate(parts)
    together = found.apply(rows)
    alone = np.array([found.apply(np.asarray(row)) for row in rows])
    assert together.dtype == alone.dtype == dtype
    assert together.tobytes() == alone.tobytes()
    assert together.max() == 1.0
    expected = np.clip((rows - rows.mean(0, np.float64)) / np.sqrt(rows.var(0, np.float64) + 1e-8), -1.0, 1.0)
    np.testing.assert_allclose(together, expected, atol=1e-5 if dtype == np.float32 else 1e-12)


def test_data_stay_as_they_are_before_there_are_statistics():
    rows = np.arange(6.0).reshape(2, 3)
    assert RunningNorm().apply(rows) is rows
    assert RunningReturnNorm().apply(rows[0]) is not None
    assert RunningReturnNorm().apply(rows[0]).tolist() == rows[0].tolist()


def test_applying_and_merging_change_nothing_in_place():
    rows = np.ones((4, 3))
    found = folded(RunningNorm(), trajectories())
    before = pickle.dumps(found)
    found.apply(rows)
    found.merge([found.summarise(rows)])
    assert pickle.dumps(found) == before
    assert (rows == 1.0).all()


def test_nested_observations_have_statistics_of_their_own_and_integers_stay():
    parts = [{"a": part, "b": (part[:, 0] * 2, np.arange(len(part)))} for part in trajectories()]
    found = folded(RunningNorm(clip=None), parts)
    rows = {"a": np.concatenate([part["a"] for part in parts])}
    np.testing.assert_allclose(found.mean["a"], rows["a"].mean(axis=0), rtol=1e-12)
    result = found.apply(parts[0])
    assert result["b"][1] is parts[0]["b"][1]
    np.testing.assert_allclose(result["b"][0], result["a"][:, 0], rtol=1e-6)
    assert found.mean["b"][1] is None


def test_observations_without_floats_are_an_error():
    with pytest.raises(UsageError, match="none to normalise"):
        RunningNorm().summarise(np.zeros((3, 2), np.uint8))


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


def test_pickles_and_says_what_it_is():
    found = folded(RunningNorm(clip=5.0), trajectories())
    again = pickle.loads(pickle.dumps(found))
    assert again == found
    assert repr(again) == repr(found)
    assert repr(found) != repr(folded(RunningNorm(clip=5.0), trajectories(seed=1)))
    assert repr(RunningNorm()) == "RunningNorm(clip=10.0, epsilon=1e-08; no statistics)"
    assert repr(RunningReturnNorm(0.5)) == "RunningReturnNorm(0.5, clip=10.0, epsilon=1e-08; no statistics)"


@pytest.mark.parametrize(
    ("make", "what"),
    [
        (lambda: RunningNorm(clip=0.0), "clip must be above 0"),
        (lambda: RunningNorm(epsilon=0.0), "epsilon must be above 0"),
        (lambda: RunningReturnNorm(1.5), "gamma must be between 0 and 1"),
        (lambda: RunningReturnNorm(0.9, clip=-1.0), "clip must be above 0"),
    ],
)
def test_bad_arguments(make, what):
    with pytest.raises(UsageError, match=what):
        make()


class Taking(gymnasium.Wrapper):
    """Shows the action that the environment gets."""

    def __init__(self):
        super().__init__(gymnasium.make("Pendulum-v1"))  # whose actions are between -2 and 2

    def step(self, action):
        *rest, info = self.env.step(action)
        return *rest, {**info, "taken": float(action[0])}


def unsquash(action):
    """Bring any number into the range of the environment's actions."""
    return 2 * np.tanh(action)


EVERYTHING = Box(-np.inf, np.inf, (1,), np.float32)


@pytest.mark.parametrize(
    ("wrapped", "chosen", "taken"),
    [
        (lambda: ClipAction(Taking()), 5.0, 2.0),
        (lambda: RescaleAction(Taking(), np.float32(-1), np.float32(1)), 0.5, 1.0),
        (lambda: TransformAction(Taking(), unsquash, EVERYTHING), 3.0, 2 * float(np.tanh(np.float32(3.0)))),
    ],
    ids=["clip", "rescale", "unsquash"],
)
def test_an_action_wrapper_leaves_the_agents_own_action_in_the_batch(wrapped, chosen, taken):
    def agent(_):
        return np.array([chosen], np.float32)

    with LocalSampler(agent, wrapped, seed=1, max_episode_length=4, check=None) as sampler:
        batch = sampler.obtain_trajectories(1)
    assert batch.actions.tolist() == [[chosen]] * 4
    assert batch.env_infos["taken"].tolist() == pytest.approx([taken] * 4)


class Shown:
    """Returns what it sees."""

    def get_action(self, observation):
        return observation, {}


class Halved(RunningNorm):
    """Applies something else."""

    def apply(self, data):
        return super().apply(data) * np.float32(0.5)  # NumPy 1 divides a scalar in float64


@pytest.mark.parametrize("kind", [RunningNorm, Halved])
@pytest.mark.parametrize("clip", [1.0, None])
@pytest.mark.parametrize(
    ("shape", "dtype"), [((3,), np.float32), ((2, 3), np.float64), ((3,), np.int64), ((), np.float32)]
)
def test_agents_see_what_apply_gives_to_the_last_bit(kind, clip, shape, dtype):
    rng = np.random.default_rng(3)
    space = Box(-100, 100, shape, dtype)
    rows = (rng.normal(size=(50, *shape)) * 9).astype(dtype)
    given = kind(clip=clip)
    if rows.dtype.kind == "f":
        given = given.merge([given.summarise(rows)])
    agent = FilteredAgent(Shown(), given, space)
    expected = given.apply(rows)
    for row, wanted in zip(rows, expected, strict=True):
        others = (row.astype(np.float64), row.tolist(), np.asfortranarray(row), np.array(row).view(Strange))
        for observation in (row, *others):
            seen, _ = agent.get_action(observation)
            assert np.asarray(seen).dtype == expected.dtype
            assert np.asarray(seen).tobytes() == wanted.tobytes()


class Strange(np.ndarray):
    pass


@pytest.mark.parametrize("shape", [(), (3,), (2, 3)])
def test_moments_are_merged_in_order_whatever_comes_together_and_are_pickled_to_the_last_bit(shape):
    rng = np.random.default_rng(5)
    each = [Moments.of(rng.normal(size=(n, *shape)) * 10.0**n) for n in (1, 2, 5, 9, 1)]
    one_by_one = each[0]
    for other in each[1:]:
        n, difference = one_by_one.n + other.n, other.mean - one_by_one.mean
        one_by_one = Moments(
            n,
            np.asarray(one_by_one.mean + difference * (other.n / n)),
            np.asarray(one_by_one.squares + other.squares + difference * difference * (one_by_one.n * other.n / n)),
        )
    before = pickle.dumps(each)
    for split in range(1, len(each)):
        found = each[0].plus_each(each[1:split]).plus_each(each[split:])
        for name in ("mean", "squares"):
            assert getattr(found, name).tobytes() == getattr(one_by_one, name).tobytes()
            assert getattr(found, name).shape == shape
        assert found.n == one_by_one.n
    assert pickle.dumps(each) == before  # none was changed
    again = pickle.loads(pickle.dumps(one_by_one))
    assert type(again) is Moments
    assert (again.n, again.mean.tobytes(), again.squares.tobytes()) == (
        one_by_one.n, one_by_one.mean.tobytes(), one_by_one.squares.tobytes(),
    )  # fmt: skip


def bits_of(each):
    return [(one.n, one.mean.shape, one.mean.tobytes(), one.squares.tobytes()) for one in each]


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("shape", [(), (1,), (4,), (3, 5), (19,)])
def test_moments_of_several_trajectories_are_those_of_each_alone(shape, dtype):
    rng = np.random.default_rng(8)
    lengths = rng.integers(1, 90, 40)
    rows = (100 * rng.normal(size=(lengths.sum(), *shape))).astype(dtype)
    parts = np.split(rows, np.cumsum(lengths)[:-1])
    together = Moments.of_each(rows, lengths)
    assert together is not None
    assert bits_of(together) == bits_of([Moments.of(np.array(part)) for part in parts])
    assert bits_of(pickle.loads(pickle.dumps(together))) == bits_of(together)
    for part, found in zip(parts, together, strict=True):
        np.testing.assert_allclose(found.mean, part.mean(0, dtype=np.float64), rtol=1e-12, atol=1e-12)
        np.testing.assert_allclose(found.variance, part.var(0, dtype=np.float64), rtol=1e-12)


@pytest.mark.slow
def test_what_is_not_summed_together_has_the_moments_of_each_alone():
    rows = np.random.default_rng(8).normal(size=(2000, 70)).astype(np.float32)
    lengths = np.array([1500, 500])
    assert Moments.of_each(rows, lengths) is None
    for data in (rows, np.repeat(rows, 1000, 0)[:, :20], np.arange(2000)):
        assert Moments.of_each(data, lengths * (len(data) // 2000)) is None
    one = Moments.of(rows)
    np.testing.assert_allclose(one.variance, rows.var(0, dtype=np.float64), rtol=1e-12)


class Clipped(RunningNorm):
    """Has a summary of its own."""

    def summarise(self, data):
        return super().summarise(np.clip(data, -1, 1))


class OfHalves(RunningReturnNorm):
    """Has a summary of its own."""

    def summarise(self, data):
        return super().summarise(data / 2)


def test_summaries_together_are_those_that_summarise_returns():
    rng = np.random.default_rng(9)
    lengths = np.array([3, 1, 20])
    for filters in (Filters(RunningNorm(), RunningReturnNorm(0.9)), Filters(Clipped(), OfHalves())):
        rows, rewards = rng.normal(size=(24, 4)), rng.normal(size=24)
        observed, rewarded = filters._summaries(lengths, rows, rewards)
        assert bits_of(observed) == bits_of(map(filters.observation.summarise, np.split(rows, [3, 4])))
        assert bits_of(rewarded) == bits_of(map(filters.reward.summarise, np.split(rewards, [3, 4])))


@pytest.mark.parametrize(
    ("make", "name"),
    [
        (lambda wrong: RunningNorm(clip=wrong), "clip"),
        (lambda wrong: RunningNorm(epsilon=wrong), "epsilon"),
        (lambda wrong: RunningReturnNorm(gamma=wrong), "gamma"),
    ],
)
def test_settings_are_numbers(make, name):
    with pytest.raises(UsageError, match=f"{name} must be a number, got 'a'"):
        make("a")


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
