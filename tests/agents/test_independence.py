"""Agents whose rows depend on one another are found, and others are left in peace."""

from __future__ import annotations

import numpy as np
import pytest
from gymnasium import spaces

from streamsampler import RandomAgent
from streamsampler.agents.independence import probe
from streamsampler.data.trees import object_array
from streamsampler.errors import UsageError
from tests.scripted.kinds import Thing

N_ROWS = 11
EXAMPLE = np.random.default_rng(1).standard_normal((N_ROWS, 4)).astype(np.float32)
DEPENDS = "has row_independent = True, but row .* changed when other rows had other observations"
NOT_REPEATABLE = "changed when the same batch was passed again: the agent draws from its own generator"


class Rowwise:
    """Each row of its actions is a function of that row; it may write into its observations."""

    def get_action(self, observation):
        raise AssertionError

    def get_actions(self, observations):
        scores = self.scores(observations)
        return scores.argmax(axis=1), {"scores": scores}

    def scores(self, observations):
        assert observations.ctypes.data % 64 == 0
        observations += 1
        return np.tanh(observations)


class Leaking(Rowwise):
    """Row `to` takes part of row `source`'s observation."""

    def __init__(self, source=1, to=2):
        self.source, self.to = source, to

    def scores(self, observations):
        observations[self.to, 2] += np.float32(1e-3) * observations[self.source, 1]
        return super().scores(observations)


class Summing(Rowwise):
    def get_actions(self, observations):
        return observations.copy(), {"sum": np.full(len(observations), observations.sum())}


class Normalising(Rowwise):
    def scores(self, observations):
        return (observations - observations.mean(axis=0)) / (observations.std(axis=0) + 1e-5)


class WithLayers(Normalising):
    def get_param_values(self):
        return {"a.weight": np.zeros((127, 4)), "a.bias": np.zeros(127), "b.weight": np.zeros((64, 127))}


class Remembering:
    """Its memory begins anew where trajectories do; but in the wrong rows, if it is told so."""

    def __init__(self, shift=0):
        self.memory, self.shift = np.zeros(1), shift

    def reset(self):
        self.memory = np.zeros(1)

    def get_actions(self, observations, *, starts):
        self.memory = np.where(starts, 0.0, np.resize(self.memory, len(starts))) + observations[:, 0]
        seen, self.memory = self.memory, np.roll(self.memory, self.shift)
        return (seen > 0).astype(np.int64), {"memory": seen}


class RememberingByMask:
    def __init__(self, shift=0):
        self.memory, self.shift = np.zeros(1), shift

    def reset(self, do_resets):
        self.memory = np.where(do_resets, 0.0, np.resize(self.memory, len(do_resets)))

    def get_actions(self, observations):
        seen = self.memory + observations[:, 0]
        self.memory = np.roll(seen, self.shift)
        return (seen > 0).astype(np.int64), {"memory": seen}


class Drawing(Rowwise):
    def __init__(self):
        self.rng = np.random.default_rng(3)

    def scores(self, observations):
        return observations + self.rng.standard_normal(observations.shape)


class DrawingFromDraws:
    def get_actions(self, observations, *, draws):
        noisy = observations + draws.normal(4)
        return (noisy[:, 0] > draws.random()).astype(np.int64), {"noisy": noisy}


@pytest.mark.parametrize("n_rows", [2, 3, N_ROWS])
def test_any_row_that_takes_part_of_any_other_is_found(n_rows):
    for source in range(n_rows):
        for to in set(range(n_rows)) - {source}:
            with pytest.raises(UsageError, match=DEPENDS):
                probe(Leaking(source, to), EXAMPLE, n_rows)


@pytest.mark.filterwarnings("ignore:invalid value")
@pytest.mark.parametrize(
    ("agent", "example", "words"),
    [
        (Leaking(), EXAMPLE[:1], DEPENDS),
        (Leaking(), EXAMPLE[:1] * 0, DEPENDS),
        (Leaking(), EXAMPLE * np.float32(1e30), DEPENDS),
        (Leaking(), EXAMPLE * np.float32(np.inf), DEPENDS),
        *((Summing(), np.full(1, zero), DEPENDS) for zero in (np.int64(0), np.uint8(0), np.False_)),
        (Normalising(), EXAMPLE, rf"{DEPENDS}.* normalisation over the batch .* or code that mixes rows"),
        (WithLayers(), EXAMPLE, r"not multiples of 8 \(a.weight \(127, 4\)\), or normalisation"),
        (Remembering(shift=1), EXAMPLE, DEPENDS),
        (RememberingByMask(shift=1), EXAMPLE, DEPENDS),
        (Drawing(), EXAMPLE, rf"{NOT_REPEATABLE}.* keyword draws.*\"block_size\": n"),
    ],
)
def test_rows_that_depend_on_each_other_are_found_and_their_cause_is_named(agent, example, words):
    if isinstance(agent, Remembering):
        probe(agent, example, 1)  # also after batches of another size
    with pytest.raises(UsageError, match=words):
        probe(agent, example, N_ROWS)


class Nested(Rowwise):
    def get_actions(self, observations):
        one, two = observations["pair"]
        return {"a": one + 1, "b": (two * 2,)}, {}


NESTED = {"pair": (EXAMPLE, np.arange(N_ROWS)), "name": np.array(["x"] * N_ROWS)}


@pytest.mark.parametrize("n_rows", [1, 2, N_ROWS])
@pytest.mark.parametrize(
    ("agent", "example"),
    [
        *((agent, EXAMPLE) for agent in (Rowwise(), Remembering(), RememberingByMask(), DrawingFromDraws())),
        (RandomAgent(spaces.Dict(a=spaces.Box(0, 1))), EXAMPLE),
        (Nested(), NESTED),
    ],
    ids=lambda given: type(given).__name__,
)
def test_agents_whose_rows_are_independent_are_left_in_peace(agent, example, n_rows):
    shows = probe(agent, example, n_rows).conclusive
    assert shows == (n_rows == 1 or not isinstance(agent, RandomAgent))
    assert np.abs(EXAMPLE).max() < 5, "the example is not the agent's to change"


class Wordy:
    """Chooses objects that only their attributes tell apart; looks at strings, which no number stands for."""

    row_independent = True

    def __init__(self, mixes=None):
        self.mixes = mixes

    def get_actions(self, observations):
        parts = {"x": observations["x"][:, 0], "name": np.array([len(name) for name in observations["name"]])}
        if self.mixes is not None:
            parts[self.mixes] = np.cumsum(parts[self.mixes])

        class Word(Thing):
            """Is known by no name elsewhere, as a class of a worker's main script."""

        return [Word(n, x) for n, x in zip(parts["name"].tolist(), parts["x"].tolist(), strict=True)], {}


@pytest.mark.parametrize("mixes", [None, "x", "name"])
def test_agents_for_values_that_are_no_arrays(mixes):
    example = {"x": EXAMPLE, "name": object_array(["x" * (1 + row % 3) for row in range(len(EXAMPLE))])}
    if mixes is None:
        assert probe(Wordy(), example, N_ROWS).conclusive
        return
    if mixes == "x":  # with other numbers alone, as all rows are alike
        example = {key: values[:1] for key, values in example.items()}
    with pytest.raises(UsageError, match=DEPENDS):
        probe(Wordy(mixes), example, N_ROWS)


def test_an_agent_that_always_raises_is_not_judged(caplog):
    class Raising(Rowwise):
        def scores(self, observations):
            raise RuntimeError("no")

    probe(Raising(), EXAMPLE, N_ROWS)
    assert "could not be probed: it raises with all observations" in caplog.text


@pytest.mark.parametrize("mask", [np.ones((1, 3), dtype=np.int8), np.eye(4, 3, dtype=np.int8)])
def test_observations_that_the_agent_does_not_know_prove_nothing_but_others_do(mask):
    class Masked(Rowwise):
        mixes = False

        def get_actions(self, observations):
            mask = observations["mask"]
            if not mask.any(axis=1).all():
                raise ValueError("no action is left")
            infos = {"mean": observations["x"] - observations["x"].mean()} if self.mixes else {}
            return mask.argmax(axis=1), infos

    agent, example = Masked(), {"mask": mask, "x": EXAMPLE[:, 0]}
    probe(agent, example, N_ROWS)
    agent.mixes = True
    with pytest.raises(UsageError, match=DEPENDS):
        probe(agent, example, N_ROWS)
