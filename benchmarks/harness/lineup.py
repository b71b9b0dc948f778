"""List the contenders, by name."""

from __future__ import annotations

from collections.abc import Sequence

from benchmarks.harness.running import Contender

__all__ = ["BARE", "LEAST", "LIMITS", "OURS", "PEERS", "QUEUES", "THROUGHPUT", "chosen", "ours"]

BARE = Contender("bare", "bare")
LEAST = Contender("least", "least")
LIMITS = (BARE, Contender("bare_unseeded", "bare", {"seeded": False}), LEAST)


def ours(name: str = "ours", **settings: object) -> Contender:
    """Return the contender of this library with settings."""
    return Contender(name, "ours", settings)


OURS = ours()
QUEUES = ours("ours_queues", engine="queues")

# AsyncVectorEnv and the pool need nothing but what this library needs.
PEERS = (
    Contender("async_vector_env_2", "async_vector_env", {"n_envs": 2}),
    Contender("async_vector_env_8", "async_vector_env", {"n_envs": 8}),
    Contender("futures_by_hand", "futures_by_hand"),
    Contender("futures_by_hand_seeded", "futures_by_hand", {"seeded": True}),
    Contender("sb3_subproc_2", "sb3_subproc", {"n_envs": 2}, peer=True),
    Contender("sb3_subproc_8", "sb3_subproc", {"n_envs": 8}, peer=True),
    Contender("tianshou", "tianshou", peer=True),
    Contender("torchrl_sync", "torchrl_sync", peer=True),
    Contender("torchrl_async", "torchrl_async", peer=True),
    Contender("rllib", "rllib", peer=True),
    Contender("pufferlib", "pufferlib", peer=True),
    Contender("ray_by_hand", "ray_by_hand", peer=True),
)

THROUGHPUT = (*LIMITS, OURS, *PEERS)


def chosen(contenders: Sequence[Contender], names: str | None) -> list[Contender]:
    """Return the contenders whose names are given, separated by commas; all if there are none.

    Raises:
        SystemExit: There is none of that name.
    """
    if not names:
        return list(contenders)
    by_name = {contender.name: contender for contender in contenders}
    chosen_names = names.split(",")
    unknown = [name for name in chosen_names if name not in by_name]
    if unknown:
        raise SystemExit(f"no contender {', '.join(unknown)}; there are {', '.join(by_name)}")
    return [by_name[name] for name in chosen_names]
