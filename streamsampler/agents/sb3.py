"""Agents made of Stable-Baselines3 models, or of any object with such a `predict`.

Only `SB3Agent.load` needs Stable-Baselines3: `pip install stable-baselines3`.
"""

from __future__ import annotations

import contextlib
import copy
import importlib
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from streamsampler.agents.base import is_module, signature_of, takes_keyword
from streamsampler.agents.masks import ACTION_MASKS
from streamsampler.agents.module_parameters import ModuleConverter, arrays_of, load_arrays, on_cpu, refuse_lazy
from streamsampler.agents.sb3_archives import algorithm_of
from streamsampler.agents.updates import is_parameters
from streamsampler.agents.vec_normalize import (
    PREFIX,
    ObservationStatistics,
    VecNormalizeWarning,
    find_statistics,
    load_vec_normalize,
)
from streamsampler.core.errors import UsageError
from streamsampler.core.extras import needed
from streamsampler.core.keywords import suggesting
from streamsampler.data.trees import n_rows_of


class SB3Agent:
    """Acts by `predict(observation, state=…, episode_start=…, deterministic=…)`, which returns (actions, state).

    Only a model's `policy` is used, on the CPU: workers need no replay buffer, optimiser or training environment. DQN's
    random exploration belongs to the model, and does not happen.

    A model trained under a `VecNormalize` acts on observations normalised with the statistics of
    `model.get_vec_normalize_env()`; acting does not change them. The agent copies the current statistics when it is
    pickled or asked for its parameters. Recorded data, rewards included, is the environment's own.

    A `predict` with the argument `action_masks`, as MaskablePPO's, receives the environment's masks (see the page
    `agents`); a recurrent policy receives its state, and the starts of trajectories. Random policies draw from the
    global generators, seeded for each trajectory.

    An agent update may be a similar model, with statistics if the agent has some; a policy or its `state_dict`, for an
    agent without statistics; or a result of `get_param_values`.

    Args:
        model: A model, a policy, or any object with `predict`.
        deterministic: Passed to `predict`.
        vec_normalize: A `VecNormalize`, or its file; None for the model's own, if any; False for none. With None, an
            on-policy model without the `VecNormalize` of its training causes a `VecNormalizeWarning`; off-policy models
            do not record it.

    Attributes:
        name: The agent's name in evaluations: the name of the model's file, or of its class.

    Raises:
        UsageError: The object has no `predict`, or `vec_normalize` is of another kind.
        OSError: The file cannot be read.
    """

    @suggesting()
    def __init__(self, model: Any, *, deterministic: bool = False, vec_normalize: Any = None) -> None:
        policy = getattr(model, "policy", None)
        self.policy: Any = policy if callable(getattr(policy, "predict", None)) else model
        if isinstance(self.policy, type) or not callable(getattr(self.policy, "predict", None)):
            raise UsageError(f"SB3Agent takes a model, or another object with predict, not {model!r}")
        self.deterministic = deterministic
        self.name = type(model).__name__
        self._vec_normalize = _vec_normalize_of(model, vec_normalize)
        if vec_normalize is None and self._vec_normalize is None:
            _warn_of_missing_statistics(model, f"the model ({type(model).__name__})", None)
        self._statistics = None if self._vec_normalize is None else ObservationStatistics.of(self._vec_normalize)
        self._begin()
        if self._on_torch:
            refuse_lazy(self._module("SB3Agent").state_dict(), "the policy")

    @classmethod
    def load(
        cls, path: str | PathLike[str], algorithm: Any = None, *, deterministic: bool = False, vec_normalize: Any = None
    ) -> SB3Agent:
        """Load a model that Stable-Baselines3 saved.

        Args:
            path: The `.zip` file. It does not contain statistics.
            algorithm: A class with `load`, or its name in `stable_baselines3` or `sb3_contrib`, such as "PPO"; None
                detects it.
            deterministic: Passed to `predict`.
            vec_normalize: The file of `VecNormalize.save`, such as "vecnormalize.pkl", for a model trained under it. It
                is a pickle: pass only files that you trust. With None, such a file in the folder of `path`, or an
                on-policy model trained under a `VecNormalize`, causes a `VecNormalizeWarning`; False means that
                training observations were not normalised.

        Raises:
            ImportError: The package is not installed.
            UsageError: The algorithm is unknown, or `vec_normalize` is of another kind.
            OSError: A file cannot be read.
        """
        if algorithm is None:
            algorithm = algorithm_of(path)
        if isinstance(algorithm, str):
            algorithm = _algorithm(algorithm)
        if not callable(getattr(algorithm, "load", None)):
            raise UsageError(f"algorithm must be a class with load, or its name, not {algorithm!r}")
        model = algorithm.load(path, device="cpu")
        if vec_normalize is None and _vec_normalize_of(model, None) is None:
            _warn_of_missing_statistics(model, str(path), find_statistics(path))
            vec_normalize = False
        agent = cls(model, deterministic=deterministic, vec_normalize=vec_normalize)
        agent.name = Path(path).name
        return agent

    def _begin(self) -> None:
        self._on_torch = hasattr(self.policy, "state_dict") and hasattr(self.policy, "parameters")
        self._state: Any = None
        self._starts = True
        signature = signature_of(self.policy.predict)
        if signature is not None and takes_keyword(signature, ACTION_MASKS):  # callers inspect the signatures
            self.get_action = self._get_masked_action  # type: ignore[method-assign]
            self.get_actions = self._get_masked_actions  # type: ignore[method-assign]

    def __getstate__(self) -> dict[str, Any]:
        policy = self.policy
        if self._on_torch:
            policy = on_cpu(policy)
            if "optimizer" in policy.__dict__:
                policy = copy.copy(policy)
                policy.optimizer = None
        kept = {"deterministic": self.deterministic, "name": self.name}
        return {"policy": policy, "_statistics": self.statistics, **kept}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._vec_normalize = None
        self._begin()

    def sharing_parameters(self) -> SB3Agent | None:
        """Return an agent with the same policy and statistics (until an update) and its own state, or None."""
        if type(self) is not SB3Agent or not self._on_torch:
            return None
        shared = object.__new__(SB3Agent)
        shared.__dict__.update(self.__dict__)
        shared._begin()
        return shared

    def __repr__(self) -> str:
        return f"SB3Agent({type(self.policy).__name__})"

    @property
    def statistics(self) -> ObservationStatistics | None:
        """The statistics for observations; None if they are not normalised."""
        return self._statistics if self._vec_normalize is None else ObservationStatistics.of(self._vec_normalize)

    @property
    def row_independent(self) -> bool:
        """Whether the policy is a torch module without random draws."""
        return self._on_torch and self.deterministic

    def reset(self, seed: int | None = None) -> None:
        """Clear the state at the start of a trajectory or block; `seed` is unused, since draws are global."""
        del seed
        self._state, self._starts = None, True

    def get_state(self) -> Any:
        """Return the policy's hidden state."""
        return copy.deepcopy((self._state, self._starts))

    def set_state(self, state: Any) -> None:
        """Set the policy's hidden state."""
        self._state, self._starts = copy.deepcopy(state)

    def get_action(self, observation: Any) -> tuple[Any, dict[str, Any]]:
        """Predict an action; infos are empty. For a policy with masks there is the keyword `action_mask`."""
        return self._predict_one(observation, {})

    def get_actions(self, observations: Any, *, starts: NDArray[np.bool_] | None = None) -> tuple[Any, dict[str, Any]]:
        """Predict n actions at once, always the same n; infos are empty.

        Without `starts`, (n,) bool, all rows start a trajectory in the first call after `reset`, and none later. For a
        policy with masks, the method has the keyword `action_masks`.
        """
        return self._predict_all(observations, starts, {})

    def _get_masked_action(self, observation: Any, *, action_mask: Any = None) -> tuple[Any, dict[str, Any]]:
        return self._predict_one(observation, {ACTION_MASKS: action_mask})

    def _get_masked_actions(
        self, observations: Any, *, starts: NDArray[np.bool_] | None = None, action_masks: Any = None
    ) -> tuple[Any, dict[str, Any]]:
        return self._predict_all(observations, starts, {ACTION_MASKS: action_masks})

    def _predict_one(self, observation: Any, masks: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
        action, self._state = self._predict(observation, self._state, np.array([self._starts]), masks)
        self._starts = False
        return action[()] if isinstance(action, np.ndarray) and not action.shape else action, {}

    def _predict_all(
        self, observations: Any, starts: NDArray[np.bool_] | None, masks: dict[str, Any]
    ) -> tuple[Any, dict[str, Any]]:
        starts = np.full(n_rows_of(observations), self._starts) if starts is None else starts
        actions, self._state = self._predict(observations, self._state, starts, masks)
        self._starts = False
        return actions, {}

    def _predict(
        self, observations: Any, state: Any, starts: NDArray[np.bool_], masks: dict[str, Any]
    ) -> tuple[Any, Any]:
        predict, statistics = self.policy.predict, self.statistics
        if statistics is not None:
            observations = statistics.normalized(observations)
        predicted = predict(observations, state=state, episode_start=starts, deterministic=self.deterministic, **masks)
        if not (isinstance(predicted, tuple) and len(predicted) == 2):
            raise UsageError(f"predict must return (actions, state), but returned {predicted!r}")
        return predicted

    def get_param_values(self) -> dict[str, Any]:
        """Return the policy's `state_dict` as arrays, and the statistics, if any; the policy must be a torch module."""
        statistics = self.statistics
        return arrays_of(self._module("get_param_values")) | ({} if statistics is None else statistics.arrays())

    def set_param_values(self, values: Any) -> None:
        """Copy parameters of `get_param_values` into the policy; without statistics also a `state_dict`.

        Raises:
            UsageError: The policy is not a torch module, or the parameters do not fit.
        """
        module, statistics = self._module("set_param_values"), self.statistics
        if not isinstance(values, Mapping):
            load_arrays(module, values)
            return
        given = {name for name in values if name.startswith(PREFIX)}
        expected = set() if statistics is None else statistics.arrays().keys()
        if given != expected:
            raise UsageError(
                f"the agent has {'no' if statistics is None else 'the'} statistics of a VecNormalize"
                f"{'' if statistics is None else ' ' + ', '.join(sorted(expected))}, but the parameters have "
                f"{', '.join(sorted(given)) or 'none'}: pass a whole agent"
            )
        load_arrays(module, {name: value for name, value in values.items() if name not in given})
        if statistics is not None:
            self._vec_normalize, self._statistics = None, statistics.replaced(values)

    def get_param_converter(self) -> _ModelConverter:
        """Return a converter for a model, a policy or a `state_dict`."""
        if not self._on_torch:
            return _ModelConverter(None, None)
        return _ModelConverter(ModuleConverter.like(type(self).__name__, self.get_param_values()), self.statistics)

    def _module(self, method: str) -> Any:
        if not self._on_torch:
            raise UsageError(f"{method} needs a policy that is a torch module, not {self.policy!r}")
        return self.policy


@dataclass(frozen=True)
class _ModelConverter:
    """Converts agent updates to parameters; see `Agent`."""

    module: ModuleConverter | None
    statistics: ObservationStatistics | None

    def __call__(self, update: Any) -> Any:
        if self.module is None:
            if is_parameters(update):
                raise UsageError("the policy of the agent (SB3Agent) is no torch module, and takes no parameters")
            return NotImplemented
        policy = getattr(update, "policy", None)
        if not is_module(policy) or hasattr(update, "get_action"):
            return self.module(update)
        vec_normalize = _vec_normalize_of(update, None)
        statistics = None if vec_normalize is None else ObservationStatistics.of(vec_normalize)
        values = arrays_of(policy)
        if statistics is not None:
            self._compare_limits(statistics)
            values |= statistics.arrays()
        return self.module.checked(values)

    def _compare_limits(self, other: ObservationStatistics) -> None:
        mine = self.statistics
        if mine is not None and (mine.clip, mine.epsilon) != (other.clip, other.epsilon):
            raise UsageError(
                f"the model's VecNormalize clips at {other.clip:g} and adds {other.epsilon:g} to variances, and the "
                f"agent's clips at {mine.clip:g} and adds {mine.epsilon:g}: pass a whole agent, SB3Agent(model)"
            )


def _vec_normalize_of(model: Any, given: Any) -> Any:
    if given is False:
        return None
    if given is None:
        own = getattr(model, "get_vec_normalize_env", None)
        return own() if callable(own) else None
    return load_vec_normalize(given) if isinstance(given, str | PathLike) else given


def _warn_of_missing_statistics(model: Any, name: str, found: Path | None) -> None:
    """Warn of a model without statistics that was probably trained with them; `found` is a file of them."""
    # Training under a VecNormalize sets this attribute. Algorithms with a replay buffer set it in any case.
    is_told = getattr(model, "_last_original_obs", None) is not None and not hasattr(model, "learning_starts")
    if not is_told and found is None:
        return
    reason = (
        "was trained under VecNormalize" if is_told else f"has {found} next to it, which looks like its VecNormalize"
    )
    warnings.warn(
        f"{name} {reason}; if that normalised observations, pass vec_normalize="
        f"{'FILE, which VecNormalize.save wrote' if found is None else repr(str(found))}, else vec_normalize=False. "
        "Without its statistics the model's actions are probably wrong",
        VecNormalizeWarning,
        stacklevel=3,
    )


def _algorithm(name: str) -> Any:
    packages = [needed("stable_baselines3", "loading a model", "sb3")]
    with contextlib.suppress(ImportError):
        packages.append(importlib.import_module("sb3_contrib"))
    for package in packages:
        if hasattr(package, name):
            return getattr(package, name)
    names = " or ".join(package.__name__ for package in packages)
    hint = "" if len(packages) > 1 else "; sb3_contrib is not installed: pip install sb3-contrib"
    raise UsageError(f"there is no algorithm {name!r} in {names}{hint}")
