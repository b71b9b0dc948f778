"""Run a benchmark: `python -m benchmarks [NAME] [--quick]`; all questions without a name, `--help` lists the names."""

from __future__ import annotations

import runpy
import sys

from benchmarks.questions.everything import QUESTIONS

PROGRAMS = {
    **{name: f"benchmarks.questions.{name}" for name in QUESTIONS},
    "versions": "benchmarks.questions.versions",
    "goals": "benchmarks.questions.goals",
    "tasks": "benchmarks.questions.tasks",
    "ppo": "benchmarks.ppo.run",
    "examples": "benchmarks.examples",
    "peers": "benchmarks.contenders.peers",
    "report": "benchmarks.harness.report",
    "workload": "benchmarks.problems.workloads",
}


def main() -> None:
    """Run the program that the first argument names, with the arguments after it."""
    name = sys.argv[1] if len(sys.argv) > 1 else ""
    if name in ("-h", "--help"):
        print(f"{__doc__}\n\n{', '.join(PROGRAMS)}; each has its own --help")
    elif name and not name.startswith("-") and name not in PROGRAMS:
        sys.exit(f"benchmarks: there is no {name!r}; there are {', '.join(PROGRAMS)}")
    else:
        if name in PROGRAMS:
            del sys.argv[1]
        runpy.run_module(PROGRAMS.get(name, "benchmarks.questions.everything"), run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
