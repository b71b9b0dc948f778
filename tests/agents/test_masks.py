"""In which forms masks of actions are found, and what is drawn among the actions that they allow."""

from __future__ import annotations

import pickle
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces
from hypothesis import given
from hypothesis import strategies as st

from streamsampler import RandomAgent
from streamsampler.agents.base import as_agent, takes_masks
from streamsampler.agents.filters import FilteredAgent
from streamsampler.agents.independence import probe
from streamsampler.agents.masks import MaskFinder, first_allowed, flat_mask, mask_size, sample_masked
from streamsampler.errors import UsageError
from streamsampler.filters import RunningNorm
from streamsampler.testing import Faults
from tests.scripted.masks import SPACES, Alone, InRows, allowed, is_allowed, parts_of


def test_a_mask_has_a_value_for_each_choice():
    assert [mask_size(space) for space in SPACES.values()] == [6, 7, 14, 6, 8]
    assert mask_size(spaces.Box(0, 1)) is None


@pytest.mark.parametrize(
    "form",
    [
        np.array([True, False, True, True, False, False]),
        np.array([1, 0, 1, 1, 0, 0], np.int8),
        np.array([1.0, 0.0, 1.0, 1.0, 0.0, 0.0]),
        np.array([[1, 0, 1], [1, 0, 0]]),
        [1, 0, 1, 1, 0, 0],
        [[True, False], (True, True, False), np.array([0])],
        (np.array([1, 0], np.int8), (np.array([1, 1]), np.array([[0], [0]]))),
    ],
)
def test_a_mask_in_any_form_is_one_flat_boolean_array_of_its_own(form):
    mask = flat_mask(6, form)
    assert mask is not None
    assert mask.dtype == np.bool_
    assert mask.tolist() == [True, False, True, True, False, False]
    assert not (isinstance(form, np.ndarray) and np.shares_memory(mask, form))


class Hostile:
    def __repr__(self) -> str:
        raise RuntimeError("no")

    def __array__(self, *_: Any, **__: Any) -> Any:
        raise RuntimeError("no")


@pytest.mark.parametrize("odd", [Hostile(), None, object(), {}, b"111111", np.array(["1"] * 6), [], (1j,) * 6, print])
def test_what_is_no_mask_is_none_whatever_it_does(odd):
    assert flat_mask(6, odd) is None
    said: list[Any] = []
    find = MaskFinder(None, SPACES["discrete"], lambda *about: said.append(about))
    mask: Any = find(None, {"action_mask": odd})
    assert mask.all()
    assert len(said) == (odd is not None)


@given(st.sampled_from(sorted(SPACES)), st.integers(0, 2**30), st.integers(0, 100))
def test_what_is_drawn_is_allowed(name, seed, t):
    space, mask = SPACES[name], allowed(SPACES[name], seed, t)
    space.seed(seed)
    for action in (sample_masked(space, mask), first_allowed(space, mask)):
        assert is_allowed(space, mask, action)
        assert space.contains(np.asarray(action, space.dtype)[()])


def test_all_that_is_allowed_is_drawn():
    for space in SPACES.values():
        mask = allowed(space, 1, 2)
        drawn = {np.asarray(sample_masked(space, mask)).tobytes() for _ in range(400)}
        counts = [int(part.sum()) for part in np.split(mask, np.cumsum(parts_of(space))[:-1])]
        assert len(drawn) == np.prod(counts)


def test_random_agents_of_ones_own_loop_take_masks_or_look_into_observations():
    agent, mask = RandomAgent(spaces.Discrete(6)), np.array([0, 0, 1, 0, 0, 0], np.int8)
    assert agent.get_action({"action_mask": mask})[0] == 2
    assert agent.get_action(np.zeros(1), action_mask=mask.astype(bool))[0] == 2
    assert agent.get_actions({"action_mask": mask[None].repeat(3, 0)})[0] == [2, 2, 2]
    assert agent.get_actions(np.zeros((3, 1)), action_masks=mask[None].astype(bool).repeat(3, 0))[0] == [2, 2, 2]
    several = RandomAgent(spaces.MultiDiscrete([2, 3]))
    masks = np.array([[0, 1]] * 3, np.int8), np.array([[0, 0, 1]] * 3, np.int8)
    assert np.array_equal(several.get_actions({"action_mask": masks})[0], [[1, 2]] * 3)
    with pytest.raises(UsageError, match="the number of actions"):
        agent.get_actions({})


def test_agents_that_are_wrapped_take_masks_if_they_do_so_themselves(tmp_path):
    class Plain:
        def get_action(self, observation: Any) -> Any:
            return 0, {}

    space = spaces.Box(0, 9, (2,), np.float32)
    wrapped: list[Any] = [lambda agent: FilteredAgent(agent, RunningNorm(), space), Faults(tmp_path).agent]
    for wrap in wrapped:
        assert not takes_masks(wrap(Plain()))
        agent = wrap(Alone())
        assert takes_masks(agent)
        agent = pickle.loads(pickle.dumps(agent))
        agent.reset(seed=1)
        mask = np.array([False, True, False, False, False, False])
        assert agent.get_action(np.zeros(2, np.float32), action_mask=mask)[0] == 3
    assert takes_masks(FilteredAgent(InRows(), RunningNorm(), space), together=True)
    assert takes_masks(as_agent(lambda observation, action_mask: 0))
    assert not takes_masks(as_agent(lambda observation: 0))


def test_rows_are_probed_with_masks():
    class Mixing(InRows):
        def get_actions(self, observations: Any, *, action_masks: Any, draws: Any) -> Any:
            return 2 + (observations.sum() + action_masks.argmax(1)).astype(np.int64), {}

    rows = np.arange(8.0).reshape(4, 2)
    probe(InRows(), rows, 4, 6)
    with pytest.raises(UsageError, match="row_independent"):
        probe(Mixing(), rows, 4, 6)
