"""Masks of actions reach what acts: whatever the place, the kind of worker and the call."""

from __future__ import annotations

import logging
import os
import signal
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

from streamsampler import DefaultWorker, LocalSampler, MultiprocessingSampler, PerWorker, RandomAgent, VecWorker
from streamsampler.errors import RolloutError, UsageError
from streamsampler.filters import RunningNorm
from tests.scripted.masks import (
    PLACES,
    SPACES,
    Alone,
    ByMethod,
    InBlocks,
    InRows,
    Masked,
    Overwriting,
    allowed,
    assert_masks,
    make,
)
from tests.tiers import mostly_slow

VEC: dict[str, Any] = {"worker_class": VecWorker, "worker_args": {"n_envs": 3}}
HOOKS: dict[str, Any] = {"hooks": Overwriting()}
WAYS: dict[str, tuple[Any, dict[str, Any]]] = {
    "one": (Alone, {}),
    "one with hooks": (Alone, HOOKS),
    "one by one in rows": (Alone, VEC),
    "lanes": (InRows, VEC),
    "lanes with hooks": (InRows, VEC | HOOKS),
    "blocks": (InBlocks, VEC),
    "blocks with hooks": (InBlocks, VEC | HOOKS),
}


@pytest.fixture(params=WAYS)
def way(request: pytest.FixtureRequest) -> Any:
    return WAYS[request.param]


def local(agent: Any, env: Any, **options: Any) -> LocalSampler:
    return LocalSampler(agent, env, **{"seed": 5, "check": "error", **options})


@pytest.mark.parametrize("place", mostly_slow(PLACES, 2))
def test_each_action_is_chosen_with_the_mask_of_its_observation(place, way):
    agent, options = way
    with local(agent(), make, env_kwargs={"place": place}, **options) as sampler:
        assert_masks(sampler.obtain_trajectories(20))
        assert_masks(sampler.obtain_samples(50, env_update=make(place)))


def test_batches_with_masks_are_the_same_on_any_number_of_workers(way):
    agent, options = way
    with local(agent(), Masked, **options) as sampler:
        expected = sampler.obtain_samples(200)
    with MultiprocessingSampler(agent(), Masked, n_workers=3, seed=5, **options) as sampler:
        assert sampler.obtain_samples(200) == expected


@pytest.mark.parametrize("place", mostly_slow(reversed(PLACES)))
def test_an_episode_that_goes_on_has_the_mask_of_its_last_timestep(place, way):
    agent, options = way
    with local(agent(), make, env_kwargs={"place": place}, **options) as sampler:
        for n_timesteps in (1, 1, 3, 2, 7):
            assert_masks(sampler.obtain_fragments(n_timesteps, 4))


@pytest.mark.slow
@pytest.mark.parametrize("place", PLACES)
def test_a_restored_episode_has_the_mask_of_its_last_timestep(place, way):
    agent, options = way
    batches: list[Any] = []
    for disturbed in (False, True):
        with MultiprocessingSampler(
            agent(), make, env_kwargs={"place": place}, n_workers=2, seed=5, max_restarts=None, **options
        ) as sampler:
            batches.append([])
            for _ in range(3):
                batches[-1].append(sampler.obtain_fragments(3, 4))
                if disturbed:
                    for pid in sampler.worker_pids():
                        os.kill(pid, signal.SIGKILL)
            assert sampler.stats.restarts == 4 * disturbed
    assert batches[0] == batches[1]
    for batch in batches[1]:
        assert_masks(batch)


class Careful:
    """Takes no mask, and knows by itself what is allowed."""

    def get_action(self, observation: Any) -> Any:
        episode, t = map(int, observation)
        return 2 + int(allowed(SPACES["discrete"], episode, t).argmax()), {}


@pytest.mark.parametrize("options", [{}, HOOKS, VEC, VEC | HOOKS])
def test_an_agent_that_comes_in_the_middle_of_an_episode_has_its_mask(options):
    with local(Careful(), Masked, **options) as sampler:
        sampler.obtain_fragments(3, 4)
        assert_masks(sampler.obtain_fragments(5, 4, agent_update=Alone()))


def test_a_new_agent_in_lanes_takes_masks_where_the_one_before_took_none():
    with local(Careful(), Masked, **VEC) as sampler:
        sampler.obtain_trajectories(4)
        assert_masks(sampler.obtain_trajectories(4, agent_update=InRows()))
        sampler.obtain_trajectories(4, agent_update=Careful())


class Comparing(InRows):
    """Compares each row's mask with its observation, also where a row stands silent."""

    def get_actions(self, observations: Any, *, action_masks: Any, draws: Any) -> Any:
        assert np.array_equal(action_masks, _masks_of(observations))
        return super().get_actions(observations, action_masks=action_masks, draws=draws)


def test_a_row_that_stands_silent_has_the_mask_of_the_observation_that_it_is_given():
    with local(Comparing(), Masked, check=None, **VEC) as sampler:
        sampler.obtain_trajectories(4)


def test_agents_of_workers_and_trajectories_that_are_left_out_have_masks():
    def make_failing() -> Any:
        env: Any = Masked()
        step = env.step
        env.step = lambda action: step(action) if env.t < 9 else 1 / 0
        return env

    options: dict[str, Any] = {"on_failure": "drop", "n_workers": 2}
    with local(PerWorker([Alone(), Alone()]), make_failing, check=None, **options) as sampler:
        batch = sampler.obtain_trajectories(12)
    assert batch.stats.dropped_trajectories
    assert_masks(batch)


def test_a_replay_has_the_masks(way):
    agent, options = way
    with local(agent(), Masked, **options) as sampler:
        batch = sampler.obtain_trajectories(5)
        assert sampler.replay(1, 3, recorded=batch).same
        assert sampler.replay(1, 3, recorded=batch, actions=True).same


def test_a_filter_of_observations_leaves_masks_alone(way):
    agent, options = way
    with local(agent(), Masked, observation_filter=RunningNorm(), **options) as sampler:
        for _ in range(2):
            batch = sampler.obtain_trajectories(9)
            assert np.array_equal(batch.agent_infos["mask"], _masks_of(batch.raw_observations))


def _masks_of(observations: Any) -> Any:
    return [allowed(SPACES["discrete"], int(n), int(t)) if t % 4 < 3 else np.ones(6, bool) for n, t in observations]


def test_a_function_takes_the_keyword():
    def act(observation: Any, *, action_mask: Any) -> Any:
        return 2 + int(action_mask.argmax())

    with MultiprocessingSampler(act, Masked, n_workers=1, seed=5) as sampler:
        sampler.obtain_trajectories(9)


class Inverting(DefaultWorker):
    """Asks the agent by itself, with the mask backwards."""

    def before_step(self, context: Any) -> Any:
        assert context.takes_mask
        return context.agent.get_action(context.observation, action_mask=context.action_mask[::-1].copy())


def test_a_seam_has_the_mask():
    with local(Alone(), Masked, worker_class=Inverting) as sampler, pytest.raises(RolloutError, match="not allowed"):
        sampler.obtain_trajectories(9)


def test_an_environment_that_reuses_its_mask_is_not_changed():
    class Reusing(ByMethod):
        kept = np.ones(6, bool)

        def action_masks(self) -> Any:
            self.kept[:] = self.mask()
            return self.kept

        def step(self, action: Any) -> Any:
            assert np.array_equal(self.kept, self.mask())  # agents change what they get
            return super().step(action)

    for agent, options in ((Alone(), {}), (InRows(), {"worker_class": VecWorker, "worker_args": {"n_envs": 1}})):
        with local(agent, Reusing, **options) as sampler:
            assert_masks(sampler.obtain_trajectories(5))


class Everywhere(Masked):
    """Has other masks in the places that are looked at later."""

    def said(self) -> Any:
        observation, info = super().said()
        return observation, info if self.place == "info" else {"action_mask": np.zeros(6)}

    def action_masks(self) -> Any:
        return np.zeros(6) if self.place == "observation" or self.t % 4 < 3 else np.ones(6)


@pytest.mark.parametrize("place", ["observation", "info"])
def test_a_mask_in_the_observation_comes_before_the_infos_and_the_methods(place, way):
    agent, options = way
    with local(agent(), Everywhere, env_kwargs={"place": place}, **options) as sampler:
        assert_masks(sampler.obtain_trajectories(9))


def test_no_mask_is_looked_for_where_no_agent_takes_one():
    class Untouchable(ByMethod):
        def action_masks(self) -> Any:
            raise AssertionError("it was called")

    for options in ({}, HOOKS, VEC, VEC | HOOKS):
        with local(Careful(), Untouchable, **options) as sampler:
            sampler.obtain_trajectories(3)
            sampler.obtain_fragments(5, 3)


def test_all_actions_are_allowed_where_there_is_no_mask_and_none_where_there_can_be_none():
    class Bare(gymnasium.Env):
        observation_space = spaces.Box(0, 9, (1,))

        def __init__(self, space: Any) -> None:
            self.action_space = space

        def reset(self, *, seed=None, options=None):
            return np.zeros(1, np.float32), {}

        def step(self, action):
            return np.zeros(1, np.float32), 1.0, True, False, {}

    class Curious:
        def get_action(self, observation: Any, *, action_mask: Any) -> Any:
            if action_mask is None:
                return np.zeros(1, np.float32), {"none": True}
            return 2, {"mask": action_mask}

    for space, expected in ((SPACES["discrete"], {"mask": [[True] * 6]}), (spaces.Box(0, 1, (1,)), {"none": [True]})):
        for options in ({}, HOOKS, VEC):
            with local(Curious(), Bare, env_kwargs={"space": space}, check=None, **options) as sampler:
                infos = sampler.obtain_trajectories(1).agent_infos
            assert {key: values.tolist() for key, values in infos.items()} == expected


class OnlyOne(Alone):
    def get_actions(self, observations: Any, *, starts: Any) -> Any:
        return np.array([2 + int(allowed(SPACES["discrete"], *map(int, each)).argmax()) for each in observations]), {}


class OnlyRows(InRows):
    def get_action(self, observation: Any) -> Any:
        return Careful().get_action(observation)


@pytest.mark.parametrize(("agent", "options"), [(OnlyOne(), VEC), (OnlyRows(), {})])
def test_an_agent_that_takes_masks_by_the_other_method_alone_is_warned_of_once(agent, options, caplog):
    with local(agent, Masked, **options) as sampler, caplog.at_level(logging.WARNING, "streamsampler"):
        sampler.obtain_trajectories(3)
        sampler.obtain_trajectories(3, agent_update=agent)
    assert ["acts without action masks" in text for text in caplog.messages].count(True) == 1


@pytest.mark.parametrize("space", SPACES)
@pytest.mark.parametrize("place", mostly_slow(PLACES))
def test_random_actions_are_allowed_and_the_same_in_any_worker(place, space):
    batches = []
    for options in ({}, HOOKS, VEC, VEC | HOOKS):
        with local("random", make, env_kwargs={"place": place, "space": space}, **options) as sampler:
            batches.append(sampler.obtain_trajectories(9))
            sampler.obtain_fragments(5, 3)
    assert all(np.array_equal(batch.actions, batches[0].actions) for batch in batches)


def test_a_mask_that_allows_everything_does_not_change_random_actions():
    class All(ByMethod):
        def mask(self) -> Any:
            return np.ones(super().mask().shape, bool)

    class Silent(All):
        action_masks = None  # type: ignore[assignment]

    for space in SPACES:
        actions: list[Any] = []
        for kind in (All, Silent):
            with local("random", kind, env_kwargs={"space": space}, check=None) as sampler:
                actions.append(sampler.obtain_trajectories(5).actions)
        assert np.array_equal(actions[0], actions[1])


class Empty(gymnasium.Env):
    """Shows nothing."""

    observation_space = spaces.Dict({})
    action_space = spaces.Discrete(3)

    def reset(self, *, seed=None, options=None):
        self.t = 0
        return {}, {}

    def step(self, action):
        self.t += 1
        return {}, float(action), self.t == 4, False, {}


def test_random_actions_are_drawn_on_observations_without_parts():
    batches = []
    for options in ({}, VEC, {"worker_class": VecWorker, "worker_args": {"n_envs": 3, "block_size": 3}}):
        with local("random", Empty, **options) as sampler:
            batches.append(sampler.obtain_trajectories(6))
    assert all(np.array_equal(batch.actions, batches[0].actions) for batch in batches)
    with pytest.raises(UsageError, match="the number of actions"):
        RandomAgent(Empty.action_space).get_actions({})


class Odd(Masked):
    """Has something else under the name of a mask."""

    def __init__(self, odd: Any) -> None:
        super().__init__("info")
        self.odd = odd

    def mask(self) -> Any:
        return np.ones(6, bool)

    def said(self) -> Any:
        return super().said()[0], {"action_mask": self.odd}


ODD = {
    "too few": np.ones(5, np.int8),
    "too many": np.ones((2, 6), np.int8),
    "probabilities": np.full(6, 1 / 6),
    "not a number": np.full(6, np.nan),
    "twos": np.full(6, 2),
    "text": "all",
    "texts": ["a"] * 6,
    "dict": {"left": 1},
    "ragged": [[1], [1, 0]],
    "number": 3,
}


@pytest.mark.parametrize("options", mostly_slow([{}, VEC]))
@pytest.mark.parametrize("odd", ODD)
def test_what_has_the_name_of_a_mask_and_another_form_is_ignored_with_one_warning(odd, options, caplog):
    options = {"env_kwargs": {"odd": ODD[odd]}, "check": None, **options}
    with caplog.at_level(logging.WARNING, "streamsampler"), local("random", Odd, **options) as sampler:
        sampler.obtain_trajectories(5)
        sampler.obtain_trajectories(5, env_update=Odd(ODD[odd]))
    (message,) = (text for text in caplog.messages if "is ignored" in text)
    assert message.startswith('info["action_mask"] of the environment is ignored: it is ')
    assert message.endswith("a mask of Discrete(6, start=2) has 6 values, each 0 or 1")


class WithMethod(Odd):
    def __init__(self, method: Any) -> None:
        super().__init__(None)
        self.action_masks = method


def _refusing() -> Any:
    raise NotImplementedError


@pytest.mark.parametrize(
    "method", [lambda agent: np.ones(6), np.ones(6), _refusing, lambda: "all"], ids=["agent", "array", "absent", "text"]
)
def test_a_method_of_another_form_is_ignored_with_one_warning(method, caplog):
    with caplog.at_level(logging.WARNING, "streamsampler"), local("random", WithMethod(method), check=None) as sampler:
        sampler.obtain_trajectories(5)
    assert len([text for text in caplog.messages if text.startswith("action_masks")]) == 1


def test_what_the_method_of_an_environment_raises_is_an_error():
    class Broken(ByMethod):
        def action_masks(self) -> Any:
            raise ZeroDivisionError("broken")

    with local("random", Broken) as sampler, pytest.raises(RolloutError, match="ZeroDivisionError: broken"):
        sampler.obtain_trajectories(2)


def test_masks_of_actions_that_have_none_are_ignored_with_one_warning(caplog):
    class Mixed(Odd):
        def __init__(self) -> None:
            super().__init__(np.ones(6))
            self.action_space = spaces.Tuple((spaces.Discrete(6), spaces.Box(0, 1, (1,))))

        def step(self, action: Any) -> Any:
            observation, info = self.said()
            return observation, 1.0, True, False, info

    with local("random", Mixed, check=None) as sampler, caplog.at_level(logging.WARNING, "streamsampler"):
        sampler.obtain_trajectories(5)
    assert [text for text in caplog.messages if "masks are of Discrete, MultiDiscrete and MultiBinary" in text]
