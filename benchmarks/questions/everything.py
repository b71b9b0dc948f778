"""Answer all questions, one after the other, and write the results into benchmarks/README.md and the README.

python -m benchmarks [--quick] [--again]

A question that has results in the folder is skipped, so that an interrupted run can be continued; --again answers all
of them. `python -m benchmarks NAME` answers one; training (`ppo`) is not among them.
"""

import argparse
import subprocess
import sys
import time

from benchmarks.harness.running import BENCHMARKS, ROOT

QUESTIONS = (
    "cheap_steps",
    "short_trajectories",
    "on_policy",
    "large_observations",
    "torch_mlp",
    "agents",
    "lanes",
    "native",
    "streams",
    "stragglers",
    "slow_worker",
    "order",
    "fragments",
    "filters",
    "staleness",
    "several_agents",
    "parameters",
    "parent_cost",
    "scaling",
    "scale",
    "many_workers",
    "stepping",
    "one_process",
    "step_costs",
    "waiting",
    "inference",
    "ray",
)


def main() -> int:
    """Run the questions' scripts, and return the number of failures."""
    parser = argparse.ArgumentParser(prog="benchmarks")
    parser.add_argument("--quick", action="store_true", help="a quick look: nothing is written")
    parser.add_argument("--again", action="store_true", help="also those that have results")
    args = parser.parse_args()
    failed = []
    for name in QUESTIONS:
        if not (args.again or args.quick) and (BENCHMARKS / "results" / f"{name}.json").exists():
            print(f"== {name}: has results; --again repeats the measurements", flush=True)
            continue
        print(f"== {name}", flush=True)
        begin = time.monotonic()
        command = [sys.executable, "-m", f"benchmarks.questions.{name}", *(["--quick"] if args.quick else [])]
        if subprocess.run(command, cwd=ROOT, check=False).returncode:
            failed.append(name)
        print(f"== {name}: {time.monotonic() - begin:.0f} s", flush=True)
    if not args.quick:
        subprocess.run([sys.executable, "-m", "benchmarks.harness.report"], cwd=ROOT, check=True)
    if failed:
        print(f"failed: {', '.join(failed)}", file=sys.stderr)
    return len(failed)


if __name__ == "__main__":
    sys.exit(main())
