"""Evaluations in the format of Stable-Baselines3's `EvalCallback`."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from streamsampler.core.atomic import write_whole
from streamsampler.core.errors import UsageError
from streamsampler.core.keywords import suggesting
from streamsampler.evaluation.evaluation import Evaluation


@suggesting()
def save_evaluations(evaluations: Mapping[int, Evaluation], path: str | os.PathLike[str]) -> Path:
    """Write the evaluations made during training to a file, in the format of Stable-Baselines3's `EvalCallback`.

    The file has `timesteps` (n,) int64, the timesteps of training; `results` (n, N) float64, the returns; `ep_lengths`
    (n, N) int64; and, if every evaluation has successes, `successes` (n, N) bool. Readers of the callback's files can
    read it, such as the plots of RL Baselines3 Zoo. Writing needs only NumPy.

    Args:
        evaluations: The evaluations by the timesteps of training; all with the same number of trajectories.
        path: The file, `evaluations.npz` by convention; `.npz` is appended to other names. An existing file is
            replaced.

    Returns:
        The path written.

    Raises:
        UsageError: The dict is empty, the numbers of trajectories differ, or a key is no integer.
        OSError: The file cannot be written; an existing file is unchanged.
    """
    for timesteps, evaluation in evaluations.items():
        if isinstance(timesteps, bool) or not isinstance(timesteps, int | np.integer) or timesteps < 0:
            raise UsageError(f"timesteps must be integers of at least 0, not {timesteps!r}")
        if not isinstance(evaluation, Evaluation):
            raise UsageError(f"save_evaluations needs evaluations, not {evaluation!r:.80}")
    sizes = {timesteps: len(evaluation) for timesteps, evaluation in evaluations.items()}
    if not sizes:
        raise UsageError("there are no evaluations to write")
    if len(set(sizes.values())) > 1:
        found = ", ".join(f"{size} at timestep {timesteps}" for timesteps, size in sizes.items())
        raise UsageError(f"all evaluations in a file must have the same number of trajectories, but there are {found}")
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
