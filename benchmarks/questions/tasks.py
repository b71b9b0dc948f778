"""What do twenty tasks take on shared workers, against twenty evaluations in turn? Two workers.

python -m benchmarks tasks [--quick]

In one call workers start once, and none waits for the last trajectories of a task. It is compared with `evaluate` of
each task in turn, in the same round, and the order of the two changes from round to round.
"""

import statistics
import time
from collections.abc import Callable
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

from benchmarks.harness import tables
from benchmarks.harness.comparing import spread
from benchmarks.harness.machine import describe
from benchmarks.harness.question import arguments, save
from streamsampler import MultiprocessingSampler, evaluate
from streamsampler.samplers.per_task import PerTask, TaskRun

N_TASKS, N_WORKERS = 20, 2


class OneLong(gymnasium.Env[Any, Any]):
    """Waits a millisecond in each of 10 timesteps; in ten times as many where a reset option says so."""

    observation_space, action_space = spaces.Box(-1, 1, (1,), np.float32), spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        """Begin a trajectory."""
        super().reset(seed=seed)
        self.left = 10 * (options or {}).get("times", 1)
        return np.zeros(1, np.float32), {}

    def step(self, action: Any) -> Any:  # noqa: ARG002 - it only waits
        """Wait."""
        time.sleep(1e-3)
        self.left -= 1
        return np.zeros(1, np.float32), 1.0, self.left == 0, False, {}


def first(observation: Any) -> int:
    """Push to where the pole leans."""
    return int(observation[-2] > 0) if len(observation) > 1 else 0


Work = tuple[Any, Any, list[dict[str, Any]]]
"""An agent, an environment, and the reset options of each trajectory."""

WORK: dict[str, tuple[Work, float]] = {
    "cheap, a function": ((first, "CartPole-v1", [{}] * 50), 0.97),
    "cheap, random": (("random", "CartPole-v1", [{}] * 50), 0.97),
    "five, one of them long": ((first, OneLong, [{"times": 10 if i == 2 else 1} for i in range(5)]), 1.3),
}
"""What a task is, and how many times the speed of evaluations in turn is wanted."""


def in_turn(agent: Any, env: Any, options: list[dict[str, Any]]) -> None:
    """Evaluate each task by itself."""
    for _ in range(N_TASKS):
        if any(options):
            evaluate(agent, env, scenarios=[{"options": each} for each in options], n_workers=N_WORKERS, seed=1)
        else:
            evaluate(agent, env, n_trajectories=len(options), n_workers=N_WORKERS, seed=1)


def together(agent: Any, env: Any, options: list[dict[str, Any]]) -> None:
    """Stream all tasks in one call."""
    runs = [TaskRun(task, 0, len(options)) for task in range(N_TASKS)]
    with MultiprocessingSampler(agent, PerTask([env] * N_TASKS), n_workers=N_WORKERS, seed=1) as sampler:
        found = sum(1 for _ in sampler.task_stream(runs, reset_options=options if any(options) else None))
    assert found == N_TASKS * len(options)


def seconds_of(run: Callable[..., None], work: Work) -> float:
    """Return how long something takes."""
    began = time.perf_counter()
    run(*work)
    return time.perf_counter() - began


def main() -> None:
    """Answer the question."""
    args = arguments("tasks", 1.0, 10)
    machine, results, rows, goals = describe(), {}, [], []
    for name, (work, wanted) in WORK.items():
        rounds = []
        for number in range(args.rounds):
            order = (in_turn, together) if number % 2 else (together, in_turn)
            rounds.append({run.__name__: seconds_of(run, work) for run in order})
        ratio = spread([each["in_turn"] / each["together"] for each in rounds])
        results[name] = {"rounds": rounds, "ratio": ratio}
        medians = [statistics.median(each[run] for each in rounds) for run in ("in_turn", "together")]
        rows.append([name, *(f"{median:.2f} s" for median in medians), f"{ratio['median']:.2f}"])
        text = f"{name}: speed of one call to {N_TASKS} evaluations in turn"
        met = ratio["median"] >= wanted
        goals.append({"text": text, "wanted": wanted, "most": False, "value": ratio["median"], "met": met})
    header = [f"{N_TASKS} tasks, {N_WORKERS} workers", "in turn", "one call", "times as fast"]
    print(tables.table(header, rows))
    print(tables.goals_table(goals))
    title = "Several tasks on shared workers"
    save("tasks", {"title": title, "workloads": results, "goals": goals, "table": [header, *rows]}, args, machine)


if __name__ == "__main__":
    main()
