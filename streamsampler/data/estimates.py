"""Estimates from rewards and values, over all trajectories of a batch at once. Float64 throughout."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

__all__ = ["Floats", "VTrace", "accumulate_backwards", "advantages", "following_values", "vtrace"]

Floats = NDArray[np.float64]

_FEW = 24  # trajectories: fewer take less time one by one than a call of NumPy for each timestep


class VTrace(NamedTuple):
    """What V-trace estimates (see `TrajectoryBatch.vtrace`).

    Attributes:
        targets: (T,) what the values are to become.
        advantages: (T,) of the actions, clipped importance weights included.
    """

    targets: Any
    advantages: Any


def accumulate_backwards(
    terms: Floats, lengths: NDArray[np.int64], factors: float | Floats, last: Floats | None = None
) -> Floats:
    """Return `y[t] = terms[t] + factors[t] * y[t + 1]`, from the end of each trajectory backwards.

    All trajectories are walked through together, from their ends backwards: those of at least k timesteps take part in
    the k-th step. The last ones, which are longer than the others, are walked through one by one. Both compute the same
    numbers, bit for bit.

    Args:
        terms: (T,) float64, trajectory after trajectory.
        lengths: (N,) int64, their timesteps.
        factors: One for all timesteps, or (T,) float64.
        last: (N,) float64: what follows each trajectory's last timestep; None for zeros.

    Returns:
        (T,) float64.
    """
    longest_first = np.argsort(-lengths, kind="stable")
    sizes = lengths[longest_first]
    at = np.cumsum(lengths)[longest_first]  # the row after the one that is next
    results = np.empty(len(terms))
    following = np.zeros(len(sizes)) if last is None else last[longest_first]
    # By step, how many trajectories take part in it: as far as there are enough of them.
    n_steps = int(sizes[_FEW - 1]) if len(sizes) >= _FEW else 0
    n_active = np.searchsorted(-sizes, -np.arange(1, n_steps + 1), side="right")
    one = float(factors) if np.ndim(factors) == 0 else None
    each = np.broadcast_to(factors, terms.shape)
    with np.errstate(over="ignore", invalid="ignore"):  # infinite rewards are data
        for step, n in enumerate(n_active.tolist(), start=1):
            rows = at[:n] - step
            factor = each[rows] if one is None else one
            following[:n] = results[rows] = terms[rows] + factor * following[:n]
    for number in np.flatnonzero(sizes > n_steps).tolist():
        start, stop = int(at[number] - sizes[number]), int(at[number]) - n_steps
        value, backwards = float(following[number]), []
        for term, factor in zip(terms[start:stop][::-1].tolist(), each[start:stop][::-1].tolist(), strict=True):
            value = term + factor * value
            backwards.append(value)
        results[start:stop] = backwards[::-1]
    return results


def following_values(values: Floats, last: Floats, lengths: NDArray[np.int64]) -> Floats:
    """Return the value of what follows each timestep: of the next one, and at a trajectory's end its `last`."""
    following = np.empty(len(values))
    following[:-1] = values[1:]
    following[np.cumsum(lengths) - 1] = last
    return following


def advantages(
    rewards: Floats, values: Floats, last: Floats, lengths: NDArray[np.int64], gamma: float, lambda_: float
) -> Floats:
    """Return generalised advantage estimates (see `TrajectoryBatch.advantages`); `last` is 0 after terminal states."""
    with np.errstate(over="ignore", invalid="ignore"):
        errors = rewards + gamma * following_values(values, last, lengths) - values
    return accumulate_backwards(errors, lengths, gamma * lambda_)


def vtrace(
    rewards: Floats, values: Floats, last: Floats, lengths: NDArray[np.int64], ratios: Floats, gamma: float,
    lambda_: float, clip_rho: float, clip_c: float,
) -> VTrace:  # fmt: skip
    """Return V-trace's estimates (see `TrajectoryBatch.vtrace`); `last` is 0 after terminal states."""
    rho, trace = np.minimum(ratios, clip_rho), lambda_ * np.minimum(ratios, clip_c)
    with np.errstate(over="ignore", invalid="ignore"):
        errors = rho * (rewards + gamma * following_values(values, last, lengths) - values)
        targets = values + accumulate_backwards(errors, lengths, gamma * trace)
        return VTrace(targets, rho * (rewards + gamma * following_values(targets, last, lengths) - values))
