"""Join rollouts of trajectories recorded separately."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from streamsampler.data import trees
from streamsampler.data.batch_fields import INFOS
from streamsampler.data.info_columns import InfoColumns, join_undecided
from streamsampler.data.recorder import PolicyRollouts, Rollouts

__all__ = ["joined"]


def joined(parts: Sequence[Rollouts]) -> Rollouts:
    def infos(name: str) -> InfoColumns:
        columns: list[InfoColumns] = [getattr(part, name) for part in parts]
        return join_undecided([(each, 0, each.length) for each in columns])

    def rows(name: str) -> trees.Tree:
        return trees.concatenate([getattr(part, name) for part in parts])

    fields: dict[str, Any] = {name: rows(name) for name in _TREES} | {name: infos(name) for name in INFOS}
    return Rollouts(
        **fields,
        has_last_values=any(part.has_last_values for part in parts),
        policies=_joined_policies(parts),
        remarks=tuple({kind: text for part in parts for kind, text in part.remarks}.items()),
    )


def _joined_policies(parts: Sequence[Rollouts]) -> tuple[PolicyRollouts, ...]:
    found: dict[str, list[tuple[int, PolicyRollouts]]] = {}
    n_episodes = 0
    for part in parts:
        for played in part.policies:
            found.setdefault(played.policy, []).append((n_episodes, played))
        n_episodes += part.n_trajectories
    return tuple(_of_policy(name, *zip(*found[name], strict=True)) for name in sorted(found))


def _of_policy(name: str, firsts: Sequence[int], each: Sequence[PolicyRollouts]) -> PolicyRollouts:
    """Join a policy's trajectories; `firsts` has the number of episodes before each part."""
    known = sorted({agent for part in each for agent in part.known})
    number_of = {agent: number for number, agent in enumerate(known)}
    numbers = [
        np.array([number_of[part.known[number]] for number in part.agents.tolist()], np.int64) if known else part.agents
        for part in each
    ]
    earlier: Any = None
    if any(part.earlier is not None for part in each):
        of_parts = [part.earlier or _none_before(len(part.agents)) for part in each]
        earlier = tuple(map(np.concatenate, zip(*of_parts, strict=True)))
    return PolicyRollouts(
        name, joined([part.rollouts for part in each]), np.concatenate(numbers),
        np.concatenate([first + part.episodes for first, part in zip(firsts, each, strict=True)]),
        np.concatenate([part.env_timesteps for part in each]), tuple(known), each[0].spaces, earlier,
    )  # fmt: skip


def _none_before(n: int) -> tuple[Any, Any]:
    return np.zeros(n, np.int64), np.zeros(n)


_TREES = ("observations", "last_observations", "actions", "rewards", "terminated", "truncated", "lengths")
