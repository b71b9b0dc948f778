"""Hooks and `drop_if` where trajectories run side by side: as with `DefaultWorker`, to the last bit."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from gymnasium.vector import SyncVectorEnv

from streamsampler import LocalSampler, MultiprocessingSampler, VecWorker, replay
from streamsampler.errors import RolloutError, UsageError
from streamsampler.testing.scripted import ScriptedEnv
from tests.contracts.test_hooks import Env, Metrics, Stuck, crashed

SEED = 4


class Apart:
    """Decides for each observation by itself, alone or together with others."""

    row_independent = True

    def __init__(self, offset: int = 0) -> None:
        self.offset = offset

    def get_action(self, observation: Any) -> Any:
        return int(observation[0] * 100 + self.offset) % 2, {"seen": float(observation[0])}

    def get_actions(self, observations: Any) -> Any:
        return (observations[:, 0] * 100 + self.offset).astype(np.int64) % 2, {
            "seen": observations[:, 0].astype(np.float64)
        }

    def set_param_values(self, values: tuple[int]) -> None:
        (self.offset,) = values


class InBlocks(Apart):
    row_independent = False


class OneByOne:
    row_independent = True

    def __init__(self) -> None:
        self.inner = Apart()

    def reset(self, seed: int) -> None:
        self.n_actions = seed % 2

    def get_action(self, observation: Any) -> Any:
        self.n_actions += 1
        return self.n_actions % 2, self.inner.get_action(observation)[1]

    def set_param_values(self, values: tuple[int]) -> None:
        self.inner.set_param_values(values)


class Watching(Metrics):
    """Looks at all that a context shows, and keeps it among the metrics."""

    def on_trajectory_start(self, context: Any) -> None:
        super().on_trajectory_start(context)
        assert len(context.rewards) == len(context.observations) == len(context.actions) == 0
        assert context.reset_info is context.info
        assert isinstance(context.agent, type(context.agent))
        context.metrics["begun"] = float(context.reset_info["begins"])

    def on_timestep(self, context: Any) -> None:
        super().on_timestep(context)
        assert len(context.rewards) == len(context.actions) == len(context.observations) == context.timestep
        assert context.agent_info["seen"] == context.observations[-1][0]
        context.memory.setdefault("seen", []).append((int(context.action), float(context.reward), dict(context.info)))
        context.metrics["crashes"] = sum(info["crashed"] for _, _, info in context.memory["seen"])
        context.metrics["limited"] = (bool(context.terminated), bool(context.truncated))

    def on_trajectory_end(self, context: Any) -> None:
        seen = context.memory["seen"]
        assert context.actions.tolist() == [action for action, _, _ in seen]
        assert context.rewards.tolist() == [reward for _, reward, _ in seen]
        if not context.truncated:
            super().on_trajectory_end(context)
        assert context.terminated or context.timestep == 6
        context.metrics["ends"] = bool(context.truncated)


def outcomes(agent: Any, n_workers: int = 1, **options: Any) -> Any:
    given = {"hooks": Watching(), "seed": SEED, "max_episode_length": 6, **options}
    with LocalSampler(agent(), Env((2, 9)), n_workers=n_workers, **given) as sampler:
        batches = [
            sampler.obtain_trajectories(13), sampler.obtain_samples(70, (3,)), sampler.obtain_exact_trajectories(4),
        ]  # fmt: skip
        stats = [
            (batch.stats.metrics, [(each.index, each.phase, each.error) for each in batch.stats.dropped])
            for batch in batches
        ]
        return batches, stats, sampler.stats.kept_timesteps, sampler.stats.abandoned_timesteps >= 0


VEC: dict[str, Any] = {"worker_class": VecWorker, "worker_args": {"n_envs": 3}}
FORMS = [
    pytest.param(Apart, VEC, id="lanes"),
    pytest.param(OneByOne, VEC, id="lanes, one by one"),
    pytest.param(InBlocks, VEC, id="blocks", marks=pytest.mark.slow),
    pytest.param(InBlocks, {**VEC, "worker_args": {"n_envs": 2, "block_size": 4}}, id="longer blocks"),
]


@pytest.mark.parametrize("n_workers", [pytest.param(1, marks=pytest.mark.slow), 3])
@pytest.mark.parametrize(
    "drop_if", [pytest.param(None, marks=pytest.mark.slow, id="all"), pytest.param(crashed, id="some left out")]
)
@pytest.mark.parametrize(("agent", "form"), FORMS)
def test_they_see_and_give_what_they_do_in_the_default_worker(agent, form, drop_if, n_workers):
    if drop_if is None or n_workers == 1:  # exact calls do not make up for what is left out
        assert outcomes(agent, n_workers, drop_if=drop_if, **form) == outcomes(agent, n_workers, drop_if=drop_if)
    else:
        found, expected = (outcomes(agent, n, drop_if=drop_if, **form)[0][:2] for n in (n_workers, 1))
        assert found == expected
        assert sum(len(batch.stats.dropped) for batch in found) > 0


@pytest.mark.parametrize(("agent", "form"), FORMS)
def test_trajectories_that_were_left_out_are_accounted_for(agent, form):
    def stats_of(**options: Any) -> Any:
        given = {"n_workers": 1, "seed": SEED, "drop_if": crashed, "check": None, **options}
        with LocalSampler(agent(), Env((2, 9)), **given) as sampler:
            return sampler.obtain_trajectories(12).stats

    found, expected = stats_of(**form), stats_of()
    assert found.dropped_trajectories == expected.dropped_trajectories > 1
    assert found.kept_timesteps == expected.kept_timesteps
    assert found.lost_timesteps >= expected.lost_timesteps > 0
    ran = sum(found.worker_timesteps)
    parts = found.kept_timesteps, found.lost_timesteps, found.surplus_timesteps, found.abandoned_timesteps
    assert ran == sum(parts)


def test_a_call_ends_where_all_trajectories_are_left_out():
    with (
        LocalSampler(Apart(), Env(3), seed=SEED, drop_if=lambda _info: True, **VEC) as sampler,
        pytest.raises(RolloutError, match=r"too many to leave out.*drop_if is true for the reset's info"),
    ):
        sampler.obtain_trajectories(5)


@pytest.mark.parametrize("hook", ["on_trajectory_start", "on_timestep", "on_trajectory_end"])
@pytest.mark.parametrize("make", [LocalSampler, pytest.param(MultiprocessingSampler, marks=pytest.mark.slow)])
@pytest.mark.parametrize(
    "agent", [Apart, *(pytest.param(each, marks=pytest.mark.slow) for each in (InBlocks, OneByOne))]
)
def test_an_error_names_the_hook_and_the_trajectory(make, hook, agent):
    class Bad:
        pass

    def fail(self: Any, context: Any) -> None:
        if context.index == 4:
            raise LookupError("no such table")

    setattr(Bad, hook, fail)
    with make(agent(), ScriptedEnv((2, 5)), n_workers=2, seed=SEED, hooks=Bad(), **VEC) as sampler:
        with pytest.raises(RolloutError, match=f"calling the hook {hook} in trajectory 4 .*no such table") as caught:
            sampler.obtain_trajectories(9)
        assert isinstance(caught.value.original, LookupError)


LOST: list[tuple[int, int, str]] = []


class Losses:
    def on_trajectory_lost(self, context: Any, error: BaseException) -> None:
        n_recorded = {len(context.rewards), len(context.observations), len(context.actions)}
        assert n_recorded == {context.timestep}
        LOST.append((context.index, context.timestep, type(error).__name__))


class Refusing(Apart):
    """Raises where a number is large, which it is in one trajectory after some timesteps."""

    def get_actions(self, observations: Any) -> Any:
        if (observations[:, 1] > 0.99).any():
            raise ValueError("too large")
        return super().get_actions(observations)


@pytest.mark.parametrize("base", [Apart, InBlocks])
def test_the_hook_of_lost_trajectories_sees_what_was_left_out_and_what_raised(base):
    class Raising(Refusing, base):  # type: ignore[misc,valid-type]
        pass

    given: dict[str, Any] = {"seed": SEED, "n_workers": 1, "hooks": Losses(), "check": None, **VEC}
    LOST.clear()
    with LocalSampler(base(), Env((2, 9)), drop_if=crashed, **given) as sampler:
        batch = sampler.obtain_trajectories(13)
    left_out = [each.index for each in batch.stats.dropped]
    assert len(left_out) > 1
    assert [index for index in left_out if index in {lost[0] for lost in LOST}] == left_out
    assert {kind for _, _, kind in LOST} == {"AbnormalTrajectoryError"}
    LOST.clear()
    with (
        LocalSampler(base(), Stuck(5), **given) as sampler,
        pytest.raises(RolloutError, match="the arm is stuck"),
    ):
        sampler.obtain_trajectories(3)
    assert LOST == [(0, 3, "OSError")]
    LOST.clear()
    with (
        LocalSampler(Raising(), Env(30), **given) as sampler,
        pytest.raises(RolloutError, match="too large") as caught,
    ):
        sampler.obtain_trajectories(8)
    assert [(index, kind) for index, _, kind in LOST] == [(caught.value.trajectory, "ValueError")]
    assert LOST[0][1] > 0


def test_vector_environments_take_no_hooks():
    def make() -> Any:
        return SyncVectorEnv([lambda: Env(3)] * 2)

    given: list[dict[str, Any]] = [{"hooks": Metrics()}, {"drop_if": crashed}]
    for options in given:
        with (
            LocalSampler(Apart(), make, seed=SEED, worker_class=VecWorker, **options) as sampler,
            pytest.raises(RolloutError, match="between the timesteps of one trajectory") as caught,
        ):
            sampler.obtain_trajectories(2)
        assert isinstance(caught.value.original, UsageError)


@pytest.mark.parametrize(("agent", "form"), [(Apart, VEC), (InBlocks, VEC), (Apart, {})])
@pytest.mark.parametrize("drop_if", [pytest.param(None, marks=pytest.mark.slow), crashed])
def test_replays_have_the_metrics(agent, form, drop_if):
    options = {"hooks": Watching(), "drop_if": drop_if, "max_episode_length": 6, **form}
    with LocalSampler(agent(), Env((2, 9)), seed=SEED, n_workers=1, **options) as sampler:
        batch = sampler.obtain_trajectories(13)
        for index in (int(batch.indices[0]), int(batch.indices[-1])):
            recorded = batch[int(np.flatnonzero(batch.indices == index)[0])]
            options.pop("max_episode_length", None)
            for found in (
                sampler.replay(1, index, recorded=batch),
                replay(batch, index, agent=agent(), env=Env((2, 9)), max_episode_length=6, **options),
            ):
                assert found.same
                for name in ("steps", "begun", "ends", "largest"):
                    assert found.trajectory.episode_infos[name].tolist() == recorded.episode_infos[name].tolist()


def test_rows_have_hooks_of_their_own():
    class Alone:
        def on_trajectory_start(self, context: Any) -> None:
            assert getattr(self, "index", None) is None
            self.index = context.index

        def on_timestep(self, context: Any) -> None:
            assert self.index == context.index

        def on_trajectory_end(self, context: Any) -> None:
            self.index = None
            context.metrics["hooks"] = id(self)

    with LocalSampler(Apart(), Env((2, 9)), n_workers=1, seed=SEED, hooks=Alone(), check=None, **VEC) as sampler:
        batch = sampler.obtain_trajectories(12)
    of_row = batch.episode_infos["hooks"].reshape(4, 3)
    assert len(set(of_row[0].tolist())) == 3
    assert all((one == other).all() for one, other in pairwise(of_row))
