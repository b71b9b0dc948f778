"""The values of last observations are those of the agent that ran the trajectory, with what it remembered then."""

import functools
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.vector import SyncVectorEnv

from streamsampler import LocalSampler, VecWorker
from streamsampler.errors import DataError, RolloutError
from streamsampler.filters import RunningNorm


class Remembering:
    """Its values depend on all observations of the episode so far."""

    def reset(self, seed: int) -> None:
        self.memory, self.random = 0.0, np.random.default_rng(seed)

    def get_action(self, observation: Any) -> tuple[int, dict[str, Any]]:
        value, before = self.get_value(observation), self.memory
        self.memory = 0.5 * before + float(observation.sum())
        return int(self.random.integers(2)), {"value": value, "memory": before}

    def get_value(self, observation: Any) -> float:
        return self.memory + float(observation[0])

    def get_state(self) -> Any:
        return self.memory, self.random.bit_generator.state

    def set_state(self, state: Any) -> None:
        self.memory, self.random.bit_generator.state = state


class Hooks:
    """Nothing but a reason to call hooks."""

    def on_timestep(self, context: Any) -> None:
        """Do nothing."""


def expected(batch: Any) -> Any:
    ends = batch.starts + batch.lengths - 1
    memory = 0.5 * batch.agent_infos["memory"][ends] + batch.observations[ends].sum(axis=1, dtype=np.float32)
    return np.where(batch.terminated, 0.0, memory + batch.last_observations[:, 0])


@pytest.mark.parametrize("options", [{}, {"observation_filter": RunningNorm()}, {"hooks": Hooks()}])
def test_values_follow_what_is_remembered_also_from_one_fragment_to_the_next(options):
    with LocalSampler(Remembering(), "CartPole-v1", seed=1, max_episode_length=12, **options) as sampler:
        whole = [sampler.obtain_trajectories(30) for _ in range(2)]
        fragments = [] if "hooks" in options else [sampler.obtain_fragments(25, 3) for _ in range(2)]
    for batch in (*whole, *fragments):
        np.testing.assert_allclose(batch.last_values, expected(batch), rtol=1e-5)
    assert 0 < whole[0].terminated.sum() < 30
    if fragments:
        first, second = fragments
        assert first.cut.any()
        assert first.truncated.any()
        before = expected(first)[first.cut] - first.last_observations[first.cut, 0]
        np.testing.assert_allclose(second.agent_infos["memory"][second.starts[second.continued]], before, rtol=1e-5)


VEC: dict[str, Any] = {"worker_class": VecWorker, "worker_args": {"n_envs": 2}}


class Batched(Remembering):
    """Is asked for rows, and remembers them, but cannot be asked about one of them."""

    def get_actions(self, observations: Any, *, starts: Any) -> tuple[Any, dict[str, Any]]:
        return np.zeros(len(observations), np.int64), {"value": observations[:, 0] + starts}


class ByRow(Batched):
    """Remembers the sum of each row's observations."""

    def reset(self, seed: int) -> None:
        self.memory: Any = np.zeros(0)

    def get_actions(  # type: ignore[override]
        self, observations: Any, *, starts: Any, draws: Any
    ) -> tuple[Any, dict[str, Any]]:
        before = np.where(starts, 0.0, self.memory if len(self.memory) else 0.0)
        self.memory = 0.5 * before + observations.sum(axis=1)
        actions = (draws.random() * 2).astype(np.int64)
        return actions, {"value": before + observations[:, 0], "memory": before}

    def get_value(self, observation: Any, *, slot: int = 0) -> float:
        return float(self.memory[slot]) + float(observation[0])


SHORT = functools.partial(gymnasium.make, "CartPole-v1", max_episode_steps=18)
NATIVE = functools.partial(SyncVectorEnv, [SHORT] * 2)


@pytest.mark.parametrize("env", [SHORT, NATIVE], ids=["lanes", "native"])
@pytest.mark.parametrize("agent", [Remembering(), ByRow()], ids=["one by one", "together"])
def test_vec_worker_asks_an_agent_with_a_memory_while_it_remembers_the_trajectory(agent, env):
    with LocalSampler(agent, env, seed=1, **VEC) as sampler:
        batch = sampler.obtain_trajectories(9)
    np.testing.assert_allclose(batch.last_values, expected(batch), rtol=1e-5)
    assert 0 < batch.terminated.sum() < 9


def test_vec_worker_asks_no_agent_that_cannot_tell_its_rows_apart():
    with LocalSampler(Batched(), "CartPole-v1", seed=1, max_episode_length=5, **VEC) as sampler:
        batch = sampler.obtain_trajectories(4)
    with pytest.raises(DataError, match=r"with a keyword slot, the row, if it has get_actions and a memory"):
        batch.last_values  # noqa: B018


def pendulum() -> Any:
    return gymnasium.make("Pendulum-v1", max_episode_steps=5)


class Named(gymnasium.Wrapper[Any, Any, Any, Any]):
    """Has an info of the name under which the agent's values come back."""

    def __init__(self) -> None:
        super().__init__(pendulum())

    def reset(self, **options: Any) -> tuple[Any, dict[str, Any]]:
        return super().reset(**options)[0], {"last_value": -3.0}


class NamedMetric:
    def on_trajectory_end(self, context: Any) -> None:
        context.metrics["last_value"] = 7.0


class Valuing:
    """Gives five as the value of each observation, or what it is told."""

    row_independent = True

    def __init__(self, value: Any = 5.0) -> None:
        self.value = value

    def get_action(self, observation: Any) -> Any:
        return np.zeros(1, np.float32), {"value": 1.0}

    def get_actions(self, observations: Any) -> Any:
        return np.zeros((len(observations), 1), np.float32), {"value": np.ones(len(observations))}

    def get_value(self, observation: Any) -> Any:
        return self.value


TAKEN = "an info of the environment's reset, or a metric of a hook, has this name"
NO_NUMBER = r"get_value\(observation\) must return a single number.* returned "


@pytest.mark.parametrize("options", [{}, VEC], ids=["default", "vec"])
@pytest.mark.parametrize(
    ("value", "env", "hooks", "words"),
    [
        (5.0, Named, None, TAKEN),
        (5.0, pendulum, NamedMetric(), TAKEN),
        (np.ones(2), pendulum, None, rf"{NO_NUMBER}the shape \(2,\)"),
        (None, pendulum, None, f"{NO_NUMBER}None"),
        ("x", pendulum, None, f"{NO_NUMBER}'x'"),
    ],
)
def test_a_value_is_one_number_and_nothing_else_takes_its_place(value, env, hooks, words, options):
    with (
        LocalSampler(Valuing(value), env, seed=1, hooks=hooks, **options) as sampler,
        pytest.raises(RolloutError, match=words),
    ):
        sampler.obtain_trajectories(3)


@pytest.mark.parametrize("options", [{}, VEC], ids=["default", "vec"])
def test_infos_of_that_name_are_infos_where_the_agent_has_no_values(options):
    with LocalSampler("random", Named, seed=1, **options) as sampler:
        assert sampler.obtain_trajectories(3).episode_infos["last_value"].tolist() == [-3.0] * 3
