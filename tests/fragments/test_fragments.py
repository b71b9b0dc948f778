"""Fragments: a fixed number of timesteps of each environment, of episodes that go on in the next call."""

from __future__ import annotations

import logging
import pickle
import threading
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from gymnasium.wrappers import TimeLimit

from streamsampler import (
    DefaultWorker,
    LocalSampler,
    MultiprocessingSampler,
    PerWorker,
    RandomAgent,
    TrajectoryBatch,
    VecWorker,
    load,
)
from streamsampler.data.batch import StepType
from streamsampler.errors import DataError, RolloutError, SerializationError, UsageError
from streamsampler.samplers.call import Call
from streamsampler.samplers.fragments import FragmentLedger
from streamsampler.samplers.open_episodes import OpenEpisodes
from tests.faults.test_interrupts import raise_once
from tests.fragments.agents import Offset, Recurrent, Restorable, Sticky
from tests.scripted.agents import Drawing, Rowwise, always_zero
from tests.scripted.envs import GlobalNoise, Rough, Steps, Wide

SEED = 20_260_711


def vec(n_envs: int) -> dict[str, Any]:
    return {"worker_class": VecWorker, "worker_args": {"n_envs": n_envs}}


TWO = vec(2)


def local(agent: Any = None, env: Any = Sticky, **options: Any) -> LocalSampler:
    return LocalSampler(agent or Restorable(), env, seed=SEED, **options)


def cart_pole() -> Any:
    return gymnasium.make("CartPole-v1")


@pytest.mark.parametrize(
    ("env", "agent", "options"),
    [(Sticky, Restorable, {}), (cart_pole, Rowwise, {}), (Sticky, Rowwise, vec(3)), (Sticky, Restorable, vec(1))],
)
def test_equals_the_vector_environment_of_gymnasium(env, agent, options):
    """Step for step, for the same actions, with each episode's seed."""
    n_envs, vector = 4, SyncVectorEnv([env] * 4, autoreset_mode=AutoresetMode.DISABLED)
    with local(agent(), env, n_workers=2, **options) as sampler:
        batches = [sampler.obtain_fragments(25, n_envs) for _ in range(6)]
    episode, seeds = [0] * n_envs, {}
    for batch in batches:
        for index, seed in zip(batch.indices.tolist(), batch.seeds, strict=True):
            seeds[index % n_envs, index // n_envs] = seed
    observations, _ = vector.reset(seed=[seeds[number, 0] for number in range(n_envs)])
    starts = np.ones(n_envs, bool)
    names = "observations", "next_observations", "rewards", "actions", "step_types", "episode_starts"
    for batch in batches:
        grid = {name: batch.as_grid(name) for name in names}
        for t in range(25):
            assert (grid["episode_starts"][t] == starts).all()
            assert grid["observations"][t].tobytes() == observations.tobytes()
            observations, rewards, terminated, truncated, _ = vector.step(grid["actions"][t])
            assert grid["next_observations"][t].tobytes() == observations.tobytes()
            assert grid["rewards"][t].tobytes() == rewards.tobytes()
            assert ((grid["step_types"][t] == StepType.TERMINAL) == terminated).all()
            assert ((grid["step_types"][t] == StepType.TIMEOUT) == (truncated & ~terminated)).all()
            starts = terminated | truncated
            if starts.any():
                reset_seeds: list[int | None] = []
                for number in range(n_envs):
                    episode[number] += int(starts[number])
                    reset_seeds.append(seeds.get((number, episode[number]), 0))
                observations, _ = vector.reset(seed=reset_seeds, options={"reset_mask": starts.copy()})
    vector.close()
    assert sum(episode) >= 20


@pytest.mark.parametrize(
    ("agent", "env", "options"),
    [(Restorable, Sticky, {}), (RandomAgent, Sticky, {}), (Restorable, "CartPole-v1", {"max_episode_length": 7})],
)
def test_side_by_side_is_the_same_as_one_after_the_other(agent, env, options):
    """Where the agent is asked row by row, or draws for each row from its episode's seed."""
    with local(agent(), env, **vec(3), **options) as many, local(agent(), env, **options) as one:
        for n_timesteps in (12, 5, 25):
            assert many.obtain_fragments(n_timesteps, 8) == one.obtain_fragments(n_timesteps, 8)


def test_global_generators_go_on_in_each_environment():
    with local(Drawing(), GlobalNoise) as one, local(Drawing(), GlobalNoise, n_workers=3) as several:
        for _ in range(4):
            assert several.obtain_fragments(7, 5) == one.obtain_fragments(7, 5)


def test_short_fragments_are_long_ones_cut():
    """What a call returns is where the one before ended, as if there had been one call."""
    with local(Recurrent()) as sampler, local(Recurrent(), n_workers=3) as another:
        whole = sampler.obtain_fragments(60, 3)
        pieces = [another.obtain_fragments(n, 3) for n in (1, 20, 9, 30)]
    for name in ("observations", "actions", "rewards", "episode_starts", "next_observations"):
        joined = np.concatenate([piece.as_grid(name) for piece in pieces])
        assert joined.tobytes() == whole.as_grid(name).tobytes()


@pytest.mark.slow
def test_large_rows_are_copied_as_they_arrive():
    options: dict[str, Any] = {"seed": SEED, "n_workers": 3}
    with local(always_zero, Wide) as reference, MultiprocessingSampler(always_zero, Wide, **options) as sampler:
        for n_timesteps in (7, 40, 1):
            batch = sampler.obtain_fragments(n_timesteps, 4)
            assert batch == reference.obtain_fragments(n_timesteps, 4)
            assert batch.stats.kept_trajectories == batch.n_trajectories


def test_what_a_batch_says():
    with local(always_zero, lambda: Steps(7)) as sampler:
        first, second = sampler.obtain_fragments(5, 2), sampler.obtain_fragments(11, 2)
    assert first.lengths.tolist() == [5, 5]
    assert first.cut.all()
    assert not (first.terminated | first.truncated).any()
    assert second.lengths.tolist() == [2, 7, 2] * 2
    assert second.continued.tolist() == [True, False, False] * 2
    assert second.cut.tolist() == [False, False, True] * 2
    assert second.terminated.tolist() == [True, True, False] * 2
    assert second.env_numbers.tolist() == [0, 0, 0, 1, 1, 1]
    assert second.indices.tolist() == [0, 2, 4, 1, 3, 5]
    assert np.flatnonzero(second.episode_starts).tolist() == [2, 9, 13, 20]
    assert second.last_observations[:, 0].tolist() == [7, 7, 2] * 2
    assert second.agent_versions.tolist() == [2] * 6
    assert second.seeds[0] == first.seeds[0] == sampler.seeds(1, [0])[0]
    assert second.as_grid("rewards").shape == (11, 2)
    assert second.as_grid("rewards")[:, 1].tolist() == [6, 7, 1, 2, 3, 4, 5, 6, 7, 1, 2]
    assert second.step_types.tolist()[:3] == [StepType.MID, StepType.TERMINAL, StepType.FIRST]
    assert second.stats.kept_timesteps == second.stats.ran_timesteps == 22


def test_the_limit_truncates_over_calls():
    with local(always_zero, lambda: Steps(100), max_episode_length=6) as sampler:
        batches = [sampler.obtain_fragments(4, 1) for _ in range(3)]
    assert [batch.lengths.tolist() for batch in batches] == [[4], [2, 2], [4]]
    assert [batch.truncated.tolist() for batch in batches] == [[False], [True, False], [True]]
    assert [batch.cut.tolist() for batch in batches] == [[True], [False, True], [False]]
    assert [batch.episode_lengths.tolist() for batch in batches] == [[], [6], [6]]
    assert batches[1].episode_returns.tolist() == [21.0]


def test_files_and_parts_of_batches(tmp_path):
    with local() as sampler:
        sampler.obtain_fragments(6, 3)
        batch, whole = sampler.obtain_fragments(6, 3), sampler.obtain_trajectories(2)
    assert load(batch.save(tmp_path / "batch.npz")) == batch
    assert TrajectoryBatch.concatenate(batch.split()) == batch
    assert batch[1:].cut.tolist() == batch.cut[1:].tolist()
    joined = TrajectoryBatch.concatenate(batch, whole)
    assert joined.env_numbers.tolist() == [*batch.env_numbers.tolist(), -1, -1]
    with pytest.raises(DataError, match="a grid needs a whole batch"):
        joined.as_grid("rewards")
    with pytest.raises(UsageError, match=r"no field 'lengths': use .* such as batch.as_grid\(batch.values\)"):
        batch.as_grid("lengths")
    assert (batch.as_grid(batch.observations) == batch.as_grid("observations")).all()
    for wrong, form in ((np.zeros((3, 6)), r"of shape \(3, 6\)"), ([1.0, 2.0], "a list")):
        with pytest.raises(UsageError, match=rf"the name of a field or an array of 18 rows, not {form}"):
            batch.as_grid(wrong)


@pytest.mark.parametrize("options", [{}, TWO])
def test_each_episode_has_the_reset_options_of_the_call_in_which_it_began(options):
    with local(env=Offset, **options) as sampler:
        batches = []
        for call in range(4):
            given = {"offset": [float(call)]} if call else None
            batches.append(sampler.obtain_fragments(9, 5, reset_options=given))
            assert given == ({"offset": [float(call)]} if call else None)
    offsets: dict[int, float] = {}
    for call, batch in enumerate(batches):
        for index, continued, one in zip(batch.indices.tolist(), batch.continued.tolist(), batch, strict=True):
            if not continued:
                offsets[index] = float(call)
                assert one.episode_infos["offset"].tolist() == [call]
            assert (np.floor(one.observations) == offsets[index]).all()
    assert len(set(offsets.values())) >= 3


def test_other_environments_begin_fresh_episodes():
    with local() as sampler, local() as whole:
        sampler.obtain_fragments(4, 2), whole.advance_version()
        assert sampler.obtain_trajectories(3) == whole.obtain_trajectories(3)
        after = sampler.obtain_fragments(4)
        assert after.as_grid("rewards").shape == (4, 2), "as many as in the last call of fragments"
        assert after.continued.any()
        assert sampler.obtain_fragments(4).continued.any()
        assert not sampler.obtain_fragments(4, 2, env_update=Sticky).continued.any()
        with pickle.loads(pickle.dumps(sampler)) as copied:
            batch = copied.obtain_fragments(5)
        assert batch == sampler.obtain_fragments(5)
    assert batch.as_grid("rewards").shape == (5, 2)
    assert (batch.continued.any(), batch.agent_version) == (True, 6)


def test_another_number_of_environments_begins_afresh_and_warns(caplog):
    with caplog.at_level(logging.WARNING, "streamsampler"), local("random", "CartPole-v1") as sampler:
        sampler.obtain_fragments(3, 2)
        sampler.obtain_fragments(3, 4, env_update="CartPole-v1")
        sampler.obtain_trajectories(1, env_update="CartPole-v1")
        sampler.obtain_fragments(3, 2)
        assert "fresh environments start" not in caplog.text, "only what the calls asked for"
        assert not sampler.obtain_fragments(3, 5).continued.any()
        assert caplog.text.count("for 5 environments, after 2 in the last call: all open episodes end") == 1


@pytest.mark.parametrize(
    ("options", "n_envs"), [({}, 8), ({"worker_class": VecWorker}, 16), (vec(3), 8), (vec(12), 12)]
)
@pytest.mark.slow
def test_without_n_envs_the_number_of_timesteps_does_not_depend_on_the_workers(options, n_envs):
    batches = []
    for n_workers in (1, 2, 11):
        with local(n_workers=n_workers, **options) as sampler:
            batches.append([sampler.obtain_fragments(6), sampler.obtain_fragments(6)])
    assert batches[0] == batches[1] == batches[2]
    assert batches[0][0].as_grid("rewards").shape == (6, n_envs)


the_only = Sticky()


def only() -> Any:
    return the_only


def wrapped() -> Any:
    return TimeLimit(the_only, 100)


@pytest.mark.parametrize("env", [only, wrapped])
@pytest.mark.parametrize("options", [{}, {"n_workers": 3}, vec(1), {**vec(1), "n_workers": 3}, TWO])
def test_a_factory_that_returns_the_same_environment_again_is_refused_where_there_are_several(env, options):
    with local(env=env, check=None, **options) as sampler:
        for _ in range(2):
            with pytest.raises(RolloutError, match=f"{env.__name__} must make a new environment each time") as caught:
                sampler.obtain_fragments(10, 3)
            assert isinstance(caught.value.original, UsageError)
            assert caught.value.phase == "making the environment"
        if options != TWO:
            assert sampler.obtain_trajectories(2).n_trajectories == 2


@pytest.mark.parametrize("options", [{}, {"n_workers": 3}, vec(1)])
def test_one_environment_alone_goes_on(options):
    """One is enough for one environment of fragments, however often other ones begin, and for whole trajectories."""
    with local(env=only, check=None, **options) as sampler, local() as reference:
        for _ in range(2):
            sampler.obtain_trajectories(4), reference.obtain_trajectories(4)
            for _ in range(2):
                assert sampler.obtain_fragments(7, 1) == reference.obtain_fragments(7, 1)
            sampler.obtain_fragments(7, 1, env_update=only), reference.obtain_fragments(7, 1, env_update=Sticky)
    # It is free again.
    with local(env=only, check=None, **options) as sampler:
        sampler.obtain_fragments(7, 1)


@pytest.mark.slow
@pytest.mark.parametrize("options", [{}, TWO])
def test_processes_have_one_each(options):
    with MultiprocessingSampler(Restorable(), only, seed=SEED, n_workers=2, check=None, **options) as sampler:
        if not options:
            with local() as reference:
                assert sampler.obtain_fragments(10, 2) == reference.obtain_fragments(10, 2)
        with pytest.raises(RolloutError, match="only must make a new environment each time"):
            sampler.obtain_fragments(10, 3)


@pytest.mark.parametrize("options", [{"n_workers": 2}, TWO])
def test_an_environment_that_a_function_brings_along_is_copied(options):
    env = cart_pole()
    with local(env=lambda: TimeLimit(env, 500), **options) as sampler, local(env="CartPole-v1", **options) as reference:
        for _ in range(2):
            assert sampler.obtain_fragments(9, 4) == reference.obtain_fragments(9, 4)
        assert sampler.obtain_trajectories(9) == reference.obtain_trajectories(9)


class Closing(Steps):
    """Counts those that are open."""

    n_open = 0

    def __init__(self) -> None:
        super().__init__(5)
        Closing.n_open += 1

    def close(self) -> None:
        Closing.n_open -= 1


@pytest.mark.parametrize(("options", "n_made"), [({}, 5), ({"n_workers": 2}, 5), (TWO, 6)])
def test_all_environments_are_closed(options, n_made):
    """Of those that a worker makes itself some may have nothing to do."""
    with local("random", Closing, check=None, **options) as sampler:
        sampler.obtain_fragments(3, 5)
        assert Closing.n_open in (5, n_made)
        sampler.obtain_fragments(3, 2)
        sampler.obtain_trajectories(1)
    assert Closing.n_open == 0


class WithoutFragments(DefaultWorker):
    """A kind of worker that does not know of fragments."""

    can_continue = False


ONE_OF_EACH = "the same agent and environment"


@pytest.mark.parametrize(
    ("options", "arguments", "message"),
    [
        ({"order": "arrival"}, {}, 'order="index"'),
        ({"on_failure": "drop"}, {}, 'on_failure="raise"'),
        ({"worker_class": WithoutFragments}, {}, "WithoutFragments does not support fragments"),
        ({"agents": [Restorable(), Restorable()]}, {}, ONE_OF_EACH),
        ({}, {"agent_update": PerWorker([np.zeros(4), np.ones(4)])}, ONE_OF_EACH),
        ({}, {"env_update": PerWorker([Sticky, Sticky])}, ONE_OF_EACH),
        ({}, {"reset_options": [{}]}, "reset_options must be a dict"),
        ({}, {"restore_limit": -1}, "restore_limit must be"),
        ({}, {"n_timesteps": 0}, "n_timesteps must be"),
        ({}, {"n_timesteps": 2.5}, "n_timesteps must be"),
        ({}, {"n_envs": 0}, "n_envs must be"),
        ({}, {"agent_update": 0.5}, r"obtain_fragments\(5, 2, 0.5\): the arguments are .*a number cannot"),
        ({}, {"agent_update": np.int64(5)}, "The third must update the agent, and a number cannot"),
    ],
)
def test_what_fragments_do_not_go_with(options, arguments, message):
    given = {"agents": Restorable(), "n_workers": 2, **options}
    with LocalSampler(envs=Sticky, seed=SEED, **given) as sampler, pytest.raises(UsageError, match=f"(?s){message}"):
        sampler.obtain_fragments(**{"n_timesteps": 5, "n_envs": 2, **arguments})


@pytest.mark.parametrize("options", [{}, vec(3)])
def test_an_exception_names_the_worker_and_ends_the_episodes(options):
    with local(always_zero, Rough, **options) as sampler:
        with pytest.raises(RolloutError, match="worker 0 failed while stepping"):
            sampler.obtain_fragments(2000, 4)
        assert not sampler.obtain_fragments(1, 4).continued.any()


def test_a_vector_environment_is_refused():
    refused = pytest.raises(RolloutError, match="a vector environment runs no fragments")
    with local(always_zero, SyncVectorEnv([Sticky] * 3), **vec(3)) as sampler, refused:
        sampler.obtain_fragments(5, 3)


@pytest.mark.parametrize("options", [{}, TWO])
def test_a_call_that_is_refused_ends_no_episodes(options):
    lock = {"a lock": threading.Lock()}
    with local(**options) as reference, local(**options) as sampler:
        for _ in range(2):
            expected = reference.obtain_fragments(5, 3)
            assert sampler.obtain_fragments(5, 3) == expected
            version = sampler.agent_version
            for refused in (
                lambda: sampler.obtain_trajectories(2, reset_options=lock),
                lambda: sampler.obtain_trajectories(2, tasks=[threading.Lock()]),
                lambda: sampler.obtain_fragments(5, 3, reset_options=lock),
                lambda: sampler.obtain_fragments(5, 4, reset_options=lock),
                lambda: sampler.obtain_fragments(5, 3, env_update=Sticky, reset_options=lock),
            ):
                with pytest.raises(SerializationError):
                    refused()
            assert sampler.agent_version == version
        assert expected.continued.any()


class Interrupting(Sticky):
    """Interrupts once, in the middle of an episode."""

    left = 0

    def step(self, action: int) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        Interrupting.left -= 1
        if Interrupting.left == 0:
            raise KeyboardInterrupt
        return super().step(action)


@pytest.mark.parametrize("options", [{}, TWO])
def test_after_an_interrupt_new_episodes_begin_the_same_for_any_number_of_workers(options):
    with (
        local(env=Interrupting, check=None, **options) as sampler,
        local(n_workers=2, check=None, **options) as reference,
    ):
        sampler.obtain_fragments(9, 3), reference.obtain_fragments(9, 3)
        Interrupting.left = 11
        with pytest.raises(KeyboardInterrupt):
            sampler.obtain_fragments(9, 3)
        reference.obtain_trajectories(1, env_update=Sticky)  # uses up a version, and ends the episodes
        for _ in range(2):
            assert sampler.obtain_fragments(9, 3) == reference.obtain_fragments(9, 3)


PLACES: list[Any] = [(OpenEpisodes, "begin"), (Call, "pump"), (FragmentLedger, "record"), (Call, "complete")]


def calls_of_which_one_is_interrupted(sampler: Any, monkeypatch: Any, place: Any) -> list[Any]:
    first = sampler.obtain_fragments(9, 3)
    with monkeypatch.context() as patch:
        owner, method = place
        raise_once(patch, owner, method, KeyboardInterrupt)
        with pytest.raises(KeyboardInterrupt):
            sampler.obtain_fragments(9, 3)
    return [first, *(sampler.obtain_fragments(9, 3) for _ in range(2)), sampler.agent_version]


@pytest.mark.slow
@pytest.mark.parametrize("options", [{}, TWO])
@pytest.mark.parametrize("place", PLACES)
def test_after_an_interrupt_at_any_place_of_a_call_processes_give_the_same(place, options, monkeypatch):
    with local(**options) as sampler:
        first, second, third, version = expected = calls_of_which_one_is_interrupted(sampler, monkeypatch, place)
    assert first.cut.any()
    assert not second.continued.any()
    assert second.seeds[0] != first.seeds[0]
    assert third.continued.any()
    assert version == (3 if place == PLACES[0] else 4)
    with MultiprocessingSampler(Restorable(), Sticky, seed=SEED, n_workers=2, **options) as sampler:
        assert calls_of_which_one_is_interrupted(sampler, monkeypatch, place) == expected
