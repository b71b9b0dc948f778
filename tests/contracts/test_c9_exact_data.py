"""C9: each trajectory is what the environment said, step for step."""

from __future__ import annotations

import re
from functools import partial
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces

from streamsampler import NewEnvUpdate, RandomAgent, TrajectoryBatch
from streamsampler.data import trees
from streamsampler.errors import ObservationError, RolloutError
from tests.contracts.conftest import ENGINES, RAY, Maker, on, slow
from tests.scripted.agents import always_zero
from tests.scripted.envs import LINE, Echo, Script, Scripted, Steps

SEED = 31
PLANE = spaces.Box(-10, 10, (2,), np.float32)
LOCAL = on("local", *slow("processes", "vec"))


def points(*numbers: float) -> list[np.ndarray]:
    return [np.array([number, -number], np.float32) for number in numbers]


def play(make_sampler: Maker, *scripts: Script, space: spaces.Space = PLANE, **options: Any) -> TrajectoryBatch:
    reuse = options.pop("reuse", False)
    make_env = NewEnvUpdate(Scripted, {"scripts": scripts, "observation_space": space, "reuse": reuse})
    return make_sampler(always_zero, make_env, n_workers=2, seed=SEED, **options).obtain_trajectories(6)


def scripts_of(batch: TrajectoryBatch, scripts: list[Script]) -> list[Script]:
    """Which script each trajectory played, as it said in the info of its reset."""
    return [scripts[number] for number in batch.episode_infos["script"]]


@on(*ENGINES, RAY)
@pytest.mark.parametrize("reuse", [False, True], ids=["new arrays", "one array"])
def test_observations_and_infos_are_copied_when_recorded(make_sampler: Maker, reuse: bool) -> None:
    infos: list[dict[str, Any]] = [{"array": np.array([t, 2.0 * t])} for t in range(3)]
    reset_info = {"array": np.array([7.0, 8.0])}
    scripts = [
        Script(points(1, 2, 3, 4), infos=infos, reset_info=reset_info),
        Script(points(-5, 6), infos=infos, reset_info=reset_info),
    ]
    batch = play(make_sampler, *scripts, reuse=reuse)
    assert set(batch.lengths.tolist()) == {1, 3}
    np.testing.assert_array_equal(batch.episode_infos["array"], 6 * [[7.0, 8.0]], strict=True)
    for trajectory, script in zip(batch, scripts_of(batch, scripts), strict=True):
        np.testing.assert_array_equal(trajectory.observations, script.observations[:-1], strict=True)
        np.testing.assert_array_equal(trajectory.last_observations, script.observations[-1:], strict=True)
        np.testing.assert_array_equal(trajectory.next_observations, script.observations[1:], strict=True)
        assert trajectory.rewards.tolist() == [-0.5 * (t + 1) for t in range(script.length)]
        assert trajectory.env_infos["array"].tolist() == [[t, 2.0 * t] for t in range(script.length)]


@LOCAL
@pytest.mark.parametrize(
    ("length", "says", "limit", "expected"),
    [
        (3, (True, False), None, (3, True, False)),
        (3, (False, True), None, (3, False, True)),
        (3, (True, True), None, (3, True, True)),
        (3, (True, False), 3, (3, True, True)),
        (3, (False, True), 3, (3, False, True)),
        (3, (True, True), 3, (3, True, True)),
        (3, (True, False), 4, (3, True, False)),
        (3, (True, False), 2, (2, False, True)),
        (3, (True, False), 1, (1, False, True)),
        (1, (True, False), None, (1, True, False)),
        (1, (True, False), 1, (1, True, True)),
    ],
    ids=str,
)
def test_ends(make_sampler: Maker, length: int, says: Any, limit: int | None, expected: Any) -> None:
    """An environment of so many steps that says (terminated, truncated), and a limit of the sampler's."""
    script = Script(points(*range(length + 1)), *says)
    batch = play(make_sampler, script, max_episode_length=limit)
    steps, terminated, truncated = expected
    assert batch.lengths.tolist() == 6 * [steps]
    assert batch.terminated.tolist() == 6 * [terminated]
    assert batch.truncated.tolist() == 6 * [truncated]
    np.testing.assert_array_equal(batch.last_observations, 6 * [script.observations[steps]])
    assert batch.last_observations.dtype == np.float32


@on("local", "waiting", "processes", *slow("vec"))
def test_infos_that_come_and_go(make_sampler: Maker) -> None:
    infos: list[dict[str, Any]] = [{}, {"bonus": 2.5}, {}, {"bonus": 4.5, "deep": {"word": "hit"}}]
    batch = play(make_sampler, Script(points(0, 1, 2, 3, 4), infos=infos))
    assert batch.env_infos.keys() == {"bonus", "_bonus", "deep"}
    assert batch.env_infos["bonus"].dtype == np.float64
    assert batch.env_infos["bonus"].tolist() == 6 * [0.0, 2.5, 0.0, 4.5]
    assert batch.env_infos["_bonus"].tolist() == 6 * [False, True, False, True]
    assert batch.env_infos["deep"]["word"].tolist() == 6 * [None, None, None, "hit"]
    assert batch.env_infos["deep"]["_word"].tolist() == 6 * [False, False, False, True]
    assert batch.agent_infos == {}
    # Infos of some trajectories only.
    scripts = [
        Script(points(0, 1, 2), infos=[{"a": 1}, {"a": 2}], reset_info={"map": "north"}),
        Script(points(5, 6), infos=[{"b": True}]),
    ]
    batch = play(make_sampler, *scripts)
    first = batch.episode_infos["script"] == 0
    assert 0 < first.sum() < 6
    np.testing.assert_array_equal(batch.episode_infos["_map"], first)
    assert batch.episode_infos["map"].tolist() == ["north" if number else None for number in first]
    of_first = np.repeat(first, batch.lengths)
    np.testing.assert_array_equal(batch.env_infos["_a"], of_first)
    np.testing.assert_array_equal(batch.env_infos["_b"], ~of_first)
    assert [batch.env_infos[key].dtype for key in "ab"] == [np.int64, np.bool_]
    for trajectory, is_first in zip(batch, first, strict=True):
        found = {key: values.tolist() for key, values in trajectory.env_infos.items()}
        assert found == ({"a": [1, 2]} if is_first else {"b": [True]})


SPACES: list[spaces.Space[Any]] = [
    spaces.Box(-1, 1, (3,), np.float32),
    spaces.Box(-1, 1, (), np.float64),
    spaces.Box(-1, 1, (600,), np.float64),
    spaces.Box(0, 255, (64, 48, 3), np.uint8),
    spaces.Box(-100, 100, (2, 2), np.int16),
    spaces.Discrete(5),
    spaces.Discrete(5, start=-2),
    spaces.MultiDiscrete([3, 2, 7]),
    spaces.MultiDiscrete(np.array([[3, 2], [4, 5]])),
    spaces.MultiBinary(4),
    spaces.MultiBinary([2, 3]),
    spaces.Dict({"camera": spaces.Box(0, 255, (8, 8, 1), np.uint8), "gear": spaces.Discrete(6)}),
    spaces.Tuple((spaces.Discrete(2), spaces.Box(-1, 1, (2,), np.float32))),
    spaces.Dict(
        {
            "outer": spaces.Tuple((spaces.MultiBinary(2), spaces.Dict({"x": spaces.Box(0, 1, (1,), np.float64)}))),
            "inner": spaces.Dict({"y": spaces.MultiDiscrete([2, 9]), "z": spaces.Discrete(3)}),
        }
    ),
]


def shapes_and_dtypes(element: Any) -> list[Any]:
    return [(path, np.shape(leaf), np.asarray(leaf).dtype) for path, leaf in trees.leaves(element)]


@on("local", "waiting", "processes", *slow("queues fork", "vec processes"))
def test_spaces(make_sampler: Maker) -> None:
    """Observation and action have the space; each observation is the action before it, bit for bit."""
    sampler = make_sampler(always_zero, Steps, n_workers=2, seed=SEED)
    for space in SPACES:
        batch = sampler.obtain_trajectories(4, RandomAgent(space), partial(Echo, space))
        assert batch.observation_space == batch.action_space == space
        assert trees.same(batch.next_observations, batch.actions)
        first = trees.map_tree(lambda leaf: leaf[0], batch.actions)
        assert shapes_and_dtypes(first) == shapes_and_dtypes(space.sample()), space
        assert all(len(leaf) == 20 and len(np.unique(leaf, axis=0)) > 1 for _, leaf in trees.leaves(batch.actions))
        env = Echo(space)
        for number, seed in enumerate(batch.seeds):
            shown = trees.leaves(env.reset(seed=seed)[0])
            for (_, leaf), (_, recorded) in zip(shown, trees.leaves(batch[number].observations), strict=True):
                np.testing.assert_array_equal(recorded[0], leaf)


@LOCAL
def test_nan_is_data(make_sampler: Maker) -> None:
    script = Script([np.array([value], np.float32) for value in (1.0, np.nan, np.inf)])
    batch = play(make_sampler, script, space=LINE)
    np.testing.assert_array_equal(batch.observations, 6 * [[1.0], [np.nan]])
    np.testing.assert_array_equal(batch.last_observations, 6 * [[np.inf]])


@LOCAL
@pytest.mark.parametrize("shape", [(3, 4), (1, 2)], ids=["other numbers", "as many numbers"])
@pytest.mark.parametrize("at", [0, 1, 3], ids=["of the reset", "of a step", "of the last step"])
def test_a_wrong_shape_is_an_error(make_sampler: Maker, at: int, shape: tuple[int, ...]) -> None:
    """The error says both shapes and the timestep, and the sampler goes on with a better environment."""
    observations: list[Any] = points(0, 1, 2, 3)
    observations[at] = np.zeros(shape, np.float32)
    sampler = make_sampler(
        always_zero, NewEnvUpdate(Scripted, {"scripts": [Script(observations)], "observation_space": PLANE}), seed=SEED
    )
    words = rf"Scripted: observation has the shape {re.escape(str(shape))}.*\(2,\), at timestep {at} of its trajectory"
    with pytest.raises(RolloutError, match=words) as caught:
        sampler.obtain_trajectories(1)
    assert (caught.value.worker_number, caught.value.trajectory) == (0, 0)
    assert isinstance(caught.value.original, ObservationError)
    assert sampler.obtain_trajectories(2, env_update=Steps).lengths.tolist() == [3, 3]
