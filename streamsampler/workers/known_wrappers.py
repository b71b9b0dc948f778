"""Detect known wrappers which carry state from a trajectory to the next, or write files."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Self

import gymnasium
from gymnasium.vector import VectorEnv, VectorWrapper

from streamsampler.agents.masks import method_of
from streamsampler.workers.explain import name_of_env

_NORMALISE_IN_THE_AGENT = (
    "pass observation_filter=RunningNorm() of streamsampler.filters to the sampler, put the normalisation into the "
    "agent, or load statistics into the wrapper and set its update_running_mean to False"
)


@dataclass(frozen=True)
class _Known:
    """Describes a wrapper which carries state from a trajectory to the next.

    Attributes:
        carries: A description of this state.
        way_out: The advice.
        attribute: A required attribute, since other libraries may use the same class name.
        applies: Whether this instance carries state.
    """

    carries: str
    way_out: str
    attribute: str
    applies: Callable[[Any], bool] = lambda wrapper: True  # noqa: ARG005


def _updates(wrapper: Any) -> bool:
    return bool(getattr(wrapper, "update_running_mean", True))


_LIFE = _Known(
    "continues the old game after a lost life instead of resetting it",
    "use gymnasium.wrappers.AtariPreprocessing(terminal_on_life_loss=True), which resets the game",
    "was_real_done",
)
_COUNTS = _Known(
    "counts visits over all trajectories", "count within a trajectory, or add the bonus in the learner", "counts"
)

_KNOWN = {
    "NormalizeObservation": _Known(
        "updates its mean and variance with every observation", _NORMALISE_IN_THE_AGENT, "obs_rms", _updates
    ),
    "NormalizeReward": _Known(
        "updates its variance with every reward",
        "pass reward_filter=RunningReturnNorm() of streamsampler.filters to the sampler, normalise rewards in the "
        "learner, or load statistics into the wrapper and set its update_running_mean to False",
        "return_rms",
        _updates,
    ),
    "EpisodicLifeEnv": _LIFE,
    "EpisodicLife": _LIFE,
    "ActionBonus": _COUNTS,
    "PositionBonus": _COUNTS,
    "StateBonus": _COUNTS,
    "ReseedWrapper": _Known(
        "uses its own list of seeds instead of the trajectory's seed",
        "remove it, and pass seeds= to obtain_trajectories",
        "seed_idx",
        lambda wrapper: len(wrapper.seeds) > 1,
    ),
}


class EnvFacts(NamedTuple):
    """Describes an environment in another process; see the functions of the same names."""

    name: str
    kind: str
    finding: str
    files: tuple[str, ...]
    has_masks: bool = False

    @classmethod
    def of(cls, env: Any) -> Self:
        return cls(name_of_env(env), kind_of(env), stateful_wrapper(env), files_of([env]), method_of(env) is not None)


class EnvElsewhere(gymnasium.Env[Any, Any]):
    """Represents an environment in another process."""

    facts: EnvFacts


def chain_of(env: Any) -> Iterator[Any]:
    """Yield an environment's layers from its outermost wrapper inwards; for a vector environment also its first."""
    while env is not None:
        yield env
        if isinstance(env, gymnasium.Wrapper | VectorWrapper):
            env = env.env
        elif isinstance(env, VectorEnv):
            envs = getattr(
                env, "envs", None
            )  # SyncVectorEnv has them; environments in other processes cannot be inspected
            env = envs[0] if isinstance(envs, list | tuple) and envs else None
        else:
            return


def kind_of(env: Any) -> str:
    """Return the classes of an environment and its wrappers, and its id, in a single string."""
    if isinstance(env, EnvElsewhere):
        return env.facts.kind
    classes = ",".join(f"{type(layer).__module__}.{type(layer).__qualname__}" for layer in chain_of(env))
    spec = getattr(env.unwrapped, "spec", None)  # a wrapper's spec is a deep copy
    return f"{getattr(spec, 'id', '')}:{classes}"


def stateful_wrapper(env: Any) -> str:
    """Describe the first wrapper known to carry state between trajectories, with advice; "" if none is known."""
    if isinstance(env, EnvElsewhere):
        return env.facts.finding
    for layer in chain_of(env):
        for base in type(layer).__mro__:
            known = _KNOWN.get(base.__name__)
            if known is not None and hasattr(layer, known.attribute) and known.applies(layer):
                return (
                    f"{name_of_env(env)} is wrapped by {type(layer).__qualname__}, which {known.carries}, so that a "
                    "trajectory depends on its worker's earlier trajectories: batches differ with the number of "
                    f"workers and with timing. Instead, {known.way_out}"
                )
    return ""


def files_of(envs: Sequence[Any]) -> tuple[str, ...]:
    """Return the places of files written by environments' wrappers."""
    return tuple(place for env in envs for place in _places_of(env))


def _places_of(env: Any) -> tuple[str, ...]:
    if isinstance(env, EnvElsewhere):
        return env.facts.files
    return tuple(place for layer in chain_of(env) if (place := _place_of(layer)))


def _place_of(layer: Any) -> str:
    names = {base.__name__ for base in type(layer).__mro__}
    folder, prefix = getattr(layer, "video_folder", None), getattr(layer, "name_prefix", None)
    if names & {"RecordVideo", "VecVideoRecorder"} and isinstance(folder, str) and isinstance(prefix, str):
        return os.path.join(os.path.abspath(folder), f"{prefix}-….mp4")
    if "Monitor" in names:
        # Stable-Baselines3's `Monitor`, if it writes a file.
        name = getattr(getattr(getattr(layer, "results_writer", None), "file_handler", None), "name", None)
        return os.path.abspath(name) if isinstance(name, str) else ""
    return ""
