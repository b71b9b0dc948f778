"""Run an environment in a sampler of a single worker, for a check."""

from __future__ import annotations

from dataclasses import dataclass, field
from time import monotonic
from typing import Any

import numpy as np

from streamsampler.agents.base import (
    as_agent,
    takes_masks,
)
from streamsampler.agents.masks import ACTION_MASK
from streamsampler.agents.policies import Policies, with_policies
from streamsampler.checking.env_facts import Facts
from streamsampler.checking.findings import Finding
from streamsampler.checking.limits import CheckSetup, EnoughError, TimeIsUpError, closing
from streamsampler.core.errors import SamplerError
from streamsampler.environments.updates import EnvUpdate
from streamsampler.workers.logs import quiet

_TRAJECTORIES = 20


@dataclass
class Ran:
    """The result of a run of an environment in a sampler.

    Attributes:
        batches: The batches.
        endless: Length of an unfinished trajectory; None if all ended.
        error: The error that ended the run, or None.
        stats: The sampler's statistics.
    """

    batches: list[Any] = field(default_factory=list)
    endless: int | None = None
    error: SamplerError | None = None
    stats: Any = None

    @property
    def lengths(self) -> list[int]:
        """Lengths of the trajectories that ended, or would be truncated by samplers."""
        lengths = [length for batch in self.batches for length in batch.lengths.tolist()]
        return [length for length in lengths if length != self.endless]

    @property
    def n_terminated(self) -> int:
        return sum(int(batch.terminated.sum()) for batch in self.batches)

    @property
    def timesteps(self) -> int:
        """Number of timesteps, at least."""
        return max(sum(int(batch.n_timesteps) for batch in self.batches), self.endless or 0)

    @property
    def step_seconds(self) -> float:
        """Seconds per timestep, about."""
        seconds = sum(float(batch.stats.seconds) for batch in self.batches)
        return max(seconds / max(1, self.timesteps), 1e-9)

    @property
    def n_bad_rewards(self) -> int:
        """Number of rewards that are not finite, those of all agents included."""
        batches = [each for batch in self.batches for each in getattr(batch, "policies", {"": batch}).values()]
        return sum(int((~np.isfinite(batch.rewards)).sum()) for batch in batches)


def run(agent: Any, env: EnvUpdate, facts: Facts, limits: CheckSetup, within: int, seconds: float) -> Ran:
    """Run trajectories, one per call; of a vector environment, one per call in each of its environments.

    Raises:
        TimeIsUpError: The time limit of the check is over.
        SerializationError: The environment or the agent cannot be pickled.
    """
    ran, until, n_slots = Ran(), monotonic() + seconds, facts.n_slots or 1
    longest = limits.max_episode_length
    if facts.n_slots is None:  # vector environments truncate their own trajectories
        longest = min(within, longest or within)
    sampler = limits.sampler(agent, env, facts, check="warn", max_episode_length=longest)
    with quiet(), closing(sampler):
        try:
            for _ in range(_TRAJECTORIES if facts.n_slots is None else 1):
                batch = sampler.obtain_trajectories(n_slots, progress=limits.guard(seconds))
                ran.batches.append(batch)
                cut = facts.n_slots is None and within != limits.max_episode_length and not batch.terminated.all()
                if cut and batch.lengths.max() == within:
                    ran.endless = within
                if ran.endless is not None or monotonic() >= until:
                    break
        except EnoughError as error:
            ran.endless = error.timesteps // n_slots
        except TimeIsUpError:
            raise
        except SamplerError as error:
            ran.error = error
        finally:
            ran.stats = sampler.stats
    return ran


def finding_of_masks(agent: Any, facts: Facts, ran: Ran) -> Finding | None:
    """Return whether the environment's masks of actions reach the agent; None without any sign of masks."""
    batches = [each for batch in ran.batches for each in getattr(batch, "policies", {"": batch}).values()]
    seen = any(isinstance(each.observations, dict) and ACTION_MASK in each.observations for each in batches)
    in_infos = any(ACTION_MASK in each.env_infos or ACTION_MASK in each.episode_infos for each in batches)
    where = {"observations": seen, "infos": in_infos, "action_masks()": facts.has_masks}
    places = " and ".join(place for place, has in where.items() if has)
    if not places:
        return None
    given = with_policies(agent, None)
    agents = given.agents if isinstance(given, Policies) else {"": as_agent(given)}
    lacking = [name for name, it in agents.items() if not (takes_masks(it) or takes_masks(it, together=True))]
    if not lacking:
        return Finding("masks", "pass", f"the environment's masks of actions ({places}) reach the agent")
    who = f"the agent{' ' if any(lacking) else ''}{', '.join(lacking)}"
    what = f"the environment has masks of actions ({places}), and {who} takes no action_mask"
    if seen:
        return Finding("masks", "pass", f"{what}: it sees them only in its observations")
    return Finding(
        "masks", "warning", f"{what}: it may choose forbidden actions",
        "Let get_action take the keyword action_mask, and get_actions action_masks: see streamsampler/docs/agents.md",
    )  # fmt: skip
