"""RunningNorm and RunningReturnNorm: numbers against NumPy's, protocol, bad arguments."""

import pickle

import gymnasium
import numpy as np
import pytest
from gymnasium.wrappers import ClipAction

from streamsampler import LocalSampler
from streamsampler.errors import UsageError
from streamsampler.filters import RunningNorm, RunningReturnNorm


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


def test_an_action_wrapper_leaves_the_agents_own_action_in_the_batch():
    class Taking(gymnasium.Wrapper):
        def step(self, action):
            *rest, info = self.env.step(action)
            return *rest, {**info, "taken": float(action[0])}

    def clipped():
        return ClipAction(Taking(gymnasium.make("Pendulum-v1")))

    def far(_):
        return np.array([5.0], np.float32)

    with LocalSampler(far, clipped, seed=1, max_episode_length=4, check=None) as sampler:
        batch = sampler.obtain_trajectories(1)
    assert batch.actions.tolist() == [[5.0]] * 4
    assert batch.env_infos["taken"].tolist() == [2.0] * 4
