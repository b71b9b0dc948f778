"""Options of resets, and the limit of what is restored, in calls for fragments."""

from __future__ import annotations

import logging
import os
import signal
import threading
from typing import Any

import numpy as np
import pytest

from streamsampler import LocalSampler, MultiprocessingSampler, VecWorker
from streamsampler.errors import SerializationError, UsageError
from tests.fragments.agents import Restorable, Sticky

SEED = 11
KINDS: list[dict[str, Any]] = [{}, {"worker_class": VecWorker, "worker_args": {"n_envs": 2}}]
WITH_LOSSES = [KINDS[0], pytest.param(KINDS[1], marks=pytest.mark.slow)]


class Offset(Sticky):
    """Adds to what is observed; changes its options, as environments may."""

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        self.offset = (options or {"offset": [0.0]})["offset"].pop()
        observation, _ = super().reset(seed=seed)
        return observation, {"offset": self.offset}

    def observe(self) -> Any:
        return super().observe() + np.float32(self.offset)


def options_of(call: int) -> Any:
    return {"offset": [float(call)]} if call else None


def one_call(sampler: Any, call: int) -> Any:
    options = options_of(call)
    batch = sampler.obtain_fragments(9, 5, reset_options=options)
    assert options == options_of(call)
    if options:
        options["offset"].append(-100.0)  # which must not be seen when an episode is restored
    return batch


@pytest.mark.parametrize("kind", KINDS)
def test_each_episode_has_the_options_of_the_call_in_which_it_began(kind):
    with LocalSampler(Restorable(), Offset, seed=SEED, **kind) as sampler:
        batches = [one_call(sampler, call) for call in range(4)]
    offsets: dict[int, float] = {}
    for call, batch in enumerate(batches):
        for index, continued, one in zip(batch.indices.tolist(), batch.continued.tolist(), batch, strict=True):
            if not continued:
                offsets[index] = float(call)
                assert one.episode_infos["offset"].tolist() == [call]
            assert (np.floor(one.observations) == offsets[index]).all()
    assert len(set(offsets.values())) >= 3


@pytest.mark.parametrize("kind", WITH_LOSSES)
@pytest.mark.slow
def test_an_episode_is_restored_with_its_own_options(kind):
    with (
        LocalSampler(Restorable(), Offset, seed=SEED, **kind) as reference,
        MultiprocessingSampler(Restorable(), Offset, seed=SEED, n_workers=1, **kind) as sampler,
    ):
        for call in range(4):
            expected = one_call(reference, call)
            assert one_call(sampler, call) == expected
            assert expected.cut.any()
            if call in (0, 2):
                os.kill(sampler.worker_pids()[0], signal.SIGKILL)
        assert sampler.stats.restarts == 2


@pytest.mark.parametrize("kind", WITH_LOSSES)
def test_longer_episodes_than_the_limit_are_not_restored(kind, caplog):
    def two_calls(first: int, second: int) -> tuple[Any, Any]:
        batch = sampler.obtain_fragments(30, 2, restore_limit=first)
        assert batch.cut.all()
        os.kill(sampler.worker_pids()[0], signal.SIGKILL)
        return batch, sampler.obtain_fragments(30, 2, restore_limit=second)

    with (
        caplog.at_level(logging.WARNING, "streamsampler"),
        MultiprocessingSampler("random", "Pendulum-v1", seed=SEED, n_workers=1, **kind) as sampler,
    ):
        assert two_calls(30, 0)[1].continued.all()
        assert "cannot be restored" not in caplog.text
        sampler.obtain_trajectories(1)
        before = sampler.stats.failed_trajectories
        first, second = two_calls(29, 1000)
        assert not second.continued.any()
        assert second.indices.tolist() == [2, 3]
        assert not set(second.seeds) & set(first.seeds)
        assert caplog.text.count("the episode is longer than can be restored") == 2
        assert sampler.stats.failed_trajectories - before >= 2
        os.kill(sampler.worker_pids()[0], signal.SIGKILL)
        assert sampler.obtain_fragments(30, 2).continued.all()


@pytest.mark.parametrize("kind", KINDS)
def test_a_call_that_is_refused_ends_no_episodes(kind):
    lock = {"a lock": threading.Lock()}
    with (
        LocalSampler(Restorable(), Sticky, seed=SEED, **kind) as reference,
        LocalSampler(Restorable(), Sticky, seed=SEED, **kind) as sampler,
    ):
        for _ in range(2):
            expected = reference.obtain_fragments(5, 3)
            assert sampler.obtain_fragments(5, 3) == expected
            for refused in (
                lambda: sampler.obtain_trajectories(2, reset_options=lock),
                lambda: sampler.obtain_trajectories(2, tasks=[threading.Lock()]),
                lambda: sampler.obtain_fragments(5, 3, reset_options=lock),
                lambda: sampler.obtain_fragments(5, 4, reset_options=lock),
                lambda: sampler.obtain_fragments(5, 3, env_update=Sticky, reset_options=lock),
            ):
                version = sampler.agent_version
                with pytest.raises(SerializationError):
                    refused()
                assert sampler.agent_version == version
        assert expected.continued.any()


def test_what_options_and_limits_cannot_be():
    with LocalSampler(Restorable(), Sticky, seed=SEED) as sampler:
        with pytest.raises(UsageError, match="reset_options must be a dict"):
            sampler.obtain_fragments(5, 2, reset_options=[{}])  # type: ignore[arg-type]
        with pytest.raises(UsageError, match="restore_limit must be"):
            sampler.obtain_fragments(5, 2, restore_limit=-1)
