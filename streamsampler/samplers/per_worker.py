"""Give each worker its own agent, environment or update."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from typing import Any, Generic, TypeAlias, TypeVar

from streamsampler.agents.base import AgentLike
from streamsampler.core.errors import UsageError
from streamsampler.core.keywords import suggesting
from streamsampler.core.words import count
from streamsampler.environments.updates import EnvLike
from streamsampler.samplers.per_task import PerTask

Item = TypeVar("Item")


@suggesting()
class PerWorker(Generic[Item]):
    """Give each worker its own item: worker w receives item w.

    For `agents`, `envs`, `agent_update` and `env_update`. For example::

        sampler = MultiprocessingSampler(PerWorker([cautious, bold]), "CartPole-v1")
        sampler.obtain_samples(1000, agent_update=PerWorker([(weights_0, bias_0), (weights_1, bias_1)]))
        sampler.obtain_samples(1000, agent_update=PerWorker([None, bold]))  # changes nothing for worker 0

    A plain list means the same in `agents`, `envs` and `env_update`, and in `agent_update` if every item is an agent;
    other lists are refused, because a list of arrays could be a single agent's parameters.

    Trajectory i of a batch belongs to worker `i % n_workers`, so with different items results depend on the number of
    workers.

    Args:
        items: An item for each worker. In an update, None changes nothing for its worker.

    Attributes:
        items: The items, a tuple.

    Raises:
        UsageError: The items have no order, as in a dict or a set, or are the characters of a string (a ValueError).
    """

    def __init__(self, items: Iterable[Item]) -> None:
        if not isinstance(items, Iterable) or isinstance(items, str | bytes | Mapping | Set | PerWorker):
            raise UsageError(f"PerWorker takes a list with one item for each worker, not a {type(items).__qualname__}")
        self.items = tuple(items)

    def __len__(self) -> int:
        return len(self.items)

    def __iter__(self) -> Iterator[Item]:
        return iter(self.items)

    def __getitem__(self, worker: int) -> Item:
        return self.items[worker]

    def __repr__(self) -> str:
        return f"PerWorker({list(self.items)!r})"


Agents: TypeAlias = AgentLike | PerWorker[Any] | PerTask[Any] | Sequence[AgentLike] | Mapping[str, AgentLike]
"""An agent for all workers, or an agent for each; or several, by policy name."""

Envs: TypeAlias = EnvLike | PerWorker[Any] | PerTask[Any] | Sequence[EnvLike | None]
"""An environment for all workers, or an environment for each; in an update, None changes nothing for a worker."""


def items_by_worker(given: Any) -> list[Any] | None:
    """Return the items of a `PerWorker` or a list; None for anything else, which is for all workers."""
    return list(given) if isinstance(given, list | PerWorker) else None


def check_length(name: str, items: list[Any], n_workers: int, hint: str = "") -> None:
    if len(items) != n_workers:
        raise UsageError(f"{name} has {count(len(items), 'item')}, but there are {count(n_workers, 'worker')}{hint}")
