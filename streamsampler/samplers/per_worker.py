"""Give each worker its own agent, environment or update."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from typing import Any, Generic, TypeAlias, TypeVar

from streamsampler.agents.base import AgentLike
from streamsampler.core.errors import UsageError
from streamsampler.core.keywords import suggesting
from streamsampler.core.words import count
from streamsampler.environments.updates import EnvLike
from streamsampler.samplers.of_tasks import OfTasks

Item = TypeVar("Item")


@suggesting()
class PerWorker(Generic[Item]):
    """Give each worker its own item: worker w gets item w.

    For `agents`, `envs`, `agent_update` and `env_update`. For example::

        sampler = MultiprocessingSampler(PerWorker([cautious, bold]), "CartPole-v1")
        sampler.obtain_samples(1000, agent_update=PerWorker([(weights_0, bias_0), (weights_1, bias_1)]))
        sampler.obtain_samples(1000, agent_update=PerWorker([None, bold]))  # changes nothing for worker 0

    A bare list means the same for `agents`, `envs` and `env_update`, and for `agent_update` where every item is an
    agent. Any other list is an error there, because a list of arrays may as well be one set of parameters.

    Trajectory i of a batch belongs to worker `i % n_workers`; so with different items, results depend on the number of
    workers.

    Args:
        items: One item for each worker. In an update, None changes nothing for that worker.

    Attributes:
        items: The items, a tuple.

    Raises:
        UsageError: The items are in no order, as those of a dict or a set, or are the characters of a string (a
            ValueError).
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


Agents: TypeAlias = AgentLike | PerWorker[Any] | OfTasks[Any] | Sequence[AgentLike] | Mapping[str, AgentLike]
"""One agent for all workers, or one for each; or several, by policy name."""

Envs: TypeAlias = EnvLike | PerWorker[Any] | OfTasks[Any] | Sequence[EnvLike | None]
"""One environment for all workers, or one for each; in an update, None changes nothing for a worker."""


def items_by_worker(given: Any) -> list[Any] | None:
    """Return the items of what was given for each worker, by a `PerWorker` or a list; None if it is for all of them."""
    return list(given) if isinstance(given, list | PerWorker) else None


def check_length(name: str, items: list[Any], n_workers: int, hint: str = "") -> None:
    """Check that there is an item for each worker; the error has a hint of what else may have been meant."""
    if len(items) != n_workers:
        raise UsageError(f"{name} has {count(len(items), 'item')}, but there are {count(n_workers, 'worker')}{hint}")
