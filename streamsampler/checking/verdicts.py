"""Make findings of what was seen of an environment."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from streamsampler.checking.findings import Finding
from streamsampler.checking.values import BufferWatch, DrawWatch, InfoWatch, SpaceWatch, short_list
from streamsampler.data.words import count, duration
from streamsampler.workers.known_wrappers import files_of, stateful_wrapper

__all__ = [
    "finding_of_buffers",
    "finding_of_draws",
    "finding_of_endless",
    "finding_of_ends",
    "finding_of_infos",
    "finding_of_observations",
    "finding_of_rewards",
    "finding_of_wrappers",
]


def finding_of_observations(watch: SpaceWatch) -> Finding:
    """Return whether observations keep to their space."""
    name = "observations"
    if watch.refused is not None:
        return Finding(
            name, "failure", watch.refused,
            "Return what the observation space says, or change the space: samplers refuse these observations",
        )  # fmt: skip
    if watch.outside is not None:
        return Finding(
            name, "failure", f"{count(watch.n_outside, 'observation')}: {watch.outside}",
            "Widen the space to what the environment returns, or clip in the environment. Samplers record such "
            "observations as they are, and log a warning; networks and normalisation may rely on the bounds",
        )  # fmt: skip
    if watch.mistyped is not None:
        return Finding(
            name, "warning", watch.mistyped,
            "Return arrays of the space's dtype (np.asarray(observation, space.dtype)). Samplers convert them, "
            "which takes time, but the agent sees them as they are",
        )  # fmt: skip
    return Finding(name, "pass", "all are in the observation space, with its shape and dtype")


def finding_of_rewards(wrong: str) -> Finding:
    """Return whether rewards are numbers.

    Args:
        wrong: The first that is none; empty where there is none.
    """
    if wrong:
        return Finding("rewards", "failure", wrong, "Let step return a finite number")
    return Finding("rewards", "pass", "all are finite numbers")


def finding_of_infos(watch: InfoWatch, *, is_vector: bool) -> Finding:
    """Return whether infos keep their keys."""
    if watch.wrong is not None:
        return Finding("infos", "failure", watch.wrong, "Return a dict with strings for keys, {} for nothing")
    if sometimes := watch.sometimes:
        key, n = next(iter(sometimes.items()))
        return Finding(
            "infos", "warning",
            f"keys come and go: {short_list(sorted(sometimes))} ({key!r} is in {n:,} of {watch.timesteps:,} "
            "timesteps)",
            "Return the same keys in each timestep, with NaN or -1 where there is nothing to say. Where keys come "
            "and go, batches have a mask for each ('_key'), and need twice the memory",
        )  # fmt: skip
    if watch.changed is not None:
        return Finding(
            "infos", "warning", f"values change their kind: {watch.changed}",
            "Return values of one type, dtype and shape for a key: others are recorded as objects",
        )  # fmt: skip
    ends = f"; at the ends of trajectories {short_list(watch.at_ends)}, too" if watch.at_ends else ""
    what = "vector environments have infos of their own form" if is_vector else "the same keys each timestep"
    return Finding("infos", "pass", f"{what}{ends}")


def finding_of_endless(length: int, within: int, seconds: float, time_limit: int | None) -> Finding:
    """Return what it means that a trajectory did not end.

    Args:
        length: The timesteps that were run of it.
        within: The timesteps within which it was to end.
        seconds: The seconds in which it was to end.
        time_limit: The timesteps after which the environment truncates; None where it does not say.
    """
    if time_limit is not None and time_limit > length:
        return Finding("ends", "pass", f"truncated after {time_limit:,} timesteps (not run to the end here)")
    if length < within:
        return Finding(
            "ends", "warning",
            f"a trajectory did not end within {count(length, 'timestep')}, which took "
            f"{duration(seconds)}; whether it ends is not known",
            "Limit trajectories: max_episode_length=… of samplers, or gymnasium.wrappers.TimeLimit; or check "
            "with a longer time limit",
        )  # fmt: skip
    return Finding(
        "ends", "failure", f"a trajectory did not end within {count(length, 'timestep')}",
        "Limit trajectories: max_episode_length=… of samplers, or gymnasium.wrappers.TimeLimit. Without a "
        "limit an obtaining call waits for a trajectory that never ends",
    )  # fmt: skip


def finding_of_ends(ended: Mapping[str, int], lengths: Sequence[int], limit: int | None) -> Finding:
    """Return how trajectories end.

    Args:
        ended: How many were terminated and truncated by the environment.
        lengths: The lengths of all.
        limit: The timesteps after which the others were cut.
    """
    ends = ", ".join(f"{n:,} {end}" for end, n in ended.items() if n)
    cut = len(lengths) - sum(ended.values())
    ends = ", ".join(filter(None, (ends, f"{cut:,} cut after {limit:,} timesteps" if cut else "")))
    spread = f"lengths from {min(lengths):,} to {max(lengths):,}" if lengths else ""
    return Finding("ends", "pass", "; ".join(filter(None, (ends, spread))))


def finding_of_buffers(watch: BufferWatch) -> Finding:
    """Return whether observations are overwritten."""
    if watch.reused:
        return Finding(
            "buffers", "warning",
            f"an observation that was handed out before was overwritten, {watch.reused}",
            "Samplers copy observations when they record them, so batches are right. Code of your own that keeps "
            "observations, in agents, wrappers or loops, must copy them; or let the environment return new arrays",
        )  # fmt: skip
    return Finding("buffers", "pass", "observations are not overwritten later")


def finding_of_draws(watch: DrawWatch) -> Finding:
    """Return whether the environment draws from global generators."""
    if watch.draws:
        return Finding(
            "generators", "warning", str(watch),
            "Samplers seed these for each trajectory, but VecWorker in lanes refuses draws from them: draw from "
            "self.np_random",
        )  # fmt: skip
    return Finding("generators", "pass", "nothing is drawn from global generators")


def finding_of_wrappers(env: Any) -> Finding:
    """Return whether a wrapper is known to carry something, or to write files."""
    found = stateful_wrapper(env)
    files = files_of([env])
    if found:
        what, _, advice = found.partition(" Instead, ")
        return Finding("wrappers", "failure", what.rstrip("."), f"Instead, {advice}")
    if files:
        return Finding(
            "wrappers", "warning", f"a wrapper writes files: {', '.join(files)}",
            "Give each worker a place of its own: a function that makes the environment is given the worker's number "
            "if it has a parameter `worker_number`",
        )  # fmt: skip
    return Finding("wrappers", "pass", "none that is known to carry something from trajectory to trajectory")
