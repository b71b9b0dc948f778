"""What a user may write: type checkers are to infer each type that is asserted here, without a cast. It also runs."""

import functools
import sys
from pathlib import Path
from typing import Any, assert_type

import gymnasium
import numpy as np
from numpy.typing import NDArray

import streamsampler
from streamsampler import (
    LocalSampler,
    MultiprocessingSampler,
    NewEnvUpdate,
    PerWorker,
    TrajectoryBatch,
    TrajectoryFolder,
    WorkerFactory,
)

Array = NDArray[Any]
Batch = TrajectoryBatch[Array, Array]
Observations = dict[str, Array]


class Two(gymnasium.Env[Any, np.int64]):
    def __init__(self, length: int = 3) -> None:
        self.length = length
        box = gymnasium.spaces.Box(-1, 1, (2,), np.float32)
        self.observation_space = gymnasium.spaces.Dict({"left": box, "right": box})
        self.action_space = gymnasium.spaces.Discrete(2)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Observations, dict[str, Any]]:
        super().reset(seed=seed)
        self.t = 0
        return {name: np.zeros(2, np.float32) for name in ("left", "right")}, {"seed": 1}

    def step(self, action: np.int64) -> tuple[Observations, float, bool, bool, dict[str, Any]]:
        self.t += 1
        observation = {name: np.full(2, self.t / 10, np.float32) for name in ("left", "right")}
        return observation, float(action), self.t >= self.length, False, {"t": self.t}


class Agent:
    def __init__(self, bias: float) -> None:
        self.bias = bias

    def get_action(self, observation: Observations) -> tuple[int, dict[str, float]]:
        value = float(observation["left"].sum()) + self.bias
        return int(value > 0), {"value": value}

    def set_param_values(self, values: dict[str, float]) -> None:
        self.bias = values["bias"]


class Masked:
    def get_action(self, observation: Array, *, action_mask: NDArray[np.bool_]) -> tuple[int, dict[str, Any]]:
        return int(action_mask.argmax()), {}


def first_allowed(observation: Array, *, action_mask: NDArray[np.bool_]) -> int:
    return int(action_mask.argmax())


def first_actions(batch: TrajectoryBatch) -> Array:
    return batch.actions[batch.starts]


def left_of(batch: TrajectoryBatch[Observations]) -> Array:
    return batch.observations["left"]


def main(folder: Path) -> None:
    with MultiprocessingSampler(lambda _: 0, "CartPole-v1", n_workers=2, seed=1, step_timeout=60.0) as sampler:
        assert_type(sampler, MultiprocessingSampler[Array, Array])
        batch = sampler.obtain_samples(50, progress=False)
        assert_type(batch, Batch)
        assert_type(batch.observations, Array)
        assert_type(batch.next_observations, Array)
        assert_type(batch.last_observations, Array)
        assert_type(batch.actions, Array)
        assert_type(batch.mask, NDArray[np.bool_])
        assert_type(batch.rewards, NDArray[np.float64])
        assert_type(batch.lengths, NDArray[np.int64])
        assert_type(batch.terminated | batch.truncated, NDArray[np.bool_])
        assert_type(batch.env_infos, dict[str, Array])
        assert_type(batch.padded("observations"), Array)
        assert_type(batch.padded("rewards"), NDArray[np.float64])
        assert_type(batch.padded("mask"), NDArray[np.bool_])
        assert_type(batch.discounted_returns(0.99), NDArray[np.float64])
        assert_type(batch.seeds[0], int)
        assert_type(batch.agent_version, int | None)
        print(batch.observations.shape, batch.stats.kept_timesteps, first_actions(batch).shape)
        for trajectory in batch:
            assert_type(trajectory, Batch)
        assert_type(batch[np.int64(0)], Batch)
        assert_type(batch[0], Batch)
        assert_type(batch[1:], Batch)
        assert_type(batch[batch.returns > 10], Batch)
        assert_type(batch[np.argsort(batch.returns)], Batch)
        assert_type(batch[[1, 0]], Batch)
        assert_type(batch.split(), list[Batch])
        assert_type(TrajectoryBatch.concatenate(batch, batch), Batch)
        assert_type(TrajectoryBatch.concatenate(batch.split()), Batch)
        assert_type(next(iter(sampler.stream(first_trajectory=2))).observations, Array)
        assert_type(streamsampler.load(batch.save(folder / "batch.npz")), Batch)

    # Spaces that are nested: said once.
    nested = LocalSampler[Observations](Agent(-1.0), Two, env_kwargs={"length": 4}, seed=2)
    other = nested.obtain_trajectories(2, agent_update={"bias": 1.0}, env_update=Two(2))
    assert_type(other, TrajectoryBatch[Observations, Array])
    assert_type(other.next_observations, Observations)
    assert_type(other.padded("observations")["left"], Array)
    assert_type(other[0], TrajectoryBatch[Observations, Array])
    assert_type(TrajectoryBatch.concatenate(other, other).last_observations, Observations)
    print(left_of(other).shape, other.agent_infos["value"].dtype, other.episode_infos["seed"].sum())
    loaded: TrajectoryBatch[Observations] = streamsampler.load(other.save(folder / "nested.npz"))
    assert loaded == other
    # Whatever is taken for agents and environments.
    spec, made = gymnasium.spec("CartPole-v1"), gymnasium.make("CartPole-v1")
    for environment in ("CartPole-v1", spec, made, lambda: gymnasium.make("CartPole-v1"), NewEnvUpdate(Two)):
        LocalSampler("random", environment).close()
    LocalSampler([Agent(0.0), lambda _: 0], [Two, functools.partial(Two, 4)]).close()
    LocalSampler([Masked(), first_allowed], "CartPole-v1").obtain_trajectories(2)
    LocalSampler(PerWorker([Agent(0.0), Agent(1.0)]), Two(), n_workers=2).close()
    with LocalSampler(Agent(0.0), Two) as old:  # garage's calls
        assert_type(old.obtain_samples(0, 5, {"bias": 1.0}, Two()), Batch)
        assert_type(old.obtain_samples(itr=1, num_samples=5, agent_update=Agent(1.0)), Batch)
        assert_type(old.obtain_fragments(2, env_update=Two(5)).episode_returns, NDArray[np.float64])
        assert_type(old.obtain_fragments(2, env_update=Two(5)).episode_lengths, NDArray[np.int64])
    assert len(streamsampler.evaluate(Agent(0.0), Two(), num_trajectories=2, n_workers=0)) == 2
    by_factory = LocalSampler[Observations].from_worker_factory(WorkerFactory(n_workers=1), Agent(0.0), Two)
    assert_type(by_factory, LocalSampler[Observations, Array])
    by_factory.close()


def read(folder: str) -> None:
    assert_type(TrajectoryFolder(folder)[0].observations, Array)
    for shard in TrajectoryFolder(folder).shards:
        assert_type(shard, Batch)
    assert_type(TrajectoryFolder[Observations](folder).to_batch().observations, Observations)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
