"""Batches that are made of steps are those of a sampler."""

import functools
import itertools
from typing import Any

import numpy as np
import pytest

from streamsampler.data.trees import same
from streamsampler.errors import ActionError, DataError, UsageError
from streamsampler.samplers.processes import LocalSampler
from streamsampler.stepping.managers import EnvManager, SerialEnvManager
from streamsampler.workers.vec.row_recorders import StepRecorder
from streamsampler.workers.vec.rows import row_of
from tests.stepping.conftest import MODES, kill
from tests.stepping.environments import Counting, Strolling, Varied
from tests.tiers import mostly_slow

FIELDS = (
    "observations", "last_observations", "actions", "rewards", "terminated", "truncated", "lengths", "env_infos",
    "agent_infos", "episode_infos", "seeds",
)  # fmt: skip
N_ENVS = 7


class Agent:
    def get_action(self, observation):
        light = int(observation["image"].astype(int).sum())
        return {"choice": light % 5, "force": np.clip(observation["position"], -1, 1)}, {"light": light}


def assert_same(batch):
    with LocalSampler(Agent(), Varied) as sampler:
        expected = sampler.obtain_trajectories(seeds=list(batch.seeds))
    for field in FIELDS:
        assert same(getattr(batch, field), getattr(expected, field)), field


def record(manager, recorder, n, min_envs, before):
    """Step a manager until n trajectories can be taken; infos and what the agent says are overwritten when they are."""
    agent, said = Agent(), np.zeros(manager.n_envs, np.int64)
    lights = [0] * manager.n_envs
    steps, to_send = manager.reset(), list(range(manager.n_envs))
    recorder.add(steps)
    for number in itertools.count():
        before(number)
        actions = []
        for env_id in to_send:
            observation = row_of(steps.observations, steps.env_ids.tolist().index(env_id))
            action, info = agent.get_action(observation)
            actions.append(action)
            lights[env_id] = info["light"]
        manager.send(actions, to_send)
        steps = manager.recv(min_envs)
        said[: len(steps)] = [lights[env_id] for env_id in steps.env_ids.tolist()]
        recorder.add(steps, {"light": said[: len(steps)]})
        for info in steps.info_by_row.values():
            info.clear()
        if len(recorder) >= n:
            return
        ended = steps.env_ids[steps.ended].tolist() if manager.autoreset == "disabled" else []
        manager.async_reset(ended)
        to_send = [env_id for env_id in steps.env_ids.tolist() if env_id not in ended]


@pytest.mark.parametrize(
    ("autoreset", "n_workers", "min_envs", "copy"),
    mostly_slow([
        ("next_step", 0, N_ENVS, True), ("same_step", 0, N_ENVS, False), ("disabled", 0, 1, True),
        ("next_step", 2, 1, False), ("same_step", 2, 1, True),
    ], 2),
)  # fmt: skip
def test_batches_are_those_of_a_sampler(autoreset, n_workers, min_envs, copy):
    """Also where workers are killed."""
    kind: Any = functools.partial(EnvManager, n_workers=n_workers) if n_workers else SerialEnvManager
    with kind(Varied, n_envs=N_ENVS, seed=3, autoreset=autoreset, copy=copy) as manager:
        lose = lambda number: kill(manager, number % 2) if n_workers and number in (3, 7, 8) else None  # noqa: E731
        recorder = manager.recorder()
        record(manager, recorder, 24, min_envs, lose)
        first, rest = recorder.take(17), recorder.take()
        assert bool(manager.stats.restored) == bool(n_workers)
    assert first.indices.tolist() == list(range(17))
    assert rest.indices.tolist()[:7] == list(range(17, 24))
    assert len(recorder) == 0
    for batch in (first, rest):
        assert_same(batch)
        assert batch.seed == 3


def serial(*lengths, **options):
    envs = [functools.partial(Counting, length) for length in lengths]
    return SerialEnvManager(envs, n_envs=len(lengths), seed=0, **options)


def step_all(manager, recorder, n, actions=None):
    for _ in range(n):
        recorder.add(manager.step(np.ones(manager.n_envs, np.int64) if actions is None else actions))


@pytest.mark.parametrize("autoreset", ["next_step", "same_step"])
def test_a_prefix_is_taken_and_what_it_waits_for_is_named(autoreset):
    with serial(1, 4, autoreset=autoreset) as manager:
        recorder = manager.recorder()
        assert recorder.take().n_trajectories == 0
        recorder.add(manager.reset())
        assert (len(recorder), recorder.missing) == (0, [0, 1])
        step_all(manager, recorder, 3)
        assert (len(recorder), recorder.missing) == (1, [1])
        with pytest.raises(UsageError, match=r"only 1 of 2 trajectories are complete: step environments \[1\]"):
            recorder.take(2)
        assert recorder.take().indices.tolist() == [0]
        step_all(manager, recorder, 1)
        batch = recorder.take()
        assert batch.indices.tolist()[:2] == [1, 2]
        assert batch.lengths.tolist()[:2] == [4, 1]


def test_an_environment_may_be_so_far_ahead():
    with serial(1, 100, autoreset="same_step") as manager:
        recorder = manager.recorder(max_held=3)
        recorder.add(manager.reset())
        step_all(manager, recorder, 3)
        with pytest.raises(UsageError, match=r"4 episodes ahead of environments \[1\]"):
            step_all(manager, recorder, 1)
        wrong_numbers: list[Any] = [0, 1.5, "2"]
        for wrong in wrong_numbers:
            with pytest.raises(UsageError, match="n_trajectories must be"):
                recorder.take(wrong)
            with pytest.raises(UsageError, match="max_held must be"):
                manager.recorder(max_held=wrong)


@pytest.mark.parametrize("autoreset", MODES)
def test_episodes_that_a_reset_cuts_short_are_left_out(autoreset):
    with serial(3, 3, autoreset=autoreset) as manager:
        recorder = manager.recorder()
        recorder.add(manager.reset())
        step_all(manager, recorder, 2)
        recorder.add(manager.reset([0]))
        recorder.add(manager.step([1], [1]))
        manager.send([1], [0])
        manager.async_reset([0])
        recorder.add(manager.recv())
        for _ in range(3):
            recorder.add(manager.step([1], [0]))
        assert recorder.missing == [1]
        if autoreset == "disabled":
            recorder.add(manager.reset([1]))
        for _ in range(3 + (autoreset == "next_step")):
            recorder.add(manager.step([1], [1]))
        batch = recorder.take()
        assert batch.indices.tolist() == [1, 3, 4]
        assert batch.lengths.tolist() == [3, 3, 3]
        assert recorder.n_left_out == 2


@pytest.mark.parametrize("autoreset", MODES)
def test_episodes_that_failed_are_left_out(autoreset):
    with serial(3, 3, autoreset=autoreset, on_failure="reset") as manager:
        recorder = manager.recorder()
        recorder.add(manager.reset())
        for actions in ([1, 1], [9, 1], {1: 1}):
            recorder.add(manager.step(actions))
        if autoreset == "disabled":
            recorder.add(manager.reset([0]))
        for _ in range(3 + (autoreset == "next_step")):
            recorder.add(manager.step({0: 1}))
        batch = recorder.take()
        assert (recorder.n_left_out, batch.indices.tolist()) == (1, [1, 2])
        assert same(batch.observations[:, 1], np.tile([0.0, 1.0, 2.0], 2))


@pytest.mark.parametrize("autoreset", ["next_step", "same_step"])
def test_a_recorder_begins_with_the_next_episodes(autoreset):
    with serial(2, 3, autoreset=autoreset) as manager:
        manager.reset(seed=[7, 8])
        manager.step([1, 1])
        recorder = manager.recorder()
        for _ in range(9):
            steps = manager.step([1, 1])
            seen = steps.last_observations if autoreset == "same_step" else steps.observations
            assert steps.seeds.tolist() == seen[:, 0].tolist(), "rows have the seeds of their episodes"
            recorder.add(steps)
        batch = recorder.take(2)
        assert (batch.indices.tolist(), batch.lengths.tolist()) == ([2, 3], [2, 3])
        assert [part.observations[0, 0] for part in batch] == list(batch.seeds)


@pytest.mark.parametrize("autoreset", ["next_step", "same_step"])
def test_results_that_are_missing_or_come_twice_are_errors(autoreset):
    """Not even an episode's last one may be left out."""
    with serial(1, 3, autoreset=autoreset) as manager:
        recorder = manager.recorder()
        recorder.add(manager.reset())
        first, second = manager.step([1, 1]).by_env(), manager.step([1, 1])
        recorder.add(first[1])
        with pytest.raises(UsageError, match="environment 0 is not its next result: it is number 2, but number 1"):
            recorder.add(second)
        with pytest.raises(UsageError, match=r"timestep 1 .* it is number 1, but number 2 comes next"):
            recorder.add(first[1])
        recorder.add(first[0])
        recorder.add(second)
        assert len(recorder) == 1
        manager.close()
        manager.launch()
        with pytest.raises(UsageError, match="launched again after this recorder was made"):
            recorder.add(manager.reset())


def test_a_call_that_is_broken_off_is_not_repeated(monkeypatch):
    def interrupted(*_):
        raise KeyboardInterrupt

    with serial(3) as manager:
        recorder = manager.recorder()
        recorder.add(manager.reset())
        steps = manager.step([1])
        monkeypatch.setattr(StepRecorder, "begin_call", interrupted)
        with pytest.raises(KeyboardInterrupt):
            recorder.add(steps)
        for call in (lambda: recorder.add(steps), recorder.take):
            with pytest.raises(UsageError, match="interrupted, by Ctrl-C or an error: make a new recorder"):
                call()


def test_infos_of_agents_that_cannot_be():
    wrong: list[tuple[Any, str]] = [
        ([{}], "agent_infos must be a dict of arrays with a row for each step, got list"),
        ({"value": [1.0]}, "should have one row for each of 2"),
        ({3: [1.0, 2.0]}, "3"),
    ]
    with serial(3, 3) as manager:
        recorder = manager.recorder()
        recorder.add(manager.reset())
        steps = manager.step([1, 1])
        for infos, match in wrong:
            with pytest.raises(DataError, match=match):
                recorder.add(steps, infos)
        recorder.add(steps, {"value": [1.0, 2.0]})


def test_actions_outside_their_space_that_an_environment_took():
    """A sampler would refuse them, too."""
    with SerialEnvManager(Strolling, n_envs=2, seed=0, autoreset="same_step") as manager:
        recorder = manager.recorder()
        recorder.add(manager.reset())
        match = (
            r"action is outside its space: .*, at timestep 0 of an episode of environment 0: the episode is left out"
        )
        with pytest.raises(ActionError, match=match):
            step_all(manager, recorder, 12, [[2, 0], [0, 0]])
        assert recorder.n_left_out == 1
        step_all(manager, recorder, 12, [[1, 0], [0, 0]])
        assert recorder.take(3).indices.tolist() == [1, 2, 3]
