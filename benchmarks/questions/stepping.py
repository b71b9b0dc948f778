"""What do steps from the parent cost, and what is won by not waiting for the slowest environment?

python -m benchmarks stepping [--quick]

Eight environments in eight processes sleep 5 ms in each step: constantly, jittered, heavy-tailed, and with one of them
ten times slower; with small observations and with 28 kB. `ours_synchronous` waits for all of them in each step,
`ours_asynchronous` for any one; `…_in_2` have them in two processes, each of which steps four in turn. AsyncVectorEnv
and SubprocVecEnv wait for all; PufferLib's and TorchRL's asynchronous modes are measured with heavy tails, where they
are worth most.

The cost is that of CartPole-v1 with a NumPy agent: CPU time of all processes for a timestep, over that of a bare loop
that steps the same environments with the same agent, 16 in each of two processes. SyncVectorEnv and DummyVecEnv step
all of them in the caller's process.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from benchmarks.harness import charts, tables
from benchmarks.harness.comparing import compared, spread
from benchmarks.harness.lineup import chosen
from benchmarks.harness.machine import describe
from benchmarks.harness.question import Goal, arguments, judged, save
from benchmarks.harness.rounds import Plan, measured
from benchmarks.harness.running import Contender

__all__ = ["costs_to", "main"]

WANTED = {"constant": 0.98, "jittered": 1.14, "heavy": 1.8, "one_slow": 1.0}
"""By how times vary: at least so many times as fast asynchronously as synchronously."""
WANTED_IN_2 = {"constant": 0.98, "jittered": 1.05, "heavy": 1.2}
"""With two processes for all of them."""
TIMED = {f"steps_{times}{kind}": wanted for kind in ("", "_pixels") for times, wanted in WANTED.items()}
SYNCHRONOUS = Contender("ours_synchronous", "ours_stepping")
IN_2 = (
    Contender("ours_synchronous_in_2", "ours_stepping", {"n_workers": 2}),
    Contender("ours_asynchronous_in_2", "ours_stepping", {"n_workers": 2, "asynchronous": True}),
)
WAITING = (
    SYNCHRONOUS,
    Contender("ours_asynchronous", "ours_stepping", {"asynchronous": True}),
    *IN_2,
    Contender("async_vector_env_8", "async_vector_env"),
    Contender("sb3_subproc_8", "sb3_subproc", peer=True),
)
HEAVY = "steps_heavy"
ASYNCHRONOUS = (Contender("pufferlib", "pufferlib", peer=True), Contender("torchrl_async", "torchrl_async", peer=True))
"""Peers with asynchronous modes, measured where these are worth most."""

CHEAP, N_ENVS, SHARE = "cheap_500", 32, 0.2
LIMIT = Contender("batched_bare_16", "batched_bare", {"n_envs": N_ENVS // 2})
PEERS = (
    Contender("async_vector_env_32", "async_vector_env", {"n_envs": N_ENVS}),
    Contender("sb3_subproc_32", "sb3_subproc", {"n_envs": N_ENVS, "start_method": "fork"}, peer=True),
)
IN_ONE_PROCESS = (
    Contender("sync_vector_env_32", "async_vector_env", {"n_envs": N_ENVS, "kind": "sync"}),
    Contender("sb3_dummy_32", "sb3_subproc", {"n_envs": N_ENVS, "kind": "dummy"}, peer=True),
)
"""Peers that use no other process: with steps as cheap as these, the messages to one cost more than it gains."""
COSTING = (
    LIMIT,
    Contender("ours_synchronous_32", "ours_stepping", {"n_envs": N_ENVS}),
    Contender("ours_asynchronous_32", "ours_stepping", {"n_envs": N_ENVS, "asynchronous": True, "least": N_ENVS // 2}),
    *PEERS,
    *IN_ONE_PROCESS,
)


def main() -> None:
    """Answer the question."""
    args = arguments("stepping", 1.5, 6)
    plan = Plan(args.seconds, args.rounds, min(args.peer_rounds, args.rounds))
    machine = describe()
    results: dict[str, Any] = {}
    goals: list[dict[str, Any]] = []
    for workload in args.workloads.split(",") if args.workloads else [CHEAP, *TIMED]:
        waiting = (*WAITING, *ASYNCHRONOUS) if workload == HEAVY else WAITING
        lineup, limit = (COSTING, LIMIT.name) if workload == CHEAP else (waiting, SYNCHRONOUS.name)
        asked = (args.contenders or "").split(",")
        names = [contender.name for contender in lineup if contender.name in asked]
        found = results[workload] = measured(chosen(lineup, ",".join(names)), workload, plan)
        goals += _costs(found) if workload == CHEAP else [judged(goal, results) for goal in _goals(workload)]
        compared(found, limit)
        print(tables.throughput_table(workload, found), flush=True)
    print(tables.goals_table(goals))
    title = "Stepped from the parent: synchronously and asynchronously"
    save("stepping", {"title": title, "workloads": results, "goals": goals, "notes": [NOTE]}, args, machine)
    if not args.quick:
        panels = {
            workload: {name: result["ratio"] for name, result in found.items() if "ratio" in result}
            for workload, found in results.items()
            if workload != CHEAP
        }
        label = "times as fast as stepped synchronously"
        charts.bar_chart(title, label, panels, args.out / "stepping.png", line=1.0)


NOTE = (
    f"`steps_…` are compared with `{SYNCHRONOUS.name}`, `{CHEAP}` with a bare loop of 16 environments in each of two "
    "processes. This library has them in two workers, AsyncVectorEnv and SubprocVecEnv each in a process of its own, "
    "SyncVectorEnv and DummyVecEnv all in the caller's. `one_process` compares these with this library in one process."
)


def _goals(workload: str) -> list[Goal]:
    goals = [Goal(workload, "ours_asynchronous", TIMED[workload], of=SYNCHRONOUS.name)]
    synchronous, asynchronous = (contender.name for contender in IN_2)
    wanted = WANTED_IN_2.get(workload.removeprefix("steps_"))
    return goals if wanted is None else [*goals, Goal(workload, asynchronous, wanted, of=synchronous)]


def _costs(found: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the goals for costs: what this library adds to the bare loop, as a share of what peers add."""
    rounds = {name: result.get("rounds", []) for name, result in found.items()}
    goals = []
    for ours in ("ours_synchronous_32", "ours_asynchronous_32"):
        for peer in PEERS:
            series = [rounds.get(name, []) for name in (LIMIT.name, ours, peer.name)]
            shares = costs_to(*series)
            value = spread(shares)["median"] if shares else None
            text = f"CPU over the bare loop, {ours} to {peer.name}"
            met = None if value is None else value <= SHARE
            goals.append({"text": text, "wanted": SHARE, "most": True, "value": value, "met": met})
    return goals


def costs_to(
    limit: Sequence[dict[str, Any] | None],
    ours: Sequence[dict[str, Any] | None],
    peer: Sequence[dict[str, Any] | None],
) -> list[float]:
    """Return for each round what a timestep costs over the limit's, as a share of what it costs a peer over that.

    Args:
        limit: The answers of the limit, by round; None where it did not take part.
        ours: Of the one that is compared.
        peer: Of the peer.
    """
    found = []
    for answers in zip(limit, ours, peer, strict=False):
        costs = [answer["cpu"] / answer["timesteps"] for answer in answers if answer and answer["timesteps"]]
        if len(costs) == len(answers):
            bare, cost, other = costs
            found.append((cost - bare) / (other - bare))
    return found


if __name__ == "__main__":
    main()
