"""Evaluations as the `evaluations.npz` that the `EvalCallback` of Stable-Baselines3 writes.

The file has `timesteps` (n,) int64, how long the agent had been trained; `results` (n, N) float64, the returns;
`ep_lengths` (n, N) int64; and, where every evaluation knows of successes, `successes` (n, N) bool. What reads the
callback's files reads these: `numpy.load`, the plots of RL Baselines3 Zoo. Nothing but NumPy is needed to write it.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from streamsampler.core.atomic import write_whole
from streamsampler.core.errors import UsageError
from streamsampler.evaluation.evaluation import Evaluation


def save_evaluations(evaluations: Mapping[int, Evaluation], path: str | os.PathLike[str]) -> Path:
    """Write evaluations of an agent that was evaluated while it was trained.

    Args:
        evaluations: The evaluations, by how many timesteps the agent had been trained for; all of as many trajectories.
        path: The file, `evaluations.npz` by convention; `.npz` is appended where it is missing. A file of that name is
            replaced.

    Returns:
        The path written.

    Raises:
        UsageError: There are none; they have different numbers of trajectories; or the timesteps are no integers.
        OSError: The file cannot be written; what was there is still there.
    """
    for timesteps, evaluation in evaluations.items():
        if isinstance(timesteps, bool) or not isinstance(timesteps, int | np.integer) or timesteps < 0:
            raise UsageError(f"timesteps are integers of at least 0, and {timesteps!r} is none")
        if not isinstance(evaluation, Evaluation):
            raise UsageError(f"save_evaluations takes evaluations, not {evaluation!r:.80}")
    sizes = {timesteps: len(evaluation) for timesteps, evaluation in evaluations.items()}
    if not sizes:
        raise UsageError("there are no evaluations to write")
    if len(set(sizes.values())) > 1:
        found = ", ".join(f"{size} at timestep {timesteps}" for timesteps, size in sizes.items())
        raise UsageError(f"evaluations.npz holds as many trajectories for each evaluation, and there are {found}")
    inorder = sorted(evaluations.items())
    arrays = {
        "timesteps": np.array([timesteps for timesteps, _ in inorder], np.int64),
        "results": np.stack([evaluation.returns for _, evaluation in inorder]),
        "ep_lengths": np.stack([evaluation.lengths for _, evaluation in inorder]),
    }
    successes = [evaluation.successes for _, evaluation in inorder if evaluation.successes is not None]
    if len(successes) == len(inorder):
        arrays["successes"] = np.stack(successes)
    target = Path(path)
    target = target if target.name.endswith(".npz") else target.with_name(f"{target.name}.npz")
    write_whole(target, lambda file: np.savez(file, **arrays))  # type: ignore[arg-type]
    return target
