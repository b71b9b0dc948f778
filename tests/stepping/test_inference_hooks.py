"""Hooks and `drop_if` with the agent in the sampler's process: as with `VecWorker`, whatever is lost."""

from __future__ import annotations

import functools
from typing import Any

import pytest

from streamsampler import LocalSampler, MultiprocessingSampler, TrajectoryBatch, VecWorker
from streamsampler.errors import RolloutError, UsageError
from streamsampler.testing import Fault, Faults
from tests.contracts.test_hooks import Env, crashed
from tests.workers.vec.test_hooks import Apart, InBlocks, OneByOne, Watching

N_ENVS = 3
GIVEN: dict[str, Any] = {"seed": 4, "worker_args": {"n_envs": N_ENVS}, "drop_if": crashed, "check": None}


def in_parent(agent: Any, env: Any, n_workers: int = 2, **options: Any) -> MultiprocessingSampler[Any, Any]:
    return MultiprocessingSampler(agent, env, n_workers=n_workers, inference="parent", **{**GIVEN, **options})


class Looking(Watching):
    """Looks at all that a context shows, but for the environment."""

    def on_trajectory_end(self, context: Any) -> None:
        context.metrics["seen"] = len(context.memory["seen"])
        context.metrics["total"] = float(context.rewards.sum())


def outcomes(sampler: Any) -> Any:
    batches = [
        sampler.obtain_trajectories(13),
        sampler.obtain_samples(70, (3,)),
        sampler.obtain_trajectories(seeds=list(range(40, 60))),
        TrajectoryBatch.concatenate(list(sampler.stream(n_trajectories=8))),
    ]
    dropped = [
        [(each.index, each.phase, each.error) for each in batch.stats.dropped] for batch in batches if batch.stats
    ]
    return batches, dropped, [batch.stats.metrics for batch in batches if batch.stats], sampler.stats.kept_timesteps


def expected(agent: Any, **options: Any) -> Any:
    with LocalSampler(agent(), Env((2, 9)), worker_class=VecWorker, **GIVEN, **options) as sampler:
        return outcomes(sampler)


@pytest.mark.parametrize("agent", [Apart, *(pytest.param(it, marks=pytest.mark.slow) for it in (OneByOne, InBlocks))])
@pytest.mark.parametrize("n_workers", [3, *(pytest.param(n, marks=pytest.mark.slow) for n in (1, 2))])
@pytest.mark.parametrize("hooks", [Looking(), pytest.param(None, marks=pytest.mark.slow)])
def test_they_see_and_leave_out_what_they_do_with_vec_worker(agent, n_workers, hooks):
    with in_parent(agent(), Env((2, 9)), n_workers, max_episode_length=6, hooks=hooks) as sampler:
        found = outcomes(sampler)
    assert found == expected(agent, max_episode_length=6, hooks=hooks)
    assert any(found[1])
    assert all(found[2]) == (hooks is not None)


@pytest.mark.parametrize("agent", [*(pytest.param(it, marks=pytest.mark.slow) for it in (Apart, OneByOne)), InBlocks])
@pytest.mark.slow
def test_lost_processes_change_nothing(agent, tmp_path):
    faults = Faults(tmp_path, Fault("kill", "reset"), *(Fault("kill", "step", step=step) for step in (1, 3, 7)))
    with in_parent(agent(), faults.env(functools.partial(Env, (2, 9))), hooks=Looking()) as sampler:
        found = outcomes(sampler)
        assert 1 <= sampler.stats.restarts <= faults.fired() == 4
    assert found[:3] == expected(agent, hooks=Looking())[:3]


@pytest.mark.slow  # how much is run in vain depends on timing
def test_what_is_left_out_is_accounted_for():
    with in_parent(Apart(), Env((2, 9))) as sampler:
        stats = sampler.obtain_trajectories(12).stats
    parts = stats.kept_timesteps, stats.lost_timesteps, stats.surplus_timesteps, stats.abandoned_timesteps
    assert sum(stats.worker_timesteps) == sum(parts)
    assert stats.dropped_trajectories > 1


def test_what_cannot_be_is_an_error():
    with (
        in_parent(Apart(), Env(3), drop_if=lambda _info: True) as sampler,
        pytest.raises(RolloutError, match=r"too many to leave out.*drop_if is true for the reset's info"),
    ):
        sampler.obtain_trajectories(5)
    with (
        in_parent(Apart(), Env(3), drop_if=lambda info: info["no"]) as sampler,
        pytest.raises(RolloutError, match=r"calling drop_if in trajectory 0.*KeyError"),
    ):
        sampler.obtain_trajectories(2)
    with in_parent(Apart(), Env(3)) as sampler, pytest.raises(UsageError, match="fragments take no hooks, no drop_if"):
        sampler.obtain_fragments(2)


class Reaching:
    """Uses what is in another process."""

    def __init__(self, hook: str, use: Any) -> None:
        self.use = use
        setattr(self, hook, self.reach)

    def reach(self, context: Any) -> None:
        self.use(context)


class Keeping:
    """Keeps what it is shown, and looks at it at the end."""

    def on_trajectory_start(self, context: Any) -> None:
        self.seen = [context.observation]

    def on_timestep(self, context: Any) -> None:
        self.seen.append(context.observation)

    def on_trajectory_end(self, context: Any) -> None:
        context.metrics["sum"] = float(sum(each.sum() for each in self.seen))


@pytest.mark.parametrize("agent", [Apart, InBlocks])
def test_observations_that_hooks_keep_stay_what_they_were(agent):
    with in_parent(agent(), Env((2, 9)), hooks=Keeping(), drop_if=None) as sampler:
        found = sampler.obtain_trajectories(9)
    with LocalSampler(
        agent(), Env((2, 9)), worker_class=VecWorker, **{**GIVEN, "hooks": Keeping(), "drop_if": None}
    ) as it:
        assert found == it.obtain_trajectories(9)


USES = {
    "reads": lambda context: context.env.unwrapped,
    "steps": lambda context: context.env.step(0),
    "resets": lambda context: context.reset(seed=3),
    "sets": lambda context: setattr(context.env, "level", 3),
}


@pytest.mark.parametrize("use", USES)
@pytest.mark.parametrize("hook", ["on_trajectory_start", "on_timestep", "on_trajectory_end"])
@pytest.mark.parametrize("agent", [Apart, pytest.param(InBlocks, marks=pytest.mark.slow)])
def test_hooks_that_use_the_environment_are_an_error(agent, hook, use):
    with (
        in_parent(agent(), Env(3), hooks=Reaching(hook, USES[use]), drop_if=None) as sampler,
        pytest.raises(RolloutError, match=rf"{hook}.*hooks have no context.env and no context.reset") as caught,
    ):
        sampler.obtain_trajectories(2)
    assert isinstance(caught.value.original, UsageError)


class Losing(Looking):
    """Raises late in a trajectory, and notes what was lost."""

    def __init__(self, folder: Any) -> None:
        self.folder = folder

    def on_timestep(self, context: Any) -> None:
        if context.timestep == 2:
            raise ArithmeticError("no more")

    def on_trajectory_lost(self, context: Any, error: BaseException) -> None:
        (self.folder / f"{context.index} {type(error).__name__}").touch()


def test_what_a_hook_raises_is_an_error_that_hooks_are_told_of(tmp_path):
    with (
        in_parent(Apart(), Env(3), hooks=Losing(tmp_path), drop_if=None) as sampler,
        pytest.raises(RolloutError, match=r"on_timestep.*in trajectory 0.*no more"),
    ):
        sampler.obtain_trajectories(2)
    assert [file.name for file in tmp_path.iterdir()] == ["0 ArithmeticError"]
