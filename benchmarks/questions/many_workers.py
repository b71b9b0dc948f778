"""What do 64 and 128 workers cost, with environments that wait? 20 ms of sleep per step.

python -m benchmarks many_workers [--quick]

Also the private memory of each worker, and the time until 64 workers are ready: from the call of the constructor to the
last environment, in a fresh process each time.

Peers that import torch into each of their processes take minutes to start 64, and are left out unless they are asked
for: --contenders bare,ours,sb3_subproc,tianshou.
"""

import statistics
from typing import Any

from benchmarks.harness.lineup import BARE, LEAST, ours
from benchmarks.harness.question import Goal, Question, arguments, throughput
from benchmarks.harness.running import Broken, Contender, FragmentEnvs

RUNS = 3
PEERS = (
    Contender("async_vector_env", "async_vector_env"),
    Contender("futures_by_hand", "futures_by_hand"),
    Contender("ray_by_hand", "ray_by_hand", peer=True),
    Contender("sb3_subproc", "sb3_subproc", peer=True),
    Contender("tianshou", "tianshou", peer=True),
)
SLOW_TO_START = ("sb3_subproc", "tianshou")


def starts(n_workers: int, runs: int) -> list[dict[str, Any]]:
    """Start that many workers a few times, each time in a fresh process."""
    answers = []
    for _ in range(runs):
        running = FragmentEnvs(Contender("ours_start", "ours_start", n_processes=n_workers), "sleepers")
        try:
            answers.append(running.measure({}))
        finally:
            running.end()
    return answers


def start_up(n_workers: int, runs: int) -> tuple[list[str], list[dict[str, Any]]]:
    """Report the time and the memory that the start took, and judge both."""
    try:
        answers = starts(n_workers, runs)
    except Broken as why:
        return [f"{n_workers} workers could not be started: {why}"], []

    def median(key: str) -> float:
        return statistics.median(answer[key] for answer in answers)

    memory = statistics.median(statistics.median(answer["private_mb"]) for answer in answers)
    most = max(max(answer["private_mb"]) for answer in answers)
    text = (
        f"{n_workers} workers: the constructor took {median('constructed'):.2f} s, the first trajectory came after "
        f"{median('first_trajectory'):.2f} s, the last environment after {median('last_environment'):.2f} s; "
        f"{memory:.1f} MB of private memory per worker, {most:.1f} at most (medians of {runs} runs)"
    )
    ready = median("last_environment")
    return [text], [
        _goal(f"{n_workers} workers ready, seconds", 2.0 * n_workers / 64, ready),
        _goal(f"most private memory of a worker of {n_workers}, MB", 8.0, most),
    ]


def _goal(text: str, wanted: float, value: float) -> dict[str, Any]:
    return {"text": text, "wanted": wanted, "most": True, "value": value, "met": value <= wanted}


def main() -> None:
    """Answer the question."""
    args = arguments("many_workers", 4.0, 3)
    named = set(args.contenders.split(",")) if args.contenders else set()
    peers = [peer for peer in PEERS if peer.name in named or peer.name not in SLOW_TO_START]
    lineup = [BARE, LEAST, ours(), *peers]
    said, goals = [], []
    for n_workers in (64, 128):
        more, judged = start_up(n_workers, 1 if args.quick else RUNS)
        said += more
        goals += judged
    question = Question(
        "many_workers",
        "Many workers: 64 and 128, sleeping 20 ms in each step",
        ["sleepers", "sleepers_128"],
        [],
        [Goal("sleepers", "ours", 0.97), Goal("sleepers_128", "ours", 0.97)],
        {"sleepers": lineup, "sleepers_128": [BARE, LEAST, ours()]},
        seconds=4.0,
        rounds=3,
        notes=lambda _: said,
        more_goals=goals,
    )
    throughput(question)


if __name__ == "__main__":
    main()
