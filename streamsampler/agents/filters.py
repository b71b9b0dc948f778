"""Filters of observations and rewards: their protocol, a sampler's pair of them, agents with filtered observations."""

from __future__ import annotations

import functools
import pickle
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol, cast, runtime_checkable

import numpy as np
from gymnasium import spaces as gym_spaces
from numpy.typing import NDArray

from streamsampler.agents.base import acts_alone, as_agent, shared_agent, takes_masks
from streamsampler.core.by_value import dumps_by_value
from streamsampler.core.errors import DataError, SamplerError, UsageError
from streamsampler.data import trees
from streamsampler.data.batch import TrajectoryBatch
from streamsampler.data.batch_fields import RawRows, replaced
from streamsampler.data.multi_agent import MultiAgentBatch
from streamsampler.data.recorder import Rollouts

_METHODS = ("apply", "summarise", "merge")


@runtime_checkable
class Filter(Protocol):
    """Transforms observations or rewards with statistics of earlier samples.

    See `streamsampler/docs/hooks-and-filters.md`.
    """

    def apply(self, data: Any) -> Any:
        """Return transformed data in new arrays; the filter itself does not change.

        Args:
            data: An observation (*O), n of them (n, *O), or a tree of such; or rewards, (n,) float64. Each row of the
                result must depend on that row alone.
        """
        ...

    def summarise(self, data: Any) -> Any:
        """Return a trajectory's contribution to the statistics, a picklable object; the filter itself does not change.

        Args:
            data: The trajectory's observations, a tree of (t, *O) without the last observation; or its rewards, (t,).
        """
        ...

    def merge(self, summaries: Sequence[Any]) -> Filter:
        """Return a new filter with these summaries, in order, merged into its statistics.

        Args:
            summaries: A summary for each trajectory. Merging them in several calls must have the same result.
        """
        ...


def check_filter(given: Any, name: str) -> None:
    """Refuse an argument that is neither a filter nor None; name the missing method."""
    if given is None:
        return
    if isinstance(given, type):
        raise UsageError(f"{name} is the class {given.__qualname__} itself: pass an instance of it")
    missing = [method for method in _METHODS if not callable(getattr(given, method, None))]
    if missing:
        raise UsageError(
            f"{name}, a {type(given).__qualname__}, has no {' and no '.join(missing)}: a filter has apply(data), "
            "summarise(data) and merge(summaries); see streamsampler/docs/hooks-and-filters.md"
        )


@dataclass(frozen=True)
class Filters:
    """The filters of a sampler, with their statistics: `sampler.filters`.

    Attributes:
        observation: Transforms observations; None leaves them unchanged. With several policies, a dict by policy name.
        reward: Transforms rewards likewise.

    Raises:
        UsageError: A filter lacks a method.
    """

    observation: Any = None
    reward: Any = None

    def __post_init__(self) -> None:
        for name, given in (("observation_filter", self.observation), ("reward_filter", self.reward)):
            for policy, each in given.items() if isinstance(given, Mapping) else [(None, given)]:
                check_filter(each, name if policy is None else f"{name}[{policy!r}]")

    def __bool__(self) -> bool:
        return self.observation is not None or self.reward is not None

    def of(self, policy: str) -> Filters:
        """Return a policy's filters."""
        return Filters(*(it.get(policy) if isinstance(it, Mapping) else it for it in (self.observation, self.reward)))

    def facts(self) -> dict[str, str]:
        """Return the filters' entries in provenance: their `repr`, or their class."""
        each = {"observation_filter": self.observation, "reward_filter": self.reward}
        return {name: _text(given) for name, given in each.items() if given is not None}

    def summaries(self, rollouts: Rollouts) -> bytes:
        """Return the trajectories' summaries, pickled: the engine reuses the rollouts' memory before the merge."""
        if rollouts.policies:
            found: Any = self._of_several(
                rollouts.n_trajectories,
                [(it.policy, it.rollouts.lengths, it.rollouts.observations, it.rollouts.rewards, it.episodes)
                 for it in rollouts.policies],
            )  # fmt: skip
        else:
            found = self._summaries(rollouts.lengths, rollouts.observations, rollouts.rewards)
        try:
            return pickle.dumps(found, protocol=5)
        except (pickle.PicklingError, AttributeError, TypeError):
            return dumps_by_value(found)

    def summaries_of(self, batches: Iterable[TrajectoryBatch[Any, Any]]) -> list[tuple[Any, Any]]:
        """Return a summary for each trajectory of batches, from raw data."""
        return [summary for batch in batches for summary in zip(*self._summaries_of(batch), strict=True)]

    def _summaries_of(self, batch: TrajectoryBatch[Any, Any]) -> tuple[Collection[Any], Collection[Any]]:
        if not isinstance(batch, MultiAgentBatch):
            return self._summaries(batch.lengths, batch.raw_observations, batch.raw_rewards)
        return self._of_several(
            len(batch),
            [(name, it.lengths, it.raw_observations, it.raw_rewards, it.episode_numbers)
             for name, it in batch.policies.items()],
        )  # fmt: skip

    def _of_several(self, n_episodes: int, parts: Sequence[tuple[Any, ...]]) -> tuple[Collection[Any], Collection[Any]]:
        """Return, for each episode, its agents' summaries by policy."""
        found = [_ByPolicy() for _ in range(n_episodes)], [_ByPolicy() for _ in range(n_episodes)]
        for policy, lengths, observations, rewards, episodes in parts:
            for of_each, summaries in zip(
                found, self.of(policy)._summaries(lengths, observations, rewards), strict=True
            ):
                for episode, summary in zip(episodes.tolist(), summaries, strict=True):
                    of_each[episode].setdefault(policy, []).append(summary)
        return found

    def _summaries(self, lengths: Any, observations: Any, rewards: Any) -> tuple[Collection[Any], Collection[Any]]:
        lengths = np.asarray(lengths, np.int64)
        return _of_each(self.observation, observations, lengths), _of_each(self.reward, rewards, lengths)

    def merged(self, summaries: Iterable[tuple[Any, Any]]) -> Filters:
        """Return filters with pairs of summaries (observations, rewards) merged into their statistics, in order.

        Raises:
            UsageError: A `merge` returns no filter.
            SamplerError: A `merge` raises.
        """
        each = list(summaries)
        observation = _merged("observation_filter", self.observation, [one for one, _ in each])
        return Filters(observation, _merged("reward_filter", self.reward, [one for _, one in each]))

    def applied(self, batch: TrajectoryBatch[Any, Any]) -> TrajectoryBatch[Any, Any]:
        """Return a batch with filtered observations and rewards, and the originals as its raw data.

        Raises:
            DataError: A filter returns another number of rows.
        """
        if isinstance(batch, MultiAgentBatch):
            policies = {name: self.of(name).applied(it) for name, it in batch.policies.items()}
            return cast("MultiAgentBatch", replaced(batch, policies=policies))
        if not self:
            return batch
        raw = RawRows(batch.observations, batch.last_observations, batch.rewards)
        observations, last = (_rows("observation_filter", self.observation, rows) for rows in raw[:2])
        rewards = np.asarray(_rows("reward_filter", self.reward, raw.rewards), dtype=np.float64)
        return replace(batch, observations=observations, last_observations=last, rewards=rewards, raw=raw)


def _of_each(given: Filter | None, data: Any, lengths: NDArray[np.int64]) -> Collection[Any]:
    if given is None:
        return [None] * len(lengths)
    faster = getattr(given, "summarise_each", None)
    if faster is not None and (found := faster(data, lengths)) is not None:
        return found  # type: ignore[no-any-return]
    ends = np.cumsum(lengths).tolist()
    return [
        given.summarise(trees.take(data, slice(start, stop))) for start, stop in zip([0, *ends], ends, strict=False)
    ]


class _ByPolicy(dict[str, list[Any]]): ...


def _merged(name: str, given: Any, summaries: list[Any]) -> Any:
    if given is None:
        return None
    if isinstance(given, Mapping):
        return {
            policy: _merged(f"{name}[{policy!r}]", each, [s for it in summaries for s in it.get(policy, ())])
            for policy, each in given.items()
        }
    if summaries and isinstance(summaries[0], _ByPolicy):
        summaries = [s for it in summaries for each in it.values() for s in each]
    try:
        merged = given.merge(summaries)
    except SamplerError:
        raise
    except Exception as error:
        what = f"{type(error).__qualname__}: {error}"
        raise SamplerError(f"merge of {name}, a {type(given).__qualname__}, raised {what}") from error
    if merged is None:
        raise UsageError(f"merge of {type(given).__qualname__} must return a new filter, not None")
    return merged


def _text(given: Filter) -> str:
    text = repr(given)
    # Python's default repr has an address, different each time.
    return text if " at 0x" not in text else type(given).__qualname__


def _rows(name: str, given: Filter | None, raw: Any) -> Any:
    if given is None:
        return raw
    found = given.apply(raw)
    wanted = next((len(leaf) for _, leaf in trees.leaves(raw)), 0)
    for path, leaf in trees.leaves(found):
        if np.shape(leaf)[:1] != (wanted,):
            raise DataError(
                f"{name} returned {np.shape(leaf)} for {wanted} rows{path and f' at {path}'}: it must return each row"
            )
    return found


_HIDDEN = ("get_param_converter",)  # updates arrive here already converted


class FilterParameters(dict[str, Any]):
    """A parameter value that replaces a `FilteredAgent`'s filter."""

    def __init__(self, filter: Filter, space: Any = None) -> None:  # noqa: A002 - what it is
        super().__init__(filter=filter, space=space)


class FilteredAgent:
    """Shows an agent filtered observations; the filter's statistics are constant.

    Workers use it for an `observation_filter`. Use it directly in `compare`, your own loop, or a file:
    ``FilteredAgent(agent, sampler.filters.observation)``. The agent's other methods, such as `reset`, pass through.

    Args:
        agent: An agent, in any form that samplers accept.
        filter: The filter, which is not changed.
        space: The observation space, for conversion to its dtypes before filtering, as in batches; None converts
            nothing.

    Raises:
        UsageError: The agent or filter is invalid, or the filter has statistics of another space.
    """

    def __init__(self, agent: Any, filter: Filter, space: Any = None) -> None:  # noqa: A002 - what it is
        check_filter(filter, "filter")
        self.agent = as_agent(agent)
        self._set(filter, space)

    def _set(self, given: Filter, space: Any) -> None:
        check_space = getattr(given, "check_space", None)
        if check_space is not None and space is not None:
            check_space(space)
        self.filter = given
        self._space = space
        self._apply = given.apply
        self.wraps_what_acts_alone = acts_alone(self.agent)
        get_action: Any = getattr(self.agent, "get_action", None)
        self._get_action: Callable[..., tuple[Any, dict[str, Any]]] = get_action
        if takes_masks(self.agent):  # callers inspect the signature
            self.get_action = self._get_masked_action  # type: ignore[method-assign]
        box = isinstance(space, gym_spaces.Box)
        self._dtype = space.dtype if box else None
        self._shape = space.shape if box else None
        faster = getattr(given, "on_arrays_of", None)
        self._faster = None if faster is None else faster(space)
        self._nested = space is not None and not box

    def __getstate__(self) -> dict[str, Any]:
        return {"agent": self.agent, "filter": self.filter, "space": self._space}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.agent = state["agent"]
        self._set(state["filter"], state["space"])

    def sharing_parameters(self) -> FilteredAgent | None:
        """Return an agent with the same filter around another agent that shares parameters, or None."""
        return self._sharing() if type(self) is FilteredAgent else None

    def _sharing(self) -> FilteredAgent | None:
        shared = shared_agent(self.agent)
        return None if shared is None else type(self)(shared, self.filter, self._space)

    def __repr__(self) -> str:
        return f"FilteredAgent({self.agent!r}, {self.filter!r})"

    def __getattr__(self, name: str) -> Any:
        # Not during unpickling; and no private names, which copying and pickling look up.
        if name.startswith("_") or name in _HIDDEN or "agent" not in self.__dict__:
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}", name=name, obj=self)
        found = getattr(self.agent, name)
        return self._filtering(found, _ON_OBSERVATIONS[name]) if name in _ON_OBSERVATIONS else found

    def _filtering(self, method: Any, by: str) -> Any:
        @functools.wraps(method)  # callers inspect the signature
        def filtered(observations: Any, *args: Any, **kwargs: Any) -> Any:
            return method(getattr(self, by)(observations), *args, **kwargs)

        return filtered

    def get_action(self, observation: Any) -> tuple[Any, dict[str, Any]]:
        """Choose an action for the filtered observation."""
        if (
            (faster := self._faster) is not None
            and observation.__class__ is np.ndarray
            and observation.dtype is self._dtype
            and observation.shape == self._shape
        ):
            return self._get_action(faster(observation))
        return self._get_action(self._seen(observation))

    def _get_masked_action(self, observation: Any, *, action_mask: Any = None) -> tuple[Any, dict[str, Any]]:
        return self._get_action(self._seen(observation), action_mask=action_mask)

    def _seen(self, observation: Any) -> Any:
        if self._dtype is not None:
            observation = np.asarray(observation, self._dtype)
        elif self._nested:
            observation = _as_of(self._space, observation)
        return self._apply(observation)

    def set_param_values(self, values: Any) -> None:
        """Set a new filter (`FilterParameters`), or the agent's parameters."""
        if isinstance(values, FilterParameters):
            self._set(values["filter"], values["space"])
        else:
            self.agent.set_param_values(values)  # type: ignore[attr-defined]


_ON_OBSERVATIONS = {"get_actions": "_apply", "get_value": "_seen"}


def _as_of(space: Any, observation: Any) -> Any:
    if isinstance(space, gym_spaces.Dict):
        return {key: _as_of(child, observation[key]) for key, child in space.spaces.items()}
    if isinstance(space, gym_spaces.Tuple):
        return tuple(map(_as_of, space.spaces, observation))
    return np.asarray(observation, space.dtype) if isinstance(space, gym_spaces.Box) else observation
