"""Estimates from rewards, over all trajectories of a batch at once."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

__all__ = ["discounted_returns"]

_FEW = 24  # trajectories: fewer take less time one by one than a call of NumPy for each timestep


def discounted_returns(rewards: NDArray[np.float64], lengths: NDArray[np.int64], gamma: float) -> NDArray[np.float64]:
    """Return the discounted return from each timestep to the end of its trajectory.

    All trajectories are walked through together, from their ends backwards: those of at least k timesteps take part in
    the k-th step. The last ones, which are longer than the others, are walked through one by one. Both compute the same
    numbers, bit for bit.

    Args:
        rewards: (T,) float64, trajectory after trajectory.
        lengths: (N,) int64, their timesteps.
        gamma: The discount.

    Returns:
        (T,) float64.
    """
    gamma = float(gamma)
    longest_first = np.argsort(-lengths, kind="stable")
    sizes = lengths[longest_first]
    at = np.cumsum(lengths)[longest_first]  # the row after the one that is next
    returns = np.empty(len(rewards))
    following = np.zeros(len(sizes))
    # By step, how many trajectories take part in it: as far as there are enough of them.
    n_steps = int(sizes[_FEW - 1]) if len(sizes) >= _FEW else 0
    n_active = np.searchsorted(-sizes, -np.arange(1, n_steps + 1), side="right")
    with np.errstate(over="ignore", invalid="ignore"):  # infinite rewards are data
        for step, n in enumerate(n_active.tolist(), start=1):
            rows = at[:n] - step
            following[:n] = returns[rows] = rewards[rows] + gamma * following[:n]
    for number in np.flatnonzero(sizes > n_steps).tolist():
        start, stop = int(at[number] - sizes[number]), int(at[number]) - n_steps
        value, backwards = float(following[number]), []
        for reward in rewards[start:stop][::-1].tolist():
            value = reward + gamma * value
            backwards.append(value)
        returns[start:stop] = backwards[::-1]
    return returns
