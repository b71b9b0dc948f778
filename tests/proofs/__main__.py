"""Run one proof, or list them: `python -m tests.proofs [NAME] [--short]`."""

from __future__ import annotations

import argparse
import importlib
import pathlib
import sys
import time

from tests.interrupts import restore_ctrl_c

NAMES = sorted(path.stem for path in pathlib.Path(__file__).parent.glob("[!_]*.py"))


def main() -> int:
    parser = argparse.ArgumentParser(prog="prove", description="Try what must hold, and report what was found.")
    parser.add_argument("name", nargs="?", choices=NAMES, help="which proof; none lists them")
    parser.add_argument("--short", action="store_true", help="the form that takes a minute at most")
    arguments = parser.parse_args()
    if arguments.name is None:
        print("\n".join(NAMES))
        return 0
    restore_ctrl_c()
    began = time.perf_counter()
    importlib.import_module(f"tests.proofs.{arguments.name}").prove("short" if arguments.short else "long")
    print(f"{arguments.name}: held, in {time.perf_counter() - began:.0f} s")
    return 0


if __name__ == "__main__":
    sys.exit(main())
