"""Describe what decides about a sampler's trajectories, as JSON can hold it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from streamsampler.samplers.updates import Updates
from streamsampler.scheduling.restarts import Policy
from streamsampler.scheduling.result import Order
from streamsampler.workers.factory import WorkerSetup

__all__ = ["provenance_of"]


def provenance_of(
    setup: WorkerSetup, policy: Policy, order: Order, updates: Updates[Any], version: int, fingerprints: Sequence[str]
) -> dict[str, Any]:
    """Return what decides about the trajectories of an agent version besides the seed; see `Sampler.provenance`."""
    environments = list(dict.fromkeys(updates.about("env")))
    worker_class = setup.factory.worker_class
    return {
        "environment": environments[0] if len(environments) == 1 else environments,
        "max_episode_length": setup.factory.max_episode_length,
        "order": order,
        "on_failure": policy.on_failure,
        "worker_threads": setup.threads,
        **({"agent_version": version} if version > 1 else {}),
        **({"n_workers": setup.n_workers} if updates.differ else {}),
        **({"worker": f"{worker_class.__name__}: {worker_class.revision}"} if worker_class.revision else {}),
        **({"fingerprints": list(fingerprints)} if fingerprints else {}),
    }
