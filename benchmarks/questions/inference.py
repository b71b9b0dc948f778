"""What does one network in the parent cost, or gain, next to one in each worker? A torch MLP, and a small CNN.

python -m benchmarks inference [--quick]     # needs torch

Sixteen environments in all. `ours_vec` has a network in each of two workers, with eight environments (`VecWorker`);
`ours_parent` has one in the parent (`inference="parent"`), for all of them. AsyncVectorEnv and SubprocVecEnv step each
environment in a process of its own, and the same network is called in the parent. It is on an accelerator where torch
finds one, and otherwise on one thread of the processor: there a network in each worker has two cores, and one in the
parent has one. Batches have ten trajectories for each environment, so that few environments wait at their ends.
"""

from typing import Any

from benchmarks.harness.question import Question, throughput
from benchmarks.harness.running import Contender

__all__ = ["CONTENDERS", "QUESTION"]

N_ENVS, N_WORKERS = 16, 2
LIMIT = Contender("ours_vec", "ours", {"vec": N_ENVS // N_WORKERS})
CONTENDERS = (
    LIMIT,
    Contender("ours_parent", "ours", {"vec": N_ENVS, "inference": "parent"}),
    Contender(f"async_vector_env_{N_ENVS}", "async_vector_env", {"n_envs": N_ENVS}),
    Contender(f"sb3_subproc_{N_ENVS}", "sb3_subproc", {"n_envs": N_ENVS}, peer=True),
)


def notes(_: dict[str, Any]) -> list[str]:
    """Return what the results are compared with, and where the networks were."""
    from benchmarks.problems.networks import device

    return [f"`inference_…` are compared with `{LIMIT.name}`. The networks were on `{device()}`."]


QUESTION = Question(
    "inference",
    "One network in the parent, or one in each worker",
    ["inference_mlp", "inference_cnn"],
    CONTENDERS,
    notes=notes,
    seconds=2.0,
    rounds=8,
    limit=LIMIT.name,
    label=f"times as fast as {LIMIT.name}",
)

if __name__ == "__main__":
    throughput(QUESTION)
