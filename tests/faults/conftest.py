from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest


def slow(*values):
    """Return a case of the slow tier."""
    return pytest.param(*values, marks=pytest.mark.slow)


def state_of(pid):
    """The kernel's letter for what a process is doing; none if the process is gone."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return ""


def kill_only_hung(sampler: Any, hung: Callable[[], Iterable[int]]) -> None:
    """Let a sampler take no worker for hung that is not: a busy machine may stop any worker for longer than a limit.

    Args:
        sampler: The sampler.
        hung: Returns the ids of the processes that have hung for good by now, or are just about to.
    """
    engine, watch = sampler._life.session.engine, sampler._life.session.scheduler._supervision._watch
    look, asleep = watch.look, set()

    def look_closely(rows):
        suspects, found = look(rows)
        pids = engine.pids()
        # At the look before, so that what was read of the board since then was read of a worker that hangs.
        found = {worker: seconds for worker, seconds in found.items() if pids[worker] in asleep}
        asleep.clear()
        asleep.update(pid for pid in hung() if state_of(pid) in ("S", "T"))
        return suspects, found

    watch.look = look_closely
