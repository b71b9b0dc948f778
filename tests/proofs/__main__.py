"""Run one proof, or list them: `python -m tests.proofs [NAME] [--short]`."""

from __future__ import annotations

import argparse
import importlib.util
import inspect
import pathlib
import sys
import time

from tests.interrupts import restore_ctrl_c

NEEDS = {"ray_nodes": "ray", "ppo": "torch", "faces": "stable_baselines3"}
"""The modules of extras that proofs need."""
NAMES = sorted(path.stem for path in pathlib.Path(__file__).parent.glob("[!_]*.py"))


def main() -> int:
    parser = argparse.ArgumentParser(prog="prove", description="Try what must hold, and report what was found.")
    parser.add_argument("name", nargs="?", choices=NAMES, help="which proof; none lists those that can run here")
    parser.add_argument("--short", action="store_true", help="the form that takes about a minute")
    parser.add_argument("--engine", help='only with this engine; "ray" needs the extra')
    parser.add_argument("--start-method", help="only with this start method")
    arguments = parser.parse_args()
    if arguments.name is None:
        print("\n".join(name for name in NAMES if importlib.util.find_spec(NEEDS.get(name, "sys"))))
        return 0
    restore_ctrl_c()
    began = time.perf_counter()
    forced = {key: value for key in ("engine", "start_method") if (value := vars(arguments)[key]) is not None}
    prove = importlib.import_module(f"tests.proofs.{arguments.name}").prove
    try:
        inspect.signature(prove).bind("", **forced)
    except TypeError:
        parser.error(f"{arguments.name} cannot be told {' and '.join(forced)}")
    prove("short" if arguments.short else "long", **forced)
    print(f"{arguments.name}: held, in {time.perf_counter() - began:.0f} s")
    return 0


if __name__ == "__main__":
    sys.exit(main())
