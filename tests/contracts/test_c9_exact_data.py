"""C9: each trajectory is what the environment said, step for step."""

from __future__ import annotations

import re
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces

from streamsampler import NewEnvUpdate, RandomAgent, TrajectoryBatch
from streamsampler.errors import ObservationError, RolloutError
from tests.contracts.conftest import ENGINES, LOCAL, Maker, core_on_ray
from tests.scripted.agents import always_zero
from tests.scripted.envs import LINE, Echo, Script, Scripted, Steps

SEED = 31
PLANE = spaces.Box(-10, 10, (2,), np.float32)


def points(*numbers: float) -> list[np.ndarray]:
    return [np.array([number, -number], np.float32) for number in numbers]


def play(make_sampler: Maker, *scripts: Script, space: spaces.Space = PLANE, **options: Any) -> TrajectoryBatch:
    reuse = options.pop("reuse", False)
    make_env = NewEnvUpdate(Scripted, {"scripts": scripts, "observation_space": space, "reuse": reuse})
    return make_sampler(always_zero, make_env, n_workers=2, seed=SEED, **options).obtain_trajectories(6)


def scripts_of(batch: TrajectoryBatch, scripts: list[Script]) -> list[Script]:
    """Which script each trajectory played, as it said in the info of its reset."""
    return [scripts[number] for number in batch.episode_infos["script"]]


TWO = [Script(points(1, 2, 3, 4)), Script(points(-5, 6))]


@core_on_ray(ENGINES)
@pytest.mark.parametrize("reuse", [False, True], ids=["new arrays", "one array"])
def test_observations_are_copied_when_recorded(make_sampler: Maker, reuse: bool) -> None:
    batch = play(make_sampler, *TWO, reuse=reuse)
    assert set(batch.lengths.tolist()) == {1, 3}
    for trajectory, script in zip(batch, scripts_of(batch, TWO), strict=True):
        np.testing.assert_array_equal(trajectory.observations, script.observations[:-1], strict=True)
        np.testing.assert_array_equal(trajectory.last_observations, script.observations[-1:], strict=True)
        np.testing.assert_array_equal(trajectory.next_observations, script.observations[1:], strict=True)
        assert trajectory.rewards.tolist() == [-0.5 * (t + 1) for t in range(script.length)]


@pytest.mark.parametrize("reuse", [False, True], ids=["new arrays", "one array"])
def test_infos_are_copied_when_recorded(make_sampler: Maker, reuse: bool) -> None:
    infos: list[dict[str, Any]] = [{"array": [t, 2.0 * t]} for t in range(3)]
    if not reuse:
        infos = [{"array": np.array(info["array"], float)} for info in infos]
    script = Script(points(0, 1, 2, 3), infos=infos, reset_info={"array": np.array([7.0, 8.0])})
    batch = play(make_sampler, script, reuse=reuse)
    np.testing.assert_array_equal(batch.env_infos["array"], 6 * [[0.0, 0.0], [1.0, 2.0], [2.0, 4.0]], strict=True)
    np.testing.assert_array_equal(batch.episode_infos["array"], 6 * [[7.0, 8.0]], strict=True)


@pytest.mark.parametrize("engine", LOCAL, indirect=True)
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
        (1, (False, True), None, (1, False, True)),
    ],
    ids=str,
)
def test_ends(
    make_sampler: Maker,
    length: int,
    says: tuple[bool, bool],
    limit: int | None,
    expected: tuple[int, bool, bool],
) -> None:
    """An environment of so many steps that says (terminated, truncated), and a limit of the sampler's."""
    script = Script(points(*range(length + 1)), *says)
    batch = play(make_sampler, script, max_episode_length=limit)
    steps, terminated, truncated = expected
    assert batch.lengths.tolist() == 6 * [steps]
    assert batch.terminated.tolist() == 6 * [terminated]
    assert batch.truncated.tolist() == 6 * [truncated]
    np.testing.assert_array_equal(batch.last_observations, 6 * [script.observations[steps]])
    assert batch.last_observations.dtype == np.float32


def test_infos_that_come_and_go(make_sampler: Maker) -> None:
    infos: list[dict[str, Any]] = [{}, {"bonus": 2.5}, {}, {"bonus": 4.5, "deep": {"word": "hit"}}]
    script = Script(points(0, 1, 2, 3, 4), infos=infos)
    batch = play(make_sampler, script)
    assert batch.env_infos.keys() == {"bonus", "_bonus", "deep"}
    assert batch.env_infos["bonus"].dtype == np.float64
    assert batch.env_infos["bonus"].tolist() == 6 * [0.0, 2.5, 0.0, 4.5]
    assert batch.env_infos["_bonus"].tolist() == 6 * [False, True, False, True]
    assert batch.env_infos["deep"]["word"].tolist() == 6 * [None, None, None, "hit"]
    assert batch.env_infos["deep"]["_word"].tolist() == 6 * [False, False, False, True]
    assert batch.agent_infos == {}


def test_infos_of_some_trajectories_only(make_sampler: Maker) -> None:
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
    assert batch.env_infos["a"].dtype == np.int64
    assert batch.env_infos["b"].dtype == np.bool_
    for trajectory, is_first in zip(batch, first, strict=True):
        if is_first:
            assert trajectory.env_infos.keys() == {"a"}
            assert trajectory.env_infos["a"].tolist() == [1, 2]
        else:
            assert trajectory.env_infos.keys() == {"b"}
            assert trajectory.env_infos["b"].tolist() == [True]


def test_no_integer_is_lost_among_floats(make_sampler: Maker, tmp_path: Path) -> None:
    """In infos: within a trajectory, in a batch, in batches that are joined, and in files."""
    large, wide = 2**53 + 1, np.uint64(2**64 - 1)
    infos: list[dict[str, Any]] = [
        {"n": large, "v": np.array([large, 1]), "u": wide, "f": 1},
        {"n": 0.5, "v": np.array([0.5, 1.0]), "u": -1, "f": 0.5},
    ]
    scripts = [Script(points(0, 1, 2), infos=infos), Script(points(0, 1, 2), infos=infos[::-1])]
    scripts += [Script(points(0, 1), infos=infos[:1]), Script(points(0, 1), infos=infos[1:])]
    batch = play(make_sampler, *scripts)
    told = [info for script in scripts_of(batch, scripts) for info in script.infos]
    joined = TrajectoryBatch.concatenate(TrajectoryBatch.concatenate(trajectory) for trajectory in batch.split())
    assert joined == batch
    halves = [play(make_sampler, script) for script in scripts[2:]]
    loaded = TrajectoryBatch.load(TrajectoryBatch.concatenate(halves).save(tmp_path / "both"))
    for found, expected in ((batch, told), (loaded, 6 * infos[:1] + 6 * infos[1:])):
        assert found.env_infos["n"].tolist() == [info["n"] for info in expected]
        assert found.env_infos["u"].tolist() == [int(info["u"]) for info in expected]
        assert [row.tolist() for row in found.env_infos["v"]] == [info["v"].tolist() for info in expected]
        assert [found.env_infos[key].dtype for key in "nuvf"] == [object, object, object, np.float64]


SPACES: dict[str, spaces.Space[Any]] = {
    "vector": spaces.Box(-1, 1, (3,), np.float32),
    "number": spaces.Box(-1, 1, (), np.float64),
    "long vector": spaces.Box(-1, 1, (600,), np.float64),
    "image": spaces.Box(0, 255, (64, 48, 3), np.uint8),
    "small integers": spaces.Box(-100, 100, (2, 2), np.int16),
    "Discrete": spaces.Discrete(5),
    "Discrete with a start": spaces.Discrete(5, start=-2),
    "MultiDiscrete": spaces.MultiDiscrete([3, 2, 7]),
    "MultiDiscrete with two axes": spaces.MultiDiscrete(np.array([[3, 2], [4, 5]])),
    "MultiBinary": spaces.MultiBinary(4),
    "MultiBinary with two axes": spaces.MultiBinary([2, 3]),
    "Dict": spaces.Dict({"camera": spaces.Box(0, 255, (8, 8, 1), np.uint8), "gear": spaces.Discrete(6)}),
    "Tuple": spaces.Tuple((spaces.Discrete(2), spaces.Box(-1, 1, (2,), np.float32))),
    "nested": spaces.Dict(
        {
            "outer": spaces.Tuple((spaces.MultiBinary(2), spaces.Dict({"x": spaces.Box(0, 1, (1,), np.float64)}))),
            "inner": spaces.Dict({"y": spaces.MultiDiscrete([2, 9]), "z": spaces.Discrete(3)}),
        }
    ),
}


def leaves(space: spaces.Space, tree: Any) -> list[tuple[spaces.Space, np.ndarray]]:
    """The leaves of a space with their arrays; the structure must be that of the space."""
    if isinstance(space, spaces.Dict):
        assert isinstance(tree, dict)
        assert tree.keys() == space.spaces.keys()
        return [leaf for key, child in space.spaces.items() for leaf in leaves(child, tree[key])]
    if isinstance(space, spaces.Tuple):
        assert isinstance(tree, tuple)
        return [
            leaf for child, child_tree in zip(space.spaces, tree, strict=True) for leaf in leaves(child, child_tree)
        ]
    return [(space, tree)]


def test_spaces(make_sampler: Maker) -> None:
    """Observation and action have the space; each observation is the action before it, bit for bit."""
    sampler = make_sampler(always_zero, Steps, n_workers=2, seed=SEED)
    for space in SPACES.values():
        check_space(space, sampler.obtain_trajectories(4, RandomAgent(space), partial(Echo, space)))


def check_space(space: spaces.Space[Any], batch: TrajectoryBatch) -> None:
    assert batch.observation_space == batch.action_space == space
    actions, following = leaves(space, batch.actions), leaves(space, batch.next_observations)
    for (leaf, action), (_, observation) in zip(actions, following, strict=True):
        assert action.shape == (20, *(leaf.shape or ()))
        assert action.dtype == leaf.dtype
        np.testing.assert_array_equal(observation, action, strict=True)
        assert all(np.asarray(row) in leaf for row in action)
        assert len(np.unique(action, axis=0)) > 1
    env = Echo(space)
    for number, seed in enumerate(batch.seeds):
        for (_, first), (_, arrays) in zip(
            leaves(space, env.reset(seed=seed)[0]), leaves(space, batch[number].observations), strict=True
        ):
            np.testing.assert_array_equal(arrays[0], first)


def test_nan_is_data(make_sampler: Maker) -> None:
    script = Script([np.array([value], np.float32) for value in (1.0, np.nan, np.inf)])
    batch = play(make_sampler, script, space=LINE)
    np.testing.assert_array_equal(batch.observations, 6 * [[1.0], [np.nan]])
    np.testing.assert_array_equal(batch.last_observations, 6 * [[np.inf]])


@pytest.mark.parametrize("engine", LOCAL, indirect=True)
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
    assert caught.value.worker_number == 0
    assert caught.value.trajectory == 0
    assert isinstance(caught.value.original, ObservationError)
    assert sampler.obtain_trajectories(2, env_update=Steps).lengths.tolist() == [3, 3]
