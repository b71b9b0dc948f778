"""Options of resets, and the limit of what is restored, in calls for fragments."""

from __future__ import annotations

import logging
import os
import pickle
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


@pytest.mark.parametrize(
    ("options", "n_envs"),
    [
        ({}, 8),
        ({"worker_class": VecWorker}, 8),
        ({"worker_class": VecWorker, "worker_args": {"n_envs": 3}}, 8),
        ({"worker_class": VecWorker, "worker_args": {"n_envs": 12}}, 12),
    ],
)
def test_without_n_envs_the_number_of_timesteps_does_not_depend_on_the_workers(options, n_envs):
    batches = []
    for n_workers in (1, 2, 11):
        with LocalSampler(Restorable(), Sticky, seed=SEED, n_workers=n_workers, **options) as sampler:
            batches.append([sampler.obtain_fragments(6), sampler.obtain_fragments(6)])
    assert batches[0] == batches[1] == batches[2]
    assert batches[0][0].as_grid("rewards").shape == (6, n_envs)


def test_without_n_envs_there_are_as_many_as_in_the_last_call_of_fragments():
    with LocalSampler(Restorable(), Sticky, seed=SEED) as sampler:
        sampler.obtain_fragments(5, 3)
        assert sampler.obtain_fragments(5).continued.any()
        sampler.obtain_trajectories(2)
        assert sampler.obtain_fragments(5).as_grid("rewards").shape == (5, 3)
        with pickle.loads(pickle.dumps(sampler)) as copied:
            assert copied.obtain_fragments(5).as_grid("rewards").shape == (5, 3)


def test_with_the_agent_in_the_parent_there_are_as_many_as_the_workers_have():
    with MultiprocessingSampler(
        "random", "CartPole-v1", seed=SEED, n_workers=1, inference="parent", worker_args={"n_envs": 3}
    ) as sampler:
        assert sampler.obtain_fragments(5).as_grid("rewards").shape == (5, 3)


def test_another_number_of_environments_begins_afresh_and_warns(caplog):
    with (
        caplog.at_level(logging.WARNING, "streamsampler"),
        LocalSampler("random", "CartPole-v1", seed=SEED) as sampler,
    ):
        sampler.obtain_fragments(3, 2)
        sampler.obtain_fragments(3, 2)
        sampler.obtain_fragments(3, 4, env_update="CartPole-v1")
        sampler.obtain_trajectories(1)
        sampler.obtain_fragments(3, 2)
        assert "fresh environments begin" not in caplog.text, "only what the calls asked for"
        assert not sampler.obtain_fragments(3, 5).continued.any()
        assert caplog.text.count("of 5 environments, after 2 in the last call: the episodes that went on end") == 1
