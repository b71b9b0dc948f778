"""What a filter is, and the two filters of a sampler together."""

from __future__ import annotations

import pickle
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol, runtime_checkable

import cloudpickle
import numpy as np
from numpy.typing import NDArray

from streamsampler.data import trees
from streamsampler.data.batch import TrajectoryBatch
from streamsampler.data.multi_agent import MultiAgentBatch
from streamsampler.data.raw import RawRows
from streamsampler.data.recorder import Rollouts
from streamsampler.errors import DataError, SamplerError, UsageError

__all__ = ["Filter", "Filters", "check_filter"]

_METHODS = ("apply", "summarise", "merge")


@runtime_checkable
class Filter(Protocol):
    """Changes observations or rewards with statistics of what was sampled before; see `streamsampler.filters`."""

    def apply(self, data: Any) -> Any:
        """Return data as the filter changes it, in new arrays; the filter stays as it is.

        Args:
            data: One observation (*O), or n of them (n, *O), or a tree of such; of rewards (n,) float64. Each element
                of the result must depend on its own element alone, so that n rows give what each row gives alone.
        """
        ...

    def summarise(self, data: Any) -> Any:
        """Return what the statistics need of one trajectory; it can be pickled, and the filter stays as it is.

        Args:
            data: The trajectory's observations, tree of (t, *O), last observation excluded; or its rewards, (t,).
        """
        ...

    def merge(self, summaries: Sequence[Any]) -> Filter:
        """Return a new filter, whose statistics have these summaries as well; this one stays as it is.

        Args:
            summaries: One for each trajectory, in order. To merge them in several calls must come to the same.
        """
        ...


def check_filter(given: Any, name: str) -> None:
    """Check that an argument is a filter, or None.

    Raises:
        UsageError: It is neither; says which method is missing.
    """
    if given is None:
        return
    if isinstance(given, type):
        raise UsageError(f"{name} is the class {given.__qualname__} itself: pass an instance of it")
    missing = [method for method in _METHODS if not callable(getattr(given, method, None))]
    if missing:
        raise UsageError(
            f"{name}, a {type(given).__qualname__}, has no {' and no '.join(missing)}: a filter has apply(data), "
            "summarise(data) and merge(summaries); see streamsampler.filters"
        )


@dataclass(frozen=True)
class Filters:
    """The filters of a sampler, with their statistics: `sampler.filters`.

    Attributes:
        observation: Changes observations; None leaves them as they are. With several policies, one for each that it
            names.
        reward: Changes rewards; None leaves them as they are. With several policies, one for each that it names.

    Raises:
        UsageError: One of them is no filter.
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
        """Return the filters of one of several policies."""
        return Filters(*(it.get(policy) if isinstance(it, Mapping) else it for it in (self.observation, self.reward)))

    def facts(self) -> dict[str, str]:
        """Return what provenance says of the filters: their `repr`, which tells statistics apart, or their class."""
        each = {"observation_filter": self.observation, "reward_filter": self.reward}
        return {name: _text(given) for name, given in each.items() if given is not None}

    def summaries(self, rollouts: Rollouts) -> bytes:
        """Return summaries of the trajectories, pickled: the engine's memory is used again before they are merged.

        Returns:
            Those of observations and those of rewards, in order; None for each trajectory where there is no filter.
        """
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
            pickled: bytes = cloudpickle.dumps(found)
            return pickled

    def summaries_of(self, batches: Iterable[TrajectoryBatch[Any, Any]]) -> list[tuple[Any, Any]]:
        """Return a summary of each trajectory of batches, from their raw data: those that workers returned."""
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
        """Return for each episode the summaries of its agents' trajectories, by policy."""
        found = [_ByPolicy() for _ in range(n_episodes)], [_ByPolicy() for _ in range(n_episodes)]
        for policy, lengths, observations, rewards, episodes in parts:
            for of_each, summaries in zip(
                found, self.of(policy)._summaries(lengths, observations, rewards), strict=True
            ):
                for episode, summary in zip(episodes.tolist(), summaries, strict=True):
                    of_each[episode].setdefault(policy, []).append(summary)
        return found

    def _summaries(self, lengths: Any, observations: Any, rewards: Any) -> tuple[Collection[Any], Collection[Any]]:
        """Return a summary of each trajectory's observations, and one of its rewards; None where there is no filter."""
        lengths = np.asarray(lengths, np.int64)
        return _of_each(self.observation, observations, lengths), _of_each(self.reward, rewards, lengths)

    def merged(self, summaries: Iterable[tuple[Any, Any]]) -> Filters:
        """Return filters whose statistics have these summaries as well.

        Args:
            summaries: One of observations and one of rewards for each trajectory, in order.

        Raises:
            UsageError: A `merge` returns no filter.
            SamplerError: A `merge` raises.
        """
        each = list(summaries)
        observation, reward = self.observation, self.reward
        if observation is not None:
            observation = _merged("observation_filter", observation, [one for one, _ in each])
        if reward is not None:
            reward = _merged("reward_filter", reward, [one for _, one in each])
        return replace(self, observation=observation, reward=reward)

    def applied(self, batch: TrajectoryBatch[Any, Any]) -> TrajectoryBatch[Any, Any]:
        """Return a batch with filtered observations and rewards, and with the raw ones as its raw data.

        Raises:
            DataError: A filter returns another number of rows.
        """
        if isinstance(batch, MultiAgentBatch):
            return replace(batch, policies={name: self.of(name).applied(it) for name, it in batch.policies.items()})
        if not self:
            return batch
        raw = RawRows(batch.observations, batch.last_observations, batch.rewards)
        observations, last, rewards = raw
        if self.observation is not None:
            observations = _rows("observation_filter", self.observation, observations)
            last = _rows("observation_filter", self.observation, last)
        if self.reward is not None:
            rewards = np.asarray(_rows("reward_filter", self.reward, rewards), dtype=np.float64)
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


class _ByPolicy(dict[str, list[Any]]):
    """The summaries of the agents' trajectories in an episode, by policy."""


def _merged(name: str, given: Any, summaries: list[Any]) -> Any:
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
    # What Python prints by itself has an address, which is another one each time.
    return text if " at 0x" not in text else type(given).__qualname__


def _rows(name: str, given: Filter, raw: Any) -> Any:
    found = given.apply(raw)
    wanted = next((len(leaf) for _, leaf in trees.leaves(raw)), 0)
    for path, leaf in trees.leaves(found):
        if np.shape(leaf)[:1] != (wanted,):
            raise DataError(f"{name} made {np.shape(leaf)} of {wanted} rows{path and f' at {path}'}: each row is kept")
    return found
