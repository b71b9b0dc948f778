"""Hooks and `drop_if`: called in workers with what they may see."""

from __future__ import annotations

import os
import pickle
import signal
import threading
from contextlib import suppress
from functools import partial
from typing import Any, ClassVar

import numpy as np
import pytest

from streamsampler import EnvUpdate, LocalSampler, MultiprocessingSampler, VecWorker, evaluate, sample_to_folder
from streamsampler.errors import RolloutError, SerializationError, UsageError
from streamsampler.filters import RunningNorm
from streamsampler.testing.scripted import ScriptedAgent, ScriptedEnv
from streamsampler.workers.fail_points import Records
from tests.contracts.conftest import PARENT, RAY, Maker, on, slow
from tests.contracts.told import Tasked
from tests.extending.pairs import PairWorker
from tests.scripted.agents import Independent, always_zero
from tests.scripted.games import Comings

SEED = 9


class Env(ScriptedEnv):
    """Reports whether a step went wrong; one trajectory in four has such a step, and one in ten a bad beginning."""

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        observation, _ = super().reset(seed=seed)
        self.crashes = self.np_random.random() < 0.25
        return observation, {"begins": float(observation[0]), "crashed": bool(self.np_random.random() < 0.1)}

    def step(self, action: Any) -> Any:
        observation, reward, terminated, truncated, _ = super().step(action)
        return observation, reward, terminated, truncated, {"crashed": self.crashes and self._left == 1}


class Metrics:
    """Adds up what it sees of a trajectory, and compares it with what was recorded."""

    aggregation: ClassVar = {"steps": "sum", "last_index": "last"}

    def on_trajectory_start(self, context: Any) -> None:
        assert (context.timestep, context.metrics) == (0, {})
        self.seen: list[Any] = [context.observation.copy()]

    def on_timestep(self, context: Any) -> None:
        self.seen.append(context.observation.copy())
        context.metrics["steps"] = context.metrics.get("steps", 0) + 1
        context.metrics["largest"] = max(context.metrics.get("largest", 0.0), context.reward)

    def on_trajectory_end(self, context: Any) -> None:
        np.testing.assert_array_equal(context.observations, self.seen[:-1])
        assert context.rewards[-1] == context.reward
        assert context.actions[-1] == context.action
        assert context.terminated
        assert isinstance(context.env.unwrapped, ScriptedEnv)
        context.metrics.update(
            last_index=context.index, word=f"seed {context.seed}", version=context.agent_version,
            total=float(context.rewards.sum()),
        )  # fmt: skip


def crashed(info: dict[str, Any]) -> bool:
    return bool(info["crashed"])


make: Any = partial(LocalSampler, ScriptedAgent(), Env((2, 9)), seed=SEED)


def batches(make: Any, **options: Any) -> list[Any]:
    with make(**{"hooks": Metrics(), **options}) as sampler:
        found = [sampler.obtain_trajectories(15), sampler.obtain_samples(60, {"offset": 1})]
        assert sampler.stats.metrics == found[-1].stats.metrics
        assert sampler.stats.flat()["metrics/steps"] == found[-1].n_timesteps
        assert sampler.stats.flat()["recent/metrics/steps"] > 0
        return found


@on("local", "processes", RAY)
def test_metrics_are_what_the_trajectories_say(make_sampler: Maker):
    expected = batches(make, drop_if=crashed)
    side_by_side = {"worker_class": VecWorker, "worker_args": {"n_envs": 3}}
    for options in ({}, side_by_side) if make_sampler.engine != "processes" else ({},):
        on_engine = partial(make_sampler, ScriptedAgent(), Env((2, 9)), n_workers=2, seed=SEED)
        found = batches(on_engine, drop_if=crashed, **options)
        assert found == expected
        for batch in found:
            infos = batch.episode_infos
            assert infos["steps"].tolist() == batch.lengths.tolist()
            assert infos["word"].tolist() == [f"seed {seed}" for seed in batch.seeds]
            assert infos["version"].tolist() == [batch.agent_version] * len(batch)
            assert len(infos["begins"]) == len(batch), "the reset's infos stay"
            largest = [part.rewards.max() for part in batch]
            assert infos["largest"].tolist() == largest
            metrics = dict(batch.stats.metrics)
            assert metrics.pop("largest") == pytest.approx(np.mean(largest))
            assert metrics.pop("total") == pytest.approx(batch.returns.mean())
            assert metrics == {
                "steps": batch.n_timesteps, "last_index": batch.indices[-1], "version": batch.agent_version,
            }  # fmt: skip


def test_abnormal_trajectories_are_left_out_and_counted():
    plain, left = (batches(make, drop_if=drop_if)[0] for drop_if in (None, crashed))
    with make() as sampler:
        everything = sampler.obtain_trajectories(int(left.indices[-1]) + 1)
    bad = [
        index for index, each in enumerate(everything)
        if each.episode_infos["crashed"].any() or each.env_infos["crashed"].any()
    ]  # fmt: skip
    assert len(bad) > 2
    assert left.indices.tolist() == [i for i in range(len(everything)) if i not in bad]
    assert plain.indices.tolist() == list(range(15))
    stats = left.stats
    assert (stats.dropped_trajectories, [dropped.index for dropped in stats.dropped]) == (len(bad), bad)
    assert {dropped.phase for dropped in stats.dropped} == {"calling drop_if"}
    assert all("drop_if returned true for the" in dropped.error for dropped in stats.dropped)
    assert stats.lost_timesteps > 0
    assert all(each.rewards.tolist() == everything[int(each.indices[0])].rewards.tolist() for each in left)
    whatever_restarts = {"on_failure": "drop", "restart_on": Exception, "max_restarts": 0}
    assert batches(make, drop_if=crashed, **whatever_restarts)[0] == left


@pytest.mark.parametrize("hook", ["on_trajectory_start", "on_timestep", "on_trajectory_end"])
def test_an_error_names_the_hook_and_the_trajectory(hook):
    class Bad:
        pass

    def fail(self: Any, context: Any) -> None:
        if context.index == 3:
            raise LookupError("no such table")

    setattr(Bad, hook, fail)
    with MultiprocessingSampler(ScriptedAgent(), ScriptedEnv(4), n_workers=2, seed=SEED, hooks=Bad()) as sampler:
        with pytest.raises(RolloutError, match=f"calling the hook {hook} in trajectory 3 .*no such table") as caught:
            sampler.obtain_trajectories(6)
        assert isinstance(caught.value.original, LookupError)
    with make(hooks=Bad(), on_failure="drop") as local:
        batch = local.obtain_trajectories(6)
        assert batch.indices.tolist() == [0, 1, 2, 4, 5, 6]
        assert [dropped.phase for dropped in batch.stats.dropped] == [f"calling the hook {hook}"]


class Losses:
    """Records what was lost, and may fail at that itself."""

    def __init__(self, folder: Any, fails: bool = False) -> None:
        self.records, self.fails = Records(folder), fails

    def on_trajectory_lost(self, context: Any, error: BaseException) -> None:
        self.records.record(f"{context.index} after {context.timestep} {type(error).__name__}")
        if self.fails:
            raise ValueError("no room")


class Stuck(ScriptedEnv):
    """Raises in its third step."""

    def step(self, action: Any) -> Any:
        if self._left == 2:
            raise OSError("the arm is stuck")
        return super().step(action)


@pytest.mark.parametrize("fails", [False, True])
def test_the_hook_of_lost_trajectories_sees_the_error(tmp_path, fails, caplog):
    hooks = Losses(tmp_path, fails)
    with LocalSampler(ScriptedAgent(), Stuck(5), seed=SEED, hooks=hooks, check=None) as sampler:
        with pytest.raises(RolloutError, match="the arm is stuck") as caught:
            sampler.obtain_trajectories(1)
        assert caught.value.phase == "stepping the environment"
    assert hooks.records.count("0 after 3 OSError") == 1
    notes = getattr(caught.value.original, "__notes__", [])
    assert ("on_trajectory_lost raised as well: ValueError: no room" in notes) == fails
    assert ("no room" in caplog.text) == fails


class Hiding:
    def on_trajectory_end(self, context: Any) -> None:
        context.metrics["begins"] = 1


class Listing:
    def on_trajectory_end(self, context: Any) -> None:
        context.metrics = np.ones(3)


@pytest.mark.parametrize(
    ("env", "options", "words"),
    [
        (Stuck(5), {"drop_if": lambda _info: False}, "the arm is stuck"),  # which drop_if does not mean
        (Env(3), {"drop_if": lambda info: info["no"]}, r"calling drop_if in trajectory 0.*KeyError"),
        (Env(3), {"drop_if": lambda _info: True}, r"too many to drop.*drop_if returned true for the reset's info"),
        (Env(3), {"hooks": Hiding()}, "the metrics begins have the names"),
        (Env(3), {"hooks": Listing()}, "context.metrics must be a dict of values by name, but a hook set it to array"),
        (Env(3), {"hooks": Listing(), "worker_class": VecWorker}, "context.metrics must be a dict"),
    ],
)
def test_what_ends_a_call(env, options, words):
    with LocalSampler(ScriptedAgent(), env, seed=SEED, **options) as sampler, pytest.raises(RolloutError, match=words):
        sampler.obtain_trajectories(5)


class Short(ScriptedEnv):
    """Returns four values."""

    def step(self, action: Any) -> Any:
        return super().step(action)[:4]


class Misshapen(ScriptedEnv):
    """Returns a last observation of another shape."""

    def step(self, action: Any) -> Any:
        observation, *others = super().step(action)
        return observation[:-1] if self._left == 0 else observation, *others


@pytest.mark.parametrize("call", ["obtain_trajectories", "obtain_fragments"])
@pytest.mark.parametrize("options", [{}, {"worker_class": VecWorker, "worker_args": {"n_envs": 3}}])
def test_what_is_wrong_with_a_step_is_said_with_hooks_as_without(options, call, tmp_path):
    hooks = Losses(tmp_path)
    given = {"seed": SEED, "hooks": hooks, "check": None, **options}
    with (
        LocalSampler(ScriptedAgent(), Short(5), **given) as sampler,
        pytest.raises(RolloutError, match=r"step must return \(observation, reward, terminated, truncated, info\)"),
    ):
        getattr(sampler, call)(3)
    assert hooks.records.count("0 after 0 ValueError") == 1
    with (
        LocalSampler(ScriptedAgent(), Misshapen(1), **given) as sampler,
        pytest.raises(RolloutError, match="recording the trajectory in trajectory 0"),
    ):
        getattr(sampler, call)(3)
    assert hooks.records.count("0 after 1 ObservationError") == 0, "it had ended"


class Wordy:
    """Gives a metric that is a number in most trajectories."""

    aggregation: ClassVar = {"even": "sum", "latest": "last"}

    def on_trajectory_end(self, context: Any) -> None:
        context.metrics["mixed"] = "none" if context.index == 3 else context.index
        context.metrics["latest"] = context.rewards[-1]
        context.metrics["mean"] = context.rewards.sum()
        if context.index % 2 == 0:
            context.metrics["even"] = context.timestep


@pytest.mark.parametrize("options", [{}, {"worker_class": VecWorker, "n_workers": 2}])
def test_streams_have_the_metrics_of_what_they_handed_out(options):
    with make(hooks=Wordy(), **options) as sampler:
        stream = sampler.stream()
        for n in range(1, 8):
            trajectory = next(stream)
            assert sampler.stats.metrics["latest"] == trajectory.episode_infos["latest"][0] == trajectory.rewards[-1]
            assert ("mixed" in sampler.stats.metrics) == (n <= 3)
        assert sampler.stats.flat()["metrics/even"] == sampler.stats.metrics["even"]
        streamed = dict(sampler.stats.metrics)
    with make(hooks=Wordy()) as sampler:
        assert streamed == pytest.approx(sampler.obtain_trajectories(7).stats.metrics, rel=1e-14)
    assert set(streamed) == {"even", "latest", "mean"}


class Misspelt:
    def on_episode_end(self, context: Any) -> None:
        pass


class Wrongly(Metrics):
    aggregation: ClassVar = {"steps": "median"}


class Unpicklable(Metrics):
    def __init__(self) -> None:
        self.lock = threading.Lock()


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"hooks": Misspelt()}, "on_trajectory_end.*it has on_episode_end"),
        ({"hooks": object()}, "none of them"),
        ({"hooks": Metrics}, r"got the class Metrics: pass Metrics\(…\)"),
        ({"hooks": Wrongly()}, "'steps' has the aggregation 'median': use one of mean, sum, last"),
        ({"hooks": Unpicklable()}, r"hooks \(Unpicklable\) cannot be pickled.*lock"),
        ({"drop_if": "crashed"}, "drop_if must be a function"),
        ({"hooks": Metrics(), "worker_class": PairWorker}, "PairWorker calls no hooks.*use DefaultWorker"),
        ({"drop_if": crashed, "worker_class": PairWorker}, "PairWorker calls no hooks"),
        ({"on_failure": "drop", "drop_if": crashed, "worker_class": VecWorker}, 'cannot drop.*on_failure="raise"'),
    ],
)
def test_what_cannot_work_is_said_at_construction(options, words):
    with pytest.raises((UsageError, SerializationError), match=words):
        make(**options)


class PerTask:
    """Says which task a trajectory has, and what it sees of observations, which filters do not change for it."""

    def on_trajectory_start(self, context: Any) -> None:
        context.memory["seen"] = [context.observation.copy()]

    def on_timestep(self, context: Any) -> None:
        context.memory["seen"].append(context.observation.copy())

    def on_trajectory_end(self, context: Any) -> None:
        np.testing.assert_array_equal(context.observations, context.memory["seen"][:-1])
        context.metrics.update(task=context.reset_info["task_index"], total=float(context.rewards.sum()))


@on("local", "processes", *slow("queues fork", PARENT), RAY)
@pytest.mark.parametrize("options", [{}, {"worker_class": VecWorker, "worker_args": {"n_envs": 3}}])
def test_hooks_go_with_tasks_and_filters(options, make_sampler: Maker):
    given: dict[str, Any] = {"seed": SEED, "hooks": PerTask(), "observation_filter": RunningNorm(clip=3.0), **options}
    sampler = make_sampler(Independent(always_zero), Tasked, n_workers=2, **given)
    with LocalSampler(Independent(always_zero), Tasked, n_workers=3, **given) as local:
        for _ in range(3):
            found, expected = (each.obtain_trajectories(4, tasks=[5.0, 3.0, 9.0]) for each in (sampler, local))
            assert found == expected
            assert found.episode_infos["task"].tolist() == np.repeat(range(3), 4).tolist()
            assert found.episode_infos["total"].tolist() == found.returns.tolist()
            assert found.stats.metrics == {"task": 1.0, "total": pytest.approx(found.returns.mean())}
            if make_sampler.engine != "local":
                with suppress(ProcessLookupError):  # of a worker that had nothing to do since it was killed
                    os.kill(sampler.worker_pids()[0], signal.SIGKILL)


class Preparing:
    """Says how long the episodes of an environment are."""

    def on_environment_created(self, env: Any, worker_number: int) -> None:
        assert env.unwrapped.steps is None, "it is told of once, before anything else"
        env.unwrapped.steps = 7
        assert worker_number in (0, 1)


class PreparedDraws(ScriptedEnv):
    steps: Any = None

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        result = super().reset(seed=seed)
        self._left = self.steps
        return result


@on("local", "processes", *slow("queues fork"), RAY)
@pytest.mark.parametrize("options", [{}, {"worker_class": VecWorker, "worker_args": {"n_envs": 3}}])
def test_each_environment_is_told_of_when_it_was_made(options, make_sampler: Maker):
    sampler = make_sampler(ScriptedAgent(), PreparedDraws(1), n_workers=2, seed=SEED, hooks=Preparing(), **options)
    assert sampler.obtain_trajectories(9).lengths.tolist() == [7] * 9
    assert sampler.obtain_fragments(8, 7).lengths.tolist() == [7, 1] * 7
    if make_sampler.engine != "local":
        os.kill(sampler.worker_pids()[0], signal.SIGKILL)
    assert sampler.obtain_fragments(8, 7).lengths.tolist() == [6, 2] * 7
    assert sampler.obtain_trajectories(9, env_update=lambda: PreparedDraws(2)).lengths.tolist() == [7] * 9
    assert sampler.obtain_trajectories(9, env_update=LeaveAsItIs()).lengths.tolist() == [7] * 9


class LeaveAsItIs(EnvUpdate):
    def __call__(self, old_env: Any) -> Any:
        return old_env or PreparedDraws(3)


class Counting:
    def __init__(self, folder: Any) -> None:
        self.records = Records(folder)

    def on_environment_created(self, env: Any, worker_number: int) -> None:
        self.records.record("created")


class LeaveTheGame(EnvUpdate):
    def __call__(self, old_env: Any) -> Any:
        return old_env or Comings()


def test_an_environment_of_several_agents_is_told_of_once(tmp_path):
    hooks = Counting(tmp_path)
    with LocalSampler("random", Comings, seed=SEED, hooks=hooks) as sampler:
        sampler.obtain_trajectories(2)
        sampler.obtain_trajectories(2, env_update=LeaveTheGame())
        assert hooks.records.count("created") == 1
        sampler.obtain_trajectories(2, env_update=Comings)
        assert hooks.records.count("created") == 2


class Unprepared:
    def on_environment_created(self, env: Any, worker_number: int) -> None:
        raise LookupError("no such table")


class Closing(ScriptedEnv):
    closed: ClassVar[list[Any]] = []

    def close(self) -> None:
        self.closed.append(self)


@pytest.mark.parametrize("options", [{}, {"worker_class": VecWorker, "worker_args": {"n_envs": 3}}])
def test_an_error_of_that_hook_ends_the_call_and_the_environments_are_closed(options):
    del Closing.closed[:]
    unprepared: Any = partial(LocalSampler, ScriptedAgent(), lambda: Closing(3), seed=SEED, hooks=Unprepared())
    with unprepared(**options) as sampler:
        for n in (1, 2):
            with pytest.raises(RolloutError, match=r"calling the hook on_environment_created.*no such table"):
                sampler.obtain_trajectories(3)
            assert len(Closing.closed) == n


def test_environments_in_other_processes_than_their_hooks_are_not_told_of():
    with pytest.raises(UsageError, match='on_environment_created is not supported with inference="parent"'):
        MultiprocessingSampler(ScriptedAgent(), PreparedDraws(3), inference="parent", hooks=Preparing())


def test_pickles_folders_and_evaluations_have_them(tmp_path):
    with make(hooks=Metrics(), drop_if=crashed) as sampler:
        again = pickle.loads(pickle.dumps(sampler))
    with again:
        assert again.obtain_trajectories(15) == batches(make, drop_if=crashed)[0]
    with make(hooks=Metrics()) as sampler:
        folder = sample_to_folder(sampler, tmp_path / "data", n_trajectories=15, shard_size=4)
        assert sampler.stats.metrics == pytest.approx(batches(make)[0].stats.metrics, rel=1e-14)
    assert folder.to_batch() == batches(make)[0]
    given: list[dict[str, Any]] = [{}, {"drop_if": crashed, "hooks": Metrics()}]
    plain, left = (
        evaluate(ScriptedAgent(), Env((2, 9)), num_trajectories=15, seed=SEED, n_workers=0, **options)
        for options in given
    )
    assert (plain.left_out, len(left.returns)) == (0, 15)
    assert left.left_out > 0
