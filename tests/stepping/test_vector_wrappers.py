"""Every wrapper of `gymnasium.wrappers.vector` runs over a manager, and returns what it returns over Gymnasium's."""

import functools
import importlib
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.utils.env_checker import data_equivalence
from gymnasium.vector import SyncVectorEnv
from gymnasium.wrappers import vector

from streamsampler.stepping.managers import SerialEnvManager
from tests.stepping.environments import Varied, following

CARTPOLE = functools.partial(gymnasium.make, "CartPole-v1", render_mode="rgb_array")
CAR = functools.partial(gymnasium.make, "MountainCarContinuous-v0")


class Pictures(Varied):
    """Has pictures as observations."""

    observation_space = spaces.Box(0, 255, (8, 8, 3), np.uint8)

    def _observation(self, force):
        return self.np_random.integers(0, 256, (8, 8, 3)).astype(np.uint8)


class TakesAny(gymnasium.ActionWrapper):
    """Takes actions that are arrays of another library, which only Gymnasium's own hand on."""

    def __init__(self):
        super().__init__(CARTPOLE())

    def action(self, action):
        return int(action)


def every_third(n):
    return n % 3 == 0


TWICE = spaces.Box(-np.inf, np.inf, (4,), np.float64)
RANGE = {"min_action": np.zeros(1, np.float32), "max_action": np.full(1, 2, np.float32)}
OBSERVATIONS = {"wrapper": gymnasium.wrappers.TransformObservation, "func": np.tanh, "observation_space": TWICE}

# What each wrapper is tried with: an environment, arguments, and modules that it needs.
WRAPPERS: dict[str, tuple[Any, dict[str, Any], list[str]]] = {
    "VectorizeTransformObservation": (CARTPOLE, OBSERVATIONS, []),
    "VectorizeTransformAction": (CAR, {"wrapper": gymnasium.wrappers.RescaleAction, **RANGE}, []),
    "VectorizeTransformReward": (CAR, {"wrapper": gymnasium.wrappers.TransformReward, "func": np.sin}, []),
    "DictInfoToList": (Varied, {}, []),
    "TransformObservation": (CARTPOLE, {"single_observation_space": TWICE, "func": lambda it: 2.0 * it}, []),
    "FilterObservation": (Varied, {"filter_keys": ["position", "image"]}, []),
    "FlattenObservation": (Varied, {}, []),
    "GrayscaleObservation": (Pictures, {}, []),
    "ResizeObservation": (Pictures, {"shape": (4, 6)}, ["cv2"]),
    "ReshapeObservation": (Pictures, {"shape": (4, 48)}, []),
    "RescaleObservation": (CAR, {"min_obs": np.zeros(2, np.float32), "max_obs": np.ones(2, np.float32)}, []),
    "DtypeObservation": (Pictures, {"dtype": np.float32}, []),
    "NormalizeObservation": (CARTPOLE, {}, []),
    "TransformAction": (CAR, {"func": lambda action: -action}, []),
    "ClipAction": (CAR, {}, []),
    "RescaleAction": (CAR, RANGE, []),
    "TransformReward": (CAR, {"func": lambda reward: reward + 1}, []),
    "ClipReward": (Varied, {"min_reward": 1.0, "max_reward": 3.0}, []),
    "NormalizeReward": (Varied, {}, []),
    "RecordEpisodeStatistics": (CARTPOLE, {}, []),
    "RecordVideo": (CARTPOLE, {"video_folder": "videos", "episode_trigger": every_third}, ["moviepy"]),
    "HumanRendering": (CARTPOLE, {}, ["pygame", "cv2"]),
    "ArrayConversion": (CARTPOLE, {"env_xp": "numpy", "target_xp": "torch"}, ["torch", "array_api_compat"]),
    "JaxToNumpy": (TakesAny, {}, ["jax", "array_api_compat"]),
    "JaxToTorch": (TakesAny, {}, ["jax", "torch", "array_api_compat"]),
    "NumpyToTorch": (CARTPOLE, {}, ["torch", "array_api_compat"]),
}
TAKE_TENSORS = {"ArrayConversion", "JaxToTorch", "NumpyToTorch"}
WITH_EXTRAS = {*TAKE_TENSORS, "JaxToNumpy", "ResizeObservation", "RecordVideo", "HumanRendering"}


@pytest.mark.slow  # Gymnasium's next release may have more of them
def test_no_wrapper_is_missing():
    assert WRAPPERS.keys() == set(vector.__all__)


@pytest.mark.filterwarnings("ignore:.*Overwriting existing videos", "ignore::DeprecationWarning")
@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.extras) if name in WITH_EXTRAS else name for name in WRAPPERS]
)
def test_a_wrapper(monkeypatch, tmp_path, name):
    env, arguments, modules = WRAPPERS[name]
    for module in modules:
        pytest.importorskip(module)
    monkeypatch.setenv("SDL_VIDEODRIVER", "dummy")
    monkeypatch.chdir(tmp_path)
    of_xp = {key: importlib.import_module(value) for key, value in arguments.items() if key.endswith("_xp")}
    made = {"mine": SerialEnvManager(env, n_envs=2, seed=0).vector_env(), "theirs": SyncVectorEnv(following(env, 2))}
    mine, theirs = (
        results(getattr(vector, name)(envs, **{**arguments, **of_xp, **folder}), name, tmp_path / whose)
        for whose, envs in made.items()
        for folder in [{"video_folder": str(tmp_path / whose)} if "video_folder" in arguments else {}]
    )
    for one, other in zip(mine, theirs, strict=True):
        assert data_equivalence(one, other, exact=True), f"{one}\n\nis not\n\n{other}"


def results(wrapped, name, folder):
    """Return all that an environment returned, and the names of the files that it wrote."""
    convert: Any = importlib.import_module("torch").from_numpy if name in TAKE_TENSORS else lambda actions: actions
    wrapped.action_space.seed(4)
    found = [wrapped.reset(seed=5)]
    found += [wrapped.step(convert(wrapped.action_space.sample())) for _ in range(30)]
    found.append(wrapped.reset())
    wrapped.close()
    return [*(plain(result) for result in found), sorted(path.name for path in folder.glob("*"))]


def plain(value):
    """Return a result without what differs from run to run, and with arrays of other libraries as NumPy's."""
    if isinstance(value, dict):
        return {key: plain(it) for key, it in value.items() if key != "t"}  # the seconds of an episode
    if isinstance(value, tuple | list):
        return type(value)(map(plain, value))
    return np.asarray(value) if type(value).__module__.split(".")[0] in ("torch", "jaxlib") else value
