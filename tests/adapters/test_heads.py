"""Heads: distributions, log-probabilities, and what is refused. No torch needed: arrays are outputs, too."""

from __future__ import annotations

import math

import numpy as np
import pytest
from gymnasium import spaces
from hypothesis import given
from hypothesis import strategies as st

from streamsampler.agents.draws import Draws
from streamsampler.agents.heads import CategoricalHead, GaussianHead, default_head
from streamsampler.errors import ActionError, UsageError

LOGITS = np.array([[0.5, -1.0, 2.0, -math.inf]], dtype=np.float32)
PROBABILITIES = np.exp(LOGITS[0].astype(float)) / np.exp(LOGITS[0].astype(float)).sum()


def random(seed=0):
    return np.random.RandomState(seed)


class TestCategorical:
    head = CategoricalHead(spaces.Discrete(4))

    def test_frequencies_are_the_probabilities(self):
        generator, n = random(), 20_000
        ones = np.bincount([self.head.one((LOGITS,), generator, False)[0] for _ in range(n)], minlength=4)
        batch = np.bincount(self.head.batch((np.repeat(LOGITS, n, axis=0),), generator, False)[0], minlength=4)
        deviation = np.sqrt(PROBABILITIES * (1 - PROBABILITIES) / n)
        drawn = np.bincount(self.head.batch((np.repeat(LOGITS, n, axis=0),), Draws.of(range(n)), False)[0], minlength=4)
        for counts in (ones, batch, drawn):
            assert (np.abs(counts / n - PROBABILITIES) <= 5 * deviation).all()
            assert counts[3] == 0  # masked

    @given(st.lists(st.floats(-50, 50, width=32), min_size=2, max_size=40), st.integers(0, 2**31 - 1))
    def test_one_and_batch_agree(self, row, seed):
        head = CategoricalHead(spaces.Discrete(len(row)))
        logits = np.array([row], dtype=np.float32)
        for deterministic in (False, True):
            action, infos = head.one((logits,), random(seed), deterministic)
            actions, batch_infos = head.batch((logits,), random(seed), deterministic)
            assert type(action) is int
            assert [action] == actions.tolist()
            wide = logits[0].astype(float)
            exact = wide[action] - wide.max() - math.log(np.exp(wide - wide.max()).sum())
            assert math.isclose(infos["log_prob"], exact, abs_tol=1e-12)
            assert math.isclose(batch_infos["log_prob"][0], exact, abs_tol=1e-12)

    def test_the_mode(self):
        assert self.head.one((LOGITS,), random(), True)[0] == 2
        assert self.head.batch((np.concatenate([LOGITS, LOGITS[:, ::-1]]),), random(), True)[0].tolist() == [2, 1]

    def test_a_space_that_starts_elsewhere(self):
        head = CategoricalHead(spaces.Discrete(4, start=-2))
        assert head.one((LOGITS,), random(), True)[0] == 0
        assert head.batch((LOGITS,), random(), True)[0].tolist() == [0]

    @pytest.mark.parametrize("bad", [[math.nan, 0, 0, 0], [0, math.nan, 0, 0], [math.inf, 0, 0, 0], [-math.inf] * 4])
    def test_logits_that_are_not_finite(self, bad):
        logits = np.array([bad], dtype=np.float32)
        for choose in (self.head.one, self.head.batch):
            with pytest.raises(ActionError, match="logits are not finite"), np.errstate(invalid="ignore"):
                choose((logits,), random(), False)

    @pytest.mark.parametrize("shape", [(1, 3), (4,), (1, 1, 4)])
    def test_a_wrong_shape_shows_both(self, shape):
        for choose in (self.head.one, self.head.batch):
            with pytest.raises(ActionError) as caught:
                choose((np.zeros(shape, np.float32),), random(), False)
            assert str(shape) in str(caught.value)
            assert "(n, 4)" in str(caught.value)


MEAN = np.array([[0.2, -0.4, 3.0]], dtype=np.float32)
LOG_STD = np.array([-0.5, 0.1, 0.3], dtype=np.float32)


def log_density(raw, mean, log_std):
    raw, mean, log_std = (np.asarray(part, dtype=np.float64) for part in (raw, mean, log_std))
    return (-0.5 * ((raw - mean) / np.exp(log_std)) ** 2 - log_std - 0.5 * math.log(2 * math.pi)).sum(axis=-1)


class TestGaussian:
    space = spaces.Box(-1.0, np.array([1.0, 2.0, 3.0], dtype=np.float32))

    @pytest.mark.parametrize("squash", [False, True])
    @pytest.mark.parametrize("source", [random(), Draws.of(range(20_000))], ids=["generator", "draws"])
    def test_moments_of_what_is_drawn(self, squash, source):
        n = 20_000
        head = GaussianHead(self.space, squash=squash)
        actions, infos = head.batch((np.repeat(MEAN, n, axis=0), LOG_STD), source, False)
        raw, std = infos["raw_action"], np.exp(LOG_STD)
        assert (np.abs(raw.mean(axis=0) - MEAN[0]) < 5 * std / math.sqrt(n)).all()
        assert (np.abs(raw.std(axis=0) / std - 1) < 0.03).all()
        assert actions.dtype == raw.dtype == np.float32
        assert all(self.space.contains(action) for action in actions[:500])

    def test_clipping_keeps_the_density_of_what_was_drawn(self):
        actions, infos = GaussianHead(self.space).batch((np.repeat(MEAN, 64, axis=0), LOG_STD), random(3), False)
        raw = infos["raw_action"]
        assert (raw != actions).any()
        assert np.array_equal(actions, np.clip(raw, self.space.low, self.space.high))
        np.testing.assert_allclose(infos["log_prob"], log_density(raw, MEAN, LOG_STD), atol=1e-5)

    @pytest.mark.parametrize("squash", [False, True])
    @pytest.mark.parametrize("deterministic", [False, True])
    def test_one_and_batch_agree(self, squash, deterministic):
        head = GaussianHead(self.space, squash=squash)
        for seed in range(50):
            action, infos = head.one((MEAN, LOG_STD), random(seed), deterministic)
            actions, batch_infos = head.batch((MEAN, LOG_STD), random(seed), deterministic)
            assert action.dtype == infos["raw_action"].dtype == np.float32
            assert np.array_equal(action, actions[0])
            assert np.array_equal(infos["raw_action"], batch_infos["raw_action"][0])
            assert math.isclose(infos["log_prob"], batch_infos["log_prob"][0], abs_tol=1e-12)

    def test_what_is_not_a_number_stays_so(self):
        action, _ = GaussianHead(self.space).one((MEAN * np.float32(np.nan), LOG_STD), random(), False)
        assert np.isnan(action).all()

    def test_squashing_gives_the_density_of_the_action(self):
        """The change of variables, with the slope taken numerically."""
        head = GaussianHead(self.space, squash=True)
        actions, infos = head.batch((np.repeat(MEAN, 64, axis=0) * 0.3, LOG_STD), random(4), False)
        raw = infos["raw_action"].astype(np.float64)

        def squashed(values):
            return self.space.low + (self.space.high - self.space.low).astype(float) * (np.tanh(values) + 1) / 2

        np.testing.assert_allclose(actions, squashed(raw), atol=1e-6)
        slope = (squashed(raw + 1e-5) - squashed(raw - 1e-5)) / 2e-5
        expected = log_density(raw, MEAN * 0.3, LOG_STD) - np.log(slope).sum(axis=1)
        np.testing.assert_allclose(infos["log_prob"], expected, atol=1e-4)

    def test_squashing_far_out_stays_finite_and_inside(self):
        actions, infos = GaussianHead(self.space, squash=True).batch((MEAN * 100, LOG_STD), random(), False)
        assert self.space.contains(actions[0])
        assert np.isfinite(infos["log_prob"]).all()

    @pytest.mark.parametrize("squash", [False, True])
    def test_the_mode(self, squash):
        action, infos = GaussianHead(self.space, squash=squash).one((MEAN, LOG_STD), random(), True)
        assert np.array_equal(infos["raw_action"], MEAN[0])
        expected = np.clip(MEAN[0], self.space.low, self.space.high)
        if squash:
            expected = self.space.low + (self.space.high - self.space.low) * (np.tanh(MEAN[0]) + 1) / 2
        np.testing.assert_allclose(action, expected, atol=1e-6)

    def test_a_row_of_deviations_for_each_observation(self):
        log_stds = np.array([[-3.0, -3.0, -3.0], [1.0, 1.0, 1.0]], dtype=np.float32)
        head = GaussianHead(self.space)
        _, infos = head.batch((np.zeros((2, 3), np.float32), log_stds), random(), False)
        np.testing.assert_allclose(infos["log_prob"], log_density(infos["raw_action"], 0.0, log_stds), atol=1e-5)
        assert np.abs(infos["raw_action"][0]).max() < 0.3 < np.abs(infos["raw_action"][1]).max()

    def test_as_many_rows_as_numbers_are_rows_of_their_own(self):
        """Three rows of three: which is which must not be guessed by size."""
        log_stds = np.arange(9, dtype=np.float32).reshape(3, 3) / 9
        _, infos = GaussianHead(self.space).batch((np.zeros((3, 3), np.float32), log_stds), random(), False)
        np.testing.assert_allclose(infos["log_prob"], log_density(infos["raw_action"], 0.0, log_stds), atol=1e-5)

    def test_actions_of_two_axes(self):
        head = GaussianHead(spaces.Box(-1, 1, (2, 3)))
        for mean, log_std in [(np.zeros((5, 6)), np.zeros(6)), (np.zeros((5, 2, 3)), np.zeros((2, 3)))]:
            actions, infos = head.batch((mean, log_std), random(), False)
            assert actions.shape == infos["raw_action"].shape == (5, 2, 3)
            assert infos["log_prob"].shape == (5,)

    @pytest.mark.parametrize(
        ("mean", "log_std", "name"),
        [(np.zeros((1, 2)), LOG_STD, "mean"), (np.zeros(3), LOG_STD, "mean"), (MEAN, np.zeros(2), "log_std")],
    )
    def test_wrong_shapes(self, mean, log_std, name):
        with pytest.raises(ActionError, match=rf"{name} has the shape .*should have \('n', 3\)"):
            GaussianHead(self.space).one((mean, log_std), random(), False)

    def test_spaces_that_do_not_suit(self):
        with pytest.raises(UsageError, match="Box action spaces of floats"):
            GaussianHead(spaces.Box(0, 9, (2,), dtype=np.int64))
        with pytest.raises(UsageError, match="finite bounds"):
            GaussianHead(spaces.Box(-np.inf, 1.0, (2,)), squash=True)


def test_defaults():
    assert isinstance(default_head(spaces.Discrete(3)), CategoricalHead)
    assert isinstance(default_head(spaces.Box(-1, 1, (3,))), GaussianHead)
    with pytest.raises(UsageError, match="no default head"):
        default_head(spaces.MultiBinary(3))
    with pytest.raises(UsageError, match="Discrete"):
        CategoricalHead(spaces.Box(-1, 1, (3,)))
