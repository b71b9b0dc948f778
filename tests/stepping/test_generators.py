"""Global generators of environments in one process: several resets in one call, between steps of others."""

import random
from typing import Any

import numpy as np
import pytest

from streamsampler.stepping.generators import EnvGenerators

SEED = 7


def draw() -> tuple[float, float]:
    return random.random(), float(np.random.random())


def states() -> Any:
    return random.getstate(), np.random.get_state()[1].tolist()  # type: ignore[index]


@pytest.fixture
def found() -> list[int]:
    return []


@pytest.fixture
def generators(found: list[int]) -> EnvGenerators:
    """Of three environments, which have drawn nothing in a whole episode, in a call that has begun."""
    random.seed(1)
    np.random.seed(2)
    generators = EnvGenerators((0, 1, 2), is_shared=True, found=lambda env_id, _: found.append(env_id))
    generators.accept_states()
    for env_id in (0, 1, 2):
        generators.reset(env_id, SEED, lambda: None)
        generators.end(env_id)
    generators.accept_states()
    return generators


def seeded(env_id: int = 0) -> tuple[float, float]:
    """Return what an environment draws in its reset that has states of its own."""
    alone = EnvGenerators((0, 1, 2), is_shared=True, found=lambda *_: None)
    alone.drawing.add(env_id)
    return alone.reset(env_id, SEED, draw)


def test_resets_that_draw_nothing_leave_all_as_it_is(generators, found):
    before, resets = states(), []
    for env_id in (0, 1, 2):
        assert generators.reset(env_id, SEED, lambda: resets.append(None) or "begun") == "begun"
    assert (states(), found, len(resets)) == (before, [], 3)


def test_the_first_reset_that_draws_is_repeated_from_its_seed_and_the_callers_states_are_restored(generators, found):
    before = states()
    assert generators.reset(0, SEED, lambda: None) is None
    results: list[Any] = []

    def reset() -> Any:
        results.append(draw())
        return results[-1]

    assert generators.reset(1, SEED, reset) == seeded(1) == results[1] != results[0]
    assert (states(), found) == (before, [1])
    generators.reset(2, SEED, lambda: None)
    assert (states(), found) == (before, [1])


@pytest.mark.parametrize("draws", [True, False])
def test_a_step_of_another_that_draws_between_two_resets_is_noticed(generators, found, draws):
    generators.reset(0, SEED, lambda: None)
    draw()  # a step of environment 2, which is not looked at
    assert generators.is_idle
    result = generators.reset(1, SEED, draw if draws else lambda: None)
    assert result == (seeded(1) if draws else None)
    assert not generators.is_idle  # from now on it is
    with generators.calling(2):
        draw()
    assert found == [1, 2][not draws :]


def test_an_error_in_a_reset_that_has_drawn_restores_the_callers_states(generators):
    before = states()
    generators.reset(0, SEED, lambda: None)

    def reset() -> None:
        draw()
        raise OSError

    with pytest.raises(OSError):
        generators.reset(1, SEED, reset)
    assert states() == before
    assert generators.reset(1, SEED, draw) == seeded(1)


def test_what_the_caller_draws_between_two_calls_stays(generators):
    generators.reset(0, SEED, lambda: None)
    draw()
    before = states()
    generators.accept_states()
    assert generators.reset(1, SEED, draw) == seeded(1)
    assert states() == before
