"""What raises while an episode is restored ends that episode, and not the call."""

from __future__ import annotations

import logging
import os
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from streamsampler import LocalSampler, MultiprocessingSampler, VecWorker
from tests.fragments.agents import Mixing, Restorable, Sticky

SEED = 3
TWO: dict[str, Any] = {"worker_class": VecWorker, "worker_args": {"n_envs": 2}}
THREE: dict[str, Any] = {"worker_class": VecWorker, "worker_args": {"n_envs": 3}}


class OutOfOrder(Sticky):
    """Raises once if a file is there, in its reset or in its third step."""

    def __init__(self, file: Path, *, in_reset: bool) -> None:
        self.file, self.in_reset = file, in_reset

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        result = super().reset(seed=seed)
        self.length = 30
        self.raise_once(self.in_reset)
        return result

    def step(self, action: int) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.raise_once(not self.in_reset and self.t == 2)
        return super().step(action)

    def raise_once(self, here: bool) -> None:
        if here and self.file.exists():
            self.file.unlink()
            raise OSError("out of order")


class Refusing(Restorable):
    """Takes no state."""

    def set_state(self, state: Any) -> None:
        raise KeyError("not this one")


class RefusingRows(Mixing):
    """Takes no state, but forgets its own."""

    def get_actions(self, observations: Any) -> Any:
        actions, _ = super().get_actions(observations)
        return actions, {"seen": self.seen}

    def set_state(self, state: Any) -> None:
        self.seen = np.full(3, np.nan)
        raise KeyError("not this one")


@pytest.mark.parametrize(
    ("options", "in_reset"),
    [
        ({}, True),
        (TWO, False),
        *(pytest.param(*case, marks=pytest.mark.slow) for case in (({}, False), (TWO, True))),
    ],
)
@pytest.mark.slow
def test_an_environment_that_raises(options, in_reset, tmp_path, caplog):
    file = tmp_path / "out of order"
    options = {"seed": SEED, "env_kwargs": {"file": file, "in_reset": in_reset}, "check": None, **options}
    with (
        caplog.at_level(logging.WARNING, "streamsampler"),
        LocalSampler(Restorable(), OutOfOrder, **options) as reference,
        MultiprocessingSampler(Restorable(), OutOfOrder, n_workers=1, **options) as sampler,
    ):
        assert sampler.obtain_fragments(5, 2) == reference.obtain_fragments(5, 2)
        file.touch()
        os.kill(sampler.worker_pids()[0], signal.SIGKILL)
        batch, expected = sampler.obtain_fragments(5, 2), reference.obtain_fragments(5, 2)
        assert sampler.stats.failed_trajectories == 2  # the lost worker's ticket, and the episode
        assert sampler.stats.lost_timesteps == (5 if in_reset else 7)
    assert batch.continued.tolist() == [False, True]
    assert batch.indices.tolist() == [2, 1]
    assert batch[1] == expected[1]
    assert caplog.text.count("the episode that went on in environment 0 was lost") == 1
    assert caplog.text.count("restored: its environment raised OSError: out of order") == 1


@pytest.mark.parametrize(
    ("agent", "options"), [(Refusing, {}), pytest.param(Refusing, TWO, marks=pytest.mark.slow), (RefusingRows, THREE)]
)
@pytest.mark.slow
def test_an_agent_that_raises(agent, options, tmp_path, caplog):
    env: dict[str, Any] = {"env_kwargs": {"file": tmp_path / "none", "in_reset": False}, "seed": SEED, "check": None}
    with (
        caplog.at_level(logging.WARNING, "streamsampler"),
        MultiprocessingSampler(agent(), OutOfOrder, n_workers=1, **env, **options) as sampler,
    ):
        sampler.obtain_fragments(5, 2)
        os.kill(sampler.worker_pids()[0], signal.SIGKILL)
        batch = sampler.obtain_fragments(5, 2)
        assert sampler.stats.failed_trajectories == 3
    assert not batch.continued.any()
    assert batch.indices.tolist() == [2, 3]
    assert caplog.text.count("restored: its agent raised KeyError: 'not this one'") == 2
    if agent is RefusingRows:
        assert np.isfinite(batch.agent_infos["seen"]).all()
