"""What does one worker in four cost that is ten times slower? Evaluations of 64 trajectories, on each engine.

    python -m benchmarks slow_worker [--quick]

Steps sleep. The worker is slow in the first call already, which also constructs the environments; or it becomes slow
between two calls, and the two calls after that are measured. The least is 1.31: 21 turns of the three others and two of
the slow one, where 16 turns of four workers would do.
"""

import contextlib
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.contenders.ours import make_sampler
from benchmarks.harness.machine import describe
from benchmarks.harness.question import arguments, save
from benchmarks.harness.tables import goals_table, table
from benchmarks.problems.environments import Slowed

N_WORKERS, TRAJECTORIES, MOST = 4, 64, 1.5
SECONDS = {"10 ms": 1e-3, "100 ms": 10e-3}
"""Of a step, by how long a trajectory takes."""

KINDS = ("from the start", "just now", "in the call before")


def zero(_: Any) -> int:
    """Return action 0."""
    return 0


@contextmanager
def evaluations(engine: str, seconds: float) -> Iterator[tuple[Callable[[], float], Callable[[], Any]]]:
    """Yield a function that evaluates and returns how long that took, and one that slows a worker down."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "slow"
        with make_sampler(zero, partial(Slowed, str(path), seconds), engine, n_workers=N_WORKERS, seed=1) as sampler:

            def evaluate() -> float:
                began = time.perf_counter()
                sampler.obtain_trajectories(TRAJECTORIES)
                return time.perf_counter() - began

            yield evaluate, lambda: path.write_text(str(sampler.worker_pids()[0]))


def one_round(engine: str, seconds: float) -> dict[str, float]:
    """Return how many times longer evaluations take with a slow worker than without, by kind."""
    with evaluations(engine, seconds) as (evaluate, slow_down):
        first = evaluate()
        warm = statistics.median(evaluate() for _ in range(3))
        slow_down()
        found = {"just now": evaluate() / warm, "in the call before": evaluate() / warm}
    with evaluations(engine, seconds) as (evaluate, slow_down):
        slow_down()
        found["from the start"] = evaluate() / first
    return found


def engines() -> list[str]:
    """Return the engines there are."""
    try:
        import ray  # noqa: F401
    except ImportError:
        return ["processes", "queues"]
    return ["processes", "queues", "ray"]


@contextmanager
def one_cluster() -> Iterator[None]:
    """Keep one cluster of Ray, which takes some 12 seconds to start."""
    with contextlib.ExitStack() as opened:
        if "ray" in engines():
            from streamsampler.engines.ray_cluster import Demand, attach

            opened.callback(attach("local", Demand(N_WORKERS)).release)
        yield


def main() -> None:
    """Answer the question."""
    args = arguments("slow_worker", 0.0, 5)
    machine = describe()
    measured: dict[tuple[str, str], list[dict[str, float]]] = {}
    with one_cluster():
        for _ in range(args.rounds):
            for name, seconds in SECONDS.items():
                for engine in engines():
                    measured.setdefault((name, engine), []).append(one_round(engine, seconds))
    rows, goals = [], []
    for (name, engine), rounds in measured.items():
        medians = [statistics.median(each[kind] for each in rounds) for kind in KINDS]
        rows.append([name, engine, *(f"{median:.2f}" for median in medians)])
        for kind, value in zip(KINDS, medians, strict=True):
            text = f"{engine}, trajectories of {name}, slow {kind}: time to that without"
            goals.append({"text": text, "wanted": MOST, "most": True, "value": value, "met": value <= MOST})
    header = ["trajectories of", "engine", *(f"slow {kind}" for kind in KINDS)]
    print(table(header, rows))
    print(goals_table(goals))
    title = "Time of 64 trajectories with one worker in four ten times slower, to that without"
    save("slow_worker", {"title": title, "table": [header, *rows], "goals": goals}, args, machine)


if __name__ == "__main__":
    main()
