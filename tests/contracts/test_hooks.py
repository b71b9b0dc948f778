"""Hooks and `drop_if`: called in workers with what they may see; the same batches for any number of workers."""

from __future__ import annotations

import os
import pickle
import signal
import threading
from typing import Any, ClassVar

import numpy as np
import pytest

from streamsampler import DefaultWorker, LocalSampler, MultiprocessingSampler, VecWorker, evaluate, sample_to_folder
from streamsampler.errors import RolloutError, SerializationError, UsageError
from streamsampler.testing.fail_points import Records
from streamsampler.testing.scripted import ScriptedAgent, ScriptedEnv
from tests.contracts.conftest import RAY, Maker
from tests.extending.pairs import PairWorker

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


class Killing(Metrics):
    """Kills its worker in the first two trajectories with index 5 and 11."""

    def __init__(self, folder: Any) -> None:
        self.records = Records(folder)

    def on_timestep(self, context: Any) -> None:
        super().on_timestep(context)
        is_due = context.index in (5, 11) and context.timestep == 2
        if is_due and self.records.add(str(context.index), most=1):  # of two workers that run it, one alone
            os.kill(os.getpid(), signal.SIGKILL)


def crashed(info: dict[str, Any]) -> bool:
    return bool(info["crashed"])


def batches(make: Any, n_workers: int, **options: Any) -> list[Any]:
    options = {"hooks": Metrics(), **options}
    with make(ScriptedAgent(), Env((2, 9)), n_workers=n_workers, seed=SEED, **options) as sampler:
        found = [sampler.obtain_trajectories(15), sampler.obtain_samples(60, {"offset": 1})]
        assert sampler.stats.metrics == found[-1].stats.metrics
        assert sampler.stats.flat()["metrics/steps"] == found[-1].n_timesteps
        assert sampler.stats.flat()["recent/metrics/steps"] > 0
        return found


OTHERS = [
    *(pytest.param(MultiprocessingSampler, n, {}, marks=pytest.mark.slow) for n in (2, 7)),
    *(pytest.param(MultiprocessingSampler, n, {"engine": "queues"}, marks=pytest.mark.slow) for n in (1, 3)),
]
MAKERS = [
    (LocalSampler, 3, {}), (MultiprocessingSampler, 3, {}), *OTHERS,
    pytest.param(MultiprocessingSampler, 1, {}, marks=pytest.mark.slow),
]  # fmt: skip


@pytest.mark.parametrize(("make", "n_workers", "options"), MAKERS)
@pytest.mark.parametrize(
    "drop_if", [pytest.param(None, marks=pytest.mark.slow, id="all"), pytest.param(crashed, id="some left out")]
)
def test_metrics_are_the_same_for_any_number_of_workers(make, n_workers, options, drop_if):
    found = batches(make, n_workers, drop_if=drop_if, **options)
    expected = batches(LocalSampler, 1, drop_if=drop_if)
    assert found == expected
    assert [batch.stats.metrics for batch in found] == [batch.stats.metrics for batch in expected]
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


@pytest.mark.parametrize("n_workers", [2, pytest.param(3, marks=pytest.mark.slow)])
@pytest.mark.parametrize("engine", [RAY], indirect=True)
def test_actors_of_ray_call_them(make_sampler: Maker, n_workers):
    def make(agent: Any, env: Any, **options: Any) -> Any:
        return make_sampler(agent, env, **options)

    for options in ({}, {"worker_class": VecWorker, "worker_args": {"n_envs": 3}}):
        assert batches(make, n_workers, drop_if=crashed, **options) == batches(LocalSampler, 1, drop_if=crashed)


@pytest.mark.parametrize("n_workers", [2])
@pytest.mark.slow
def test_killed_workers_change_nothing(n_workers, tmp_path):
    hooks = Killing(tmp_path)
    found = batches(MultiprocessingSampler, n_workers, hooks=hooks, drop_if=crashed)
    assert found == batches(LocalSampler, 1, drop_if=crashed)
    assert hooks.records.count("5") == hooks.records.count("11") == 1


def test_abnormal_trajectories_are_left_out_and_counted():
    plain, left = (batches(LocalSampler, 1, drop_if=drop_if)[0] for drop_if in (None, crashed))
    with LocalSampler(ScriptedAgent(), Env((2, 9)), seed=SEED) as sampler:
        everything = sampler.obtain_trajectories(int(left.indices[-1]) + 1)
    bad = [
        index for index, each in enumerate(everything)
        if each.episode_infos["crashed"].any() or each.env_infos["crashed"].any()
    ]  # fmt: skip
    assert len(bad) > 2
    assert [int(index) for index in left.indices] == [i for i in range(len(everything)) if i not in bad]
    assert left.stats.dropped_trajectories == len(bad)
    assert [dropped.index for dropped in left.stats.dropped] == bad
    assert {dropped.phase for dropped in left.stats.dropped} == {"calling drop_if"}
    assert all("drop_if is true for the" in dropped.error for dropped in left.stats.dropped)
    assert plain.indices.tolist() == list(range(15))
    for each in left:
        assert each.rewards.tolist() == everything[int(each.indices[0])].rewards.tolist()
    assert left.stats.lost_timesteps > 0


@pytest.mark.parametrize("hook", ["on_trajectory_start", "on_timestep", "on_trajectory_end"])
@pytest.mark.parametrize("make", [LocalSampler, MultiprocessingSampler])
def test_an_error_names_the_hook_and_the_trajectory(make, hook):
    class Bad:
        pass

    def fail(self: Any, context: Any) -> None:
        if context.index == 3:
            raise LookupError("no such table")

    setattr(Bad, hook, fail)
    with make(ScriptedAgent(), ScriptedEnv(4), n_workers=2, seed=SEED, hooks=Bad()) as sampler:
        with pytest.raises(RolloutError, match=f"calling the hook {hook} in trajectory 3 .*no such table") as caught:
            sampler.obtain_trajectories(6)
        assert isinstance(caught.value.original, LookupError)
    with make(ScriptedAgent(), ScriptedEnv(4), n_workers=2, seed=SEED, hooks=Bad(), on_failure="drop") as sampler:
        batch = sampler.obtain_trajectories(6)
        assert batch.indices.tolist() == [0, 1, 2, 4, 5, 6]
        assert [dropped.phase for dropped in batch.stats.dropped] == [f"calling the hook {hook}"]


class Losses:
    """Records what was lost, and may fail at that itself."""

    def __init__(self, folder: Any, fails: bool = False) -> None:
        self.records, self.fails = Records(folder), fails

    def on_trajectory_lost(self, context: Any, error: BaseException) -> None:
        self.records.add(f"{context.index} after {context.timestep} {type(error).__name__}")
        if self.fails:
            raise ValueError("no room")


class Stuck(ScriptedEnv):
    """Raises in its third step where the first number is large."""

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


def test_an_exception_that_drop_if_does_not_mean_is_raised():
    def drop_if(_info: Any) -> bool:
        return False

    with (
        LocalSampler(ScriptedAgent(), Stuck(5), seed=SEED, drop_if=drop_if) as sampler,
        pytest.raises(RolloutError, match="the arm is stuck"),
    ):
        sampler.obtain_trajectories(1)
    with (
        LocalSampler(ScriptedAgent(), Env(3), seed=SEED, drop_if=lambda info: info["no"]) as sampler,
        pytest.raises(RolloutError, match=r"calling drop_if in trajectory 0.*KeyError"),
    ):
        sampler.obtain_trajectories(1)


def test_a_call_ends_where_every_trajectory_is_abnormal():
    with (
        LocalSampler(ScriptedAgent(), Env(3), seed=SEED, drop_if=lambda _info: True) as sampler,
        pytest.raises(RolloutError, match=r"too many to leave out.*drop_if is true for the reset's info"),
    ):
        sampler.obtain_trajectories(5)


def test_abnormal_trajectories_are_left_out_whatever_restarts_workers():
    options: dict[str, Any] = {"drop_if": crashed, "on_failure": "drop", "restart_on": Exception, "max_restarts": 0}
    assert batches(LocalSampler, 1, **options) == batches(LocalSampler, 1, drop_if=crashed)


def test_metrics_may_not_hide_infos_of_the_reset():
    class Hiding:
        def on_trajectory_end(self, context: Any) -> None:
            context.metrics["begins"] = 1

    with (
        LocalSampler(ScriptedAgent(), Env(3), seed=SEED, hooks=Hiding()) as sampler,
        pytest.raises(RolloutError, match="the metrics begins have names"),
    ):
        sampler.obtain_trajectories(1)


class Wordy:
    """Gives a metric that is a number in most trajectories."""

    aggregation: ClassVar = {"even": "sum", "latest": "last"}

    def on_trajectory_end(self, context: Any) -> None:
        context.metrics["mixed"] = "none" if context.index == 3 else context.index
        context.metrics["latest"] = context.rewards[-1]
        context.metrics["mean"] = context.rewards.sum()
        if context.index % 2 == 0:
            context.metrics["even"] = context.timestep


@pytest.mark.parametrize("options", [{"n_workers": 1}, {"n_workers": 3}, {"worker_class": VecWorker, "n_workers": 2}])
def test_streams_have_the_metrics_of_what_they_handed_out(options):
    with LocalSampler(ScriptedAgent(), Env((2, 9)), seed=SEED, hooks=Wordy(), **options) as sampler:
        stream = sampler.stream()
        for n in range(1, 8):
            trajectory = next(stream)
            infos = trajectory.episode_infos
            assert sampler.stats.metrics["latest"] == infos["latest"][0] == trajectory.rewards[-1]
            assert ("mixed" in sampler.stats.metrics) == (n <= 3)
        assert sampler.stats.flat()["metrics/even"] == sampler.stats.metrics["even"]
        streamed = dict(sampler.stats.metrics)
    with LocalSampler(ScriptedAgent(), Env((2, 9)), seed=SEED, hooks=Wordy()) as sampler:
        called = sampler.obtain_trajectories(7).stats.metrics
    assert streamed == pytest.approx(called, rel=1e-14)
    assert set(streamed) == {"even", "latest", "mean"}


def test_shards_keep_metrics(tmp_path):
    with LocalSampler(ScriptedAgent(), Env((2, 9)), seed=SEED, hooks=Metrics()) as sampler:
        folder = sample_to_folder(sampler, tmp_path / "data", n_trajectories=15, shard_size=4)
        assert sampler.stats.metrics == pytest.approx(batches(LocalSampler, 1)[0].stats.metrics, rel=1e-14)
    assert folder.to_batch() == batches(LocalSampler, 1)[0]


def test_what_cannot_work_is_said_at_construction():
    class Misspelt:
        def on_episode_end(self, context: Any) -> None:
            pass

    class Wrongly(Metrics):
        aggregation: ClassVar = {"steps": "median"}

    def make(**options: Any) -> LocalSampler:
        return LocalSampler(ScriptedAgent(), ScriptedEnv(), **options)

    cases: list[tuple[dict[str, Any], str]] = [
        ({"hooks": Misspelt()}, "on_trajectory_end.*it has on_episode_end"),
        ({"hooks": object()}, "none of them"),
        ({"hooks": Metrics}, r"got the class Metrics: pass Metrics\(…\)"),
        ({"hooks": Wrongly()}, "mean, sum, last; for 'steps' it is 'median'"),
        ({"drop_if": "crashed"}, "drop_if must be a function"),
        ({"hooks": Metrics(), "worker_class": PairWorker}, "PairWorker calls no hooks.*use DefaultWorker"),
        ({"drop_if": crashed, "worker_class": PairWorker}, "PairWorker calls no hooks"),
        ({"on_failure": "drop", "drop_if": crashed, "worker_class": VecWorker}, 'cannot leave out.*must be "raise"'),
    ]
    for options, what in cases:
        with pytest.raises(UsageError, match=what):
            make(**options)
    hooks = Metrics()
    hooks.seen = [threading.Lock()]
    with pytest.raises(SerializationError, match="hooks"):
        make(hooks=hooks)


class Seamed(DefaultWorker):
    def end_trajectory(self, context: Any) -> None:
        super().end_trajectory(context)


@pytest.mark.parametrize("options", [{"hooks": Metrics()}, {"drop_if": crashed}, {"worker_class": Seamed}])
def test_fragments_take_no_hooks(options):
    with LocalSampler(ScriptedAgent(), Env(), **options) as sampler, pytest.raises(UsageError, match="fragments take"):
        sampler.obtain_fragments(10)


def test_a_pickled_sampler_keeps_its_hooks():
    with LocalSampler(ScriptedAgent(), Env((2, 9)), seed=SEED, hooks=Metrics(), drop_if=crashed) as sampler:
        again = pickle.loads(pickle.dumps(sampler))
    with again:
        assert again.obtain_trajectories(15) == batches(LocalSampler, 1, drop_if=crashed)[0]


def test_an_evaluation_leaves_out_abnormal_trajectories():
    given: list[dict[str, Any]] = [{}, {"drop_if": crashed, "hooks": Metrics()}]
    plain, left = (
        evaluate(ScriptedAgent(), Env((2, 9)), num_trajectories=15, seed=SEED, n_workers=1, **options)
        for options in given
    )
    assert (plain.left_out, len(left.returns)) == (0, 15)
    assert left.left_out > 0
