"""What goes wrong while a worker makes further environments, since a call needs more than the one before."""

from __future__ import annotations

import os
import signal
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from streamsampler import Limits, LocalSampler, MultiprocessingSampler, VecWorker
from streamsampler.errors import RolloutError
from streamsampler.workers.fail_points import Records
from tests.faults.conftest import kill_only_hung, slow
from tests.patience import PATIENCE
from tests.scripted.agents import Batched
from tests.scripted.envs import Counting
from tests.tiers import mostly_slow

ROWS: Any = {"worker_class": VecWorker, "worker_args": {"n_envs": 6}, "seed": 5}


class Late(Counting):
    """Goes wrong when it is made for the time of a number, in all processes together."""

    def __init__(self, folder: Path, kind: str, number: int) -> None:
        super().__init__(6)
        if Records(folder).record("made") == number:
            if kind == "raise":
                raise OSError("no licence is left")
            if kind == "kill":
                os.kill(os.getpid(), signal.SIGKILL)
            if kind == "hang":
                signal.pause()


class InLanes(Batched):
    row_independent = True


def calls(sampler: Any) -> list[Any]:
    return [sampler.obtain_trajectories(n) for n in (1, 2, 9, 3)]


@pytest.mark.parametrize("number", mostly_slow([3, slow(1), slow(2), slow(4), slow(6)]))
@pytest.mark.parametrize("kind", mostly_slow(["kill", "hang", "raise", "refused"]))
@pytest.mark.parametrize("agent", mostly_slow([InLanes, Batched], 2))
def test_batches_are_right_or_there_is_one_error(agent, kind, number, tmp_path):
    with LocalSampler(agent(), partial(Counting, 6), **ROWS) as sampler:
        expected = calls(sampler)
    options: dict[str, Any] = {"step_timeout": PATIENCE}
    if kind == "raise":
        options["restart_on"] = (OSError,)
    if kind == "hang":
        options = {"limits": Limits(construction_timeout=0.8)}
    made = tmp_path / f"made.{number}"
    env = partial(Late, tmp_path, kind.replace("refused", "raise"), number)
    with MultiprocessingSampler(agent(), env, n_workers=1, **ROWS, **options) as sampler:
        if kind == "hang":
            kill_only_hung(sampler, lambda: [int(os.readlink(made))] if os.path.lexists(made) else [])
        if kind != "refused":
            assert calls(sampler) == expected
            assert sampler.stats.restarts == 1
            return
        with pytest.raises(RolloutError, match=r"worker 0 .*making the environment.*no licence is left") as caught:
            calls(sampler)
        assert caught.value.trajectory is None
        n_calls = sampler.agent_version
        assert sampler.obtain_trajectories(9).n_trajectories == 9
        assert sampler.agent_version == n_calls + 1
