"""Check what a sampler is given for environments of several agents, where that is known before workers make them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from streamsampler.agents.policies import Policies, PolicyOf, with_policies
from streamsampler.errors import UsageError
from streamsampler.filters.base import Filters
from streamsampler.samplers.per_worker import PerWorker
from streamsampler.workers.base import Worker

__all__ = ["check_policies", "policies_of", "refuse_policies"]


def policies_of(agents: Any, policy_of: PolicyOf | None) -> Any:
    """Return what a sampler was given as `agents`, with `Policies` for dicts of agents by policy name."""
    if isinstance(agents, list | PerWorker):
        return PerWorker([with_policies(each, policy_of) for each in agents])
    return with_policies(agents, policy_of)


def check_policies(agents: Any, worker_class: type[Worker], staleness: Any, filters: Filters) -> tuple[str, ...]:
    """Check the arguments of a sampler that do not go with several policies, or go only with them.

    Args:
        agents: What `policies_of` returned.
        worker_class: The kind of worker.
        staleness: See `Sampler`.
        filters: See `Sampler`.

    Returns:
        The policies' names.

    Raises:
        UsageError: One does not go together with the others.
    """
    all_of = [each for each in (agents if isinstance(agents, PerWorker) else [agents]) if isinstance(each, Policies)]
    names = {name for each in all_of for name in each.agents}
    for name, given in (("observation_filter", filters.observation), ("reward_filter", filters.reward)):
        if given is not None and all_of and not isinstance(given, Mapping):
            raise UsageError(f"with several policies, {name} is a dict by policy name: {', '.join(map(repr, names))}")
        if isinstance(given, Mapping) and (unknown := sorted(map(repr, given.keys() - names))):
            raise UsageError(
                f"{name} names the policies {', '.join(unknown)}, and agents has {sorted(names) or 'none'}"
            )
    if not all_of:
        return ()
    if not worker_class.can_play_several:
        raise UsageError(
            f"agents={{…}} is for environments of several agents, which {worker_class.__name__} does not run: leave "
            "worker_class out"
        )
    if staleness:
        raise UsageError("agents={…} does not go together with staleness=1 yet: leave one of them out")
    return tuple(sorted(names))


def refuse_policies(agents: Any, policy_of: PolicyOf | None, what: str) -> None:
    """Refuse several policies.

    Raises:
        UsageError: There are several, or something says who plays whom.
    """
    if isinstance(agents, Mapping | Policies) or policy_of is not None:
        raise UsageError(f"{what} takes one agent, and not several policies for environments of several agents")
