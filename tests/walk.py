"""Count the functions and files of the package that run in a call: the way that its reader goes.

`python -m tests.walk` prints how many run from `obtain_samples(10)` of a `LocalSampler` to the first `env.step`, and
how many more until the batch is there; `-v` names them.
"""

import pathlib
import sys
from typing import Any

import streamsampler
from streamsampler import LocalSampler

PACKAGE = str(pathlib.Path(streamsampler.__file__).parent)


def walked() -> tuple[list[tuple[str, str]], list[tuple[str, str]]]:
    """Return the files and functions on the way down, and on the way up, each once, in the order of first calls."""
    order: list[tuple[str, str]] = []
    seen: set[tuple[str, str]] = set()
    n_down = 0

    def entered(frame: Any, event: str, _: Any) -> None:
        nonlocal n_down
        code = frame.f_code
        if event != "call":
            return
        if not n_down and code.co_filename.endswith("cartpole.py") and code.co_name == "step":
            n_down = len(order)
        place = code.co_filename.removeprefix(PACKAGE), code.co_qualname
        if code.co_filename.startswith(PACKAGE) and place not in seen:
            seen.add(place)
            order.append(place)

    with LocalSampler("random", "CartPole-v1", seed=1, check=None, fingerprint=None) as sampler:
        sampler.obtain_samples(10)  # imports, and what is made once
        before = sys.getprofile()
        sys.setprofile(entered)
        try:
            sampler.obtain_samples(10)
        finally:
            sys.setprofile(before)
    return order[:n_down], order[n_down:]


if __name__ == "__main__":
    for way, places in zip(("down", "up"), walked(), strict=True):
        print(way, len(places), "functions in", len({file for file, _ in places}), "files")
        if "-v" in sys.argv:
            print(*(f"    {file[1:]} {name}" for file, name in places), sep="\n")
