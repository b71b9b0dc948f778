"""Convert filters from and to Stable-Baselines3's `VecNormalize`; hold its statistics for SB3 policies.

`read_vec_normalize` needs Stable-Baselines3 only to read files; `write_vec_normalize` always needs it (`pip install
stable-baselines3`).
"""

from __future__ import annotations

import pickle
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from os import PathLike, fspath
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
from gymnasium.spaces import Box
from numpy.typing import NDArray

from streamsampler.agents.filters import Filters
from streamsampler.agents.moments import Moments
from streamsampler.agents.running_norms import RunningNorm, RunningReturnNorm
from streamsampler.core.errors import UsageError
from streamsampler.core.extras import needed

PREFIX = "vec_normalize."
"""The prefix of statistics' names among an agent's parameters."""

Part = str | None
"""A key of a Dict space; None for any other space."""


class VecNormalizeWarning(UserWarning):
    """A model is probably missing the statistics of its training; then its actions are wrong."""


@dataclass(frozen=True)
class ObservationStatistics:
    """Normalises observations as `VecNormalize.normalize_obs` does, bit for bit, with frozen statistics.

    Attributes:
        means: float64 arrays of the observation's shape, by key of a Dict space, or under None.
        variances: Arrays of the same form.
        clip: The largest absolute value after normalisation.
        epsilon: Added to variances.
    """

    means: Mapping[Part, NDArray[np.float64]]
    variances: Mapping[Part, NDArray[np.float64]]
    clip: float
    epsilon: float

    @classmethod
    def of(cls, vec_normalize: Any) -> ObservationStatistics | None:
        """Copy a `VecNormalize`'s current statistics; return None if it does not normalise observations."""
        facts = getattr(vec_normalize, "__dict__", {})
        if not {"norm_obs", "clip_obs", "epsilon"} <= facts.keys():
            raise UsageError(f"vec_normalize must be a VecNormalize or its file, not {type(vec_normalize)}")
        if not facts["norm_obs"]:
            return None
        running = facts["obs_rms"]
        parts = {key: running[key] for key in facts["norm_obs_keys"]} if isinstance(running, dict) else {None: running}
        return cls(
            {key: np.array(part.mean, dtype=np.float64) for key, part in parts.items()},
            {key: np.array(part.var, dtype=np.float64) for key, part in parts.items()},
            float(facts["clip_obs"]),
            float(facts["epsilon"]),
        )

    def normalized(self, observations: Any) -> Any:
        """Normalise an observation or a batch of observations; arrays with statistics become float32.

        Raises:
            UsageError: The shape differs from the statistics'.
        """
        if None in self.means:
            return self._normalized(None, observations)
        if not isinstance(observations, Mapping):
            raise UsageError(f"the model was trained on Dict observations, but this is a {type(observations).__name__}")
        parts = {key: self._normalized(key, observations[key]) for key in self.means}
        return {key: parts.get(key, observation) for key, observation in observations.items()}

    def _normalized(self, key: Part, observations: Any) -> NDArray[np.float32]:
        mean, observations = self.means[key], np.asarray(observations)
        if observations.shape[observations.ndim - mean.ndim :] != mean.shape or observations.ndim > mean.ndim + 1:
            raise UsageError(
                f"the statistics of VecNormalize are of observations of the shape {mean.shape}, and "
                f"{'an observation' if key is None else f'an observation[{key!r}]'} has {observations.shape}"
            )
        scaled = (observations - mean) / np.sqrt(self.variances[key] + self.epsilon)
        normalized: NDArray[np.float32] = np.clip(scaled, -self.clip, self.clip).astype(np.float32)
        return normalized

    def arrays(self) -> dict[str, NDArray[np.float64]]:
        return {
            _name(kind, key): array
            for kind, arrays in (("mean", self.means), ("var", self.variances))
            for key, array in arrays.items()
        }

    def replaced(self, values: Mapping[str, Any]) -> ObservationStatistics:
        means = {key: np.array(values[_name("mean", key)], dtype=np.float64) for key in self.means}
        variances = {key: np.array(values[_name("var", key)], dtype=np.float64) for key in self.variances}
        return replace(self, means=means, variances=variances)


def _name(kind: str, key: Part) -> str:
    return f"{PREFIX}{kind}" if key is None else f"{PREFIX}{kind}.{key}"


def load_vec_normalize(path: str | PathLike[str]) -> Any:
    """Read a file of `VecNormalize.save`, a pickle; raise UsageError for any other content."""
    try:
        return pickle.loads(Path(path).read_bytes())
    except (pickle.UnpicklingError, EOFError, AttributeError, IndexError) as error:
        raise UsageError(f"{path} is not a file of VecNormalize.save: {type(error).__name__}: {error}") from error


def find_statistics(archive: str | PathLike[str]) -> Path | None:
    """Find a file of statistics next to a model's archive, or in the subfolder that RL Zoo names after it."""
    folder = Path(archive).parent
    found: Iterable[Path] = (
        path
        for place in (folder, folder / Path(archive).stem)
        if place.is_dir()
        for path in sorted(place.glob("*.pkl"))
        if "vecnormalize" in path.stem.lower().replace("_", "").replace("-", "")
    )
    return next(iter(found), None)


def read_vec_normalize(source: Any) -> Filters:
    """Return filters with the settings and statistics of a `VecNormalize`.

    Args:
        source: A `VecNormalize`, or a file of its `save`. The file is a pickle: open only files from people you trust.

    Raises:
        UsageError: The source is not a `VecNormalize`, or leaves out keys of a Dict that a `RunningNorm` would
            normalise.
        ImportError: Stable-Baselines3 is missing.
        OSError: The file cannot be read.
    """
    if isinstance(source, str | PathLike):
        source = load_vec_normalize(source)
    facts = getattr(source, "__dict__", {})
    if not {"norm_obs", "norm_reward", "clip_obs", "clip_reward", "gamma", "epsilon"} <= facts.keys():
        raise UsageError(f"this is not a VecNormalize, but a {type(source).__qualname__}")
    observation = reward = None
    if facts["norm_obs"]:
        running = facts["obs_rms"]
        moments = _of_keys(running, facts) if isinstance(running, dict) else _moments(running)
        observation = RunningNorm(float(facts["clip_obs"]), float(facts["epsilon"])).with_moments(moments)
    if facts["norm_reward"]:
        settings = float(facts["gamma"]), float(facts["clip_reward"]), float(facts["epsilon"])
        reward = RunningReturnNorm(*settings).with_moments(_moments(facts["ret_rms"]))
    return Filters(observation, reward)


def write_vec_normalize(filters: Filters, path: str | PathLike[str], envs: Any) -> None:
    """Write a file for `VecNormalize.load(path, venv)`.

    Args:
        filters: A sampler's `filters`.
        path: The file.
        envs: An environment id, or a function that makes the environment; used for its spaces.

    Raises:
        UsageError: A filter is of another class, has no statistics or those of another environment, or the filters
            differ in `epsilon`: a `VecNormalize` has a single value.
        ImportError: Stable-Baselines3 is missing; says how to install it.
        OSError: The file cannot be written.
    """
    vec_env = needed("stable_baselines3.common.vec_env", "write_vec_normalize", "sb3")
    observation, reward = filters.observation, filters.reward
    if not isinstance(observation, RunningNorm | None) or not isinstance(reward, RunningReturnNorm | None):
        raise UsageError("only a RunningNorm and a RunningReturnNorm can be written as a VecNormalize")
    if any(one is not None and one.moments is None for one in (observation, reward)):
        raise UsageError("the filters have no statistics yet: sample something, or call sampler.warm_up")
    if observation is not None and reward is not None and observation.epsilon != reward.epsilon:
        raise UsageError(
            f"observation_filter has epsilon={observation.epsilon}, and reward_filter has epsilon={reward.epsilon}: a "
            "VecNormalize has one for both. Write each filter into a file of its own, or sample with the same epsilon"
        )
    keys: list[str] | None = None
    made = vec_env.DummyVecEnv([envs if callable(envs) else lambda: gymnasium.make(envs)])
    try:
        if observation is not None:
            observation.check_space(made.observation_space)
            if isinstance(observation.moments, dict):
                keys = [key for key, moments in observation.moments.items() if moments is not None]
        normalize = vec_env.VecNormalize(
            made, norm_obs=observation is not None, norm_reward=reward is not None, norm_obs_keys=keys
        )
        _fill(normalize, observation, reward)
        normalize.save(fspath(path))
    finally:
        made.close()


def _fill(normalize: Any, observation: RunningNorm | None, reward: RunningReturnNorm | None) -> None:
    for given, clip in ((observation, "clip_obs"), (reward, "clip_reward")):
        if given is not None:
            setattr(normalize, clip, np.inf if given.clip is None else given.clip)
            normalize.epsilon = given.epsilon
    if observation is not None:
        of_keys = observation.moments if isinstance(observation.moments, dict) else {None: observation.moments}
        for key, moments in of_keys.items():
            if moments is None:
                continue
            _put(normalize.obs_rms if key is None else normalize.obs_rms[key], moments)
    if reward is not None:
        normalize.gamma = reward.gamma
        _put(normalize.ret_rms, reward.moments)


def _of_keys(running: dict[str, Any], facts: dict[str, Any]) -> dict[str, Moments | None]:
    spaces = facts["observation_space"].spaces
    lacking = [key for key, space in spaces.items() if _is_normalised(space) and key not in running]
    if lacking:
        raise UsageError(
            f"the VecNormalize normalises only {', '.join(running)}: a RunningNorm normalises {', '.join(lacking)}, too"
        )
    return {key: _moments(running[key]) if key in running else None for key in spaces}


def _is_normalised(space: Any) -> bool:
    return isinstance(space, Box) and space.dtype.kind == "f"


def _moments(running: Any) -> Moments:
    count = float(running.count)
    mean, variance = np.array(running.mean, np.float64), np.array(running.var, np.float64)
    return Moments(count, mean, variance * count)


def _put(running: Any, moments: Moments) -> None:
    running.mean, running.var, running.count = moments.mean.copy(), moments.variance.copy(), moments.n
