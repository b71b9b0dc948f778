"""The statistics of Stable-Baselines3's `VecNormalize`, frozen: what a policy that was trained under one needs."""

from __future__ import annotations

import pickle
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from streamsampler.errors import UsageError

__all__ = ["PREFIX", "ObservationStatistics", "VecNormalizeWarning", "find_statistics", "load_vec_normalize"]

PREFIX = "vec_normalize."
"""How the names of statistics begin among an agent's parameters."""

Part = str | None
"""A key of a Dict space; None where the space is none."""


class VecNormalizeWarning(UserWarning):
    """A model is used without the statistics that it was probably trained with, so its actions are probably wrong."""


@dataclass(frozen=True)
class ObservationStatistics:
    """Normalises observations as `VecNormalize.normalize_obs` does, to the bit.

    Attributes:
        means: Arrays of float64, each of the shape of an observation, by key of a Dict space, or by None.
        variances: The same.
        clip: The largest absolute value of what comes out.
        epsilon: What is added to variances.
    """

    means: Mapping[Part, NDArray[np.float64]]
    variances: Mapping[Part, NDArray[np.float64]]
    clip: float
    epsilon: float

    @classmethod
    def of(cls, vec_normalize: Any) -> ObservationStatistics | None:
        """Return the present statistics of a `VecNormalize`; None if it normalises no observations.

        Raises:
            UsageError: It is none.
        """
        facts = vars(vec_normalize) if hasattr(vec_normalize, "__dict__") else {}
        if not {"norm_obs", "clip_obs", "epsilon"} <= facts.keys():
            raise UsageError(f"vec_normalize is a VecNormalize or the file of one, and this is {type(vec_normalize)}")
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
        """Return an observation, or a batch of them, normalised: float32 where there are statistics.

        Raises:
            UsageError: They have another shape than the statistics.
        """
        if None in self.means:
            return self._normalized(None, observations)
        if not isinstance(observations, Mapping):
            raise UsageError(f"the model was trained on Dict observations, and this is {type(observations).__name__}")
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
        """Return the statistics as parameters: arrays by name."""
        return {
            _name(kind, key): array
            for kind, arrays in (("mean", self.means), ("var", self.variances))
            for key, array in arrays.items()
        }

    def replaced(self, values: Mapping[str, Any]) -> ObservationStatistics:
        """Return statistics with other arrays: those that `values` has under the names of `arrays`."""
        means = {key: np.array(values[_name("mean", key)], dtype=np.float64) for key in self.means}
        variances = {key: np.array(values[_name("var", key)], dtype=np.float64) for key in self.variances}
        return replace(self, means=means, variances=variances)


def _name(kind: str, key: Part) -> str:
    return f"{PREFIX}{kind}" if key is None else f"{PREFIX}{kind}.{key}"


def load_vec_normalize(path: str | PathLike[str]) -> Any:
    """Read what `VecNormalize.save` wrote. It is a pickle: read only files that you trust.

    Raises:
        UsageError: It is something else.
        OSError: It cannot be read.
    """
    try:
        return pickle.loads(Path(path).read_bytes())
    except (pickle.UnpicklingError, EOFError, AttributeError, IndexError) as error:
        raise UsageError(f"{path} is no file of VecNormalize.save: {type(error).__name__}: {error}") from error


def find_statistics(archive: str | PathLike[str]) -> Path | None:
    """Return a file of statistics that seems to belong to a model's archive: one in its folder, or None.

    Also one folder below, which has the archive's name: RL Zoo writes it there.
    """
    folder = Path(archive).parent
    found: Iterable[Path] = (
        path
        for place in (folder, folder / Path(archive).stem)
        if place.is_dir()
        for path in sorted(place.glob("*.pkl"))
        if "vecnormalize" in path.stem.lower().replace("_", "").replace("-", "")
    )
    return next(iter(found), None)
