"""Agents whose rows depend on one another are found, and others are left in peace."""

from __future__ import annotations

import numpy as np
import pytest
from gymnasium import spaces

from streamsampler import RandomAgent
from streamsampler.agents.independence import probe
from streamsampler.errors import UsageError

N_ROWS = 11
EXAMPLE = np.random.default_rng(1).standard_normal((N_ROWS, 4)).astype(np.float32)
DEPENDS = "says row_independent = True, but row .* came out otherwise when other rows had other observations"
NOT_REPEATABLE = "came out otherwise when the same batch was asked for again: the agent draws from a generator"


class Rowwise:
    """Each row of its actions is a function of that row."""

    def get_action(self, observation):
        actions, infos = self.get_actions(observation[None])
        return actions[0], {key: value[0] for key, value in infos.items()}

    def get_actions(self, observations):
        scores = self.scores(observations)
        return scores.argmax(axis=1), {"scores": scores}

    def scores(self, observations):
        return np.tanh(observations)


class Leaking(Rowwise):
    """Row `to` takes part of row `source`'s observation."""

    def __init__(self, source, to):
        self.source, self.to = source, to

    def scores(self, observations):
        observations[self.to, 2] += np.float32(1e-3) * observations[self.source, 1]
        return super().scores(observations)


class Normalising(Rowwise):
    def scores(self, observations):
        return (observations - observations.mean(axis=0)) / (observations.std(axis=0) + 1e-5)


class Remembering:
    """Its memory begins anew where trajectories do; but in the wrong rows, if it is told so."""

    def __init__(self, shift=0):
        self.shift = shift
        self.reset()

    def reset(self):
        self.memory = None

    def get_actions(self, observations, *, starts):
        if self.memory is None:
            self.memory = np.zeros(len(observations))
        self.memory[starts] = 0.0
        self.memory += observations[:, 0]
        seen, self.memory = self.memory, np.roll(self.memory, self.shift)
        return (seen > 0).astype(np.int64), {"memory": seen}


class RememberingByMask:
    def __init__(self, shift=0):
        self.memory = np.zeros(1)
        self.shift = shift

    def get_actions(self, observations):
        self.memory += observations[:, 0]
        seen, self.memory = self.memory, np.roll(self.memory, self.shift)
        return (seen > 0).astype(np.int64), {"memory": seen}

    def reset(self, do_resets):
        self.memory = np.where(do_resets, 0.0, np.resize(self.memory, len(do_resets)))


class Drawing(Rowwise):
    def __init__(self):
        self.rng = np.random.default_rng(3)

    def scores(self, observations):
        return observations + self.rng.standard_normal(observations.shape)


class DrawingFromDraws:
    def get_actions(self, observations, *, draws):
        noisy = observations + draws.normal(4)
        return (noisy[:, 0] > draws.random()).astype(np.int64), {"noisy": noisy}


class TestWhatIsFound:
    @pytest.mark.parametrize("n_rows", [2, 3, 8, N_ROWS])
    def test_a_row_that_takes_part_of_another_rows_observation(self, n_rows):
        for source in range(n_rows):
            for to in set(range(n_rows)) - {source}:
                with pytest.raises(UsageError, match=DEPENDS):
                    probe(Leaking(source, to), EXAMPLE, n_rows)

    @pytest.mark.parametrize("example", [EXAMPLE[:1], EXAMPLE[:1] * 0], ids=["one row", "zeros"])
    def test_also_if_all_observations_of_the_example_are_alike(self, example):
        with pytest.raises(UsageError, match=DEPENDS):
            probe(Leaking(1, 2), example, 8)

    @pytest.mark.parametrize("zero", [np.int64(0), np.uint8(0), np.False_])
    def test_also_if_they_are_integers_and_zero(self, zero):
        class Summing(Rowwise):
            def get_actions(self, observations):
                return observations.copy(), {"sum": np.full(len(observations), observations.sum())}

        with pytest.raises(UsageError, match=DEPENDS):
            probe(Summing(), np.full(1, zero), 8)

    @pytest.mark.parametrize("scale", [1e30, np.inf])
    def test_also_if_the_observations_are_huge(self, scale):
        with pytest.raises(UsageError, match=DEPENDS), np.errstate(invalid="ignore"):
            probe(Leaking(1, 2), EXAMPLE * np.float32(scale), 8)

    def test_also_after_batches_of_another_size(self):
        agent = Remembering(shift=1)
        probe(agent, EXAMPLE, 1)
        with pytest.raises(UsageError, match=DEPENDS):
            probe(agent, EXAMPLE, N_ROWS)

    def test_normalisation_over_the_batch(self):
        with pytest.raises(UsageError, match=rf"{DEPENDS}.* normalisation over the batch .* or code that mixes rows"):
            probe(Normalising(), EXAMPLE, N_ROWS)

    @pytest.mark.parametrize("agent", [Remembering(shift=1), RememberingByMask(shift=1)])
    def test_a_memory_that_moves_to_another_row(self, agent):
        with pytest.raises(UsageError, match=DEPENDS):
            probe(agent, EXAMPLE, N_ROWS)

    def test_a_generator_of_the_agents_own(self):
        with pytest.raises(UsageError, match=rf"{NOT_REPEATABLE}.* keyword draws.*\"block_size\": n"):
            probe(Drawing(), EXAMPLE, N_ROWS)

    def test_the_error_names_layers_of_odd_widths(self):
        class WithLayers(Normalising):
            def get_param_values(self):
                return {"a.weight": np.zeros((127, 4)), "a.bias": np.zeros(127), "b.weight": np.zeros((64, 127))}

        with pytest.raises(UsageError, match=r"no multiples of 8 \(a.weight \(127, 4\)\), or normalisation"):
            probe(WithLayers(), EXAMPLE, N_ROWS)


class TestWhatIsLeftInPeace:
    @pytest.mark.parametrize("n_rows", [1, 2, N_ROWS, pytest.param(64, marks=pytest.mark.slow)])
    @pytest.mark.parametrize(
        "agent",
        [
            Rowwise(),
            Remembering(),
            RememberingByMask(),
            DrawingFromDraws(),
            RandomAgent(spaces.Dict(a=spaces.Box(0, 1))),
        ],
        ids=lambda agent: type(agent).__name__,
    )
    def test_agents_whose_rows_are_independent(self, agent, n_rows):
        shows = probe(agent, EXAMPLE, n_rows)
        assert shows == (n_rows == 1 or not isinstance(agent, RandomAgent))

    def test_nested_observations_and_actions(self):
        class Nested(Rowwise):
            def get_actions(self, observations):
                one, two = observations["pair"]
                return {"a": one + 1, "b": (two * 2,)}, {}

        probe(Nested(), {"pair": (EXAMPLE, np.arange(N_ROWS)), "name": np.array(["x"] * N_ROWS)}, N_ROWS)

    def test_an_agent_may_write_into_its_observations(self):
        class Writing(Rowwise):
            def scores(self, observations):
                observations += 1
                return observations

        probe(Writing(), EXAMPLE, N_ROWS)
        assert np.abs(EXAMPLE).max() < 5

    def test_an_agent_that_always_raises_is_not_judged(self, caplog):
        class Raising(Rowwise):
            def scores(self, observations):
                raise RuntimeError("no")

        probe(Raising(), EXAMPLE, N_ROWS)
        assert "the agent (Raising) could not be probed: it raises with all observations" in caplog.text.replace(
            f"{Raising.__qualname__}", "Raising"
        )

    def test_observations_that_the_agent_does_not_know_prove_nothing_but_others_do(self):
        class Masked(Rowwise):
            def get_actions(self, observations):
                mask = observations["mask"]
                if not mask.any(axis=1).all():
                    raise ValueError("no action is left")
                return mask.argmax(axis=1), {}

        class Mixed(Masked):
            def get_actions(self, observations):
                return super().get_actions(observations)[0], {"mean": observations["x"] - observations["x"].mean()}

        for mask in (np.ones((1, 3), dtype=np.int8), np.eye(4, 3, dtype=np.int8)):
            example = {"mask": mask, "x": EXAMPLE[:, 0]}
            probe(Masked(), example, N_ROWS)
            with pytest.raises(UsageError, match=DEPENDS):
                probe(Mixed(), example, N_ROWS)


def test_observations_lie_at_multiples_of_64_bytes():
    class Looking(Rowwise):
        addresses: set[int]

        def scores(self, observations):
            self.addresses.add(observations.ctypes.data)
            return observations

    agent = Looking()
    agent.addresses = set()
    probe(agent, EXAMPLE, N_ROWS)

    assert [address % 64 for address in agent.addresses] == [0]
