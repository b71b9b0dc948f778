"""The values of last observations are those of the agent that ran the trajectory, with what it remembered then."""

from typing import Any

import gymnasium
import numpy as np
import pytest

from streamsampler import DefaultWorker, LocalSampler, MultiprocessingSampler, VecWorker
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


class Batched(Remembering):
    """The same, for rows."""

    def get_actions(self, observations: Any, *, starts: Any) -> tuple[Any, dict[str, Any]]:
        return np.zeros(len(observations), np.int64), {"value": observations[:, 0] + starts}


class Hooks:
    """Nothing but a reason to call hooks."""

    def on_timestep(self, context: Any) -> None:
        """Do nothing."""


def expected(batch: Any) -> Any:
    ends = batch.starts + batch.lengths - 1
    memory = 0.5 * batch.agent_infos["memory"][ends] + batch.observations[ends].sum(axis=1, dtype=np.float32)
    return np.where(batch.terminated, 0.0, memory + batch.last_observations[:, 0])


@pytest.mark.parametrize(
    ("n_workers", "norm", "hooks"),
    [(0, None, None), (0, RunningNorm(), None), (0, None, Hooks()), (0, RunningNorm(), Hooks()), (3, None, None)],
)
def test_whole_trajectories(n_workers: int, norm: RunningNorm | None, hooks: Hooks | None) -> None:
    options: dict[str, Any] = {"seed": 1, "max_episode_length": 12, "hooks": hooks, "observation_filter": norm}
    if n_workers:
        options["n_workers"] = n_workers
    with (MultiprocessingSampler if n_workers else LocalSampler)(Remembering(), "CartPole-v1", **options) as sampler:
        for _ in range(2):
            batch = sampler.obtain_trajectories(30)
            assert 0 < batch.terminated.sum() < 30
            np.testing.assert_allclose(batch.last_values, expected(batch), rtol=1e-5)


@pytest.mark.parametrize("norm", [None, RunningNorm()], ids=["raw", "filtered"])
def test_fragments_and_what_is_remembered_from_one_to_the_next(norm: RunningNorm | None) -> None:
    options: dict[str, Any] = {"seed": 1, "max_episode_length": 12, "observation_filter": norm}
    with LocalSampler(Remembering(), "CartPole-v1", **options) as sampler:
        batches = [sampler.obtain_fragments(25, 3) for _ in range(3)]
    for batch in batches:
        assert batch.cut.any()
        assert batch.truncated.any()
        np.testing.assert_allclose(batch.last_values, expected(batch), rtol=1e-5)
    first, second = batches[:2]
    before = expected(first)[first.cut] - first.last_observations[first.cut, 0]
    np.testing.assert_allclose(second.agent_infos["memory"][second.starts[second.continued]], before, rtol=1e-5)


@pytest.mark.parametrize("agent", [Remembering(), Batched()])
def test_vec_worker_asks_no_agent_that_may_remember(agent: Any) -> None:
    with LocalSampler(
        agent, "CartPole-v1", seed=1, max_episode_length=5, worker_class=VecWorker, worker_args={"n_envs": 2}
    ) as sampler:
        batch = sampler.obtain_trajectories(4)
    with pytest.raises(DataError, match=r"of agents with a memory, only .* DefaultWorker"):
        batch.last_values  # noqa: B018


class Named(gymnasium.Wrapper[Any, Any, Any, Any]):
    """Has an info of the name under which the agent's values come back."""

    def __init__(self) -> None:
        super().__init__(gymnasium.make("Pendulum-v1", max_episode_steps=5))

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


def pendulum() -> Any:
    return gymnasium.make("Pendulum-v1", max_episode_steps=5)


@pytest.mark.parametrize("worker_class", [VecWorker, DefaultWorker])
@pytest.mark.parametrize(("env", "hooks"), [(Named, None), (pendulum, NamedMetric())], ids=["info", "metric"])
def test_nothing_else_takes_their_place(worker_class: Any, env: Any, hooks: Any) -> None:
    with (
        LocalSampler(Valuing(), env, seed=1, worker_class=worker_class, hooks=hooks) as sampler,
        pytest.raises(RolloutError, match=r"an info of the environment's reset, or a metric of a hook, has that name"),
    ):
        sampler.obtain_trajectories(3)


@pytest.mark.parametrize("worker_class", [VecWorker, DefaultWorker])
def test_infos_of_that_name_are_infos_where_the_agent_has_no_values(worker_class: Any) -> None:
    with LocalSampler("random", Named, seed=1, worker_class=worker_class) as sampler:
        assert sampler.obtain_trajectories(3).episode_infos["last_value"].tolist() == [-3.0] * 3


@pytest.mark.parametrize("worker_class", [VecWorker, DefaultWorker])
@pytest.mark.parametrize(("value", "shown"), [(np.ones(2), r"the shape \(2,\)"), (None, "None"), ("x", "'x'")])
def test_a_value_is_one_number(worker_class: Any, value: Any, shown: str) -> None:
    with (
        LocalSampler(Valuing(value), pendulum, seed=1, worker_class=worker_class) as sampler,
        pytest.raises(RolloutError, match=rf"get_value\(observation\) must return one number.* returned {shown}"),
    ):
        sampler.obtain_trajectories(3)
