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

N = 20_000
LOGITS = np.array([[0.5, -1.0, 2.0, -math.inf]], dtype=np.float32)
FOUR = CategoricalHead(spaces.Discrete(4))


def random(seed=0):
    return np.random.RandomState(seed)


def test_frequencies_are_the_probabilities():
    probabilities = np.exp(LOGITS[0].astype(float)) / np.exp(LOGITS[0].astype(float)).sum()
    generator, outputs = random(), (np.repeat(LOGITS, N, axis=0),)
    for actions in (
        [FOUR.one((LOGITS,), generator, False)[0] for _ in range(N)],
        FOUR.batch(outputs, generator, False)[0],
        FOUR.batch(outputs, Draws.of(range(N)), False)[0],
    ):
        counts = np.bincount(actions, minlength=4)
        deviation = np.sqrt(probabilities * (1 - probabilities) / N)
        assert (np.abs(counts / N - probabilities) <= 5 * deviation).all()
        assert counts[3] == 0  # masked


@given(st.lists(st.floats(-50, 50, width=32), min_size=2, max_size=40), st.integers(0, 2**31 - 1), st.booleans())
def test_one_action_and_a_batch_agree(row, seed, deterministic):
    head = CategoricalHead(spaces.Discrete(len(row)))
    logits = np.array([row], dtype=np.float32)
    action, infos = head.one((logits,), random(seed), deterministic)
    actions, batch_infos = head.batch((logits,), random(seed), deterministic)
    assert type(action) is int
    assert [action] == actions.tolist()
    assert not deterministic or action == logits[0].argmax()
    wide = logits[0].astype(float)
    exact = wide[action] - wide.max() - math.log(np.exp(wide - wide.max()).sum())
    assert math.isclose(infos["log_prob"], exact, abs_tol=1e-12)
    assert math.isclose(batch_infos["log_prob"][0], exact, abs_tol=1e-12)


def test_a_space_that_starts_elsewhere():
    head = CategoricalHead(spaces.Discrete(4, start=-2))
    assert head.one((LOGITS,), random(), True)[0] == 0
    assert head.batch((np.concatenate([LOGITS, LOGITS[:, ::-1]]),), random(), True)[0].tolist() == [0, -1]


@pytest.mark.parametrize("choose", [FOUR.one, FOUR.batch])
@pytest.mark.parametrize(
    ("logits", "words"),
    [
        *(([[*bad]], "logits are not finite") for bad in [
            (math.nan, 0, 0, 0), (0, math.nan, 0, 0), (math.inf, 0, 0, 0), (-math.inf,) * 4
        ]),
        *((np.zeros(shape), rf"\({shape[0]}.*\(n, 4\)") for shape in [(1, 3), (4,), (1, 1, 4)]),
    ],
)  # fmt: skip
def test_logits_that_do_not_suit(choose, logits, words):
    with pytest.raises(ActionError, match=words), np.errstate(invalid="ignore"):
        choose((np.array(logits, np.float32),), random(), False)


MEAN = np.array([[0.2, -0.4, 3.0]], dtype=np.float32)
LOG_STD = np.array([-0.5, 0.1, 0.3], dtype=np.float32)
BOX = spaces.Box(-1.0, np.array([1.0, 2.0, 3.0], dtype=np.float32))
BOTH = pytest.mark.parametrize("squash", [False, True])


def log_density(raw, mean, log_std):
    raw, mean, log_std = (np.asarray(part, dtype=np.float64) for part in (raw, mean, log_std))
    return (-0.5 * ((raw - mean) / np.exp(log_std)) ** 2 - log_std - 0.5 * math.log(2 * math.pi)).sum(axis=-1)


def squashed(values):
    return BOX.low + (BOX.high - BOX.low).astype(float) * (np.tanh(values) + 1) / 2


@BOTH
@pytest.mark.parametrize("source", [random(), Draws.of(range(N))], ids=["generator", "draws"])
def test_moments_of_what_is_drawn(squash, source):
    actions, infos = GaussianHead(BOX, squash=squash).batch((np.repeat(MEAN, N, axis=0), LOG_STD), source, False)
    raw, std = infos["raw_action"], np.exp(LOG_STD)
    assert (np.abs(raw.mean(axis=0) - MEAN[0]) < 5 * std / math.sqrt(N)).all()
    assert (np.abs(raw.std(axis=0) / std - 1) < 0.03).all()
    assert actions.dtype == raw.dtype == np.float32
    assert all(BOX.contains(action) for action in actions[:500])


@BOTH
@pytest.mark.parametrize("deterministic", [False, True])
def test_one_gaussian_action_and_a_batch_agree(squash, deterministic):
    head = GaussianHead(BOX, squash=squash)
    for seed in range(50):
        action, infos = head.one((MEAN, LOG_STD), random(seed), deterministic)
        actions, batch_infos = head.batch((MEAN, LOG_STD), random(seed), deterministic)
        assert action.dtype == infos["raw_action"].dtype == np.float32
        assert np.array_equal(action, actions[0])
        assert np.array_equal(infos["raw_action"], batch_infos["raw_action"][0])
        assert math.isclose(infos["log_prob"], batch_infos["log_prob"][0], abs_tol=1e-12)
        assert not deterministic or np.array_equal(infos["raw_action"], MEAN[0])


@BOTH
def test_actions_and_their_densities(squash):
    """Clipping keeps the density of what was drawn; squashing changes variables, with the slope taken numerically."""
    mean = MEAN * 0.3 if squash else MEAN
    actions, infos = GaussianHead(BOX, squash=squash).batch((np.repeat(mean, 64, axis=0), LOG_STD), random(3), False)
    raw = infos["raw_action"].astype(np.float64)
    assert (raw != actions).any()
    np.testing.assert_allclose(actions, squashed(raw) if squash else np.clip(raw, BOX.low, BOX.high), atol=1e-6)
    expected = log_density(raw, mean, LOG_STD)
    if squash:
        expected -= np.log((squashed(raw + 1e-5) - squashed(raw - 1e-5)) / 2e-5).sum(axis=1)
    np.testing.assert_allclose(infos["log_prob"], expected, atol=1e-4 if squash else 1e-5)


def test_squashing_far_out_stays_finite_and_inside():
    actions, infos = GaussianHead(BOX, squash=True).batch((MEAN * 100, LOG_STD), random(), False)
    assert BOX.contains(actions[0])
    assert np.isfinite(infos["log_prob"]).all()
    assert np.isnan(GaussianHead(BOX).one((MEAN * np.float32(np.nan), LOG_STD), random(), False)[0]).all()


@pytest.mark.parametrize("n", [2, 3])
def test_a_row_of_deviations_for_each_observation(n):
    """Three rows of three: which is which must not be guessed by size."""
    log_stds = np.linspace(-3, 1, 3 * n).astype(np.float32).reshape(n, 3)
    head, mean = GaussianHead(BOX), np.zeros((n, 3), np.float32)
    of_ones, infos = (head.batch((mean, it), random(), False)[1] for it in (0 * log_stds, log_stds))
    np.testing.assert_allclose(infos["raw_action"], of_ones["raw_action"] * np.exp(log_stds), rtol=1e-6)
    np.testing.assert_allclose(infos["log_prob"], log_density(infos["raw_action"], 0.0, log_stds), atol=1e-5)


def test_actions_of_two_axes():
    head = GaussianHead(spaces.Box(-1, 1, (2, 3)))
    for mean, log_std in [(np.zeros((5, 6)), np.zeros(6)), (np.zeros((5, 2, 3)), np.zeros((2, 3)))]:
        actions, infos = head.batch((mean, log_std), random(), False)
        assert actions.shape == infos["raw_action"].shape == (5, 2, 3)
        assert infos["log_prob"].shape == (5,)


@pytest.mark.parametrize(
    ("mean", "log_std", "name"),
    [(np.zeros((1, 2)), LOG_STD, "mean"), (np.zeros(3), LOG_STD, "mean"), (MEAN, np.zeros(2), "log_std")],
)
def test_means_and_deviations_of_wrong_shapes(mean, log_std, name):
    with pytest.raises(ActionError, match=rf"{name} has the shape .*should have \('n', 3\)"):
        GaussianHead(BOX).one((mean, log_std), random(), False)


def test_defaults_and_spaces_that_do_not_suit():
    assert isinstance(default_head(spaces.Discrete(3)), CategoricalHead)
    assert isinstance(default_head(BOX), GaussianHead)
    for words, make in (
        ("no default head", lambda: default_head(spaces.MultiBinary(3))),
        ("Discrete", lambda: CategoricalHead(BOX)),
        ("Box action spaces of floats", lambda: GaussianHead(spaces.Box(0, 9, (2,), dtype=np.int64))),
        ("finite bounds", lambda: GaussianHead(spaces.Box(-np.inf, 1.0, (2,)), squash=True)),
    ):
        with pytest.raises(UsageError, match=words):
            make()
